package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// startFetch has fetchSpilled run. mu is held.
func (s *subscription) startFetch() {
	if s.fetching || !s.broker.begin() { // a broker that closes fetches after the restart
		return
	}
	s.fetching = true
	go s.fetchSpilled()
}

// fetchSpilled reads spilled messages back. One runs at a time; the broker waits for it.
func (s *subscription) fetchSpilled() {
	b := s.broker
	defer b.end()
	for {
		f, ok := s.nextFetch()
		if !ok {
			return
		}
		records, offsets, err := b.store.Spilled(s.Group().ID(), s.Topic().ID(), f.Queue, f.MessageGroup, f.From, f.Limit)
		if err == nil && len(records) == 0 { // on their way to the disk
			if err = b.store.Groups.Add(func(*store.Batch) {}, nil).Wait(); err == nil {
				records, offsets, err = b.store.Spilled(s.Group().ID(), s.Topic().ID(), f.Queue, f.MessageGroup, f.From, f.Limit)
			}
		}
		valid := false
		s.locked(func() {
			if valid = !s.gone && s.progress.Valid(f); valid && err == nil {
				s.progress.TakeBack(f, records, offsets)
				s.apply(time.Now())
			}
		})
		if !valid || err == nil {
			continue
		}
		b.logger.Error("messages that were set aside could not be read; it is tried again in a second",
			"group", s.Group().Name(), "topic", s.Topic().Name(), "message_group", f.MessageGroup, "error", err)
		select {
		case <-time.After(time.Second):
		case <-b.life.Done():
		}
		s.locked(func() {
			if b.life.Err() == nil && !s.gone {
				s.progress.FetchAgain(f)
				s.apply(time.Now())
			}
		})
	}
}

// nextFetch returns what to read back next; ok is false if that was all.
func (s *subscription) nextFetch() (f consume.Fetch, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gone {
		f, ok = s.progress.NextFetch()
	}
	s.fetching = ok
	return f, ok
}

// FirstSpilled returns the offset of the first spilled message of a queue, or one before it; the
// largest number if there is none.
func (s *subscription) FirstSpilled(q *topic.Queue) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.progress.FirstSpilled(int(q.Number()))
}
