package store

import (
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// BytesBefore returns the bodies of a queue before an offset, in bytes since
// its beginning, and false if there is no message from there on to tell: then
// all that the queue ever had is before it.
func (s *Store) BytesBefore(topic uint32, queue uint16, offset int64) (int64, bool, error) {
	lower := appendQueue(nil, topic, queue)
	it, err := s.messages.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: after(lower)})
	if err != nil {
		return 0, false, fmt.Errorf("reading messages: %w", err)
	}
	defer it.Close()
	key := appendMessageKey(nil, Place{topic, queue, offset})
	if it.SeekGE(key) {
		m, size, at, err := headerAt(it)
		if IsDamage(err) {
			near, err := s.likeNeighbours(Place{topic, queue, at}, err)
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
		LowerBound: appendMessageKey(nil, Place{topic, queue, from}), UpperBound: appendMessageKey(nil, Place{topic, queue, to}),
	})
	if err != nil {
		return nil, fmt.Errorf("reading messages: %w", err)
	}
	return it, nil
}

// headerAt reads the message that an iterator is at, without its body, whose size it returns.
func headerAt(it *pebble.Iterator) (m Message, size, offset int64, err error) {
	offset = offsetOfMessageKey(it.Key())
	v, err := it.ValueAndErr()
	if err == nil {
		var body []byte
		body, err = decodeHeader(v, &m)
		size = int64(len(body))
	}
	if err != nil {
		return m, 0, offset, fmt.Errorf("reading the message at offset %d: %w", offset, err)
	}
	return m, size, offset, nil
}

// A Removed is what DeleteMessage has taken out of a queue so far, and where
// the queue ends: its last message may be among what is gone.
type Removed struct {
	Messages, Bytes int64
	End, Sum        int64 // as in QueueState
}

// PutRemoved writes that. It goes with every DeleteMessage.
func (b *Batch) PutRemoved(topic uint32, queue uint16, r Removed) {
	k := appendQueue(nil, topic, queue)
	k[0] = prefixRemoved
	v := make([]byte, 0, 32)
	for _, n := range [...]int64{r.Messages, r.Bytes, r.End, r.Sum} {
		v = binary.BigEndian.AppendUint64(v, uint64(n))
	}
	must(b.pebble().Set(k, v, nil))
}

func decodeRemoved(v []byte) (Removed, error) {
	if len(v) != 32 {
		return Removed{}, fmt.Errorf("%w: what was removed from a queue has %d bytes, not 32", errCorrupt, len(v))
	}
	n := func(i int) int64 { return int64(binary.BigEndian.Uint64(v[8*i:])) }
	r := Removed{n(0), n(1), n(2), n(3)}
	if r.Messages < 0 || r.Bytes < 0 || r.End < r.Messages || r.Sum < r.Bytes {
		return Removed{}, fmt.Errorf("%w: what was removed from a queue is more than it had", errCorrupt)
	}
	return r, nil
}
