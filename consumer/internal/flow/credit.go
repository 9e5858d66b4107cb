// Package flow decides what a consumer receives, holds and handles next: how many messages a
// receive asks for (Credits), when a queue is asked again (Reminders), how long a delivery belongs
// to the consumer (Lease), what is due (Schedule), which message in hand comes next (Lanes), and
// the order of a message group (Lines). It has no clock, locks or goroutines.
package flow

import (
	"slices"
	"time"
)

// prefetch is how long a message may be expected to wait for a free handler: so many are
// received ahead as all handlers consume in that time.
const prefetch = 200 * time.Millisecond

// Credits decide how many messages and bytes the next receive may ask for. The window of messages
// in hand is one for each handler, and a buffer that grows with the handlers' speed: slow handlers
// do not withhold messages from other consumers, and quick ones never wait for the network.
//
// The buffer refills in halves: receives begin when half of it is free and continue until it is
// full, so that each asks for many messages.
type Credits struct {
	concurrency int
	maxBuffered int // messages beyond concurrency
	maxBytes    int // of bodies
	sources     int // queues that are received from

	messages, bytes                 int           // in hand
	reservedMessages, reservedBytes int           // that receives under way may bring
	parked                          int           // receives under way that are not prompt
	handling                        time.Duration // moving average of the handlers' time
	peak                            int           // bytes that a body may be expected to have
	filling                         bool
}

// The expectations before the first messages: bodies of RocketMQ's limit, and slow handlers.
const (
	firstPeak     = 4 << 20
	firstHandling = time.Second
)

// New returns credits for so many handlers, messages that wait for one, and bytes of bodies.
func New(concurrency, maxBuffered, maxBytes int) Credits {
	return Credits{concurrency: concurrency, maxBuffered: maxBuffered, maxBytes: maxBytes, sources: 1, handling: firstHandling, peak: firstPeak}
}

// SetWindow sets how many handlers may run and how many messages may wait for one.
func (c *Credits) SetWindow(concurrency, maxBuffered int) {
	c.concurrency, c.maxBuffered = concurrency, maxBuffered
}

// SetSources sets how many queues are received from.
func (c *Credits) SetSources(n int) { c.sources = n }

// Messages returns how many are in hand.
func (c *Credits) Messages() int { return c.messages }

// Handled notes how long a handler took.
func (c *Credits) Handled(d time.Duration) { c.handling += (d - c.handling) / 16 }

// buffer returns how many messages may wait for a handler.
func (c *Credits) buffer() int {
	n := float64(c.concurrency) * float64(prefetch) / float64(max(c.handling, time.Microsecond))
	return int(min(n, float64(c.maxBuffered)))
}

// A Grant is the most that one receive may ask for.
type Grant struct {
	Messages, Bytes int

	parked bool // the receive may wait for messages on the server
}

// Split returns the part of a grant for messages that have arrived, and the rest of it.
func (g Grant) Split(messages, bytes int) (part, rest Grant) {
	part = Grant{Messages: min(messages, g.Messages), Bytes: min(bytes, g.Bytes)}
	g.Messages -= part.Messages
	g.Bytes -= part.Bytes
	return part, g
}

// An Ask is a receive that is to begin.
type Ask struct {
	Batch    int  // messages at most
	UnderWay int  // receives of its queue
	Spare    bool // its topic has no message in hand, beside others that have
	Prompt   bool // it does not wait for messages on the server
}

// Grant returns the grant of the next receive of a queue, and reserves it; zero if it has to
// wait.
func (c *Credits) Grant(a Ask) Grant {
	n := c.room(a)
	if n == 0 {
		return Grant{}
	}
	// No receive takes more than its share of half of the bytes, so that others can begin beside
	// it.
	sources := c.sources
	if c.prompt(a) { // so many at a time
		sources = min(sources, 1+(c.concurrency+c.buffer())/max(a.Batch, 1))
	}
	free := min(c.maxBytes-c.bytes-c.reservedBytes, c.maxBytes/2/sources)
	n = max(1, min(n, free/max(c.peak, 1)))
	g := Grant{Messages: n, Bytes: max(min(free, max(2*n*c.peak, c.maxBytes/16)), 1), parked: !a.Prompt}
	if g.parked {
		c.parked++
	}
	c.reservedMessages += g.Messages
	c.reservedBytes += g.Bytes
	return g
}

// May reports whether Grant would return something.
func (c *Credits) May(a Ask) bool { return c.room(a) > 0 }

