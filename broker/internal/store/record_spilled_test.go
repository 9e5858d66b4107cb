package store

import (
	"bytes"
	"errors"
	"testing"
)

// Invariants: decoding a key never panics. A decoded key is encoded as the same key.
func FuzzSpilledKey(f *testing.F) {
	f.Add(spilledKey(7, Place{1, 2, 3}, "mg"))
	f.Add(spilledKey(0, Place{}, ""))
	f.Fuzz(func(t *testing.T, k []byte) {
		g, p, mg, ok := splitSpilledKey(k)
		if ok && (len(k) == 0 || !bytes.Equal(spilledKey(g, p, mg)[1:], k[1:])) {
			t.Errorf("%x reads as %d %+v %q", k, g, p, mg)
		}
	})
}

// Invariants: decoding never panics, and its errors are ErrCorrupt.
func FuzzSmallRecords(f *testing.F) {
	f.Add(make([]byte, 24))
	f.Add(bytes.Repeat([]byte{1}, 32))
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, v []byte) {
		if _, err := decodeCursor(v); err != nil && !errors.Is(err, errCorrupt) {
			t.Error(err)
		}
		if r, err := decodeRemoved(v); err != nil && !errors.Is(err, errCorrupt) || err == nil && (r.Messages < 0 || r.End < r.Messages) {
			t.Errorf("%+v, %v", r, err)
		}
	})
}
