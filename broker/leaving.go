package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/letters"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// A leaving is a message on its way out of a subscription. Package letters writes it to its new
// topic, and then calls End.
type leaving struct {
	why   consume.Departure
	sub   *subscription
	place store.Place
	err   error         // valid once ended is closed
	ended chan struct{} // closed by End
}

var _ letters.Leaving = (*leaving)(nil)

// depart begins a departure. mu is held.
func (s *subscription) depart(d consume.Departure) *leaving {
	x := &leaving{why: d, sub: s, place: s.progress.Place(d.Lease), ended: make(chan struct{})}
	s.leaving[d.Lease] = x
	return x
}

// Why returns the departure.
func (x *leaving) Why() *consume.Departure { return &x.why }

// Place returns where the message is stored.
func (x *leaving) Place() store.Place { return x.place }

// Source returns the subscription that the message leaves.
func (x *leaving) Source() letters.Source { return x.sub }

// End removes the lease of a message that is at its destination. With an error it returns the lease
// to its former state. It returns the write of this, which is nil if the subscription was deleted,
// and err unless there is no lease any more.
func (x *leaving) End(to consume.Destination, err error) (*store.PendingWrite, error) {
	defer close(x.ended)
	s := x.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leaving, x.why.Lease)
	if s.gone {
		return nil, nil //nolint:nilnil // nothing is left to write, which is no error
	}
	now := time.Now()
	if err == nil {
		s.progress.Departed(x.why, to)
	} else if s.progress.Returned(x.why, now) {
		x.err = err
	} // else removed or rewound
	return s.apply(now).write, x.err
}

// join waits, on behalf of a repeated request, until the first request has finished.
func (x *leaving) join(ctx context.Context) error {
	select {
	case <-x.ended:
	case <-ctx.Done():
		return unsettled(ctx, context.Cause(ctx))
	}
	if x.err != nil {
		return fail.Store(x.err)
	}
	if err := x.sub.broker.store.Groups.Add(func(*store.Batch) {}, nil).WaitContext(ctx); err != nil {
		return unsettled(ctx, err)
	}
	return nil
}

// A parking is a message group that was parked. Package letters waits for its record.
type parking struct {
	group consume.ParkedGroup
	write *store.PendingWrite
}
