package admission

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// A Link is a connection below TLS. Its methods also work with a nil Link, which means an unknown
// connection.
type Link struct {
	raw   net.Conn
	limit *Conn // nil: the number of connections has no limit
	crowd *crowd

	beat atomic.Int64 // the time of the last heartbeat for all clients, in ns since 1970; 0 before

	mu     sync.Mutex
	opened int           // guarded by mu: streams whose handlers have not begun
	resets *rate.Limiter // guarded by mu: of Reset; nil before the first
	until  time.Time     // guarded by mu: reading pauses until then because of resets
	ended  bool          // guarded by mu
}

// End closes the connection without waiting for the client.
func (l *Link) End() { _ = l.raw.Close() }

// Ended reports whether gRPC has closed the connection.
func (l *Link) Ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// Beat notes a heartbeat for all clients on the connection.
func (l *Link) Beat(now time.Time) {
	if l != nil {
		l.beat.Store(now.UnixNano())
	}
}

// LastBeat returns the time of the last Beat, in nanoseconds since 1970, or 0 before the first.
func (l *Link) LastBeat() int64 {
	if l == nil {
		return 0
	}
	return l.beat.Load()
}

// Limit returns the connection as the limit of connections counts it, nil without a limit.
func (l *Link) Limit() *Conn {
	if l == nil {
		return nil
	}
	return l.limit
}

// Opened notes that the client has opened a stream, which gRPC starts a goroutine for.
func (l *Link) Opened() { l.add(1) }

// Begun notes that the handler of a stream begins.
func (l *Link) Begun() { l.add(-1) }

// Reset notes that the client has cancelled a stream soon after it opened it. A client can do this
// without end, because a cancelled stream does not count in HTTP/2's limit of streams
// (CVE-2023-44487). So reading from the connection pauses while the client has cancelled more than
// resetBurst streams and resetRate a second.
func (l *Link) Reset() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.resets == nil {
		l.resets = rate.NewLimiter(resetRate, resetBurst)
	}
	now := time.Now()
	l.until = now.Add(l.resets.ReserveN(now, 1).DelayFrom(now))
}

// wait pauses before the connection is read: for resets, and while too many streams of all
// connections wait for their handlers and some of these are this connection's. It ends after a
// second in any case, so that it does not outlive the connection for long.
func (l *Link) wait() {
	l.mu.Lock()
	resets, waiting := time.Until(l.until), l.opened > 0
	l.mu.Unlock()
	if resets > 0 {
		<-time.After(min(resets, time.Second))
	}
	if waiting {
		l.crowd.wait()
	}
}

func (l *Link) add(n int) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.opened += n
		l.crowd.opened.Add(int64(n))
	}
}

// close notes the end of the connection. It returns false if that was known.
func (l *Link) close() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.ended = true
	l.crowd.opened.Add(-int64(l.opened))
	return true
}

const (
	// mostOpened is how many streams of all connections may wait for their handlers to begin
	// before reading from connections pauses. gRPC starts a goroutine for each stream as fast as
	// it reads them, so without a pause a flood of requests would take memory for goroutines
	// that could do nothing but reject.
	mostOpened = 1000

	// resetRate is how many streams a second a client may cancel within ResetTime, and resetBurst
	// how many at once.
	resetRate  = 250
	resetBurst = 500

	// ResetTime is how long after its begin a cancelled stream counts as a reset.
	ResetTime = 100 * time.Millisecond

	// pause is the maximal pause of reading from a connection, and look the interval of checks
	// whether reading may continue.
	pause = 50 * time.Millisecond
	look  = time.Millisecond
)

// A crowd counts the streams of all connections that wait for their handlers.
type crowd struct{ opened atomic.Int64 }

// wait waits while there are too many, for a bounded time.
func (c *crowd) wait() {
	if c.opened.Load() <= mostOpened {
		return
	}
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for range pause / look {
		<-ticker.C
		if c.opened.Load() <= mostOpened {
			return
		}
	}
}
