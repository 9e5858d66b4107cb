package subscription

import (
	"errors"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// take reserves messages for a receive: ready ones first, then new ones. Without any it returns a
// waiter, or no waiter if it has skipped messages and should be called again. It leaves p.Watch if
// it has taken all messages that the receive could take.
func (s *Subscription) take(p *Request) (grants []consume.Grant, write *store.PendingWrite, w *waiter, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return nil, nil, nil, s.gone
	}
	now := time.Now()
	s.lastTake = now
	if p.Watch != nil {
		p.Watch.lift(s)
	}
	s.extend()
	r := consume.Receive{
		Queue: p.Queue, Max: p.Max, MaxBytes: p.budget(), Push: p.Push, Owner: p.Owner, Holder: p.Holder, Invisible: p.InvisibleDuration,
		Filter: (*requestFilter)(p),
	}
	s.progress.Begin(&r, now)
	write = s.apply(now).write
	end := false
	for {
		s.extend()
		claim, ok := s.progress.Claim(&r)
		if !ok {
			break
		}
		if rejected := s.env.Leases.rejected(); rejected != nil {
			s.progress.Unclaim(&r, claim.Queue)
			if len(r.Grants) == 0 {
				err = rejected
			}
			end = true
			break
		}
		var more *store.PendingWrite
		if more, end, err = s.takeNew(p, &r, claim); more != nil {
			write = more
		}
		if end || err != nil {
			break
		}
	}
	now = time.Now()
	if err == nil {
		s.progress.End(&r, now)
	} else {
		s.progress.Fail()
	}
	if f := s.apply(now).write; f != nil {
		write = f
	}
	if len(r.Grants) == 0 && err == nil && r.Skipped == 0 {
		w = &waiter{queue: p.Queue, woken: make(chan struct{})}
		s.waiters = append(s.waiters, w)
	}
	if err == nil && p.Watch != nil && !end && r.WantsMore() { // after apply, which wakes others for the rest
		p.Watch.leave(s, p.Queue)
	}
	return r.Grants, write, w, err
}

// takeNew reads the messages of a claim for the receive. end is true if the receive may not keep
// more. mu is held before and after it, and not while it reads.
func (s *Subscription) takeNew(p *Request, r *consume.Receive, claim consume.Claim) (write *store.PendingWrite, end bool, err error) {
	read := s.readUnlocked(p, r, claim)
	now := time.Now()
	current := s.progress.Unclaim(r, claim.Queue)
	damaged, _ := errors.AsType[*store.Damaged](read.err)
	switch {
	case s.gone != nil:
		s.dropReadAhead(s.readers[claim.Queue])
		if err = s.gone; read.err != nil {
			err = refusal.Store(read.err)
		}
	case !current && (read.err == nil || damaged != nil):
	case len(read.messages) == 0 && read.refused != nil:
		s.dropReadAhead(s.readers[claim.Queue])
		if end = true; len(r.Grants) == 0 {
			err = read.refused
		}
	case len(read.messages) == 0 && (read.err == nil || damaged != nil):
		to := claim.To
		if damaged != nil {
			to = damaged.To
		}
		s.progress.SkipMissing(r, claim, to, read.end)
	case read.err != nil:
		s.dropReadAhead(s.readers[claim.Queue])
		err = refusal.Store(read.err)
	default:
		s.progress.Admit(r, claim, s.Group().Settings().FIFO, read.messages, read.offsets, now)
		end = read.refused != nil
	}
	return s.apply(now).write, end, err
}
