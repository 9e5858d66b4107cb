package session

import (
	"sync"

	"github.com/tidegate/tidegate/broker/server/internal/tlssniff"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

const (
	// maxChecks and maxCheckBytes bound the checks that wait to be written to one stream.
	maxChecks     = 1024
	maxCheckBytes = 8 << 20
)

// A Stream is the queue of one Telemetry stream. The goroutine of its handler takes from it, other
// goroutines add to it.
type Stream struct {
	client Sender

	again chan struct{} // capacity 1: a wish for the settings, once more
	kick  chan struct{} // capacity 1: there are checks or reports to write
	limit *Limit        // of watches; nil if the client does not read them

	shares bool           // see SharesHeartbeats
	beats  *tlssniff.Link // has the heartbeats that the client shares; nil without

	mu     sync.Mutex
	checks []*rmqpb.RecoverOrphanedTransactionCommand // guarded by mu
	bytes  int                                        // guarded by mu: their size

	// Guarded by mu, which is acquired after the engine's locks.
	watches map[wire.Queue]*Watch
	due     map[wire.Queue]struct{} // of watches: to write
	round   int                     // how often WakeWatches was called
	ended   bool

	number uint64 // guarded by Clients.mu: later streams have higher ones
}

// A Sender is the client of a stream.
type Sender interface {
	// MaySend reports whether the client has the permission to send to a topic now. It must not
	// block.
	MaySend(topic string) bool
}

// NewStream returns an empty stream of a client.
func NewStream(client Sender) *Stream {
	return &Stream{client: client, again: make(chan struct{}, 1), kick: make(chan struct{}, 1)}
}

// SharesHeartbeats notes that the client may share the heartbeats of other clients on its
// connection. The client does not learn from heartbeats that the server has lost its settings, so
// the stream has to ask for them. SharesHeartbeats is called before Clients.Attach.
func (t *Stream) SharesHeartbeats(on *tlssniff.Link) { t.shares, t.beats = true, on }

// Offer has a check of that size written to the stream, and returns false if
// too many wait already. It never blocks.
func (t *Stream) Offer(c *rmqpb.RecoverOrphanedTransactionCommand, size int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.checks) >= maxChecks || len(t.checks) > 0 && t.bytes+size > maxCheckBytes {
		return false
	}
	t.checks, t.bytes = append(t.checks, c), t.bytes+size
	t.signal()
	return true
}

// signal has Kick return a value. It never blocks.
func (t *Stream) signal() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// Taken returns the checks that wait, and forgets them.
func (t *Stream) Taken() []*rmqpb.RecoverOrphanedTransactionCommand {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := t.checks
	t.checks, t.bytes = nil, 0
	return out
}

// resend asks the stream for the settings once more. It never blocks: one
// wish at a time is enough.
func (t *Stream) resend() {
	select {
	case t.again <- struct{}{}:
	default:
	}
}

// Again is where a value comes when the settings are to be sent once more.
func (t *Stream) Again() <-chan struct{} { return t.again }

// Kick is where a value comes when there are checks or reports to take.
func (t *Stream) Kick() <-chan struct{} { return t.kick }
