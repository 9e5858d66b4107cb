package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"
)

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
			if !errors.Is(err, errCorrupt) {
				t.Fatalf("the error does not report a damaged record: %v", err)
			}
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
