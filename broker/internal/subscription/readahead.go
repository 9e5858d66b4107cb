package subscription

import (
	"errors"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/store"
)

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
		if c.To-c.From <= int64(c.Limit) || c.Limit >= aheadMessages || s.env.Reads.Ahead() >= maxAheadBytes {
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
