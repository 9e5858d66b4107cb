package deadletter

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
)

func TestPositions(t *testing.T) {
	t.Parallel()
	for _, p := range []Position{{}, {3, 17}, {65535, 1 << 62}} {
		got, err := ParsePosition(p.String())
		assert.That(t, err == nil && got == p, "%v is read as %v, %v", p, got, err)
	}
	p, err := ParsePosition("")
	assert.That(t, err == nil && p == (Position{}), "an empty text is %v, %v", p, err)
	for _, text := range []string{"1", "-", "1-", "-1", "1--1", "65536-0", "1-x", "1-9223372036854775808", " 1-1"} {
		p, err := ParsePosition(text)
		assert.That(t, errors.Is(err, ErrPosition), "%q is %v, %v", text, p, err)
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	m := &store.Message{Message: tidegate.Message{ID: "a"}, StoredAt: at}
	origin := tidegate.DeadLetter{Topic: "t", Reason: "no such customer"}
	for _, c := range []struct {
		filter status.DeadLetterFilter
		want   bool
	}{
		{status.DeadLetterFilter{}, true},
		{status.DeadLetterFilter{Topic: "t"}, true},
		{status.DeadLetterFilter{Topic: "u"}, false},
		{status.DeadLetterFilter{MessageIDs: []string{"b", "a"}}, true},
		{status.DeadLetterFilter{MessageIDs: []string{"b"}}, false},
		{status.DeadLetterFilter{Reason: "customer"}, true},
		{status.DeadLetterFilter{Reason: "Customer"}, false},
		{status.DeadLetterFilter{Fingerprint: protocol.Fingerprint("t", "No  such customer")}, true},
		{status.DeadLetterFilter{Fingerprint: protocol.Fingerprint("u", "no such customer")}, false},
		{status.DeadLetterFilter{Fingerprint: "x"}, false},
		{status.DeadLetterFilter{Since: at}, true},
		{status.DeadLetterFilter{Since: at.Add(1)}, false},
		{status.DeadLetterFilter{Before: at}, false},
		{status.DeadLetterFilter{Before: at.Add(1)}, true},
		{status.DeadLetterFilter{Topic: "t", MessageIDs: []string{"a"}, Reason: "no", Since: at, Before: at.Add(1)}, true},
	} {
		got := matches(&c.filter, m, origin)
		assert.That(t, got == c.want, "%+v: %v, want %v", c.filter, got, c.want)
	}
}

// Redriven is the inverse of Properties, except for the number of redrives.
func TestRedrivenMessageEqualsTheSentOne(t *testing.T) {
	t.Parallel()
	sent := &store.Message{Message: tidegate.Message{ID: "a", Properties: map[string]string{"k": "v"}}}
	death := &Death{Group: "g", Topic: "t", Queue: 3, Offset: 17, Attempts: 5, Reason: "no", SentTo: "t", SentID: "a"}
	dead := *sent
	dead.Properties = death.Properties(sent)
	assert.That(t, len(sent.Properties) == 1, "the original has %v", sent.Properties)
	origin, ok := dead.DeadLetter()
	want := tidegate.DeadLetter{Topic: "t", MessageID: "a", Queue: 3, Offset: 17, Group: "g", Attempts: 5, Reason: "no"}
	assert.That(t, ok && origin == want, "the origin is %+v, want %+v", origin, want)
	l := Letter{Message: dead.Message, Origin: origin}
	l.Origin.Redrives = 2
	m := l.Redriven("t")
	if want := map[string]string{"k": "v", protocol.PropertyDeadLetterRedrives: "3"}; m.ID != "a" || !maps.Equal(m.Properties, want) {
		t.Errorf("redriven: %s with %v, want %v", m.ID, m.Properties, want)
	}
	again := *death
	again.SentTo, again.Group, again.Offset = "other", "h", 99
	if p := again.Properties(&dead); p[protocol.PropertyDeadLetterTopic] != "t" || p[protocol.PropertyDeadLetterOffset] != "17" || p[protocol.PropertyDeadLetterGroup] != "h" {
		t.Errorf("a second death: %v", p)
	}
}

// A redriven message of a retry topic is the original message, except if it is sent to that retry
// topic.
func TestRedrivenOfARetry(t *testing.T) {
	t.Parallel()
	l := Letter{
		Message: tidegate.Message{ID: "retry", DeliverAt: time.Unix(1, 0), Properties: map[string]string{
			protocol.PropertyRetryTopic: "t-g-RETRY", protocol.PropertyReconsumeTimes: "16", protocol.PropertyOriginMessageID: "a", protocol.PropertyRealTopic: "t",
		}},
		Origin: tidegate.DeadLetter{MessageID: "a"},
	}
	m := l.Redriven("t")
	if m.ID != "a" || !m.DeliverAt.IsZero() || len(m.Properties) != 1 {
		t.Errorf("to the original topic: %s, due %v, %v", m.ID, m.DeliverAt, m.Properties)
	}
	if m := l.Redriven("t-g-RETRY"); m.ID != "retry" || len(m.Properties) != 5 {
		t.Errorf("to the retry topic: %s, %v", m.ID, m.Properties)
	}
}

func TestPropertiesOfAddresses(t *testing.T) {
	t.Parallel()
	m := &store.Message{Message: tidegate.Message{ID: "a"}}
	d := &Death{Group: "g", Topic: "t", SentTo: "t", SentID: "a", Attempts: 3, Artemis: true}
	p := d.Properties(m)
	if p[protocol.PropertyOriginalAddress] != "t" || p[protocol.PropertyOriginalQueue] != "g" || p[protocol.PropertyOriginalMessageID] != "a" || p[protocol.PropertyDeadLetterAttempts] != "3" {
		t.Errorf("a dead letter has %v", p)
	}
	d.Expired = time.UnixMilli(1234)
	p = d.Properties(m)
	if _, dead := p[protocol.PropertyDeadLetterGroup]; dead || p[protocol.PropertyExpired] != "1234" {
		t.Errorf("an expired message has %v", p)
	}
}

// queues are the queues of a topic; a message without ID is damaged.
type queues struct {
	begin   int64
	ids     [][]string
	skipped int
}

func (queues) Name() string { return "DLQ" }

func (q *queues) Bounds(queue int) (begin, end int64, ok bool) {
	if queue >= len(q.ids) {
		return 0, 0, false
	}
	return q.begin, int64(len(q.ids[queue])), true
}

func (q *queues) Read(queue int, from, to int64, limit int, _ int64) (ms []store.Message, offsets []int64, err error) {
	for o := from; o < to && len(ms) < limit; o++ {
		id := q.ids[queue][o]
		if id == "" {
			if len(ms) > 0 {
				return ms, offsets, nil
			}
			return nil, nil, &store.Damaged{From: o, To: o + 1, Err: errors.New("damaged")}
		}
		m := store.Message{Message: tidegate.Message{ID: id, Body: make([]byte, 10)}}
		m.Properties = (&Death{Group: "g", SentTo: "t", SentID: id}).Properties(&m)
		if id == "other" {
			m.Properties[protocol.PropertyDeadLetterGroup] = "h"
		}
		ms, offsets = append(ms, m), append(offsets, o)
	}
	return ms, offsets, nil
}

func (q *queues) SkipDamaged(_ int, d *store.Damaged) { q.skipped += int(d.To - d.From) }

func TestScan(t *testing.T) {
	t.Parallel()
	many := []string{"removed", "1", "2", "", "3", "other"}
	for i := range 2 * Chunk {
		many = append(many, fmt.Sprintf("m%d", i))
	}
	q := &queues{begin: 1, ids: [][]string{many, {}, {"removed", "last"}}}
	var found []string
	at := Position{}
	for calls := 0; ; calls++ { // each call continues where the previous one stopped
		s := Scan{Topic: q, Group: "g", At: at, Messages: 100, Bytes: 1 << 20}
		for !s.Over() {
			ls := assert.Value(s.Next(7))(t)
			assert.MustThat(t, len(ls) <= 7, "%d are returned, 7 were asked for", len(ls))
			for _, l := range ls {
				found = append(found, l.ID)
				if l.Origin.Group != "g" || l.Topic != "DLQ" || q.ids[l.Queue][l.Offset] != l.ID {
					t.Errorf("%s is at %v", l.ID, l.Position())
				}
			}
		}
		if s.Position() == "" {
			break
		}
		var err error
		if at, err = ParsePosition(s.Position()); err != nil || calls > 100 {
			t.Fatalf("call %d stops at %q, %v", calls, s.Position(), err)
		}
	}
	want := slices.Concat([]string{"1", "2", "3"}, many[6:], []string{"last"})
	assert.That(t, slices.Equal(found, want), "%d are found, want %d: %v", len(found), len(want), found)
	assert.Equal(t, "are skipped", q.skipped, 1)
}
