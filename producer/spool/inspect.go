package spool

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tidegate/tidegate"
)

// An Entry is a message in the spool.
type Entry struct {
	Sequence uint64 // identifies the entry within its spool
	Message  *tidegate.Message
	Accepted time.Time // when Put accepted it
	Bytes    int       // on disk

	// Rejected is the time of the rejection, and Reason its reason. Both are zero for a pending
	// message. Message is nil if the entry is corrupt; Reason then has the place.
	Rejected time.Time
	Reason   string
}

// Entries returns up to limit entries with a sequence above after, in order: the pending entries,
// or the rejected ones. It reads them from disk. To read all entries, call it again with the
// sequence of the last one.
func (s *Spool) Entries(rejected bool, after uint64, limit int) ([]Entry, error) {
	s.mu.Lock()
	closed := s.closed
	entries := s.index.list(rejected, after, limit)
	s.mu.Unlock()
	if closed {
		return nil, fmt.Errorf("spool: read: %w", os.ErrClosed)
	}
	var list []Entry
	for _, e := range entries {
		h, err := s.message(e)
		switch {
		case errors.Is(err, errGone):
			continue
		case errors.Is(err, os.ErrClosed):
			return nil, fmt.Errorf("spool: read: %w", err)
		case err != nil:
			h.Reason, h.Corrupt = err.Error(), true
		}
		one := Entry{Sequence: e.seq, Bytes: e.size, Accepted: h.Accepted, Rejected: h.Rejected, Reason: h.Reason}
		if !h.Corrupt {
			one.Message = &h.Message
		}
		list = append(list, one)
	}
	return list, nil
}

// Discard removes rejected entries permanently and returns their number. It ignores sequences of
// other entries.
func (s *Spool) Discard(sequences ...uint64) (int, error) {
	var ops []*op
	for _, e := range s.rejected(sequences) {
		ops = append(ops, &op{kind: kindRemoved, entry: e})
	}
	return s.change(ops)
}

// Requeue moves rejected messages behind all pending ones and returns their number. It ignores
// corrupt entries and sequences of other entries. MaxAge counts from the call.
func (s *Spool) Requeue(sequences ...uint64) (int, error) {
	var ops []*op
	for _, e := range s.rejected(sequences) {
		h, err := s.message(e)
		if errors.Is(err, os.ErrClosed) {
			return 0, fmt.Errorf("spool: change rejected messages: %w", err)
		}
		if err != nil || h.Corrupt {
			continue // a corrupt entry stays rejected
		}
		h.Accepted, h.Rejected, h.Reason = time.Now(), time.Time{}, ""
		value, err := encode(h, h.Message.Body)
		if err != nil {
			return 0, fmt.Errorf("spool: requeue message %s: %w", h.Message.ID, err)
		}
		name := string(queueOf(h.Message.Topic, h.Message.MessageGroup))
		ops = append(ops, &op{kind: kindPending, name: name, entry: e, value: value})
	}
	return s.change(ops)
}

// rejected returns the rejected entries with the sequences.
func (s *Spool) rejected(sequences []uint64) (list []*entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seq := range sequences {
		if e := s.index.find(seq); e != nil && e.rejected {
			list = append(list, e)
		}
	}
	return list
}

// change writes the operations and returns the number of those that were not too late.
func (s *Spool) change(ops []*op) (n int, err error) {
	if err := s.write(ops...); err != nil {
		return 0, fmt.Errorf("spool: change rejected messages: %w", err)
	}
	for _, o := range ops {
		if !o.skipped {
			n++
		}
	}
	return n, nil
}
