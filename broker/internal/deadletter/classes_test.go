package deadletter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
)

// Classes that are removed free their places in the limits of the broker and of the group. The
// class for the rest has none.
func TestRemovedClassesFreeTheirPlaces(t *testing.T) {
	var all atomic.Int64
	one, other := NewClasses(1, &all), NewClasses(2, &all)
	for i, table := range []*Classes{one, one, one, other} {
		c := &store.LetterClass{Group: "billing", Fingerprint: fmt.Sprint(i), Topic: "orders", Count: 1}
		if i == 2 {
			c.Fingerprint = "" // for the rest
		}
		table.Restore(uint32(i+1), c)
	}
	if n := all.Load(); n != 3 || one.groups["billing"] != 2 {
		t.Fatalf("%d classes in the broker and %d in the group, want 3 and 2", n, one.groups["billing"])
	}
	one.drop(one.byNumber[1])
	if n := all.Load(); n != 2 || one.groups["billing"] != 1 {
		t.Errorf("after a removal %d classes in the broker and %d in the group, want 2 and 1", n, one.groups["billing"])
	}
	one.Close()
	if n := all.Load(); n != 1 || len(one.groups) != 0 || !one.Empty() {
		t.Errorf("after the end of a topic %d classes in the broker and %d groups, want 1 and none", n, len(one.groups))
	}
	other.Close()
	assert.Equal(t, "at the end classes in the broker", all.Load(), 0)
}

// The failures of all groups together have a bound, and a group with many failures displaces only
// its own.
func TestBound(t *testing.T) {
	t.Parallel()
	var l FailureLog
	for i := range 10 {
		l.Add(fmt.Sprint("quiet", i), Failure{Reason: "r"})
	}
	const added = 20_000
	reason := strings.Repeat("x", 1<<10)
	for range added {
		l.Add("noisy", Failure{Reason: reason})
	}
	assert.That(t, l.bytes <= maxBytes && l.bytes >= maxBytes-2<<10, "the failures have %d bytes", l.bytes)
	page, dropped, _ := l.Page("noisy", "", 0, added)
	if int64(len(page))+dropped != added || page[0].Number != added+10 || page[0].Number-page[len(page)-1].Number != uint64(len(page)-1) {
		t.Errorf("%d are kept and %d dropped", len(page), dropped)
	}
	for i := range 10 {
		page, dropped, _ := l.Page(fmt.Sprint("quiet", i), "", 0, 2)
		assert.That(t, len(page) == 1 && dropped == 0, "quiet group %d has %d failures, %d dropped", i, len(page), dropped)
	}
}

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
