package engine

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
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
func (s *Subscription) FirstSpilled(q *Queue) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.progress.FirstSpilled(int(q.Number()))
}

const (
	// aheadMessages and aheadBytes bound the messages that are read ahead in one queue for a group
	// that is behind. One read of the store serves several receives.
	aheadMessages = 256
	aheadBytes    = 256 << 10

	// maxAheadBytes is about the maximum of bytes that all groups have read ahead together. Above
	// it no group reads ahead.
	maxAheadBytes = 8 << 20
)

// A readAhead is messages of a queue that were read before a receive took them. The receive that
// has claimed the queue owns them. Stored messages do not change. A removal of the oldest messages
// moves the cursor, so that the messages before it are skipped. After another removal, and after a
// rewind, the receive reads all messages again (consume.Progress.Outdate).
type readAhead struct {
	from     int64 // messages has all stored messages from here on
	messages []store.Message
	offsets  []int64
	bytes    int64 // counted in Reads
}

// skip drops the messages before an offset, and reports whether any are left.
func (a *readAhead) skip(from int64) bool {
	if from < a.from {
		return false
	}
	n := 0
	for n < len(a.offsets) && a.offsets[n] < from {
		n++
	}
	a.from, a.messages, a.offsets = from, a.messages[n:], a.offsets[n:]
	return len(a.messages) > 0
}

// first returns how many of the first limit messages have maxBytes of bodies together. The last of
// them can exceed it.
func (a *readAhead) first(limit int, maxBytes int64) int {
	n := 0
	for n < min(limit, len(a.messages)) && (n == 0 || maxBytes > 0) {
		maxBytes -= int64(len(a.messages[n].Body))
		n++
	}
	return n
}

// A queueRead is the messages of a claim that were read.
type queueRead struct {
	messages []store.Message
	offsets  []int64
	end      store.Mark // of the queue, if there are no messages
	refused  error      // why the receive may not keep more messages; nil if it may
	err      error
}

// readUnlocked reads the messages of a claim that the receive may keep. mu is held before and after
// it, also after a panic, and not while it reads.
func (s *Subscription) readUnlocked(p *Request, r *consume.Receive, c consume.Claim) (read queueRead) {
	reader, inHand := s.readers[c.Queue], grantedBytes(r.Grants)
	s.mu.Unlock()
	defer s.mu.Lock()
	read = s.readAdmitted(p, reader, c, inHand)
	if len(read.messages) == 0 {
		read.end = reader.queue.Appended(s.env.Store)
	}
	if d, ok := errors.AsType[*store.Damaged](read.err); ok {
		s.Lost(store.Place{Topic: s.Topic().ID(), Queue: reader.queue.Number(), Offset: d.From}, d.To, d.Err)
	}
	return read
}

// readAdmitted reads the messages of a claim, and returns those that the receive may keep beside
// inHand bytes. mu is not held.
func (s *Subscription) readAdmitted(p *Request, r *queueReader, c consume.Claim, inHand int64) (read queueRead) {
	s.env.Reads.slots <- struct{}{}
	defer func() { <-s.env.Reads.slots }()
	read.messages, read.offsets, read.err = s.read(r, c, min(c.Bytes, maxReadBytes))
	for i := range read.messages {
		inHand += int64(len(read.messages[i].Body))
		if read.refused = p.admit(inHand); read.refused != nil {
			read.messages, read.offsets = read.messages[:i], read.offsets[:i]
			break
		}
	}
	return read
}

// read is store.Read for a claim. mu is not held.
func (s *Subscription) read(r *queueReader, c consume.Claim, maxBytes int64) ([]store.Message, []int64, error) {
	a, st := &r.ahead, s.env.Store
	if !a.skip(c.From) {
		s.dropReadAhead(r)
		if s.lite != nil || c.To-c.From <= int64(c.Limit) || c.Limit >= aheadMessages || s.env.Reads.Ahead() >= maxAheadBytes {
			ms, offsets, err := st.Read(s.Topic().ID(), r.queue.Number(), c.From, c.To, c.Limit, maxBytes)
			s.env.Limits.CountCold(&s.Consumption, ms)
			return ms, offsets, err
		}
		ms, offsets, err := st.Read(s.Topic().ID(), r.queue.Number(), c.From, c.To, aheadMessages, aheadBytes)
		s.env.Limits.CountCold(&s.Consumption, ms)
		if err != nil || len(ms) == 0 {
			return ms, offsets, err
		}
		*a = readAhead{from: c.From, messages: ms, offsets: offsets}
		for i := range ms {
			a.bytes += int64(len(ms[i].Body))
		}
		s.env.Reads.Add(a.bytes)
	}
	n := a.first(c.Limit, maxBytes)
	ms, offsets := a.messages[:n:n], a.offsets[:n:n]
	if n == len(a.messages) {
		s.dropReadAhead(r) // the caller has all; messages that it does not take are read again
	}
	return ms, offsets, nil
}

