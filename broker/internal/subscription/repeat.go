package subscription

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// A repeatable is a receive under way with an attempt ID. For each ID one receive runs at a time: a
// client that lost its connection repeats the receive while the broker still carries out the first
// one, and must get the same deliveries.
type repeatable struct {
	superseded chan struct{} // closed: the client repeats it, so it ends
	notified   bool          // superseded is closed; guarded by the subscription's mu
	ended      chan struct{}
}

// errSuperseded ends the wait of a receive that the client repeats.
var errSuperseded = errors.New("the client repeated the receive")

// supersede ends the receive under way with the same attempt ID, and returns once that receive is
// over. Its deliveries can be replayed. The result is nil for a receive without an attempt ID.
func (s *Subscription) supersede(ctx context.Context, p *Request) (*repeatable, error) {
	if p.AttemptID == "" {
		return nil, nil
	}
	t := &repeatable{superseded: make(chan struct{}), ended: make(chan struct{})}
	for {
		s.mu.Lock()
		before := s.receiving[p.AttemptID]
		if before == nil {
			s.receiving[p.AttemptID] = t
			s.mu.Unlock()
			return t, nil
		}
		if !before.notified {
			before.notified = true
			close(before.superseded)
		}
		s.mu.Unlock()
		select {
		case <-before.ended:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-s.env.Life.Done():
			return nil, refusal.Closed()
		}
	}
}

// endReceive lets the next receive with the attempt ID continue.
func (s *Subscription) endReceive(p *Request, t *repeatable) {
	if t == nil {
		return
	}
	s.mu.Lock()
	delete(s.receiving, p.AttemptID)
	s.mu.Unlock()
	close(t.ended)
}

// supersededBy returns a channel that ends the wait of a receive. It is nil without an attempt ID.
func (r *repeatable) supersededBy() <-chan struct{} {
	if r == nil {
		return nil
	}
	return r.superseded
}

// replay returns the deliveries of the attempt ID that are still in flight, with new handles, and
// the write of this.
func (s *Subscription) replay(p *Request) ([]consume.Grant, *store.PendingWrite) {
	if p.AttemptID == "" {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	grants := s.progress.Replay(p.AttemptID, now)
	return grants, s.apply(now).write
}
