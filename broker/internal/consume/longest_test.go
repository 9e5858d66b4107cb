package consume

import (
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// checkHeld compares the client with the first delivery in flight with a search in the model.
func (m *model) checkHeld() {
	var first *message
	counts := map[*Holder]int64{}
	for _, msg := range m.all() {
		if msg.state != Inflight || msg.departs != 0 {
			continue
		}
		counts[msg.holder]++
		if first == nil || msg.since.Before(first.since) {
			first = msg
		}
	}
	got := m.p.searchLongest()
	switch {
	case first == nil && got.lease == nil:
	case first == nil || got.lease == nil || !got.Since.Equal(first.since):
		m.failf("the first delivery in flight is %+v, want %+v", got.Holding, first)
	default:
		msg := m.messages[got.lease.Queue()][got.lease.Offset()]
		if !msg.since.Equal(first.since) || !got.Due.Equal(got.lease.Due) || msg.holder != nil && (got.Client != msg.holder.id || got.Messages != counts[msg.holder]) {
			m.failf("the client with the first delivery is %+v; in the model it has %d", got.Holding, counts[msg.holder])
		}
	}
}

type anyMessage struct{}

func (anyMessage) Wants(*store.Message) bool { return true }

// receiveNew delivers n new messages of queue 0 to a holder.
func receiveNew(p *Progress, h *Holder, n int, now time.Time) []Grant {
	p.Extend(0, p.Cursor(0).Next+int64(n))
	r := Receive{Queue: -1, Max: n, MaxBytes: 1 << 20, Holder: h, Invisible: time.Hour, Filter: anyMessage{}}
	p.Begin(&r, now)
	c, _ := p.Claim(&r)
	ms, offsets := make([]store.Message, n), make([]int64, n)
	for i := range ms {
		ms[i].StoredAt, offsets[i] = now, c.From+int64(i)
	}
	p.Unclaim(&r, 0)
	p.Admit(&r, c, false, ms, offsets, now)
	p.End(&r, now)
	return r.Grants
}

// The client with the longest delivery stays the same while it extends its lease. The next search
// waits 10 µs for each lease of the last one.
func TestLongestHeld(t *testing.T) {
	t.Parallel()
	begin := time.Unix(1e9, 0)
	p := New(Config{MaxInvisible: 24 * time.Hour})
	p.AddQueue(store.Mark{})
	expect := func(after time.Duration, want Holding, ok bool) {
		t.Helper()
		if got, is := p.LongestHeld(begin.Add(after)); is != ok || got != want {
			t.Errorf("after %v: %+v (%t), want %+v (%t)", after, got, is, want, ok)
		}
	}
	expect(0, Holding{}, false)
	slow, fast := NewHolder("slow"), NewHolder("fast")
	first := receiveNew(p, slow, 3, begin)
	late := begin.Add(time.Minute)
	rest := receiveNew(p, fast, 997, late)
	expect(2*time.Minute, Holding{"slow", 3, begin, begin.Add(time.Hour)}, true)

	change := begin.Add(2*time.Minute + time.Millisecond)
	for _, g := range first {
		if _, err := p.ChangeInvisible(g.Receipt, 2*time.Hour, g.Receipt.Serial+1, &Policy{}, change); err != nil {
			t.Fatal(err)
		}
	}
	due := change.Add(2 * time.Hour)
	expect(2*time.Minute+2*time.Millisecond, Holding{"slow", 3, begin, due}, true) // without a search
	if err := p.Ack(rest[0].Receipt, change); err != nil {
		t.Fatal(err)
	}
	for _, g := range first {
		h := g.Receipt
		h.Serial++
		if err := p.Ack(h, change); err != nil {
			t.Fatal(err)
		}
	}
	expect(2*time.Minute+9*time.Millisecond, Holding{}, false) // 1000 leases: the next search is after 10 ms
	expect(2*time.Minute+10*time.Millisecond, Holding{"fast", 996, late, late.Add(time.Hour)}, true)
}
