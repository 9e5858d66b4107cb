package consumer

import "time"

// prefetch is how long a message may be expected to wait for a free handler: so many are
// received ahead as all handlers consume in that time.
const prefetch = 200 * time.Millisecond

// credits decide how many messages and bytes the next receive may ask for. The window of
// messages in hand is one for each handler, and a buffer that grows with the handlers' speed:
// slow handlers keep nothing from other consumers, and quick ones never wait for the network.
//
// The buffer refills in halves: receives begin when half of it is free and go on until it is full,
// so that each asks for many messages.
type credits struct {
	concurrency int
	maxBuffered int // messages beyond concurrency
	maxBytes    int // of bodies
	sources     int // queues that are received from

	messages, bytes                 int           // in hand
	reservedMessages, reservedBytes int           // that receives under way may bring
	handling                        time.Duration // moving average of the handlers' time
	peak                            int           // bytes that a body may be expected to have
	filling                         bool
}

// What is expected before the first messages: bodies of RocketMQ's limit, and slow handlers.
const (
	firstPeak     = 4 << 20
	firstHandling = time.Second
)

func newCredits(concurrency, maxBuffered, maxBytes int) credits {
	return credits{concurrency: concurrency, maxBuffered: maxBuffered, maxBytes: maxBytes, sources: 1, handling: firstHandling, peak: firstPeak}
}

// handled notes how long a handler took.
func (c *credits) handled(d time.Duration) { c.handling += (d - c.handling) / 16 }

// buffer returns how many messages may wait for a handler.
func (c *credits) buffer() int {
	n := float64(c.concurrency) * float64(prefetch) / float64(max(c.handling, time.Microsecond))
	return int(min(n, float64(c.maxBuffered)))
}

// A grant is what one receive may ask for.
type grant struct{ messages, bytes int }

// grant returns what the next receive of a queue may bring, at most batch messages, and
// reserves it; zero if it has to wait. underWay is how many receives of this queue are under way.
func (c *credits) grant(batch, underWay int) grant {
	n := c.room(batch, underWay)
	if n == 0 {
		return grant{}
	}
	free := c.maxBytes - c.bytes - c.reservedBytes
	if free < max(c.peak, c.maxBytes/16) && c.messages+c.reservedMessages > 0 {
		return grant{}
	}
	// No receive takes more than its share of half of the bytes, so that others can begin beside it.
	free = min(free, c.maxBytes/2/c.sources)
	n = max(1, min(n, free/max(c.peak, 1)))
	g := grant{messages: n, bytes: max(min(free, max(2*n*c.peak, c.maxBytes/16)), 1)}
	c.reservedMessages += g.messages
	c.reservedBytes += g.bytes
	return g
}

func (c *credits) room(batch, underWay int) int {
	buffer := c.buffer()
	window := c.concurrency + buffer
	half := max(1, buffer/2)
	free := window - c.messages - c.reservedMessages
	switch {
	case free >= half:
		c.filling = true
	case free < min(batch, half):
		c.filling = false
	}
	if c.filling {
		return min(batch, free)
	}
	if underWay == 0 && window > c.messages && c.sources > 1 {
		// Receives that are parked at other queues may bring nothing for long.
		return min(batch, window-c.messages, (window+c.sources-1)/c.sources)
	}
	return 0
}

// refund ends a reservation.
func (c *credits) refund(g grant) {
	c.reservedMessages -= g.messages
	c.reservedBytes -= g.bytes
}

// take counts a delivery.
func (c *credits) take(size int) {
	c.messages++
	c.bytes += size
	c.peak = max(size, c.peak-c.peak/32-1, 0)
}

// free ends a delivery.
func (c *credits) free(size int) {
	c.messages--
	c.bytes -= size
}
