package throttle

import (
	"math"
	"time"
)

const (
	// fairWindow is how long a client that does not send counts among those
	// that share.
	fairWindow = 10 * time.Second

	// maxSharers bounds how many clients are told apart; those beyond share as one.
	maxSharers = 4096
)

// fairness divides the room that there is after a throttle among the clients
// that want to send. Without it the most aggressive one would have it all: the
// others wait, as they were told to, while it tries all the time.
//
// From the end of a throttle until the backlog is well below it, each client
// seen of late has tokens: an equal part of the drain rate, and of half of the
// room to begin with. So the backlog stays about where it is. Its zero value
// is ready for use.
type fairness struct {
	clients map[string]*tokens
	purged  time.Time
}

// tokens are what one client may send.
type tokens struct {
	left float64
	at   time.Time // of left
	seen time.Time
}

// see notes that a client wants to send.
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
		c = &tokens{left: math.Inf(1), at: now} // as many as it may have
		f.clients[client] = c
	}
	c.seen = now
	return c
}

// take lets a client send what costs that much, or says how long it waits for
// its next token. room is what all together can send until the throttle is
// back, rate what is drained a second.
func (f *fairness) take(client string, cost, room, rate float64, now time.Time) (wait time.Duration, ok bool) {
	c := f.see(client, now)
	n := float64(len(f.clients))
	if n == 1 {
		return 0, true // nobody to share with
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

// A Share is the part of a client that has had it for now.
type Share struct {
	Measure   Measure // ByMessages or ByBytes
	PerSecond int64   // of one client
	Clients   int     // that share
	Since     time.Time

	RetryAfter time.Duration // until the client's next turn
}

// Wait notes that a client waits for the end of a limit that refuses it: it
// will have a share.
func (b *Backlog) Wait(client string, now time.Time) { b.fair.see(client, now) }

// Sharing tells whether what room there is at the last Update is shared: from a
// limit's end until the backlog is well below it, and no other limit refuses sends.
func (b *Backlog) Sharing() bool { return b.sharing }

// Share decides on a message of size bytes, while there is Sharing: each client that has
// sent or waited in the last ten seconds has an equal share of what is drained,
// in messages and bytes a second, and a client alone has all. It returns
// false, and the share, if the client has had it.
func (b *Backlog) Share(client string, size int64, value, marks Amount, messages, bytes float64, now time.Time) (Share, bool) {
	m := b.ended
	by, cost, room, drained := ByMessages, 1.0, float64(marks[m]-value[m]), messages
	switch m {
	case ByBytes:
		by, cost, drained = ByBytes, max(1, float64(size)), bytes
	case ByAge:
		room = messages // a second's worth
	}
	// What little is drained, or nothing, must not keep the room empty.
	drained = max(drained, room/fairWindow.Seconds(), cost/fairWindow.Seconds())
	wait, ok := b.fair.take(client, cost, room, drained, now)
	if ok {
		return Share{}, true
	}
	n := len(b.fair.clients)
	return Share{Measure: by, PerSecond: int64(drained / float64(n)), Clients: n, Since: b.gates[m].since, RetryAfter: wait}, false
}
