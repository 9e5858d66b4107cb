package main

import (
	"context"
	"log/slog"
	"math"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/netutil"

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
func (s settings) connectionsEach() int {
	if s.maxConnections > 0 {
		return s.maxConnections
	}
	return maxConnections(min(openFiles(), math.MaxInt32))
}

// mostSilent is how many of the most connections may say nothing: half of them,
// so that who opens them and is silent keeps nobody out who has something to say.
func mostSilent(most int) int {
	return min(max(most/2, 1), server.DefaultMaxSilentConnections)
}

// listen listens at an address, whose socket control may set up. Connections
// beyond the most wait to be accepted until another one ends; that is logged.
func listen(ctx context.Context, address string, most int, logger *slog.Logger, control func(network, address string, c syscall.RawConn) error) (net.Listener, error) {
	lc := net.ListenConfig{Control: control}
	lis, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return netutil.LimitListener(&counted{Listener: lis, most: most, logger: logger}, most), nil
}

// A counted listener counts its connections, and logs when there are as many as
// there may be.
type counted struct {
	net.Listener
	most   int
	logger *slog.Logger

	mu   sync.Mutex
	open int
	told time.Time // when it was logged last
}

// Accept implements net.Listener.
func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if l.opened() {
		l.logger.Warn("this address has as many connections as it may have, and more of them wait: raise max_connections, or end clients that need none",
			"address", l.Addr().String(), "max_connections", l.most)
	}
	return &countedConn{Conn: c, closed: sync.OnceFunc(l.closed)}, nil
}

// opened counts a connection, and reports whether to log that there may be no more.
func (l *counted) opened() (tell bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open++; l.open < l.most || !l.told.IsZero() && time.Since(l.told) < fullInterval {
		return false
	}
	l.told = time.Now()
	return true
}

func (l *counted) closed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
}

type countedConn struct {
	net.Conn
	closed func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	defer c.closed()
	return c.Conn.Close()
}
