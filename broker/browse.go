package broker

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
)

const (
	// browseMessages and browseBytes bound what one call looks at while it
	// searches dead letters that a filter lets through.
	browseMessages = 10_000
	browseBytes    = 32 << 20

	// browseChunk and browseChunkBytes bound what is read, or moved, at a time.
	browseChunk      = 256
	browseChunkBytes = 4 << 20
)

// A DeadLetterFilter chooses dead letters of a group: those that are as each
// field that is not zero says. The zero value chooses all.
type DeadLetterFilter struct {
	Topic      string    // that the message was sent to
	MessageIDs []string  // any of these
	Reason     string    // the reason contains it
	Since      time.Time // it became a dead letter then or later
	Before     time.Time // it became a dead letter earlier than that
}

func (f *DeadLetterFilter) match(m *store.Message, origin tidegate.DeadLetter) bool {
	return (f.Topic == "" || f.Topic == origin.Topic) &&
		(len(f.MessageIDs) == 0 || slices.Contains(f.MessageIDs, m.ID)) &&
		strings.Contains(origin.Reason, f.Reason) &&
		(f.Since.IsZero() || !m.StoredAt.Before(f.Since)) &&
		(f.Before.IsZero() || m.StoredAt.Before(f.Before))
}

// A DeadLetterQuery says which dead letters Broker.DeadLetters returns.
type DeadLetterQuery struct {
	DeadLetterFilter
	In    string // the topic in which they lie, see Group.DeadLetterTopics. Empty: %DLQ%group
	After string // where to go on: Next of the page before. Empty: at the oldest one.
	Limit int    // 0: 100; at most 1000
}

// A StoredDeadLetter is a dead letter where it lies.
type StoredDeadLetter struct {
	tidegate.Message                     // with the properties of a dead letter; its topic is that in which it lies
	Origin           tidegate.DeadLetter // zero for a message that somebody sent there

	Queue    int
	Offset   int64
	BornAt   time.Time
	BornHost string
	StoredAt time.Time // when it became a dead letter
}

// A DeadLetterPage is one page of dead letters, the oldest first. It can have
// fewer than asked for, even none, and yet not be the last one: a call looks at
// a bounded number of messages.
type DeadLetterPage struct {
	Letters []StoredDeadLetter
	Next    string // for the next page; empty: that was all
}

// DeadLetters returns dead letters of a group without consuming them, also of a group that was
// deleted: 40403 if there is neither such a group nor a dead letter of it, 40402 for a topic that
// is not there, 40000 for an After or a limit that is not legal. Of a topic that is not %DLQ%group,
// they are those that the group has given up. It reads the disk and waits for nothing else.
func (b *Broker) DeadLetters(group string, q DeadLetterQuery) (DeadLetterPage, error) {
	if !b.begin() {
		return DeadLetterPage{}, closedError()
	}
	defer b.end()
	limit, err := pageLimit(q.Limit)
	if err != nil {
		return DeadLetterPage{}, err
	}
	at, err := parsePosition(q.After)
	if err != nil {
		return DeadLetterPage{}, err
	}
	page := DeadLetterPage{Letters: []StoredDeadLetter{}}
	t, err := b.deadLettersOf(group, q.In)
	if err != nil || t == nil {
		return page, err
	}
	scan := letterScan{broker: b, topic: t, group: group, filter: &q.DeadLetterFilter, at: at, messages: browseMessages, bytes: browseBytes}
	for len(page.Letters) < limit {
		found, err := scan.next(limit - len(page.Letters))
		if err != nil {
			return page, err
		}
		page.Letters = append(page.Letters, found...)
		if scan.over() {
			break
		}
	}
	page.Next = scan.position()
	return page, nil
}

// deadLettersOf returns a topic that has dead letters of a group: in, or if
// that is empty %DLQ%group, nil if there is none yet.
func (b *Broker) deadLettersOf(group, in string) (*topic, error) {
	if err := tidegate.ValidateGroup(group); err != nil {
		return nil, err
	}
	if in != "" {
		return b.topic(in)
	}
	b.mu.RLock()
	t, known := b.topics[tidegate.DeadLetterTopic(group)], b.groups[group] != nil
	b.mu.RUnlock()
	if t == nil && !known {
		return nil, groupNotFound(group)
	}
	return t, nil
}

// A letterPosition is a place among dead letters; the zero value is the beginning.
type letterPosition struct {
	queue  int
	offset int64
}

