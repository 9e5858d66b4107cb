package deadletter

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// A Letter is a dead letter in its topic.
type Letter struct {
	tidegate.Message                     // with the properties of a dead letter, and its topic
	Origin           tidegate.DeadLetter // zero for a message that was sent to the topic

	Queue    int
	Offset   int64
	BornAt   time.Time
	BornHost string
	StoredAt time.Time // when it became a dead letter
}

// A Filter selects the dead letters that match each field that is not zero.
type Filter struct {
	Topic      string    // that the message was sent to
	MessageIDs []string  // any of these
	Reason     string    // the reason contains it
	Since      time.Time // it became a dead letter then or later
	Before     time.Time // it became a dead letter earlier than that
}

// Match reports whether the filter selects a dead letter.
func (f *Filter) Match(m *store.Message, origin tidegate.DeadLetter) bool {
	return (f.Topic == "" || f.Topic == origin.Topic) &&
		(len(f.MessageIDs) == 0 || slices.Contains(f.MessageIDs, m.ID)) &&
		strings.Contains(origin.Reason, f.Reason) &&
		(f.Since.IsZero() || !m.StoredAt.Before(f.Since)) &&
		(f.Before.IsZero() || m.StoredAt.Before(f.Before))
}

// A Position is a place in a topic; the zero value is the beginning.
type Position struct {
	Queue  int
	Offset int64
}

// String returns the text that ParsePosition reads.
func (p Position) String() string { return fmt.Sprintf("%d-%d", p.Queue, p.Offset) }

// ErrPosition is returned by ParsePosition.
var ErrPosition = errors.New("it is not the text of a position")

// ParsePosition reads the text of a position; the beginning for an empty text.
func ParsePosition(text string) (p Position, err error) {
	if text == "" {
		return p, nil
	}
	queue, offset, ok := strings.Cut(text, "-")
	q, qerr := strconv.ParseUint(queue, 10, 16)
	o, oerr := strconv.ParseInt(offset, 10, 64)
	if !ok || qerr != nil || oerr != nil || o < 0 {
		return p, ErrPosition
	}
	return Position{int(q), o}, nil
}

// Position returns where the dead letter is.
func (l *Letter) Position() Position { return Position{l.Queue, l.Offset} }

// Redriven returns the message that a dead letter was, with the count of its redrives, for the
// topic named to.
func (l *Letter) Redriven(to string) *store.Message {
	m := &store.Message{Message: l.Message, BornAt: l.BornAt, BornHost: l.BornHost}
	m.Properties = maps.Clone(l.Properties)
	if m.Properties == nil {
		m.Properties = map[string]string{}
	}
	for _, p := range [...]string{
		tidegate.PropertyDeadLetterTopic, tidegate.PropertyDeadLetterMessageID, tidegate.PropertyDeadLetterQueue, tidegate.PropertyDeadLetterOffset,
		tidegate.PropertyDeadLetterGroup, tidegate.PropertyDeadLetterAttempts, tidegate.PropertyDeadLetterReason,
	} {
		delete(m.Properties, p)
	}
	if retry, ok := m.Properties[tidegate.PropertyRetryTopic]; ok && retry != to { // or else it was a message of that retry topic
		m.ID, m.DeliverAt = cmp.Or(l.Origin.MessageID, m.ID), time.Time{}
		for _, p := range [...]string{
			tidegate.PropertyRealTopic, tidegate.PropertyOriginMessageID, tidegate.PropertyRetryTopic, tidegate.PropertyReconsumeTimes,
		} {
			delete(m.Properties, p)
		}
	}
	m.Properties[tidegate.PropertyDeadLetterRedrives] = strconv.Itoa(l.Origin.Redrives + 1)
	return m
}

// A Death is how a message became a dead letter, or left a topic otherwise.
type Death struct {
	Group, Topic string // the consumer group, and the topic of the message that it could not consume
	Queue        int
	Offset       int64
	Attempts     int
	Reason       string

	// SentTo and SentID are topic and ID of the original send, before retry topics.
	SentTo, SentID string

	Artemis bool      // it leaves by the settings of an address, whose properties it gets
	Expired time.Time // when it expired; zero if it did not, and became a dead letter
}

// Properties returns the properties of a message with those of its death. A dead letter that
// becomes a dead letter again keeps its first origin.
func (d *Death) Properties(m *store.Message) map[string]string {
	p := maps.Clone(m.Properties)
	if p == nil {
		p = map[string]string{}
	}
	if _, again := p[tidegate.PropertyDeadLetterTopic]; !again {
		p[tidegate.PropertyDeadLetterTopic], p[tidegate.PropertyDeadLetterMessageID] = d.SentTo, d.SentID
		p[tidegate.PropertyDeadLetterQueue] = strconv.Itoa(d.Queue)
		p[tidegate.PropertyDeadLetterOffset] = strconv.FormatInt(d.Offset, 10)
	}
	if d.Artemis || !d.Expired.IsZero() {
		p[tidegate.PropertyOriginalAddress] = d.Topic
		p[tidegate.PropertyOriginalQueue] = d.Group
		p[tidegate.PropertyOriginalMessageID] = m.ID
	}
	if !d.Expired.IsZero() {
		p[tidegate.PropertyExpired] = strconv.FormatInt(d.Expired.UnixMilli(), 10)
		return p
	}
	p[tidegate.PropertyDeadLetterGroup] = d.Group
	p[tidegate.PropertyDeadLetterAttempts] = strconv.Itoa(d.Attempts)
	p[tidegate.PropertyDeadLetterReason] = d.Reason
	return p
}
