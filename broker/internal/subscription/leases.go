package subscription

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
)

// leaseBytes is about the memory of one lease, with its places in maps and heaps.
const leaseBytes = 256

// Leases counts the leases in memory of all subscriptions of a broker, and bounds them: at the
// bound no receive takes new messages. Ready messages have a lease already, so they are delivered
// at the bound too, and each acknowledgement makes room. The bound can be exceeded by a batch of
// each receive under way, and up to twice by the leases of a store that a larger machine wrote. A
// store with more is not opened, because the process would use up its memory while it starts, again
// and again.
//
// No receive waits for the bound: it is rejected, and the client calls again.
type Leases struct {
	memory int64 // of the process, in bytes
	max    int64
	count  atomic.Int64
}

// NewLeases returns Leases that may use a quarter of the memory of the process, in bytes.
func NewLeases(memory int64) *Leases {
	return &Leases{memory: memory, max: max(1, memory/4/leaseBytes)}
}

// Restorable returns the largest number of leases of a store for which the memory suffices. They
// can use half of it.
func (l *Leases) Restorable() int64 { return 2 * l.max }

// CanRestore returns an error if the leases of a store are more than Restorable.
func (l *Leases) CanRestore(leases int64) error {
	if leases <= l.Restorable() {
		return nil
	}
	return fmt.Errorf("it has %d messages in flight or waiting for a retry, and a memory limit of %d bytes suffices for %d; "+
		"nothing was changed: start the broker with a memory limit of at least %d bytes (GOMEMLIMIT) and consume them there",
		leases, l.memory, l.Restorable(), 2*leases*leaseBytes)
}

// rejected returns the error of a receive of new messages at the bound, and nil below it.
func (l *Leases) rejected() error {
	n := l.count.Load()
	if n < l.max {
		return nil
	}
	return &tidegate.Error{
		Code: tidegate.CodeTooManyRequests, Subject: "deliveries in flight", RetryAfter: time.Second,
		Message: fmt.Sprintf("%d TOO_MANY_REQUESTS: the broker has %d messages in flight or waiting for a retry, and its memory suffices for %d; "+
			"acknowledge messages, or give the broker more memory", protocol.ReplyTooManyRequests, n, l.max),
	}
}

// countLeases passes the change of the subscription's leases to the leases of the broker. A deleted
// subscription has none. mu is held.
func (s *Subscription) countLeases() {
	n := int64(0)
	if s.gone == nil {
		for _, c := range s.progress.Counts() {
			n += c
		}
	}
	if n != s.leases {
		s.env.Leases.count.Add(n - s.leases)
		s.leases = n
	}
}
