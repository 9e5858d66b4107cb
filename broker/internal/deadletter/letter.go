// Package deadletter reads and converts dead letters: their filters and positions, scans of the
// topics in which they are, and the properties of dead letters, redriven messages and messages of
// retry topics. It writes nothing.
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
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
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

	BodySize int // also of a letter whose body was left out
}

// Size returns the approximate memory of the letter in bytes.
func (l *Letter) Size() int {
	n := 1<<10 + len(l.Body)
	for k, v := range l.Properties {
		n += len(k) + len(v)
	}
	return n
}

// Status returns the dead letter as users see it. Properties that servers add are in its Origin or
// left out. It shares the body.
func (l *Letter) Status() status.DeadLetter {
	d := status.DeadLetter{
		MessageID: l.ID, Queue: l.Queue, Offset: l.Offset, StoredAt: l.StoredAt, BornAt: l.BornAt, BornHost: l.BornHost,
		MessageGroup: l.MessageGroup, LiteTopic: l.LiteTopic, Priority: l.Priority, Tag: l.Tag, Keys: l.Keys, TraceContext: l.TraceContext, BodySize: l.BodySize, Body: l.Body, Origin: l.Origin,
	}
	for k, v := range l.Properties {
		if tidegate.ReservedProperty(k) {
			continue
		}
		if d.Properties == nil {
			d.Properties = map[string]string{}
		}
		d.Properties[k] = v
	}
	return d
}

// matches reports whether the filter selects a dead letter.
func matches(f *status.DeadLetterFilter, m *store.Message, origin tidegate.DeadLetter) bool {
	return (f.Topic == "" || f.Topic == origin.Topic) &&
		(len(f.MessageIDs) == 0 || slices.Contains(f.MessageIDs, m.ID)) &&
		strings.Contains(origin.Reason, f.Reason) &&
		(f.Since.IsZero() || !m.StoredAt.Before(f.Since)) &&
		(f.Before.IsZero() || m.StoredAt.Before(f.Before)) &&
		(f.Fingerprint == "" || f.Fingerprint == protocol.Fingerprint(origin.Topic, origin.Reason))
}

// A Position is a place in a topic; the zero value is the beginning.
type Position struct {
	Queue  int
	Offset int64
}

// String returns the text that ParsePosition reads.
func (p Position) String() string { return fmt.Sprintf("%d-%d", p.Queue, p.Offset) }

// ErrPosition is the error of ParsePosition for a text that is not a position.
var ErrPosition = errors.New("it is not a position")

// ParsePosition parses the text of a position. An empty text means the beginning. The error is
// ErrPosition.
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

// Position returns the position of the dead letter.
func (l *Letter) Position() Position { return Position{l.Queue, l.Offset} }

// Redriven returns the original message of a dead letter, to be sent to the topic named to. The
// message has no properties of the dead letter, except for the number of its redrives.
func (l *Letter) Redriven(to string) *store.Message {
	m := &store.Message{Message: l.Message, BornAt: l.BornAt, BornHost: l.BornHost}
	m.Properties = maps.Clone(l.Properties)
	if m.Properties == nil {
		m.Properties = map[string]string{}
	}
	for _, p := range [...]string{
		protocol.PropertyDeadLetterTopic, protocol.PropertyDeadLetterMessageID, protocol.PropertyDeadLetterQueue, protocol.PropertyDeadLetterOffset,
		protocol.PropertyDeadLetterGroup, protocol.PropertyDeadLetterAttempts, protocol.PropertyDeadLetterReason,
	} {
		delete(m.Properties, p)
	}
	if retry, ok := m.Properties[protocol.PropertyRetryTopic]; ok && retry != to { // otherwise it stays a message of the retry topic
		m.ID, m.DeliverAt = cmp.Or(l.Origin.MessageID, m.ID), time.Time{}
		for _, p := range [...]string{
			protocol.PropertyRealTopic, protocol.PropertyOriginMessageID, protocol.PropertyRetryTopic, protocol.PropertyReconsumeTimes,
		} {
			delete(m.Properties, p)
		}
	}
	m.Properties[protocol.PropertyDeadLetterRedrives] = strconv.Itoa(l.Origin.Redrives + 1)
	return m
}

// RedrivenToGroup is Redriven for the topic named to, from which only the group of the dead letter
// receives. The message has the topic of its original send as a property.
func (l *Letter) RedrivenToGroup(to string) *store.Message {
	m := l.Redriven(to)
	m.Properties[protocol.PropertyRealTopic], m.Properties[protocol.PropertyRetryTopic] = l.Origin.Topic, to
	return m
}

