package broker

import (
	"context"
	"errors"
)

// A turn is a receive of a FIFO group under way that has an attempt ID. There
// is one at a time for each ID: a client that was cut asks again while the
// broker still carries out what it asked first, and must be answered the same.
type turn struct {
	superseded chan struct{} // closed: somebody asks again, so end
	told       bool          // it is closed; guarded by the subscription's mu
	ended      chan struct{}
}

// errSuperseded ends the wait of a receive whose client asks again.
var errSuperseded = errors.New("the client asks again")

// takeTurn ends the receive with the same attempt ID that is under way, if
// there is one, and returns once it is over. What it was given, if anything,
// is there to be replayed. A nil turn is for receives that are not repeatable.
func (s *subscription) takeTurn(ctx context.Context, p *Poll) (*turn, error) {
	if p.AttemptID == "" || !s.group.config.Load().FIFO {
		return nil, nil
	}
	t := &turn{superseded: make(chan struct{}), ended: make(chan struct{})}
	for {
		s.mu.Lock()
		before := s.turns[p.AttemptID]
		if before == nil {
			s.turns[p.AttemptID] = t
			s.mu.Unlock()
			return t, nil
		}
		if !before.told {
			before.told = true
			close(before.superseded)
		}
		s.mu.Unlock()
		select {
		case <-before.ended:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-s.broker.life.Done():
			return nil, closedError()
		}
	}
}

// endTurn lets the next one with the attempt ID go on.
func (s *subscription) endTurn(p *Poll, t *turn) {
	if t == nil {
		return
	}
	s.mu.Lock()
	delete(s.turns, p.AttemptID)
	s.mu.Unlock()
	close(t.ended)
}

// supersededBy returns what ends the wait of a receive; nil, for never, if it is not repeatable.
func (t *turn) supersededBy() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.superseded
}
