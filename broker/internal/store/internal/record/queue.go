package record

import (
	"encoding/binary"
	"fmt"
	"time"
)

// A Mark is the beginning of a queue. The messages before it were removed, except for single
// leftovers. It also keeps the offset of an empty queue.
type Mark struct {
	Offset int64
	Bytes  int64 // of the bodies before Offset
}

// Stored has the fields of a message's record that are not part of the message.
type Stored struct {
	At         time.Time
	Size       int64 // of the body, in bytes
	Cumulative int64 // see Message
}

// A Range is the messages of a queue from From on and before To.
type Range struct {
	Topic    uint32
	Queue    uint16
	From, To int64
}

// Without returns the parts of r in which none of the offsets is. They must be sorted.
func (r Range) Without(offsets []int64) []Range {
	var parts []Range
	add := func(to int64) {
		if r.From < to {
			parts = append(parts, Range{r.Topic, r.Queue, r.From, to})
		}
	}
	for _, o := range offsets {
		if o < r.From {
			continue
		}
		if o >= r.To {
			break
		}
		add(o)
		r.From = o + 1
	}
	add(r.To)
	return parts
}

// DecodeMark reads a stored mark: Offset and Bytes.
func DecodeMark(v []byte) (Mark, error) {
	if len(v) != 16 {
		return Mark{}, fmt.Errorf("%w: the first offset of a queue has %d bytes, not 16", ErrCorrupt, len(v))
	}
	m := Mark{int64(binary.BigEndian.Uint64(v)), int64(binary.BigEndian.Uint64(v[8:]))}
	if m.Offset < 0 || m.Bytes < 0 {
		return Mark{}, fmt.Errorf("%w: the first offset of a queue is negative", ErrCorrupt)
	}
	return m, nil
}

// DecodeStored decodes the fields of a message's record that need no text of its header.
func DecodeStored(v []byte) (Stored, error) {
	head, body, err := header(v)
	if err != nil {
		return Stored{}, err
	}
	cumulative, n := binary.Uvarint(head)
	if n <= 0 || len(head)-n < 8 {
		return Stored{}, fmt.Errorf("%w: it ends within the times", ErrCorrupt)
	}
	return Stored{At: fromNanos(binary.BigEndian.Uint64(head[n:])), Size: int64(len(body)), Cumulative: int64(cumulative)}, nil
}

// A Removed counts the messages that DeleteMessage has removed from a queue, and has the end of the
// queue, because its last message can be among them.
type Removed struct {
	Messages, Bytes int64
	End, Sum        int64 // as in QueueState
}

// DecodeRemoved reads a stored Removed: its fields in their order.
func DecodeRemoved(v []byte) (Removed, error) {
	if len(v) != 32 {
		return Removed{}, fmt.Errorf("%w: the count of removed messages of a queue has %d bytes, not 32", ErrCorrupt, len(v))
	}
	n := func(i int) int64 { return int64(binary.BigEndian.Uint64(v[8*i:])) }
	r := Removed{n(0), n(1), n(2), n(3)}
	if r.Messages < 0 || r.Bytes < 0 || r.End < r.Messages || r.Sum < r.Bytes {
		return Removed{}, fmt.Errorf("%w: the count of removed messages exceeds the messages of the queue", ErrCorrupt)
	}
	return r, nil
}

// A Waiting is how many messages of a topic wait for their delivery time, and
// the bytes of their bodies.
type Waiting struct{ Messages, Bytes int64 }

// DecodeWaiting decodes the record of the waiting messages of a topic, and the topic from its key.
func DecodeWaiting(k, v []byte) (topic uint32, n Waiting, err error) {
	if len(k) != 1+4 || len(v) != 16 {
		return 0, n, fmt.Errorf("%w: the count of delayed messages has %d bytes, not 16", ErrCorrupt, len(v))
	}
	n = Waiting{int64(binary.BigEndian.Uint64(v)), int64(binary.BigEndian.Uint64(v[8:]))}
	if n.Messages < 0 || n.Bytes < 0 {
		return 0, n, fmt.Errorf("%w: the count of delayed messages is negative", ErrCorrupt)
	}
	return binary.BigEndian.Uint32(k[1:]), n, nil
}
