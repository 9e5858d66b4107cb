package subscription

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// startFetch starts fetchSpilled unless it runs. mu is held.
func (s *Subscription) startFetch() {
	if s.fetching || !s.env.Calls.Begin() { // after the restart of a closing broker it runs again
		return
	}
	s.fetching = true
	go s.fetchSpilled()
}

// fetchSpilled reads spilled messages back. One runs at a time; the broker waits for it.
func (s *Subscription) fetchSpilled() {
	defer s.env.Calls.End()
	for {
		f, ok := s.nextFetch()
		if !ok {
			return
		}
		records, offsets, err := s.env.Store.Spilled(s.Group().ID(), s.Topic().ID(), f.Queue, f.MessageGroup, f.From, f.Limit)
		if err == nil && len(records) == 0 { // on their way to the disk
			if err = s.env.Store.Groups.Barrier().Wait(); err == nil {
				records, offsets, err = s.env.Store.Spilled(s.Group().ID(), s.Topic().ID(), f.Queue, f.MessageGroup, f.From, f.Limit)
			}
		}
		valid := false
		s.Update(func(p *consume.Progress) {
			if valid = p.Valid(f); valid && err == nil {
				p.TakeBack(f, records, offsets)
			}
		})
		if !valid || err == nil {
			continue
		}
		s.env.Logger.Error("spilled messages not read; retry in a second",
			"group", s.Group().Name(), "topic", s.Topic().Name(), "message_group", f.MessageGroup, "error", err)
		select {
		case <-time.After(time.Second):
		case <-s.env.Life.Done():
		}
		s.Update(func(p *consume.Progress) {
			if s.env.Life.Err() == nil {
				p.FetchAgain(f)
			}
		})
	}
}

// nextFetch returns the next messages to read back; ok is false if there are none.
func (s *Subscription) nextFetch() (f consume.Fetch, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone == nil {
		f, ok = s.progress.NextFetch()
	}
	s.fetching = ok
	return f, ok
}

// FirstSpilled returns the offset of the first spilled message of a queue, or a lower offset.
// Without spilled messages it returns the largest number.
func (s *Subscription) FirstSpilled(q *topic.Queue) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.progress.FirstSpilled(int(q.Number()))
}
