package deadletter

import (
	"errors"
	"slices"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/status"
)

const (
	// BrowseMessages and BrowseBytes bound the messages that one call reads while it searches for
	// dead letters that match a filter.
	BrowseMessages = 10_000
	BrowseBytes    = 32 << 20

	// Chunk and chunkBytes bound the messages that are read or moved at a time.
	Chunk      = 256
	chunkBytes = 4 << 20

	maxWindow = 1 << 20 // offsets that a scan with Newest reads at a time where few are left
)

// A Topic is a topic that has dead letters.
type Topic interface {
	Name() string
	Bounds(queue int) (begin, end int64, ok bool) // the offsets of a queue; false if it does not exist
	Read(queue int, from, to int64, limit int, maxBytes int64) (ms []store.Message, offsets []int64, err error)
	SkipDamaged(queue int, d *store.Damaged) // logs and counts messages that cannot be read
}

// A Scan reads the dead letters of a group in a topic, from At on.
type Scan struct {
	Topic    Topic
	Group    string
	Filter   status.DeadLetterFilter
	At       Position
	Messages int   // number of messages that this call may still read
	Bytes    int64 // size of the bodies that this call may still read
	AtATime  int64 // size of the bodies that Next reads after the first message; 0 means 4 MiB

	// Newest reads from the end of the last queue to the beginning of the first one. At is then the
	// position after the next letter; Last returns the first one.
	Newest bool

	window int64 // of Newest: the number of offsets that Next reads
}

// Last returns the position at which a scan with Newest begins.
func Last(t Topic) Position {
	p := Position{Queue: -1}
	for {
		_, end, ok := t.Bounds(p.Queue + 1)
		if !ok {
			return p
		}
		p = Position{p.Queue + 1, end}
	}
}

// Over reports whether this call must end: the scan is at the end of the topic, or has used up
// Messages or Bytes.
func (s *Scan) Over() bool { return s.end() || s.Messages <= 0 || s.Bytes <= 0 }

// end reports whether the scan is at the end of the topic.
func (s *Scan) end() bool {
	if s.At.Queue < 0 {
		return true
	}
	_, _, ok := s.Topic.Bounds(s.At.Queue)
	return !ok
}

// Position returns the text of the position at which the next call continues; empty at the end.
func (s *Scan) Position() string {
	if s.end() {
		return ""
	}
	return s.At.String()
}

// Next reads the next messages and returns up to limit selected dead letters. It may return none
// before the end; call it until Over. It skips corrupt messages.
func (s *Scan) Next(limit int) ([]Letter, error) {
	queue := s.At.Queue
	begin, end, ok := s.Topic.Bounds(queue)
	if !ok {
		return nil, nil
	}
	if s.Newest {
		return s.before(begin, min(end, s.At.Offset), limit)
	}
	if s.At.Offset = max(s.At.Offset, begin); s.At.Offset >= end { // leftovers before begin are not read
		s.At = Position{Queue: queue + 1}
		return nil, nil
	}
	bytes := int64(chunkBytes)
	if s.AtATime > 0 {
		bytes = min(bytes, s.AtATime)
	}
	ms, offsets, err := s.Topic.Read(queue, s.At.Offset, end, Chunk, bytes)
	if d, ok := errors.AsType[*store.Damaged](err); ok {
		s.Topic.SkipDamaged(queue, d)
		s.Messages -= int(d.To - s.At.Offset)
		s.At.Offset = d.To
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(ms) == 0 {
		s.At.Offset = end
	}
	found := s.selected(ms, offsets, limit)
	if _, end, _ := s.Topic.Bounds(queue); s.At.Offset >= end {
		s.At = Position{Queue: queue + 1}
	}
	return found, nil
}

// before is Next for the newest letters: it reads the offsets before end. It reads a window of
// offsets, because the store reads in ascending order. The window grows over gaps, and shrinks if
// it has more messages or bytes than Next may read.
func (s *Scan) before(begin, end int64, limit int) ([]Letter, error) {
	queue := s.At.Queue
	if begin >= end {
		if s.At.Queue--; s.At.Queue >= 0 {
			_, s.At.Offset, _ = s.Topic.Bounds(s.At.Queue)
		}
		return nil, nil
	}
	if s.window == 0 {
		s.window = Chunk
	}
	bytes := int64(chunkBytes)
	if s.AtATime > 0 {
		bytes = min(bytes, s.AtATime)
	}
	left, from := bytes, max(begin, end-s.window)
	var ms []store.Message
	var offsets []int64
	for at := from; at < end; {
		more, places, err := s.Topic.Read(queue, at, end, Chunk+1, max(left, 1))
		if d, ok := errors.AsType[*store.Damaged](err); ok {
			s.Topic.SkipDamaged(queue, d)
			s.Messages -= int(d.To - at)
			at = d.To
			continue
		}
		if err != nil {
			return nil, err
		}
		if len(more) == 0 {
			break
		}
		for i := range more {
			left -= int64(len(more[i].Body))
		}
		ms, offsets, at = append(ms, more...), append(offsets, places...), places[len(places)-1]+1
		if s.window > 1 && (len(ms) > Chunk || left <= 0 && at < end) {
			s.window /= 2
			return nil, nil
		}
	}
	if len(ms) < Chunk/4 && left > bytes/2 {
		s.window = min(2*s.window, maxWindow)
	}
	slices.Reverse(ms)
	slices.Reverse(offsets)
	found := s.selected(ms, offsets, limit)
	if len(ms) == 0 || s.At.Offset == offsets[len(offsets)-1] {
		s.At.Offset = from
	}
	return found, nil
}

// selected advances the scan over messages. It returns up to limit of the dead letters that match.
func (s *Scan) selected(ms []store.Message, offsets []int64, limit int) (found []Letter) {
	for i := range ms {
		m := &ms[i]
		if len(found) == limit {
			break
		}
		if s.At.Offset = offsets[i]; !s.Newest {
			s.At.Offset++
		}
		s.Messages--
		s.Bytes -= int64(len(m.Body))
		origin, _ := m.DeadLetter()
		if origin.Group != s.Group && s.Topic.Name() != tidegate.DeadLetterTopic(s.Group) || !matches(&s.Filter, m, origin) {
			continue
		}
		m.Topic = s.Topic.Name()
		found = append(found, Letter{
			Message: m.Message, Origin: origin, Queue: s.At.Queue, Offset: offsets[i],
			BornAt: m.BornAt, BornHost: m.BornHost, StoredAt: m.StoredAt,
		})
	}
	return found
}
