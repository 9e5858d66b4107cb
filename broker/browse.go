package broker

import (
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
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
		return DeadLetterPage{}, fail.Closed()
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
	scan := deadletter.Scan{
		Topic: letters{t, b}, Group: group, Filter: deadletter.Filter(q.DeadLetterFilter), At: at,
		Messages: deadletter.BrowseMessages, Bytes: deadletter.BrowseBytes,
	}
	for len(page.Letters) < limit {
		found, err := scan.Next(limit - len(page.Letters))
		if err != nil {
			return page, fail.Store(err)
		}
		for i := range found {
			page.Letters = append(page.Letters, StoredDeadLetter(found[i]))
		}
		if scan.Over() {
			break
		}
	}
	page.Next = scan.Position()
	return page, nil
}

// deadLettersOf returns a topic that has dead letters of a group: in, or if
// that is empty %DLQ%group, nil if there is none yet.
func (b *Broker) deadLettersOf(group, in string) (*topic.Topic, error) {
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
		return nil, fail.GroupNotFound(group)
	}
	return t, nil
}

func parsePosition(text string) (deadletter.Position, error) {
	p, err := deadletter.ParsePosition(text)
	if err != nil {
		return p, fail.New(tidegate.CodeBadRequest, "after", "%.40q is not where a page ended: give the next of the page before, or nothing", text)
	}
	return p, nil
}

// letters is the deadletter.Topic of a topic.
type letters struct {
	*topic.Topic
	broker *Broker
}

// Bounds is that of deadletter.Topic.
func (l letters) Bounds(queue int) (begin, end int64, ok bool) {
	queues := l.Queues()
	if queue >= len(queues) {
		return 0, 0, false
	}
	return queues[queue].Low().Offset, queues[queue].End(), true
}

// Read is that of deadletter.Topic.
func (l letters) Read(queue int, from, to int64, limit int, maxBytes int64) ([]store.Message, []int64, error) {
	return l.broker.store.Read(l.ID(), uint16(queue), from, to, limit, maxBytes)
}

// SkipDamaged is that of deadletter.Topic.
func (l letters) SkipDamaged(queue int, d *store.Damaged) {
	l.broker.counters.damaged.Add(d.To - d.From)
	l.broker.logger.Error("dead letters cannot be read from disk any more and are passed over",
		"topic", l.Name(), "queue", queue, "from_offset", d.From, "to_offset", d.To-1, "error", d.Err)
}

// deadLetterTopics returns the topics that there are of those to which the
// group's messages go when they are given up, as things are set now, by name.
func (b *Broker) deadLetterTopics(g *topic.Group) (names []string) {
	wanted := []string{tidegate.DeadLetterTopic(g.Name())}
	for _, s := range b.subscriptionsOf(g) {
		p := s.Policy()
		wanted = append(wanted, p.OwnDeadLetterTopic(g.Name(), s.Topic().Name()))
		wanted = append(wanted, p.DeadLetterTopics(g.Name(), s.Topic().Name(), false)...)
	}
	slices.Sort(wanted)
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.DeleteFunc(slices.Compact(wanted), func(name string) bool { return b.topics[name] == nil })
}
