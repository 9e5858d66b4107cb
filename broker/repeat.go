package broker

import (
	"context"
	"errors"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A turn is a receive under way that has an attempt ID. There is one at a time for
// each ID: a client that lost its connection repeats the receive while the broker still
// carries out the first one, and must get the same deliveries.
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
	if p.AttemptID == "" {
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

// remember keeps the deliveries of an attempt ID, for a client that lost the response.
// Attempt IDs without a delivery in flight are removed whenever their number has doubled,
// so there are at most about as many as messages in flight.
func (s *subscription) remember(attemptID string, grants []grant) {
	for i := range grants {
		grants[i].message = nil // read again if asked again
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.replays) >= max(s.replaysUp, minReplays) {
		for id, old := range s.replays {
			if !s.alive(old) {
				delete(s.replays, id)
			}
		}
		s.replaysUp = 2 * len(s.replays)
	}
	s.replays[attemptID] = grants
}

// replay returns what was handed out for the attempt ID before and is still in
// flight, with handles of its own, and writes that: whoever still holds the
// answer that was lost, as a server that takes it back, does no harm.
func (s *subscription) replay(p *Poll) ([]grant, *store.Flight) {
	if p.AttemptID == "" {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []grant
	var ls []*lease
	for _, g := range s.replays[p.AttemptID] {
		if s.alive([]grant{g}) {
			g.lease.renumber()
			ls, out = append(ls, g.lease), append(out, s.grant(g.lease))
		}
	}
	if out == nil {
		delete(s.replays, p.AttemptID)
		return nil, nil
	}
	return out, s.saveLazily(ls...)
}

// alive reports whether one of the grants is still the current delivery. mu is held.
func (s *subscription) alive(grants []grant) bool {
	now := time.Now()
	for _, g := range grants {
		l := g.lease
		if l.cursor.leases[l.offset] == l && l.state() == StateInflight && l.Serial == g.handle.Serial && now.Before(l.Due) {
			return true
		}
	}
	return false
}