// dropReadAhead forgets the messages that were read ahead. The caller has claimed the queue, or
// holds mu while no receive has.
func (s *Subscription) dropReadAhead(r *queueReader) {
	s.env.Reads.Add(-r.ahead.bytes)
	r.ahead = readAhead{}
}

// A stamp is the time at which the first message from an offset on was stored.
type stamp struct{ from, stored int64 }

// Oldest returns when the oldest message was stored that the group has not consumed, and the oldest
// one that was never delivered, in nanoseconds since 1970. Zero means that there is none. The
// second one is of no parked or blocked message group, as far as LookAhead has looked. It reads one
// message from each queue whose first undelivered message it does not know, or two if the first one
// is of such a message group. It skips a corrupt message; the receive that reaches the message logs
// it.
func (s *Subscription) Oldest() (all, fresh int64) {
	type gap struct {
		queue     *Queue
		from, end int64
		of        *stamp
		free      bool
	}
	var unknown []gap
	s.mu.Lock()
	for i, r := range s.readers {
		all = throttle.Lesser(all, s.progress.Oldest(i))
		next, free, end := s.progress.Cursor(i).Next, s.progress.FirstFree(i), r.queue.End()
		for _, g := range []gap{{r.queue, next, end, &r.head, next == free}, {r.queue, free, end, &r.free, true}} {
			switch {
			case g.from >= end || g.of == &r.free && next == free:
			case g.of.from != g.from || g.of.stored == 0:
				unknown = append(unknown, g)
			default:
				all = throttle.Lesser(all, g.of.stored)
				if g.free {
					fresh = throttle.Lesser(fresh, g.of.stored)
				}
			}
		}
	}
	s.mu.Unlock()
	found := make([]int64, len(unknown))
	for i, g := range unknown {
		found[i] = s.Topic().FirstStored(s.env.Store, g.queue, g.from, g.end)
		all = throttle.Lesser(all, found[i])
		if g.free {
			fresh = throttle.Lesser(fresh, found[i])
		}
	}
	if len(unknown) > 0 {
		s.mu.Lock()
		for i, g := range unknown {
			*g.of = stamp{from: g.from, stored: found[i]}
		}
		s.mu.Unlock()
	}
	return all, fresh
}

// Lost logs and counts messages, from a place up to the offset to, that the group does not receive
// because they cannot be read.
func (s *Subscription) Lost(from store.Place, to int64, cause error) {
	s.env.Damaged.Add(to - from.Offset)
	s.env.Logger.Error("messages skipped, because they are corrupt", "group", s.Group().Name(),
		"topic", s.Topic().Name(), "queue", from.Queue, "from_offset", from.Offset, "to_offset", to-1, "error", cause)
}

// EndPostponed makes the messages due that were postponed because the wall clock was not trusted.
func (s *Subscription) EndPostponed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return
	}
	now := time.Now()
	s.progress.EndPostponed(now)
	s.apply(now)
}

// Postponed returns the number of messages that wait because the wall clock is not trusted.
func (s *Subscription) Postponed() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.progress.Postponed()
}

// Disown sets the end of the leases that the heartbeats of an owner kept alive.
func (s *Subscription) Disown(owner string, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return
	}
	now := time.Now()
	s.progress.Disown(owner, until, now)
	s.apply(now)
}

// SkipRemoved moves the group over the messages that a round of retention removes, and returns the
// messages that the group loses because it has not consumed them. It notes in the plan the messages
// that are kept for the group.
func (s *Subscription) SkipRemoved(r *retention.Plan) Contents {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return Contents{}
	}
	removals := make([]consume.Removal, len(r.Queues))
	for i := range r.Queues {
		q := &r.Queues[i]
		removals[i] = consume.Removal{Queue: int(q.Number), To: q.To}
		if !q.Moves() { // only leftovers can be removed
			removals[i].Again, removals[i].Offsets = true, slices.Collect(maps.Keys(q.Leftovers))
		}
	}
	lost := s.progress.SkipRemoved(removals, r.Purge, func(l *consume.Lease) bool {
		if r.Purge {
			return true
		}
		q := &r.Queues[l.Queue()]
		if !r.Expired(q, l.Offset()) || l.Needed(r.Grace(), r.Now) {
			q.Retain(l.Offset(), l.Due.Add(r.Grace()))
			return false
		}
		return true
	})
	s.apply(r.Now)
	return Contents(lost)
}
