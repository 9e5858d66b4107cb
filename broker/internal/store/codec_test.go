package store

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
)

func recordSampleMessage() Message {
	return Message{
		Message: tidegate.Message{
			ID: "id", Topic: "", Tag: "t", Keys: []string{"k1", ""}, MessageGroup: "g",
			Properties: map[string]string{"a": "1", "": "x"}, TraceContext: "trace", DeliverAt: time.Unix(5, 6), Body: []byte("body"),
		},
		Cumulative: 1 << 40, BornAt: time.Unix(1, 2), BornHost: "h", StoredAt: time.Unix(3, 4),
	}
}

func recordEqualMessages(a, b Message) bool {
	return a.ID == b.ID && a.Tag == b.Tag && slices.Equal(a.Keys, b.Keys) && a.MessageGroup == b.MessageGroup &&
		maps.Equal(a.Properties, b.Properties) && a.TraceContext == b.TraceContext && bytes.Equal(a.Body, b.Body) &&
		a.Cumulative == b.Cumulative && a.BornAt.Equal(b.BornAt) && a.BornHost == b.BornHost && a.StoredAt.Equal(b.StoredAt) && a.DeliverAt.Equal(b.DeliverAt)
}

func TestMessageRoundTrip(t *testing.T) {
	for name, m := range map[string]Message{"full": recordSampleMessage(), "empty": {}} {
		b := m.AppendTo(nil)
		if len(b) != m.EncodedSize() {
			t.Errorf("%s: %d bytes, EncodedSize returns %d", name, len(b), m.EncodedSize())
		}
		var got Message
		if err := decodeMessage(b, &got); err != nil || !recordEqualMessages(m, got) {
			t.Errorf("%s: read back %+v, %v; want %+v", name, got, err, m)
		}
		for i := range b { // cut anywhere before the body: an error, or a shorter body, never another message
			var short Message
			if err := decodeMessage(b[:i], &short); err == nil && len(b)-i > len(m.Body) {
				t.Errorf("%s: cut to %d bytes it was read as %+v", name, i, short)
			}
		}
	}
}

// Invariants: decoding never panics, and its errors are ErrCorrupt. A decoded record can be encoded
// and decoded again as the same record.
func FuzzDecodeMessage(f *testing.F) {
	m := recordSampleMessage()
	f.Add(m.AppendTo(nil))
	f.Add([]byte{messageVersion, 0x80})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, again Message
		id, at, iderr := decodeID(b)
		if iderr != nil && !errors.Is(iderr, errCorrupt) {
			t.Fatalf("the error does not report a damaged record: %v", iderr)
		}
		if err := decodeMessage(b, &m); err != nil {
			if !errors.Is(err, errCorrupt) {
				t.Fatalf("the error does not report a damaged record: %v", err)
			}
			return
		}
		if iderr != nil || id != m.ID || !at.Equal(m.StoredAt) {
			t.Fatalf("the ID is %q, stored at %v, %v; want those of %+v", id, at, iderr, m)
		}
		if err := decodeMessage(m.AppendTo(nil), &again); err != nil || !recordEqualMessages(m, again) {
			t.Fatalf("written and read back: %+v, %v; want %+v", again, err, m)
		}
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
		if size := len(h.Encode()); span == 0 && size != 24+1+2 {
			t.Errorf("the state of an earlier version has %d bytes", size)
		}
	}
	for _, b := range [][]byte{{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, {0x80}} { // above the longest duration, and cut
		l := Lease{Span: 1}
		v := l.AppendTo(nil)
		if err := decodeLease(append(v[:len(v)-1], b...), &l); !errors.Is(err, errCorrupt) {
			t.Errorf("a span of %x: %v", b, err)
		}
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
			if !errors.Is(err, errCorrupt) {
				t.Fatalf("the error does not report a damaged record: %v", err)
			}
			return
		}
		if w := l.AppendTo(nil); len(w) != l.EncodedSize() {
			t.Fatalf("%d bytes, EncodedSize returns %d", len(w), l.EncodedSize())
		}
		if err := decodeLease(l.AppendTo(nil), &again); err != nil || again != l {
			t.Fatalf("written and read back: %+v, %v; want %+v", again, err, l)
		}
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
			if !errors.Is(err, errCorrupt) {
				t.Fatalf("the error does not report a damaged record: %v", err)
			}
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
		if id, err := splitHalfKey(b); err == nil && !bytes.Equal(id.AppendKey(nil, b[0]), b) {
			t.Errorf("%x is read as %+v", b, id)
		}
		if d, err := splitDueHalfKey(b); err == nil && !bytes.Equal(d.Key()[1:], b[1:]) {
			t.Errorf("%x is read as %+v", b, d)
		}
	})
}

func TestKeysSortByOffset(t *testing.T) {
	var last []byte
	for _, p := range []Place{{1, 0, 0}, {1, 0, 1}, {1, 0, 255}, {1, 0, 256}, {1, 1, 0}, {2, 0, 0}} {
		k := appendMessageKey(nil, p)
		if bytes.Compare(last, k) >= 0 {
			t.Errorf("the key of %+v does not sort after the one before", p)
		}
		if messageOffset(k) != p.Offset {
			t.Errorf("the key of %+v reads as offset %d", p, messageOffset(k))
		}
		g, q, ok := splitLeaseKey(appendLeaseKey(nil, prefixLease, 7, p))
		if !ok || g != 7 || q != p {
			t.Errorf("lease key of %+v reads as %d %+v %v", p, g, q, ok)
		}
		last = k
	}
	if got := prefixEnd([]byte{1, 0xff}); !bytes.Equal(got, []byte{2}) {
		t.Errorf("after(01ff) = %x", got)
	}
	if prefixEnd([]byte{0xff}) != nil {
		t.Error("nothing sorts after ff")
	}
}
