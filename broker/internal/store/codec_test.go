package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// sampleMessage returns a message of which no field is zero.
func sampleMessage() Message {
	return Message{
		Message: tidegate.Message{
			ID: "id", Topic: "", Tag: "t", Keys: []string{"k1", ""}, MessageGroup: "g",
			Properties: map[string]string{"a": "1", "": "x"}, TraceContext: "trace", DeliverAt: time.Unix(5, 6), Body: []byte("body"),
		},
		Cumulative: 1 << 40, BornAt: time.Unix(1, 2), BornHost: "h", StoredAt: time.Unix(3, 4),
	}
}

func equalMessages(a, b Message) bool {
	return a.ID == b.ID && a.Tag == b.Tag && slices.Equal(a.Keys, b.Keys) && a.MessageGroup == b.MessageGroup && a.Priority == b.Priority && a.LiteTopic == b.LiteTopic &&
		maps.Equal(a.Properties, b.Properties) && a.TraceContext == b.TraceContext && bytes.Equal(a.Body, b.Body) &&
		a.Cumulative == b.Cumulative && a.BornAt.Equal(b.BornAt) && a.BornHost == b.BornHost && a.StoredAt.Equal(b.StoredAt) && a.DeliverAt.Equal(b.DeliverAt)
}

func TestMessageRoundTrip(t *testing.T) {
	ranked := sampleMessage()
	ranked.MessageGroup, ranked.Priority = "", math.MaxInt32
	lite := sampleMessage()
	lite.MessageGroup, lite.LiteTopic = "", "session-17"
	versions := map[string]byte{"full": 1, "empty": 1, "ranked": 2, "lite": 3}
	for name, m := range map[string]Message{"full": sampleMessage(), "empty": {}, "ranked": ranked, "lite": lite} {
		b := m.AppendTo(nil)
		assert.That(t, b[0] == versions[name], "%s: the record has version %d; programs before priorities and lite topics read version 1", name, b[0])
		if len(b) != m.EncodedSize() {
			t.Errorf("%s: %d bytes, EncodedSize returns %d", name, len(b), m.EncodedSize())
		}
		var got Message
		err := decodeMessage(b, &got)
		assert.That(t, err == nil && equalMessages(m, got), "%s: read back %+v, %v; want %+v", name, got, err, m)
		for i := range b { // cut anywhere before the body: an error, or a shorter body, never another message
			var short Message
			err := decodeMessage(b[:i], &short)
			assert.That(t, err != nil || len(b)-i <= len(m.Body), "%s: cut to %d bytes it was read as %+v", name, i, short)
		}
	}
}

// Invariants: decoding never panics, and its errors are ErrCorrupt. A decoded record can be encoded
// and decoded again as the same record.
func FuzzDecodeMessage(f *testing.F) {
	m := sampleMessage()
	f.Add(m.AppendTo(nil))
	m.Priority = 300
	f.Add(m.AppendTo(nil))
	m.Priority, m.LiteTopic = 0, "session-17"
	f.Add(m.AppendTo(nil))
	f.Add([]byte{messageVersion, 0x80})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, again Message
		id, at, iderr := decodeID(b)
		assert.MustThat(t, iderr == nil || errors.Is(iderr, errCorrupt), "the error does not report a damaged record: %v", iderr)
		if err := decodeMessage(b, &m); err != nil {
			assert.MustIs(t, "the error does not report a damaged record", err, errCorrupt)
			return
		}
		assert.MustThat(t, iderr == nil && id == m.ID && at.Equal(m.StoredAt),
			"the ID is %q, stored at %v, %v; want those of %+v", id, at, iderr, m)
		err := decodeMessage(m.AppendTo(nil), &again)
		assert.MustThat(t, err == nil && equalMessages(m, again), "written and read back: %+v, %v; want %+v", again, err, m)
	})
}

