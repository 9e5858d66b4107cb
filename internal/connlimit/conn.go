package connlimit

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// The state of a connection is the number of its requests under way and these two bits.
const (
	authenticated uint64 = 1 << 62 // the last request was
	closing       uint64 = 1 << 63 // another connection takes its place
)

// A Conn is one connection of a [Listener]. Goroutines may share it. All methods except those of
// net.Conn may be called on a nil Conn, which is a connection without a limit.
type Conn struct {
	net.Conn
	lis   *Listener
	state atomic.Uint64
	since atomic.Int64 // when it became idle, in ns since the listener began
	close func() error
}

func newConn(raw net.Conn, l *Listener) *Conn {
	c := &Conn{Conn: raw, lis: l}
	c.since.Store(int64(time.Since(l.began)))
	c.close = sync.OnceValue(func() error {
		defer l.remove(c)
		return raw.Close()
	})
	return c
}

// Of returns the Conn that c is or, as a *tls.Conn does, stands on. It returns nil if there is
// none.
func Of(c net.Conn) *Conn {
	for {
		switch v := c.(type) {
		case *Conn:
			return v
		case interface{ NetConn() net.Conn }:
			c = v.NetConn()
		default:
			return nil
		}
	}
}

// Begin notes that a request of the connection begins. It returns false if the connection is being
// closed for another one: the client reads no response, so the request must not be carried out.
// End must be called after Begin, for both results.
func (c *Conn) Begin() bool { return c == nil || c.state.Add(1)&closing == 0 }

// End notes that a request of the connection has ended.
func (c *Conn) End() {
	if c == nil {
		return
	}
	c.since.Store(int64(time.Since(c.lis.began)))
	if c.state.Add(^uint64(0)) == 0 {
		c.lis.wake()
	}
}

// Authenticated notes whether the client of a request under way is authenticated.
func (c *Conn) Authenticated(yes bool) {
	switch {
	case c == nil:
	case yes:
		c.state.Or(authenticated)
	default:
		c.state.And(^authenticated)
	}
}

// Close implements net.Conn.
func (c *Conn) Close() error { return c.close() }
