package consumer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/lease"
	"github.com/tidegate/tidegate/consumer/internal/line"
	"github.com/tidegate/tidegate/consumer/internal/schedule"
	"github.com/tidegate/tidegate/consumer/internal/settlement"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/transport"
)

// A phase is how far a delivery has come.
type phase uint8

const (
	inLine   phase = iota // behind another message of its message group
	ready                 // waits for a worker
	running               // a handler has it
	settling              // its verdict is being carried out
	gone                  // settled, or no longer ours
)

// An item is one delivery in hand, from its arrival until it is settled.
type item struct {
	d       *tidegate.Delivery // as received: it belongs to the handler, so it is not read after that began
	current tidegate.Delivery  // the same with the valid handle, for settlements
	caps    transport.Capabilities
	source  *source
	choice  policy.Choice     // of the consumer's policies; made before the handler begins
	size    int               // of the body, in bytes
	line    *line.Line[*item] // of its message group; nil without one

	// Guarded by hand.mu.
	phase    phase
	lease    lease.Lease
	wake     schedule.Entry[*item] // of hand.leases: when the keeper looks at it next
	renewing bool                  // an extension is under way; a settlement waits for it
	lost     bool                  // the lease is
	lostErr  error                 // why, if the server reported it
	cancel   context.CancelCauseFunc
	stuck    bool // another worker has the place of its handler's
	unsure   bool // the response to an extension was lost: another handle may be the valid one

	// Owned by the goroutine that carries the verdict out.
	settlement.State
	disposition Disposition
	delay       time.Duration // of the next delivery
	settleErr   error
	duration    time.Duration // of the handler
	batchTook   atomic.Int64  // the duration of a batch handler, which other goroutines set
	err         error         // that the handler returned
	cancelled   bool          // the handler's context ended with the run
}

func newItem(d *tidegate.Delivery, s *source, caps transport.Capabilities, l lease.Lease) *item {
	it := &item{d: d, current: *d, caps: caps, source: s, size: len(d.Body), lease: l}
	it.wake.Value = it
	return it
}

// unread reports whether no handler has begun with the delivery.
func (it *item) unread() bool { return it.phase == inLine || it.phase == ready }

// consumed reports whether the group does not get the settled message again from this topic.
func (it *item) consumed() bool {
	switch it.disposition {
	case Acked, DeadLettered, Reconsumed, Discarded:
		return true
	}
	return false
}

// loss returns the cause of the handler's context once the lease is lost.
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