// Records without the duration of the due time, as earlier versions wrote them, are still read, and
// no record is larger than EncodedSize.
func TestSpans(t *testing.T) {
	for _, span := range []time.Duration{0, 1, 10 * time.Second, 1<<63 - 1} {
		l := Lease{State: 2, Push: true, Attempt: 3, Serial: 4, Due: time.Unix(5, 6), Span: span, Since: time.Unix(7, 8), Stored: 10, Size: 9, Owner: "o", Group: "g"}
		b := l.AppendTo(nil)
		if span == 0 && !bytes.Equal(b, []byte("\x01\x02\x01\x03\x00\x00\x00\x04\x00\x00\x00\x01\x2a\x05\xf2\x06\x00\x00\x00\x01\xa1\x3b\x86\x08\x00\x00\x00\x00\x00\x00\x00\x0a\x09\x01o\x01g")) {
			t.Errorf("the record of an earlier version is %x", b)
		}
		var got Lease
		if err := decodeLease(b, &got); err != nil || got != l || len(b) != l.EncodedSize() {
			t.Errorf("read back %+v, %v; want %+v; %d bytes, EncodedSize returns %d", got, err, l, len(b), l.EncodedSize())
		}
		h := HalfState{Due: time.Unix(5, 6), Span: span, Checks: 3, Stored: time.Unix(1, 2), IDHash: 7, Size: 300}
		if got, err := decodeHalfState(h.Encode()); err != nil || got != h {
			t.Errorf("read back %+v, %v; want %+v", got, err, h)
		}
		size := len(h.Encode())
		assert.That(t, span != 0 || size == 24+1+2, "the state of an earlier version has %d bytes", size)
	}
	for _, b := range [][]byte{{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, {0x80}} { // above the longest duration, and cut
		l := Lease{Span: 1}
		v := l.AppendTo(nil)
		err := decodeLease(append(v[:len(v)-1], b...), &l)
		assert.That(t, errors.Is(err, errCorrupt), "a span of %x: %v", b, err)
	}
}

// Invariants: as above.
func FuzzDecodeLease(f *testing.F) {
	l := Lease{State: 2, Push: true, Retain: true, Blocked: true, Changed: true, Attempt: 3, Serial: 4, Due: time.Unix(5, 6), Since: time.Unix(7, 8), Stored: 10, Size: 9, Owner: "o", Group: "g"}
	f.Add(l.AppendTo(nil))
	f.Add((&Lease{}).AppendTo(nil))
	f.Add((&Lease{State: 1, Due: time.Unix(5, 6), Span: time.Hour}).AppendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var l, again Lease
		if err := decodeLease(b, &l); err != nil {
			assert.MustIs(t, "the error does not report a damaged record", err, errCorrupt)
			return
		}
		assert.MustEqual(t, "bytes, EncodedSize returns", len(l.AppendTo(nil)), l.EncodedSize())
		err := decodeLease(l.AppendTo(nil), &again)
		assert.MustThat(t, err == nil && again == l, "written and read back: %+v, %v; want %+v", again, err, l)
	})
}

// Invariants: as above.
func FuzzDecodeHalfState(f *testing.F) {
	f.Add(HalfState{Due: time.Unix(5, 6), Checks: 300, Stored: time.Unix(7, 8), IDHash: 9, Size: 1 << 20}.Encode())
	f.Add(HalfState{}.Encode())
	f.Add(append(make([]byte, 24), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeHalfState(b)
		if err != nil {
			assert.MustIs(t, "the error does not report a damaged record", err, errCorrupt)
			return
		}
		if again, err := decodeHalfState(s.Encode()); err != nil || again != s || s.Checks < 0 {
			t.Fatalf("written and read back: %+v, %v; want %+v", again, err, s)
		}
	})
}

