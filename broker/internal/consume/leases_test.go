package consume

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/internal/assert"
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
	c, _ := p.Claim(&r, now)
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
		got, is := p.LongestHeld(begin.Add(after))
		assert.That(t, is == ok && got == want, "after %v: %+v (%t), want %+v (%t)", after, got, is, want, ok)
	}
	expect(0, Holding{}, false)
	slow, fast := NewHolder("slow"), NewHolder("fast")
	first := receiveNew(p, slow, 3, begin)
	late := begin.Add(time.Minute)
	rest := receiveNew(p, fast, 997, late)
	expect(2*time.Minute, Holding{"slow", 3, begin, begin.Add(time.Hour)}, true)

	change := begin.Add(2*time.Minute + time.Millisecond)
	for _, g := range first {
		assert.Must(t, assert.Err(p.ChangeInvisible(g.Receipt, 2*time.Hour, g.Receipt.Serial+1, &Policy{}, change)))
	}
	due := change.Add(2 * time.Hour)
	expect(2*time.Minute+2*time.Millisecond, Holding{"slow", 3, begin, due}, true) // without a search
	assert.Must(t, p.Ack(rest[0].Receipt, change))
	for _, g := range first {
		h := g.Receipt
		h.Serial++
		assert.Must(t, p.Ack(h, change))
	}
	expect(2*time.Minute+9*time.Millisecond, Holding{}, false) // 1000 leases: the next search is after 10 ms
	expect(2*time.Minute+10*time.Millisecond, Holding{"fast", 996, late, late.Add(time.Hour)}, true)
}

// Clients keep handles while the broker restarts with another version, so the meaning of a handle
// must not change.
func TestTexts(t *testing.T) {
	due := time.Unix(0, 1_700_000_000_000_000_001)
	for _, c := range []struct{ want, text string }{
		{"AQAAAAIAAAADAAQAAAAAAAAABQAAAAY", Handle{Group: 2, Place: store.Place{Topic: 3, Queue: 4, Offset: 5}, Serial: 6}.String()},
		{
			"Af____________________________8",
			Handle{Group: math.MaxUint32, Place: store.Place{Topic: math.MaxUint32, Queue: math.MaxUint16, Offset: -1}, Serial: math.MaxUint32}.String(),
		},
		{"AReXnP42KgABAAAAAwAAAAAAAAAH", RecallHandle(store.Delayed{Due: due, Topic: 3, Number: 7})},
		{"AQAAAAMAAAAAAAAACA", TransactionID(store.HalfID{Topic: 3, Number: 8})},
	} {
		assert.Equal(t, "it is", c.text, c.want)
	}
	if r, err := ParseHandle("AQAAAAIAAAADAAQAAAAAAAAABQAAAAY"); err != nil || r != (Handle{Group: 2, Place: store.Place{Topic: 3, Queue: 4, Offset: 5}, Serial: 6}) {
		t.Errorf("the receipt handle is read as %+v, %v", r, err)
	}
	d, err := ParseRecallHandle("AReXnP42KgABAAAAAwAAAAAAAAAH")
	assert.That(t, err == nil && d.Due.Equal(due) && d.Topic == 3 && d.Number == 7, "the recall handle is read as %+v, %v", d, err)
	id, err := ParseTransactionID("AQAAAAMAAAAAAAAACA")
	assert.That(t, err == nil && id == (store.HalfID{Topic: 3, Number: 8}), "the transaction ID is read as %+v, %v", id, err)
}

func TestForeignHandles(t *testing.T) {
	parsers := map[string]func(string) error{
		"receipt":     func(s string) error { _, err := ParseHandle(s); return err },
		"recall":      func(s string) error { _, err := ParseRecallHandle(s); return err },
		"transaction": func(s string) error { _, err := ParseTransactionID(s); return err },
	}
	for text, want := range map[string]string{
		"":                                 "it has 0 characters",
		"AQAAAAMAAAAAAAAACAA":              "it has 19 characters",
		"AgAAAAEAAAAAAAAAAg":               "", // another version
		"AQAAAAEAAAAAAAAAA_":               "", // bits after the end
		"AQAAAAEAAAA\r\r\r\r\r\rg":         "", // the decoder skips line breaks
		"AQAAAAIAAAAB\rAn__________wAAAAA": "", // the same in a receipt handle
		"AReXnP42KgAB+AAAAwAAAAAAAAAH":     "", // the other base64
	} {
		for kind, parse := range parsers {
			err := parse(text)
			if !errors.Is(err, errForeign) {
				t.Errorf("%q as a %s: %v", text, kind, err)
			} else if want != "" && !strings.HasSuffix(err.Error(), want) {
				t.Errorf("%q as a %s: %v; want %q at the end", text, kind, err, want)
			}
		}
	}
}

