package main

import (
	"context"
	"log/slog"
	"math"
	"net"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate/broker/internal/connlimit"
	"github.com/tidegate/tidegate/broker/server"
)

// Bounds of what maxConnections chooses.
const (
	leastConnections = 16
	mostConnections  = 1 << 16
)

// fullInterval is how often at most it is logged that an address has as many
// connections as it may.
const fullInterval = time.Minute

// maxConnections is how many connections an address takes at a time if no
// setting says it, by how many files the process may have open: a quarter of
// them. So those of both addresses leave half of the files to the store, which
// could not go on without, where there are twice leastConnections for it.
// 0 files: it is not known, or there is no limit.
func maxConnections(files uint64) int {
	if files == 0 {
		return mostConnections
	}
	return int(min(max(files/4, leastConnections), mostConnections))
}

// connectionsEach is how many connections each address takes at a time.
func (s *settings) connectionsEach() int {
	if s.maxConnections > 0 {
		return s.maxConnections
	}
	return maxConnections(min(openFiles(), math.MaxInt32))
}

// mostSilent returns how many of the most connections may be silent: half of them, so that clients
// that send nothing leave room for others.
func mostSilent(most int) int {
	return min(max(most/2, 1), server.DefaultMaxSilentConnections)
}

// listen listens at an address, whose socket control may set up. When it has as many connections
// as it may have, a new one takes the place of the one that has been idle longest, see connlimit.
func listen(ctx context.Context, address string, most int, logger *slog.Logger, control func(network, address string, c syscall.RawConn) error) (net.Listener, error) {
	lc := net.ListenConfig{Control: control}
	lis, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	full := fullLog{logger: logger, address: lis.Addr().String(), most: most, lines: rate.Sometimes{Interval: fullInterval}}
	return connlimit.Limit(lis, most, full.note), nil
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
		l.logger.Warn("this address has as many connections as it may have: idle ones are closed in favour of new ones, and where none is idle new ones wait: "+
			"raise max_connections, or end clients that need none",
			"address", l.address, "max_connections", l.most, "closed", l.closed, "waited", l.waited)
		l.closed, l.waited = 0, 0
	})
}