// Invariants: decoding a key never panics. A decoded key is encoded as the same key.
func FuzzHalfKeys(f *testing.F) {
	f.Add(HalfID{1, 2}.AppendKey(nil, prefixHalf))
	f.Add(DueHalf{HalfID{1, 2}, time.Unix(5, 6)}.Key())
	f.Add([]byte("x\xf2\x18\x00\x01*\x05\x00\xe8\xff\x00\x81\x81\x81\x00\x01\x00\x00\x00\x00\x00")) // a time that no key has
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := splitHalfKey(b)
		assert.That(t, err != nil || bytes.Equal(id.AppendKey(nil, b[0]), b), "%x is read as %+v", b, id)
		d, err := splitDueHalfKey(b)
		assert.That(t, err != nil || bytes.Equal(d.Key()[1:], b[1:]), "%x is read as %+v", b, d)
	})
}

func TestKeysSortByOffset(t *testing.T) {
	var last []byte
	for _, p := range []Place{{1, 0, 0}, {1, 0, 1}, {1, 0, 255}, {1, 0, 256}, {1, 1, 0}, {2, 0, 0}} {
		k := appendMessageKey(nil, p)
		assert.That(t, bytes.Compare(last, k) < 0, "the key of %+v does not sort after the one before", p)
		if messageOffset(k) != p.Offset {
			t.Errorf("the key of %+v reads as offset %d", p, messageOffset(k))
		}
		g, q, ok := splitLeaseKey(appendLeaseKey(nil, prefixLease, 7, p))
		assert.That(t, ok && g == 7 && q == p, "lease key of %+v reads as %d %+v %v", p, g, q, ok)
		last = k
	}
	got := prefixEnd([]byte{1, 0xff})
	assert.That(t, bytes.Equal(got, []byte{2}), "after(01ff) = %x", got)
	assert.That(t, prefixEnd([]byte{0xff}) == nil, "nothing sorts after ff")
}

// Invariants: decoding a key never panics. A decoded key is encoded as the same key. An error
// reports that the record is corrupt.
func FuzzKeys(f *testing.F) {
	p := Place{Topic: 1, Queue: 2, Offset: 3}
	d := Delayed{Due: time.Unix(4, 5), Topic: 6, Number: 7}
	f.Add(appendLeaseKey(nil, prefixLease, 8, p), []byte{})
	f.Add(appendCursorKey(nil, prefixCursor, 8, 1, 2), make([]byte, 16))
	f.Add(d.AppendKey(nil), []byte{})
	f.Add(d.StoredKey(time.Unix(9, 0)), make([]byte, 17))
	f.Add(RecentIDs{Queue: 1, End: 2, At: time.Unix(3, 4)}.AppendKey(nil, 5), make([]byte, 12))
	f.Add([]byte{}, make([]byte, 16))
	// Times that no key has: found by fuzzing.
	f.Add([]byte("\x00\xff\xff\xff\x80\x00\bl\x00\xc9\xc9\xc9\xc9\x00\x00\x00\x00\x00\x00\x00\x03"), []byte("\x00\xff\xff\xff\x80\x00\b"))
	early := make([]byte, delayedKeyLen)
	early[5] = 0x80 // the time at which a delayed message was stored, or the last of recent IDs
	f.Add(early, make([]byte, 17))
	f.Add(slices.Concat(early, []byte{0, 9}), make([]byte, 12))
	f.Fuzz(func(t *testing.T, k, v []byte) {
		same := func(again []byte) {
			if !bytes.Equal(again[1:], k[1:]) { // the first byte is the caller's
				t.Fatalf("%x is read and written as %x", k, again)
			}
		}
		damaged := func(err error) {
			assert.MustIs(t, "the error does not report a damaged record", err, errCorrupt)
		}
		if g, p, ok := splitLeaseKey(k); ok {
			same(appendLeaseKey(nil, prefixLease, g, p))
		}
		if g, topic, q, ok := splitCursorKey(k); ok && len(k) == cursorKeyLen {
			same(appendCursorKey(nil, prefixCursor, g, topic, q))
		}
		if d, err := splitDelayedKey(k); err != nil {
			damaged(err)
		} else {
			same(d.AppendKey(nil))
		}
		if d, err := splitStoredDelayed(k, v); err != nil {
			damaged(err)
		} else if same(d.StoredKey(d.Stored)); d.Size < 0 {
			t.Fatalf("the delayed message is %+v", d)
		}
		var ids RecentIDs
		if err := decodeRecentIDs(k, v, &ids); err != nil {
			damaged(err)
		} else if same(ids.AppendKey(nil, binary.BigEndian.Uint32(k[1:]))); ids.First() < 0 || len(ids.Hashes) == 0 {
			t.Fatalf("recent IDs are %+v", ids)
		}
		if _, err := decodeIDKey(v); err != nil {
			damaged(err)
		}
		if c, err := decodeCursor(v); err != nil {
			damaged(err)
		} else if c.Next < 0 || c.Bytes < 0 {
			t.Fatalf("the cursor is %+v", c)
		}
	})
}

