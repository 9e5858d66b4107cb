package broker

import (
	"fmt"
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
	clients map[string]*share
	purged  time.Time
}

// A share is what one client may send.
type share struct {
	tokens float64
	at     time.Time // of tokens
	seen   time.Time
}

// see notes that a client wants to send.
func (f *fairness) see(client string, now time.Time) *share {
	if now.Sub(f.purged) >= time.Second {
		f.purged = now
		for name, s := range f.clients {
			if now.Sub(s.seen) > fairWindow {
				delete(f.clients, name)
			}
		}
	}
	s := f.clients[client]
	if s == nil && len(f.clients) >= maxSharers {
		client = ""
		s = f.clients[client]
	}
	if s == nil {
		if f.clients == nil {
			f.clients = map[string]*share{}
		}
		s = &share{tokens: math.Inf(1), at: now} // as many as it may have
		f.clients[client] = s
	}
	s.seen = now
	return s
}

// take lets a client send what costs that much, or says how long it waits for
// its next token. room is what all together can send until the throttle is
// back, rate what is drained a second.
func (f *fairness) take(client string, cost, room, rate float64, now time.Time) (wait time.Duration, ok bool) {
	s := f.see(client, now)
	n := float64(len(f.clients))
	if n == 1 {
		return 0, true // nobody to share with
	}
	most := max(cost, room/2/n)
	s.tokens = min(most, s.tokens+rate/n*now.Sub(s.at).Seconds())
	s.at = now
	if s.tokens >= cost {
		s.tokens -= cost
		return 0, true
	}
	return pushBack(int64(math.Ceil(cost-s.tokens)), rate/n), false
}

// share returns th, or why a client may not send although th is nil: it has
// had its share of what a throttle that ended left.
func (g *gates) share(th *Throttle, subject string, by *sender, value, marks amount, rate func() (messages, bytes float64), now time.Time) *Throttle {
	m, resuming := g.resuming()
	switch {
	case th != nil:
		g.fair.see(by.client, now) // it waits for its share
		return th
	case !resuming:
		g.fair.clients = nil
		return nil
	}
	perMessage, perByte := rate()
	cost, room, unit := 1.0, float64(marks[m]-value[m]), unitMessagesPerSecond
	drained := perMessage
	switch m {
	case byBytes:
		cost, drained, unit = max(1, float64(by.size)), perByte, unitBytesPerSecond
	case byAge:
		room = perMessage // a second's worth
	}
	// What little is drained, or nothing, must not keep the room empty.
	drained = max(drained, room/fairWindow.Seconds(), cost/fairWindow.Seconds())
	wait, ok := g.fair.take(by.client, cost, room, drained, now)
	if ok {
		return nil
	}
	part := int64(drained / float64(len(g.fair.clients)))
	return &Throttle{
		Limit: limitFairShare, Subject: subject, Unit: unit, Value: part, Mark: part, Resume: part, Since: g.of[m].since, RetryAfter: Duration(wait),
		detail: fmt.Sprintf("client %q has had its share while %d clients share what %q drains after a throttle", by.client, len(g.fair.clients), subject),
	}
}
