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
	return a.ID == b.ID && a.Tag == b.Tag && slices.Equal(a.Keys, b.Keys) && a.MessageGroup == b.MessageGroup &&
		maps.Equal(a.Properties, b.Properties) && a.TraceContext == b.TraceContext && bytes.Equal(a.Body, b.Body) &&
		a.Cumulative == b.Cumulative && a.BornAt.Equal(b.BornAt) && a.BornHost == b.BornHost && a.StoredAt.Equal(b.StoredAt) && a.DeliverAt.Equal(b.DeliverAt)
}

func TestMessageRoundTrip(t *testing.T) {
	for name, m := range map[string]Message{"full": sampleMessage(), "empty": {}} {
		b := m.encode(nil)
		if len(b) != m.size() {
			t.Errorf("%s: %d bytes, size says %d", name, len(b), m.size())
		}
		var got Message
		if err := decodeMessage(b, &got); err != nil || !equalMessages(m, got) {
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

// Invariants: reading never panics; what is refused says so with errCorrupt;
// what is read can be written and read back as the same.
func FuzzDecodeMessage(f *testing.F) {
	m := sampleMessage()
	f.Add(m.encode(nil))
	f.Add([]byte{messageVersion, 0x80})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, again Message
		id, at, iderr := decodeID(b)
		if iderr != nil && !errors.Is(iderr, errCorrupt) {
			t.Fatalf("the error does not say that the record is damaged: %v", iderr)
		}
		if err := decodeMessage(b, &m); err != nil {
			if !errors.Is(err, errCorrupt) {
				t.Fatalf("the error does not say that the record is damaged: %v", err)
			}
			return
		}
		if iderr != nil || id != m.ID || !at.Equal(m.StoredAt) {
			t.Fatalf("the ID is %q, stored at %v, %v; want those of %+v", id, at, iderr, m)
		}
		if err := decodeMessage(m.encode(nil), &again); err != nil || !equalMessages(m, again) {
			t.Fatalf("written and read back: %+v, %v; want %+v", again, err, m)
		}
	})
}

// Invariants: as above.
func FuzzDecodeLease(f *testing.F) {
	l := Lease{State: 2, Push: true, Keep: true, Blocked: true, Changed: true, Attempt: 3, Serial: 4, Due: time.Unix(5, 6), Since: time.Unix(7, 8), Stored: 10, Size: 9, Owner: "o", Group: "g"}
	f.Add(l.encode(nil))
	f.Add((&Lease{}).encode(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var l, again Lease
		if err := decodeLease(b, &l); err != nil {
			if !errors.Is(err, errCorrupt) {
				t.Fatalf("the error does not say that the record is damaged: %v", err)
			}
			return
		}
		if w := l.encode(nil); len(w) != l.size() {
			t.Fatalf("%d bytes, size says %d", len(w), l.size())
		}
		if err := decodeLease(l.encode(nil), &again); err != nil || again != l {
			t.Fatalf("written and read back: %+v, %v; want %+v", again, err, l)
		}
	})
}

// Invariants: as above.
func FuzzDecodeHalfState(f *testing.F) {
	f.Add(HalfState{Due: time.Unix(5, 6), Checks: 300, Stored: time.Unix(7, 8), IDHash: 9, Size: 1 << 20}.encode())
	f.Add(HalfState{}.encode())
	f.Add(append(make([]byte, 24), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeHalfState(b)
		if err != nil {
			if !errors.Is(err, errCorrupt) {
				t.Fatalf("the error does not say that the record is damaged: %v", err)
			}
			return
		}
		if again, err := decodeHalfState(s.encode()); err != nil || again != s || s.Checks < 0 {
			t.Fatalf("written and read back: %+v, %v; want %+v", again, err, s)
		}
	})
}

// Invariants: reading a key never panics; what is read is written as the same key.
func FuzzHalfKeys(f *testing.F) {
	f.Add(HalfID{1, 2}.appendKey(nil, prefixHalf))
	f.Add(DueHalf{HalfID{1, 2}, time.Unix(5, 6)}.key())
	f.Add([]byte("x\xf2\x18\x00\x01*\x05\x00\xe8\xff\x00\x81\x81\x81\x00\x01\x00\x00\x00\x00\x00")) // a time that no key has
	f.Fuzz(func(t *testing.T, b []byte) {
		if id, err := splitHalfKey(b); err == nil && !bytes.Equal(id.appendKey(nil, b[0]), b) {
			t.Errorf("%x is read as %+v", b, id)
		}
		if d, err := splitDueHalfKey(b); err == nil && !bytes.Equal(d.key()[1:], b[1:]) {
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
		if offsetOfMessageKey(k) != p.Offset {
			t.Errorf("the key of %+v reads as offset %d", p, offsetOfMessageKey(k))
		}
		g, q, ok := splitLeaseKey(appendLeaseKey(nil, prefixLease, 7, p))
		if !ok || g != 7 || q != p {
			t.Errorf("lease key of %+v reads as %d %+v %v", p, g, q, ok)
		}
		last = k
	}
	if got := after([]byte{1, 0xff}); !bytes.Equal(got, []byte{2}) {
		t.Errorf("after(01ff) = %x", got)
	}
	if after([]byte{0xff}) != nil {
		t.Error("nothing sorts after ff")
	}
}