// Invariants: decoding a key never panics. A decoded key is encoded as the same key.
func FuzzSpilledKey(f *testing.F) {
	f.Add(spilledKey(7, Place{1, 2, 3}, "mg"))
	f.Add(spilledKey(0, Place{}, ""))
	f.Fuzz(func(t *testing.T, k []byte) {
		g, p, mg, ok := splitSpilledKey(k)
		assert.That(t, !ok || len(k) != 0 && bytes.Equal(spilledKey(g, p, mg)[1:], k[1:]), "%x reads as %d %+v %q", k, g, p, mg)
	})
}

// Invariants: decoding never panics, and its errors are ErrCorrupt.
func FuzzSmallRecords(f *testing.F) {
	f.Add(make([]byte, 24))
	f.Add(bytes.Repeat([]byte{1}, 32))
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, v []byte) {
		_, err := decodeCursor(v)
		assert.That(t, err == nil || errors.Is(err, errCorrupt), "%+v", err)
		if r, err := decodeRemoved(v); err != nil && !errors.Is(err, errCorrupt) || err == nil && (r.Messages < 0 || r.End < r.Messages) {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

func TestWithout(t *testing.T) {
	for _, c := range []struct {
		from, to int64
		offsets  []int64
		want     string
	}{
		{0, 0, nil, ""},
		{3, 7, nil, "3-7"},
		{3, 7, []int64{1, 2, 7, 9}, "3-7"},
		{3, 7, []int64{3}, "4-7"},
		{3, 7, []int64{6}, "3-6"},
		{3, 7, []int64{3, 4, 5, 6}, ""},
		{0, 10, []int64{0, 2, 3, 9}, "1-2 4-9"},
	} {
		got := ""
		for i, r := range (Range{1, 2, c.from, c.to}).Without(c.offsets) {
			if i > 0 {
				got += " "
			}
			got += fmt.Sprintf("%d-%d", r.From, r.To)
			assert.That(t, r.Topic == 1 && r.Queue == 2, "%+v", r)
		}
		assert.That(t, got == c.want, "%d-%d without %v is %q, want %q", c.from, c.to, c.offsets, got, c.want)
	}
}

func FuzzDecodeMark(f *testing.F) {
	f.Add([]byte{})
	f.Add(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 7), 9))
	f.Add(slices.Repeat([]byte{0xff}, 16))
	f.Fuzz(func(t *testing.T, v []byte) {
		m, err := decodeMark(v)
		assert.That(t, (err == nil) == (len(v) == 16 && v[0] < 0x80 && v[8] < 0x80) && m.Offset >= 0 && m.Bytes >= 0,
			"%x: %+v, %v", v, m, err)
		_, n, err := decodeWaiting(make([]byte, 5), v)
		assert.That(t, (err == nil) == (len(v) == 16 && v[0] < 0x80 && v[8] < 0x80) && (err != nil || n == (Waiting{m.Offset, m.Bytes})),
			"%x: %+v, %v", v, n, err)
	})
}

