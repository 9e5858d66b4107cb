package broker

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// A repeatable is a receive under way that has an attempt ID. There is one at a time for each ID: a
// client that lost its connection repeats the receive while the broker still carries out the first
// one, and must get the same deliveries.
type repeatable struct {
	superseded chan struct{} // closed: the client repeats it, so it ends
	notified   bool          // superseded is closed; guarded by the subscription's mu
	ended      chan struct{}
}

// errSuperseded ends the wait of a receive whose client asks again.
var errSuperseded = errors.New("the client asks again")

// supersede ends the receive with the same attempt ID that is under way, if
// there is one, and returns once it is over. Its deliveries, if
// there are any, can be replayed. The result is nil for receives that are not repeatable.
func (s *subscription) supersede(ctx context.Context, p *Poll) (*repeatable, error) {
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
		case <-s.broker.life.Done():
			return nil, fail.Closed()
		}
	}
}

// endReceive lets the next one with the attempt ID go on.
func (s *subscription) endReceive(p *Poll, t *repeatable) {
	if t == nil {
		return
	}
	s.mu.Lock()
	delete(s.receiving, p.AttemptID)
	s.mu.Unlock()
	close(t.ended)
}

// supersededBy returns what ends the wait of a receive; nil, for never, if it is not repeatable.
func (r *repeatable) supersededBy() <-chan struct{} {
	if r == nil {
		return nil
	}
	return r.superseded
}

// replay returns the deliveries of the attempt ID that are still in flight, with new handles, and
// writes that.
func (s *subscription) replay(p *Poll) ([]consume.Grant, *store.PendingWrite) {
	if p.AttemptID == "" {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	grants := s.progress.Replay(p.AttemptID, now)
	return grants, s.apply(now).write
}
