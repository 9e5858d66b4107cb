package store

import (
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidegate/tidegate/broker/internal/store/internal/record"
)

// BytesBefore returns the size of the bodies of a queue before an offset, from its beginning on. It
// returns false if there is no message from the offset on; then all messages that the queue ever
// had are before it.
func (s *Store) BytesBefore(topic uint32, queue uint16, offset int64) (int64, bool, error) {
	lower := record.AppendQueueKey(nil, topic, queue)
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: record.PrefixEnd(lower)})
	if err != nil {
		return 0, false, fmt.Errorf("reading messages: %w", err)
	}
	defer it.Close()
	key := record.AppendMessageKey(nil, Place{Topic: topic, Queue: queue, Offset: offset})
	if it.SeekGE(key) {
		m, size, at, err := headerAt(it)
		if IsDamage(err) {
			near, err := s.likeNeighbours(Place{Topic: topic, Queue: queue, Offset: at}, err)
			return near.Cumulative, err == nil, err
		}
		return m.Cumulative - size, err == nil, err
	}
	if err := it.Error(); err != nil {
		return 0, false, fmt.Errorf("reading messages: %w", err)
	}
	return 0, false, nil
}

func (s *Store) messageIter(topic uint32, queue uint16, from, to int64) (*pebble.Iterator, error) {
	it, err := s.messages.NewIter(&pebble.IterOptions{
		LowerBound: record.AppendMessageKey(nil, Place{Topic: topic, Queue: queue, Offset: from}), UpperBound: record.AppendMessageKey(nil, Place{Topic: topic, Queue: queue, Offset: to}),
	})
	if err != nil {
		return nil, fmt.Errorf("reading messages: %w", err)
	}
	return it, nil
}

// headerAt decodes the message at the position of an iterator without its body, and returns the
// size of the body.
func headerAt(it *pebble.Iterator) (m Message, size, offset int64, err error) {
	offset = record.MessageOffset(it.Key())
	v, err := it.ValueAndErr()
	if err == nil {
		var body []byte
		body, err = record.DecodeHeader(v, &m)
		size = int64(len(body))
	}
	if err != nil {
		return m, 0, offset, fmt.Errorf("reading the message at offset %d: %w", offset, err)
	}
	return m, size, offset, nil
}

// PutRemoved writes that. It goes with every DeleteMessage.
func (b *Batch) PutRemoved(topic uint32, queue uint16, r Removed) {
	k := record.AppendQueueKey(nil, topic, queue)
	k[0] = record.PrefixRemoved
	v := make([]byte, 0, 32)
	for _, n := range [...]int64{r.Messages, r.Bytes, r.End, r.Sum} {
		v = binary.BigEndian.AppendUint64(v, uint64(n))
	}
	must(b.pebble().Set(k, v, nil))
}
