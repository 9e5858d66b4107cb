package subscription

import (
	"context"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// A Leaving is a message on its way out of a subscription, for example to a dead letter topic. Its
// lease stays until End.
type Leaving struct {
	why   consume.Departure
	sub   *Subscription
	place store.Place
	err   error         // valid once ended is closed
	ended chan struct{} // closed by End
}

// depart begins a departure. mu is held.
func (s *Subscription) depart(d consume.Departure) *Leaving {
	x := &Leaving{why: d, sub: s, place: s.progress.Place(d.Lease), ended: make(chan struct{})}
	s.leaving[d.Lease] = x
	return x
}

// Why returns the departure.
func (x *Leaving) Why() *consume.Departure { return &x.why }

// Place returns where the message is stored.
func (x *Leaving) Place() store.Place { return x.place }

// Consumed is that of the subscription that the message leaves.
func (x *Leaving) Consumed() *topic.Consumption { return x.sub.Consumed() }

// Mark is that of the subscription that the message leaves.
func (x *Leaving) Mark() { x.sub.Mark() }

// Lost is that of the subscription that the message leaves.
func (x *Leaving) Lost(from store.Place, to int64, err error) { x.sub.Lost(from, to, err) }

// End removes the lease of a message that is at its destination. With an error it returns the lease
// to its former state. It returns the write of this, which is nil if the subscription was deleted,
// and err unless there is no lease any more.
func (x *Leaving) End(to consume.Destination, err error) (*store.PendingWrite, error) {
	defer close(x.ended)
	s := x.sub
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leaving, x.why.Lease)
	if s.gone != nil {
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
func (x *Leaving) join(ctx context.Context) error {
	select {
	case <-x.ended:
	case <-ctx.Done():
		return fail.Unsettled(ctx, context.Cause(ctx))
	}
	if x.err != nil {
		return fail.Store(x.err)
	}
	if err := x.sub.env.Store.Groups.Add(func(*store.Batch) {}, nil).WaitContext(ctx); err != nil {
		return fail.Unsettled(ctx, err)
	}
	return nil
}

// A parking is a message group that was parked. Env.AwaitParked waits for its record.
type parking struct {
	group consume.ParkedGroup
	write *store.PendingWrite
}
