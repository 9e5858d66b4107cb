package consumer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/gate"
	"github.com/tidegate/tidegate/consumer/internal/lease"
	"github.com/tidegate/tidegate/consumer/internal/line"
	"github.com/tidegate/tidegate/consumer/internal/policies"
	"github.com/tidegate/tidegate/consumer/internal/schedule"
	"github.com/tidegate/tidegate/consumer/internal/settlement"
	"github.com/tidegate/tidegate/transport"
)

// A phase is the state of a delivery.
type phase uint8

const (
	inLine   phase = iota // behind another message of its message group
	ready                 // waits for a worker
	running               // a handler works on it
	settling              // its verdict is carried out
	gone                  // settled or lost
)

// An item is one delivery in hand, from its arrival until it is settled.
type item struct {
	d       *tidegate.Delivery // as received; it belongs to the handler and is not read after the handler began
	current tidegate.Delivery  // a copy with the valid handle, for settlements
	caps    transport.Capabilities
	source  *source
	choice  policies.Choice   // by the consumer's policies; set before the handler begins
	size    int               // of the body, in bytes
	line    *line.Line[*item] // of its message group; nil without a group

	// Guarded by hand.mu.
	phase    phase
	lease    lease.Lease
	wake     schedule.Entry[*item]   // of hand.leases: the next check by maintainLeases
	renewing bool                    // an extension is under way; a settlement waits for it
	lost     bool                    // the lease is lost
	lostErr  error                   // the server's reason, if known
	cancel   context.CancelCauseFunc // of the handler's context; nil before and after
	stuck    bool                    // another worker replaces its handler
	unsure   bool                    // the response to an extension was lost, so another handle may be valid

	// Owned by the goroutine that carries out the verdict.
	settlement.State
	disposition Disposition
	delay       time.Duration // until the next delivery
	settleErr   error
	duration    time.Duration   // of the handler
	batchTook   atomic.Int64    // set for a batch handler by other goroutines
	ctx         deliveryContext // of the handler
	result      result          // of the handler
	cancelled   bool            // the handler's context ended with the run
	grace       time.Time       // end of the settlement if the handler returned after the shutdown time; otherwise zero
}

func newItem(d *tidegate.Delivery, s *source, caps transport.Capabilities, l lease.Lease) *item {
	it := &item{d: d, current: *d, caps: caps, source: s, size: len(d.Body), lease: l}
	it.wake.Value = it
	return it
}

// key identifies the message of the delivery.
func (it *item) key() gate.Key { return gate.Key{Topic: it.current.Topic, ID: it.current.ID} }

// unread reports whether no handler has started with the delivery.
func (it *item) unread() bool { return it.phase == inLine || it.phase == ready }

// consumed reports whether the group will not receive the settled message again from this topic.
func (it *item) consumed() bool {
	switch it.disposition {
	case Acked, DeadLettered, Reconsumed, Discarded:
		return true
	}
	return false
}

// loss returns the cause of the handler's context after the loss of the lease.
func (it *item) loss() error {
	if it.lostErr != nil {
		return &lostError{it.lostErr}
	}
	return ErrLeaseLost
}

// A lostError is ErrLeaseLost with the server's reason.
type lostError struct{ reason error }

func (e *lostError) Error() string   { return ErrLeaseLost.Error() + ": " + e.reason.Error() }
func (e *lostError) Unwrap() []error { return []error{ErrLeaseLost, e.reason} }
