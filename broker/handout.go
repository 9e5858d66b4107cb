package broker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// handOut returns deliveries once they are written, unless ctx ended meanwhile.
// A first delivery that a power failure takes back is one that was not made; a
// later one is answered when it is on disk, so that attempts never fall.
func (s *subscription) handOut(ctx context.Context, p *Poll, grants []grant, flight *store.Flight) ([]*tidegate.Delivery, error) {
	ds, err := s.deliveries(p, grants)
	wait := flight.Wait
	if s.topic.address.Load().persist || slices.ContainsFunc(grants, func(g grant) bool { return g.attempt > 1 }) {
		wait = flight.WaitSynced
	}
	if werr := wait(); werr != nil {
		return nil, storeError(errors.Join(werr, err))
	}
	if err != nil || ctx.Err() != nil {
		s.release(grants)
		if err == nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	if p.AttemptID != "" && s.group.config.Load().FIFO {
		s.remember(p.AttemptID, grants)
	}
	return ds, nil
}

// deliveries reads what was not read yet.
func (s *subscription) deliveries(p *Poll, grants []grant) ([]*tidegate.Delivery, error) {
	ds := make([]*tidegate.Delivery, 0, len(grants))
	all := make([]tidegate.Delivery, len(grants))
	expiry, now := s.topic.address.Load().expiry, time.Now()
	var old, passed []handle.Receipt
	for i := range grants {
		g := &grants[i]
		if g.message == nil {
			m, ok, err := s.broker.store.Get(g.handle.Place)
			if store.IsDamage(err) {
				s.lost(g.handle.Place, g.handle.Place.Offset+1, err)
			} else if err != nil {
				return nil, storeError(err)
			}
			if !ok || !p.wants(&m) { // damaged or removed meanwhile, or another receive had it before
				passed = append(passed, g.handle)
				continue
			}
			g.message = &m
		}
		if expiry > 0 && now.Sub(g.message.StoredAt) >= expiry {
			old = append(old, g.handle)
			continue
		}
		s.fill(&all[i], g)
		if p.retry {
			all[i].Topic = realTopic(g.message, s.topic.name)
		}
		ds = append(ds, &all[i])
	}
	s.passOver(passed)
	if err := s.expireMessages(old); err != nil {
		return nil, err
	}
	if p.Prepare != nil && len(ds) > 0 {
		p.Prepare(ds)
	}
	return ds, nil
}

func (s *subscription) fill(d *tidegate.Delivery, g *grant) {
	*d = tidegate.Delivery{
		Message: g.message.Message, ConsumerGroup: s.group.name, Attempt: g.attempt, Handle: g.handle.String(),
		Endpoint: s.broker.name, Queue: int(g.handle.Place.Queue), Offset: g.handle.Place.Offset,
		BornAt: g.message.BornAt, BornHost: g.message.BornHost, StoredAt: g.message.StoredAt, StoreHost: s.broker.host,
		InvisibleUntil: g.due,
	}
	d.Topic = s.topic.name
}

// remember keeps what an attempt ID was answered, for a client that lost the answer.
func (s *subscription) remember(attemptID string, grants []grant) {
	for i := range grants {
		grants[i].message = nil // read again if asked again
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.replays) >= maxReplays {
		for id, old := range s.replays {
			if !s.alive(old) {
				delete(s.replays, id)
			}
		}
	}
	if len(s.replays) < maxReplays {
		s.replays[attemptID] = grants
	}
}

// replay returns what was handed out for the attempt ID before and is still in flight.
func (s *subscription) replay(p *Poll) []grant {
	if p.AttemptID == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []grant
	for _, g := range s.replays[p.AttemptID] {
		if s.alive([]grant{g}) {
			out = append(out, g)
		}
	}
	if out == nil {
		delete(s.replays, p.AttemptID)
	}
	return out
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