// Each text is valid as one kind of handle at most, and is encoded as the same text again.
func FuzzParse(f *testing.F) {
	f.Add(Handle{Group: 2, Place: store.Place{Topic: 1}, Serial: 1}.String())
	f.Add(Handle{Group: 2, Place: store.Place{Topic: 1, Queue: 9, Offset: -1}}.String())
	f.Add(RecallHandle(store.Delayed{Due: time.Unix(0, -1), Topic: 1, Number: 1}))
	f.Add(TransactionID(store.HalfID{Topic: 1, Number: 2}))
	f.Add("AQAAAAEAAAA\r\r\r\r\r\rg")
	f.Add("AQAAAAIAAAAB\rAn__________wAAAAA")
	f.Fuzz(func(t *testing.T, text string) {
		kinds := 0
		same := func(err error, again func() string) {
			if err != nil {
				return
			}
			kinds++
			assert.Equal(t, "is read, and written as", again(), text)
		}
		r, err := ParseHandle(text)
		same(err, r.String)
		d, err := ParseRecallHandle(text)
		same(err, func() string { return RecallHandle(d) })
		id, err := ParseTransactionID(text)
		same(err, func() string { return TransactionID(id) })
		assert.That(t, kinds <= 1, "%q is read as %d kinds", text, kinds)
	})
}

// Retention keeps a message that is too old while a group is at work on it.
func TestNeeded(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	for _, c := range []struct {
		state   State
		attempt int
		due     time.Duration // from now
		grace   time.Duration
		retain  bool // its message group was parked
		want    bool
	}{
		{Inflight, 1, -time.Hour, time.Second, false, true}, // before Expire
		{WaitingRetry, 3, time.Hour, time.Second, false, true},
		{DeadLetter, 17, -time.Hour, time.Second, false, true}, // on its way there
		{Parked, 17, -time.Hour, time.Second, false, true},
		{Held, 0, 0, time.Hour, false, false},
		{Ready, 0, 0, time.Hour, false, false}, // never delivered: it was held until now
		{Ready, 1, 0, time.Hour, false, true},
		{Ready, 1, 1 - time.Hour, time.Hour, false, true},
		{Ready, 1, -time.Hour, time.Hour, false, false},
		{Ready, 1, 1 - time.Minute, time.Minute, false, true},
		{Ready, 1, -time.Minute, time.Minute, false, false},
		{Ready, 0, -time.Hour, time.Minute, true, true}, // redriven, and not received since
		{Ready, 3, -time.Hour, time.Minute, true, true},
		{Held, 0, 0, time.Minute, true, true},
	} {
		l := &Lease{Lease: store.Lease{State: uint8(c.state), Attempt: c.attempt, Due: now.Add(c.due), Retain: c.retain}}
		got := l.Needed(c.grace, now)
		assert.That(t, got == c.want, "%+v: %t", c, got)
	}
}

// An idle subscription keeps no buffer of writes, and no lease alive by one. The test reads a
// buffer that others may take, so it does not run beside them.
func TestEffectsKeepNothing(t *testing.T) {
	p := New(Config{})
	p.AddQueue(store.Mark{})
	for range 10 {
		p.putLease(&Lease{cursor: p.cursors[0]})
	}
	assert.MustEqual(t, "writes", len(p.Effects().Writes), 10)
	e := p.Effects()
	buffer := e.Writes
	if e.Reset(); cap(e.Writes) != 0 || e.buffer != nil {
		t.Errorf("a buffer of %d writes is kept", cap(e.Writes))
	}
	for _, w := range buffer {
		assert.MustThat(t, w.Lease == nil, "a lease is kept alive")
	}
}

// A busy consumer sends thousands of attempt IDs a second. Attempt IDs without a delivery in flight
// are forgotten soon, because each keeps up to 128 deliveries in memory.
func TestAttemptsThatAreOverAreForgotten(t *testing.T) {
	p := New(Config{})
	p.AddQueue(store.Mark{})
	for i := range 1000 {
		over := Grant{Lease: &Lease{cursor: p.cursors[0], offset: int64(i)}}
		p.Remember(Response{AttemptID: strconv.Itoa(i)}, []Grant{over}, time.Now())
		n := p.Replays()
		assert.MustThat(t, n <= 64, "after %d receives %d attempt IDs are kept, of which no delivery is in flight", i+1, n)
	}
}