// String returns what parsePosition reads.
func (p letterPosition) String() string { return fmt.Sprintf("%d-%d", p.queue, p.offset) }

func parsePosition(text string) (p letterPosition, err error) {
	if text == "" {
		return p, nil
	}
	queue, offset, ok := strings.Cut(text, "-")
	q, qerr := strconv.ParseUint(queue, 10, 16)
	o, oerr := strconv.ParseInt(offset, 10, 64)
	if !ok || qerr != nil || oerr != nil || o < 0 {
		return p, newError(tidegate.CodeBadRequest, "after", "%.40q is not where a page ended: give the next of the page before, or nothing", text)
	}
	return letterPosition{int(q), o}, nil
}

// A letterScan goes through the dead letters of a group.
type letterScan struct {
	broker   *Broker
	topic    *topic
	group    string
	filter   *DeadLetterFilter
	at       letterPosition
	messages int   // still to be looked at
	bytes    int64 // likewise
}

// end reports whether the scan has seen everything.
func (s *letterScan) end() bool { return s.at.queue >= len(*s.topic.queues.Load()) }

// over reports whether there is nothing more to look at in this call.
func (s *letterScan) over() bool { return s.end() || s.messages <= 0 || s.bytes <= 0 }

// position returns where to go on; empty at the end.
func (s *letterScan) position() string {
	if s.end() {
		return ""
	}
	return s.at.String()
}

// next returns up to limit dead letters of the next messages that it reads; possibly none.
func (s *letterScan) next(limit int) ([]StoredDeadLetter, error) {
	if s.end() {
		return nil, nil
	}
	q := (*s.topic.queues.Load())[s.at.queue]
	low, to := q.low.Load().Offset, q.end.Load()
	if s.at.offset = max(s.at.offset, low); s.at.offset >= to { // what is before low is removed but for who has it in hand
		s.at = letterPosition{queue: s.at.queue + 1}
		return nil, nil
	}
	ms, offsets, err := s.broker.store.Read(s.topic.id, q.number, s.at.offset, to, browseChunk, browseChunkBytes)
	if d, ok := errors.AsType[*store.Damaged](err); ok {
		s.passDamaged(q, d)
		return nil, nil
	}
	if err != nil {
		return nil, storeError(err)
	}
	if len(ms) == 0 {
		s.at.offset = to
	}
	var out []StoredDeadLetter
	for i := range ms {
		m := &ms[i]
		if len(out) == limit {
			break
		}
		s.at.offset = offsets[i] + 1
		s.messages--
		s.bytes -= int64(len(m.Body))
		origin, _ := m.DeadLetter()
		if origin.Group != s.group && s.topic.name != tidegate.DeadLetterTopic(s.group) || !s.filter.match(m, origin) {
			continue
		}
		m.Topic = s.topic.name
		out = append(out, StoredDeadLetter{
			Message: m.Message, Origin: origin, Queue: int(q.number), Offset: offsets[i],
			BornAt: m.BornAt, BornHost: m.BornHost, StoredAt: m.StoredAt,
		})
	}
	if s.at.offset >= q.end.Load() {
		s.at = letterPosition{queue: s.at.queue + 1}
	}
	return out, nil
}

// passDamaged goes on behind dead letters that cannot be read any more.
func (s *letterScan) passDamaged(q *queue, d *store.Damaged) {
	s.broker.counters.damaged.Add(d.To - d.From)
	s.broker.logger.Error("dead letters cannot be read from disk any more and are passed over",
		"topic", s.topic.name, "queue", q.number, "from_offset", d.From, "to_offset", d.To-1, "error", d.Err)
	s.messages -= int(d.To - s.at.offset)
	s.at.offset = d.To
}

// deadLetterTopics returns the topics that there are of those to which the
// group's messages go when they are given up, as things are set now, by name.
func (b *Broker) deadLetterTopics(g *group) (names []string) {
	wanted := []string{tidegate.DeadLetterTopic(g.name)}
	for _, s := range b.subscriptionsOf(g) {
		p := s.policy()
		wanted = append(wanted, p.ownDeadLetterTopic(g.name, s.topic.name))
		wanted = append(wanted, p.deadLetterTopics(g.name, s.topic.name, false)...)
	}
	slices.Sort(wanted)
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.DeleteFunc(slices.Compact(wanted), func(name string) bool { return b.topics[name] == nil })
}
