package throttle

import (
	"math"
	"time"
)

const (
	// fairWindow is how long a client has a share after its last send or wait.
	fairWindow = 10 * time.Second

	// maxSharers bounds the number of clients with a share of their own. Further clients have one
	// share together.
	maxSharers = 4096
)

// fairness divides the room after a throttle among the clients that want to send. Without it the
// most aggressive client would take the whole room: that client retries all the time, while the
// others wait for the announced time.
//
// Sharing lasts from the end of a throttle until the backlog is well below the limit. Each client
// seen in the last fairWindow has a token bucket. A bucket starts with an equal part of half of the
// room, and gains an equal part of the drain rate. So the backlog stays about the same. The zero
// value is ready for use.
type fairness struct {
	clients map[string]*tokens
	purged  time.Time
}

// tokens are the token bucket of one client, in messages or bytes.
type tokens struct {
	left float64
	at   time.Time // when left was computed
	seen time.Time
}

// see records that a client wants to send, and returns its tokens.
func (f *fairness) see(client string, now time.Time) *tokens {
	if now.Sub(f.purged) >= time.Second {
		f.purged = now
		for name, c := range f.clients {
			if now.Sub(c.seen) > fairWindow {
				delete(f.clients, name)
			}
		}
	}
	c := f.clients[client]
	if c == nil && len(f.clients) >= maxSharers {
		client = ""
		c = f.clients[client]
	}
	if c == nil {
		if f.clients == nil {
			f.clients = map[string]*tokens{}
		}
		c = &tokens{left: math.Inf(1), at: now} // full: take lowers it to the size of a bucket
		f.clients[client] = c
	}
	c.seen = now
	return c
}

// take takes cost from the tokens of a client. If the client has too few tokens, take returns false
// and the time until it has enough. room is the amount that all clients together can send until the
// limit is reached again. rate is the drain rate per second.
func (f *fairness) take(client string, cost, room, rate float64, now time.Time) (wait time.Duration, ok bool) {
	c := f.see(client, now)
	n := float64(len(f.clients))
	if n == 1 {
		return 0, true // there is no other client
	}
	most := max(cost, room/2/n)
	c.left = min(most, c.left+rate/n*now.Sub(c.at).Seconds())
	c.at = now
	if c.left >= cost {
		c.left -= cost
		return 0, true
	}
	return pushBack(int64(math.Ceil(cost-c.left)), rate/n), false
}

// A Share describes the share of a client that has used it up for now.
type Share struct {
	Measure   Measure   // ByMessages or ByBytes
	PerSecond int64     // of one client
	Clients   int       // number of clients that share
	Since     time.Time // when the limit ended

	RetryAfter time.Duration // until the client has enough tokens for the message
}

// Wait records that a limit has rejected a send of a client. The client has a share when the limit
// ends.
func (b *Backlog) Wait(client string, now time.Time) { b.fair.see(client, now) }

// Sharing reports whether the clients shared the room at the last Update. They do from the end of a
// limit until the backlog is well below it, unless another limit rejects sends.
func (b *Backlog) Sharing() bool { return b.sharing }

// Share decides whether a client may send a message of size bytes. Call it while Sharing is true.
// messages and bytes are the drain rates per second. Each client that has sent or waited in the
// last ten seconds has an equal share of the drain rate; a single client is not limited. If the
// client has used up its share, Share returns the share and false.
func (b *Backlog) Share(client string, size int64, value, marks Amount, messages, bytes float64, now time.Time) (Share, bool) {
	m := b.ended
	by, cost, room, drained := ByMessages, 1.0, float64(marks[m]-value[m]), messages
	switch m {
	case ByBytes:
		by, cost, drained = ByBytes, max(1, float64(size)), bytes
	case ByAge:
		room = messages // the messages drained in one second
	}
	// Even if little or nothing drains, clients may use the room within fairWindow.
	drained = max(drained, room/fairWindow.Seconds(), cost/fairWindow.Seconds())
	wait, ok := b.fair.take(client, cost, room, drained, now)
	if ok {
		return Share{}, true
	}
	n := len(b.fair.clients)
	return Share{Measure: by, PerSecond: int64(drained / float64(n)), Clients: n, Since: b.gates[m].since, RetryAfter: wait}, false
}
