package store

import (
	"encoding/binary"

	"github.com/tidegate/tidegate/broker/internal/store/internal/record"
)

// PutWaiting writes the counts of waiting messages. Each change writes them, so that opening the
// store needs no count.
func (b *Batch) PutWaiting(topic uint32, n Waiting) {
	v := binary.BigEndian.AppendUint64(make([]byte, 0, 16), uint64(n.Messages))
	must(b.pebble().Set(binary.BigEndian.AppendUint32([]byte{record.PrefixWaiting}, topic), binary.BigEndian.AppendUint64(v, uint64(n.Bytes)), nil))
}

// Waiting calls f with the counts of waiting messages of every topic.
func (s *Store) Waiting(f func(topic uint32, n Waiting) error) error {
	return scan(s.messages, record.PrefixWaiting, func(k, v []byte) error {
		topic, n, err := record.DecodeWaiting(k, v)
		if err != nil {
			return err
		}
		return f(topic, n)
	})
}
