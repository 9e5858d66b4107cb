package deadletter

import (
	"errors"

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
}

// Over reports whether this call must end: the scan is at the end of the topic, or has used up
// Messages or Bytes.
func (s *Scan) Over() bool { return s.end() || s.Messages <= 0 || s.Bytes <= 0 }

// end reports whether the scan is at the end of the topic.
func (s *Scan) end() bool {
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

// selected advances the scan over messages. It returns up to limit of the dead letters that match.
func (s *Scan) selected(ms []store.Message, offsets []int64, limit int) (found []Letter) {
	for i := range ms {
		m := &ms[i]
		if len(found) == limit {
			break
		}
		s.At.Offset = offsets[i] + 1
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
