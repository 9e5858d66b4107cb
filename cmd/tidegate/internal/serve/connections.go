package serve

import (
	"context"
	"log/slog"
	"math"
	"net"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/internal/admission"
)

// Bounds of the result of maxConnections.
const (
	leastConnections = 16
	mostConnections  = 1 << 16
)

// fullInterval is how often at most it is logged that an address has as many
// connections as it may.
const fullInterval = time.Minute

// maxConnections returns the default maximum of connections of an address: a quarter of the open
// files that the process can have. The two addresses therefore leave half of the files to the
// store, which needs them, unless leastConnections is more. files is 0 if the number
// is unknown or unlimited.
func maxConnections(files uint64) int {
	if files == 0 {
		return mostConnections
	}
	return int(min(max(files/4, leastConnections), mostConnections))
}

// connectionsEach is how many connections each address takes at a time.
func (s *configuration) connectionsEach() int {
	if s.maxConnections > 0 {
		return s.maxConnections
	}
	return maxConnections(min(openFiles(), math.MaxInt32))
}

// mostSilent returns how many of the most connections may be silent: half of them, so that clients
// that send nothing leave room for others.
func mostSilent(most int) int {
	return min(max(most/2, 1), server.Options{}.WithDefaults().MaxSilentConnections)
}

// listen listens at an address. control can set options of the socket. Beyond the maximum, a new
// connection replaces the longest idle one (package admission).
func listen(ctx context.Context, address string, most int, logger *slog.Logger, control func(network, address string, c syscall.RawConn) error) (net.Listener, error) {
	lc := net.ListenConfig{Control: control}
	lis, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	full := fullLog{logger: logger, address: lis.Addr().String(), most: most, lines: rate.Sometimes{Interval: fullInterval}}
	return admission.LimitConns(lis, most, full.note), nil
}

// A fullLog logs that an address has as many connections as it may have. One goroutine at a time
// uses it.
type fullLog struct {
	logger  *slog.Logger
	address string
	most    int

	lines          rate.Sometimes
	closed, waited int // since the last line
}

// note notes that a new connection met the limit, with whether it has to wait.
func (l *fullLog) note(waits bool) {
	if waits {
		l.waited++
	} else {
		l.closed++
	}
	l.lines.Do(func() {
		l.logger.Warn("connection limit reached: a new connection replaces an idle one, or waits if none is idle; "+
			"raise max_connections, or stop clients",
			"address", l.address, "max_connections", l.most, "closed", l.closed, "waited", l.waited)
		l.closed, l.waited = 0, 0
	})
}
