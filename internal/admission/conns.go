// Package admission bounds what the clients of a server can take before their requests are known to
// be worth it: connections, handshakes, streams that are reset, and memory.
//
// A connection passes three doors, each in a file:
//
//   - conns: a [Listener] bounds the open connections. A new one takes the place of the one that
//     has been idle longest, so clients that open connections and keep them lock no others out.
//   - link, sniff: [Credentials] distinguish TLS from plain text by the first byte, so one port
//     takes both. They bound the silent connections, and create a certificate for a server without
//     one.
//   - memory: a [Budget] bounds the bytes that requests and responses take on their way through
//     the server, for the whole process, and divides them among the connections.
package admission

import (
	"cmp"
	"net"
	"slices"
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

// ConnOf returns the Conn that c is or, as a *tls.Conn does, stands on. It returns nil if there is
// none.
func ConnOf(c net.Conn) *Conn {
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

// idleGrace is how long a connection must have been idle before it is closed for another one. New
// clients use the time to begin with a request, and responses to reach the network.
const idleGrace = time.Second

// A Listener accepts a limited number of connections at a time. One goroutine at a time calls
// Accept.
type Listener struct {
	net.Listener
	most  int
	full  func(waits bool)
	began time.Time

	room    chan struct{} // capacity 1: Accept should look again
	waiting atomic.Bool   // Accept waits for room
	closed  chan struct{}
	end     func() error

	mu   sync.Mutex
	open map[*Conn]struct{} // guarded by mu
	idle []candidate        // guarded by mu: the rest of the last survey, longest idle first
}

// LimitConns returns a listener that has at most so many connections of lis open, each a [*Conn].
// When the limit is reached, Accept closes the connection that has been idle longest in favour of
// the new one. If there is none that it may close, Accept waits until there is, and the clients
// that come after the new one wait in the queue of the operating system. full is called when a
// connection meets the limit, with whether it has to wait; it must not block.
func LimitConns(lis net.Listener, most int, full func(waits bool)) *Listener {
	l := &Listener{
		Listener: lis, most: most, full: full, began: time.Now(),
		room: make(chan struct{}, 1), closed: make(chan struct{}), open: map[*Conn]struct{}{},
	}
	l.end = sync.OnceValue(func() error {
		close(l.closed)
		return lis.Close()
	})
	return l
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := newConn(raw, l)
	defer l.waiting.Store(false)
	for reported := false; ; {
		l.waiting.Store(true) // before the look, so that nothing that happens after it is missed
		admitted, victim, again := l.admit(c)
		if victim != nil {
			_ = victim.Close()
		}
		if (victim != nil || !admitted) && !reported {
			l.full(!admitted)
			reported = true
		}
		if admitted {
			return c, nil
		}
		timer := time.NewTimer(again)
		select {
		case <-l.room:
		case <-timer.C:
		case <-l.closed:
			timer.Stop()
			_ = raw.Close()
			return nil, net.ErrClosed
		}
		timer.Stop()
	}
}

// admit adds c to the open connections, if need be in place of a victim, which the caller has to
// close. If there is no place, again is when to try again at the latest.
func (l *Listener) admit(c *Conn) (admitted bool, victim *Conn, again time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= l.most {
		if victim, again = l.victimLocked(time.Since(l.began)); victim == nil {
			return false, nil, again
		}
		delete(l.open, victim)
	}
	l.open[c] = struct{}{}
	return true, victim, 0
}

// victimLocked returns the connection that has been idle longest at now, counted from the
// Listener's begin, and marks it as closing. It returns nil and when to look again if there is
// none.
//
// A connection that has not changed since the last survey has been idle for longer than each
// connection that has, so the rest of a survey is used up before the next one.
func (l *Listener) victimLocked(now time.Duration) (victim *Conn, again time.Duration) {
	for surveyed := false; ; surveyed = true {
		for len(l.idle) > 0 {
			first := l.idle[0]
			if _, open := l.open[first.conn]; !open || first.conn.candidate() != first {
				l.idle = l.idle[1:]
				continue
			}
			if due := first.since + idleGrace - now; due > 0 {
				return nil, due
			}
			l.idle = l.idle[1:]
			if first.conn.state.CompareAndSwap(0, closing) {
				return first.conn, 0
			}
		}
		if surveyed {
			return nil, idleGrace
		}
		all := make([]candidate, 0, len(l.open))
		for c := range l.open {
			all = append(all, c.candidate())
		}
		l.idle = longestIdle(all)
	}
}

// A candidate is a connection as a survey finds it.
type candidate struct {
	conn  *Conn
	state uint64
	since time.Duration // when it was accepted or its last request ended, after the Listener's begin
}

func (c *Conn) candidate() candidate {
	return candidate{c, c.state.Load(), time.Duration(c.since.Load())}
}

// longestIdle returns those of all connections that may be closed for another one: without a
// request under way and without an authenticated client. The one that has been idle longest comes
// first. It reorders all.
func longestIdle(all []candidate) []candidate {
	idle := slices.DeleteFunc(all, func(c candidate) bool { return c.state != 0 })
	slices.SortStableFunc(idle, func(a, b candidate) int { return cmp.Compare(a.since, b.since) })
	return idle
}

// wake has Accept look for room again if it waits.
func (l *Listener) wake() {
	if !l.waiting.Load() {
		return
	}
	select {
	case l.room <- struct{}{}:
	default:
	}
}

// remove forgets a connection that was closed.
func (l *Listener) remove(c *Conn) {
	l.mu.Lock()
	delete(l.open, c)
	l.mu.Unlock()
	l.wake()
}

// Close implements net.Listener. It leaves the open connections alone.
func (l *Listener) Close() error { return l.end() }