// room returns how many messages a receive may bring by the window, 0 also if there are too many
// bytes.
func (c *Credits) room(a Ask) int {
	if free := c.maxBytes - c.bytes - c.reservedBytes; free < max(c.peak, c.maxBytes/16) && c.messages+c.reservedMessages > 0 {
		return 0
	}
	buffer := c.buffer()
	window := c.concurrency + buffer
	half := max(1, buffer/2)
	free := window - c.messages - c.reservedMessages
	switch {
	case free >= half:
		c.filling = true
	case free < min(a.Batch, half):
		c.filling = false
	}
	switch {
	case c.filling:
		return min(a.Batch, free)
	case a.UnderWay > 0:
		return 0
	case c.prompt(a) && (!a.Spare || buffer >= c.concurrency):
		// The receives under way soon end, and quick handlers soon make half of the buffer free.
		// Small receives of many topics would cost much more than this wait.
		return 0
	case window > c.messages && c.sources > 1 && !c.prompt(a):
		// Receives that are parked at other queues may bring nothing for long.
		return min(a.Batch, window-c.messages, (window+c.sources-1)/c.sources)
	case a.Spare:
		return 1 // or the messages of other topics would keep it waiting
	}
	return 0
}

// prompt reports whether the receive and all receives under way soon end. A receive that is parked
// keeps its reservation for long, and a prompt one must not wait for it.
func (c *Credits) prompt(a Ask) bool { return a.Prompt && c.parked == 0 }

// Refund ends a reservation.
func (c *Credits) Refund(g Grant) {
	c.reservedMessages -= g.Messages
	c.reservedBytes -= g.Bytes
	if g.parked {
		c.parked--
	}
}

// Take counts a delivery.
func (c *Credits) Take(size int) {
	c.messages++
	c.bytes += size
	c.peak = max(size, c.peak-c.peak/32-1, 0)
}

// Free ends a delivery.
func (c *Credits) Free(size int) {
	c.messages--
	c.bytes -= size
}

// A Key identifies a message group or a lite topic: two topics can have some of the same name.
type Key struct {
	Topic int    // its number in the consumer
	Group string // Message.OrderKey
}

// Lines are the lines of all message groups. The deliveries of one message group stand in one line,
// and only the first of a line may be handled.
//
// When it fails, all deliveries behind it are released, and the server delivers the failed one
// first. Later deliveries are not behind it: while a message of a message group is in flight, the
// server delivers a later one only in the same receive. Later deliveries therefore start a line of
// their own.
type Lines[T comparable] map[Key]*Line[T]

// A Line is the deliveries of one message group, the first in front.
type Line[T comparable] struct {
	key   Key
	items []T
}

// Join puts a delivery at the end of its line, which it returns, and reports whether it is the
// first there. A delivery without a message group has no line.
func (l Lines[T]) Join(key Key, x T) (ln *Line[T], first bool) {
	if key.Group == "" {
		return nil, true
	}
	if ln = l[key]; ln == nil {
		ln = &Line[T]{key: key}
		l[key] = ln
	}
	ln.items = append(ln.items, x)
	return ln, len(ln.items) == 1
}

// Behind returns the deliveries behind x in its line, which may be nil.
func (l Lines[T]) Behind(ln *Line[T], x T) []T {
	if ln == nil {
		return nil
	}
	return ln.items[slices.Index(ln.items, x)+1:]
}

// Replace puts a delivery in the place of another one in its line, which may be nil.
func (l Lines[T]) Replace(ln *Line[T], x, by T) {
	if ln != nil {
		ln.items[slices.Index(ln.items, x)] = by
	}
}

// Close has deliveries that come later start another line than ln, which may be nil. It is called
// before the server learns that a delivery of ln was not consumed: from then on it may deliver the
// message again.
func (l Lines[T]) Close(ln *Line[T]) {
	if ln != nil && l[ln.key] == ln {
		delete(l, ln.key)
	}
}

// Leave takes a delivery out of its line, which may be nil. If it was consumed, next is the
// delivery that may be handled now, the zero value for none. Otherwise behind are those that were
// received behind it, which leave the line too.
func (l Lines[T]) Leave(ln *Line[T], x T, consumed bool) (next T, behind []T) {
	if ln == nil {
		return next, nil
	}
	i := slices.Index(ln.items, x)
	if !consumed {
		behind = slices.Clone(ln.items[i+1:])
		clear(ln.items[i:])
		ln.items = ln.items[:i]
		l.Close(ln)
		return next, behind
	}
	ln.items = slices.Delete(ln.items, i, i+1)
	if len(ln.items) == 0 {
		l.Close(ln)
		return next, nil
	}
	if i == 0 {
		next = ln.items[0]
	}
	return next, nil
}
