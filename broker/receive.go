package broker

import (
	"errors"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// take reserves messages for a receive: ready ones first, then new ones. If there are none it
// returns a waiter, already in line, or neither if it skipped messages and should be called again.
func (s *subscription) take(p *Poll) (grants []consume.Grant, write *store.PendingWrite, w *waiter, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil, nil, nil, s.goneError()
	}
	now := time.Now()
	s.lastTake = now
	s.extend()
	r := consume.Receive{
		Queue: p.Queue, Max: p.Max, MaxBytes: p.budget(), Push: p.Push, Owner: p.Owner, Invisible: p.InvisibleDuration,
		Filter: (*pollFilter)(p),
	}
	s.progress.Begin(&r, now)
	write = s.apply(now).write
	for {
		s.extend()
		claim, ok := s.progress.Claim(&r)
		if !ok {
			break
		}
		var more *store.PendingWrite
		var end bool
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
	return r.Grants, write, w, err
}

// takeNew reads the messages of a claim and has the receive take them. end is true if the receive
// may not keep more. mu is held before and after it, and not while it reads.
func (s *subscription) takeNew(p *Poll, r *consume.Receive, claim consume.Claim) (write *store.PendingWrite, end bool, err error) {
	read := s.readUnlocked(p, r, claim)
	now := time.Now()
	current := s.progress.Unclaim(r, claim.Queue)
	damaged, _ := errors.AsType[*store.Damaged](read.err)
	switch {
	case s.gone:
		s.dropReadAhead(s.readers[claim.Queue])
		if err = s.goneError(); read.err != nil {
			err = fail.Store(read.err)
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
		err = fail.Store(read.err)
	default:
		s.progress.Admit(r, claim, s.Group().Settings().FIFO, read.messages, read.offsets, now)
		end = read.refused != nil
	}
	return s.apply(now).write, end, err
}

// budget returns how many bytes of bodies a receive may bring; the first message may have more.
func (p *Poll) budget() int64 {
	if p.MaxBytes > 0 {
		return min(int64(p.MaxBytes), maxReceiveBytes)
	}
	return maxReceiveBytes
}

// A pollFilter is the filter of a receive.
type pollFilter Poll

// Wants implements consume.Filter.
func (f *pollFilter) Wants(m *store.Message) bool { return (*Poll)(f).wants(m) }