// Edited returns the letter with the changes of an edit and its new ID. Bodies have at most maxBody
// bytes. The error is that of a message which no client could send.
func (l *Letter) Edited(e *status.DeadLetterEdit, maxBody int) (*Letter, error) {
	m := *l
	m.ID = cmp.Or(e.ID, protocol.RedrivenID(l.ID, l.Origin.Redrives))
	m.Origin.MessageID = m.ID
	switch {
	case len(e.Body) > 0 && e.BodyText != "":
		return nil, refusal.New(tidegate.CodeBadRequest, "edit", "it has body and body_text; give one of the two")
	case len(e.Body) > 0:
		m.Body = e.Body
	case e.BodyText != "":
		m.Body = []byte(e.BodyText)
	}
	if e.Tag != nil {
		m.Tag = *e.Tag
	}
	if e.Keys != nil {
		m.Keys = e.Keys
	}
	m.Properties = maps.Clone(l.Properties)
	if m.Properties == nil {
		m.Properties = map[string]string{}
	}
	delete(m.Properties, protocol.PropertyOriginMessageID)
	for name, value := range e.Properties {
		if name == protocol.PropertyDeadLetterRedrives || tidegate.ReservedProperty(name) {
			return nil, refusal.New(protocol.CodeIllegalMessagePropertyKey, "property", "%q belongs to the servers, and an edit cannot change it; leave it out", name)
		}
		if delete(m.Properties, name); value != nil {
			m.Properties[name] = *value
		}
	}
	sent := m.Message
	sent.Topic, sent.DeliverAt, sent.Properties = l.Origin.Topic, time.Time{}, maps.Clone(m.Properties)
	maps.DeleteFunc(sent.Properties, func(name, _ string) bool {
		return name == protocol.PropertyDeadLetterRedrives || tidegate.ReservedProperty(name)
	})
	return &m, sent.Validate(maxBody)
}

// A Death describes how a message became a dead letter or expired.
type Death struct {
	Group, Topic string // the consumer group, and the topic of the message
	Queue        int
	Offset       int64
	Attempts     int
	Reason       string

	// SentTo and SentID are the topic and the ID of the original send, before any retry topic.
	SentTo, SentID string

	Artemis bool      // the settings of an address apply: add the properties of Artemis
	Expired time.Time // when the message expired; zero for a dead letter
}

// Properties returns the properties of a message, and adds the properties of its death. It does not
// change m. A dead letter that becomes a dead letter again keeps its first origin.
func (d *Death) Properties(m *store.Message) map[string]string {
	p := maps.Clone(m.Properties)
	if p == nil {
		p = map[string]string{}
	}
	if _, again := p[protocol.PropertyDeadLetterTopic]; !again {
		p[protocol.PropertyDeadLetterTopic], p[protocol.PropertyDeadLetterMessageID] = d.SentTo, d.SentID
		p[protocol.PropertyDeadLetterQueue] = strconv.Itoa(d.Queue)
		p[protocol.PropertyDeadLetterOffset] = strconv.FormatInt(d.Offset, 10)
	}
	if d.Artemis || !d.Expired.IsZero() {
		p[protocol.PropertyOriginalAddress] = d.Topic
		p[protocol.PropertyOriginalQueue] = d.Group
		p[protocol.PropertyOriginalMessageID] = m.ID
	}
	if !d.Expired.IsZero() {
		p[protocol.PropertyExpired] = strconv.FormatInt(d.Expired.UnixMilli(), 10)
		return p
	}
	p[protocol.PropertyDeadLetterGroup] = d.Group
	p[protocol.PropertyDeadLetterAttempts] = strconv.Itoa(d.Attempts)
	p[protocol.PropertyDeadLetterReason] = d.Reason
	return p
}

// A Retry is a message for a retry topic, or a retried message for the dead letter topic. It is
// stored as a message of its own.
type Retry struct {
	ID    string
	Times int       // retries, including this one
	From  string    // topic of the original send if this is the first retry, and empty otherwise
	Due   time.Time // delivery time; zero means at once
	Dead  bool      // it goes to the dead letter topic
}

// Apply turns the original message into the retry, for the topic named to.
func (r *Retry) Apply(m *store.Message, to string) {
	p := maps.Clone(m.Properties)
	if p == nil {
		p = map[string]string{}
	}
	if r.From != "" {
		p[protocol.PropertyRealTopic], p[protocol.PropertyOriginMessageID] = r.From, m.ID
	}
	if !r.Dead {
		p[protocol.PropertyRetryTopic] = to
	}
	p[protocol.PropertyReconsumeTimes] = strconv.Itoa(r.Times)
	m.ID, m.DeliverAt, m.Properties = r.ID, r.Due, p
}

// RealTopic returns the topic of the original send of a message. For messages that are not from a
// retry topic, this is topic.
func RealTopic(m *store.Message, topic string) string {
	return cmp.Or(m.Properties[protocol.PropertyRealTopic], topic)
}

// Origin returns the topic of the original send of a message in topic, and how often the group has
// retried it since. The properties of the message count only if topic is the group's own retry
// topic. In all other topics, dead letters and retries of other groups are ordinary messages.
func Origin(c *settings.RetryTopic, m *store.Message, topic, group string) (from string, times int) {
	from, retry := c.Original(topic, group)
	if !retry {
		return topic, 0
	}
	if from == "" { // one retry topic for all topics of the group
		from = RealTopic(m, topic)
	}
	times, _ = strconv.Atoi(m.Properties[protocol.PropertyReconsumeTimes]) // only the broker writes it
	return from, max(times, 0)
}

// Sent returns topic and ID of the original send of a message in topic. As in Origin, the
// properties count only in the group's own retry topic.
func Sent(c *settings.RetryTopic, m *store.Message, topic, group string) (to, id string) {
	if _, retry := c.Original(topic, group); !retry {
		return topic, m.ID
	}
	return RealTopic(m, topic), cmp.Or(m.Properties[protocol.PropertyOriginMessageID], m.ID)
}

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