func FuzzDecodeStored(f *testing.F) {
	m := Message{Message: tidegate.Message{ID: "id", Body: []byte("body")}, Cumulative: 300, StoredAt: time.Unix(9, 9)}
	f.Add(m.AppendTo(make([]byte, 0, m.EncodedSize())))
	f.Add([]byte{1})
	f.Add([]byte{1, 2, 0x80, 0x80})
	f.Fuzz(func(t *testing.T, v []byte) {
		got, err := decodeStored(v)
		var whole Message
		if decodeMessage(v, &whole) == nil && (err != nil || got.Cumulative != whole.Cumulative || !got.At.Equal(whole.StoredAt) || got.Size != int64(len(whole.Body))) {
			t.Errorf("%+v, %v, of %+v", got, err, whole)
		}
	})
}

// Hashes that are stored must be found after an update too, so the hash function may not change.
func TestIDHashIsStable(t *testing.T) {
	k := IDKey{0x0706050403020100, 0x0f0e0d0c0b0a0908}
	// The hash of 15 bytes is that of SipHash's paper; a record has its first six bytes.
	id := string([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14})
	if got, want := k.Hash(id), uint64(0xa129ca6149be0000); got != want {
		t.Errorf("it is %x, want %x", got, want)
	}
	long := strings.Repeat("0", 255)
	if n := testing.AllocsPerRun(100, func() { k.Hash(long) }); n != 0 {
		t.Errorf("hashing an ID allocates %v times", n)
	}
}

func TestLetterClass(t *testing.T) {
	t.Parallel()
	for _, want := range []LetterClass{
		{Count: 1},
		{"g", "0123456789ab", "orders", "no such account", 1 << 40, time.Unix(1, 2), time.Unix(3, 4), 7},
	} {
		v := want.AppendTo(nil)
		got, err := decodeLetterClass(v)
		assert.That(t, err == nil && got == want, "%+v is read as %+v, %v", want, got, err)
		for n := range len(v) {
			_, err := decodeLetterClass(v[:n])
			assert.That(t, errors.Is(err, errCorrupt), "%d of %d bytes are read: %v", n, len(v), err)
		}
		assert.Is(t, "a further byte is read", assert.Err(decodeLetterClass(append(v, 0))), errCorrupt)
	}
	assert.Is(t, "a class without letters is read", assert.Err(decodeLetterClass((&LetterClass{}).AppendTo(nil))), errCorrupt)
	topic, class, ok := splitClassKey(appendClassKey(nil, 3, 1<<31))
	assert.That(t, ok && topic == 3 && class == 1<<31, "the key is read as %d, %d, %v", topic, class, ok)
}

func TestSnapshot(t *testing.T) {
	h := of(1000, 10_000, 100_000).Histogram
	for _, v := range []float64{0, 1000, 2000, 10_000, 11_000, 100_000, 101_000, 1e12} {
		h.Observe(v)
	}
	for _, c := range []struct {
		buckets int
		bounds  []float64
		counts  []uint64
	}{
		{1, []float64{1, 10, 100}, []uint64{2, 2, 2, 2}},
		{2, []float64{10}, []uint64{4, 4}},
		{3, []float64{100}, []uint64{6, 2}},
	} {
		s := Histogram{h, 1000, c.buckets}.Snapshot()
		if want := 1 + 2 + 10 + 11 + 100 + 101 + 1e9; !slices.Equal(s.Bounds, c.bounds) || !slices.Equal(s.Counts, c.counts) || s.Sum != want {
			t.Errorf("one of %d buckets: %+v, want %v, %v and a sum of %v", c.buckets, s, c.bounds, c.counts, want)
		}
	}
}

func TestObserveAllocatesNothing(t *testing.T) {
	h := DurationHistogram()
	if n := testing.AllocsPerRun(100, func() { h.Observe(0.012) }); n != 0 {
		t.Errorf("%g allocations for an observation, want 0", n)
	}
}
