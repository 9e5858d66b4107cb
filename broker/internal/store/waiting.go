package store

import (
	"encoding/binary"
	"fmt"
)

// A Waiting is how many messages of a topic wait for their delivery time, and
// the bytes of their bodies.
type Waiting struct{ Messages, Bytes int64 }

// PutWaiting writes that. It goes with every change of it, so that nobody has to count when the
// store is opened.
func (b *Batch) PutWaiting(topic uint32, n Waiting) {
	v := binary.BigEndian.AppendUint64(make([]byte, 0, 16), uint64(n.Messages))
	must(b.pebble().Set(binary.BigEndian.AppendUint32([]byte{prefixWaiting}, topic), binary.BigEndian.AppendUint64(v, uint64(n.Bytes)), nil))
}

// Waiting calls f with what waits of every topic.
func (s *Store) Waiting(f func(topic uint32, n Waiting) error) error {
	return scan(s.messages, prefixWaiting, func(k, v []byte) error {
		topic, n, err := decodeWaiting(k, v)
		if err != nil {
			return err
		}
		return f(topic, n)
	})
}

func decodeWaiting(k, v []byte) (topic uint32, n Waiting, err error) {
	if len(k) != 1+4 || len(v) != 16 {
		return 0, n, fmt.Errorf("%w: what waits for its delivery time has %d bytes, not 16", errCorrupt, len(v))
	}
	n = Waiting{int64(binary.BigEndian.Uint64(v)), int64(binary.BigEndian.Uint64(v[8:]))}
	if n.Messages < 0 || n.Bytes < 0 {
		return 0, n, fmt.Errorf("%w: what waits for its delivery time is negative", errCorrupt)
	}
	return binary.BigEndian.Uint32(k[1:]), n, nil
}
