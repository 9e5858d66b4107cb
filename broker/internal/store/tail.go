package store

import (
	"encoding/binary"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

const (
	tailChunk  = 64 << 10
	tailChunks = 32 // 2 MiB in all
)

// A tail has the newest messages, encoded as in the database. Consumers without a backlog read them
// here: an iterator over the database costs about as much as sending the messages. Other messages
// are read from the database, so a tail can drop messages at any time.
type tail struct {
	mu     sync.RWMutex // guards all of it; held for copying and decoding only
	queues map[tailQueue]*tailRun
	chunks []tailPart // the oldest first; the last one is being filled

	lastQueue tailQueue // of the newest message; saves a search, because its successor often has it too
	last      *tailRun  // its run in queues; nil if it is not there
}

type tailQueue struct {
	topic uint32
	queue uint16
}

// A tailRun is some messages of one queue without a gap between their offsets.
type tailRun struct {
	first  int64
	values [][]byte // each within one chunk
}

func (r *tailRun) next() int64 { return r.first + int64(len(r.values)) }

// forget drops the messages before an offset.
func (r *tailRun) forget(before int64) {
	if n := min(before, r.next()) - r.first; n > 0 {
		r.values = r.values[n:]
		r.first += n
	}
}

// A tailPart is a chunk, and which messages are in it.
type tailPart struct {
	b    []byte
	ends []tailEnd // for each queue at least one; the last one counts
}

// A tailEnd is the offset after a message.
type tailEnd struct {
	queue tailQueue
	end   int64
}

// add notes a message of a queue.
func (p *tailPart) add(q tailQueue, end int64) {
	if last := len(p.ends) - 1; last >= 0 && p.ends[last].queue == q {
		p.ends[last].end = end
		return
	}
	p.ends = append(p.ends, tailEnd{q, end})
}

func newTail() *tail { return &tail{queues: map[tailQueue]*tailRun{}} }

// apply applies a batch of the messages database that is about to be committed. Readers read only
// committed messages, and no reader must find a removed message afterwards.
func (t *tail) apply(b *pebble.Batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r := b.Reader(); ; {
		kind, key, value, ok, err := r.Next()
		if err != nil {
			t.clear()
			return
		}
		if !ok {
			return
		}
		switch {
		case len(key) == 0 || key[0] != prefixMessage:
		case kind == pebble.InternalKeyKindSet && len(key) == messageKeyLen:
			t.put(splitMessageKey(key), value)
		case kind == pebble.InternalKeyKindDelete && len(key) == messageKeyLen:
			p := splitMessageKey(key)
			t.forget(tailQueue{p.Topic, p.Queue}, p.Offset+1)
		case kind == pebble.InternalKeyKindRangeDelete && len(key) == messageKeyLen && len(value) == messageKeyLen:
			from, to := splitMessageKey(key), splitMessageKey(value)
			if q := (tailQueue{from.Topic, from.Queue}); q == (tailQueue{to.Topic, to.Queue}) {
				t.forget(q, to.Offset)
				break
			}
			t.clear()
		default:
			t.clear()
		}
	}
}

func (t *tail) put(p Place, v []byte) {
	q := tailQueue{p.Topic, p.Queue}
	if len(v) > tailChunk {
		t.forget(q, p.Offset+1)
		return
	}
	part := t.room(len(v))
	at := len(part.b)
	part.b = append(part.b, v...)
	part.add(q, p.Offset+1)
	r := t.run(q, p.Offset)
	if p.Offset != r.next() {
		r.first, r.values = p.Offset, nil
	}
	r.values = append(r.values, part.b[at:len(part.b):len(part.b)])
}

// run returns the run of a queue. A new one begins at first.
func (t *tail) run(q tailQueue, first int64) *tailRun {
	if t.last != nil && t.lastQueue == q {
		return t.last
	}
	r := t.queues[q]
	if r == nil {
		r = &tailRun{first: first}
		t.queues[q] = r
	}
	t.lastQueue, t.last = q, r
	return r
}

// room returns a chunk with n free bytes, which it takes from the oldest messages if need be.
func (t *tail) room(n int) *tailPart {
	if last := len(t.chunks) - 1; last >= 0 && len(t.chunks[last].b)+n <= tailChunk {
		return &t.chunks[last]
	}
	var part tailPart
	if len(t.chunks) < tailChunks {
		part.b = make([]byte, 0, tailChunk)
	} else {
		for _, e := range t.chunks[0].ends {
			t.forget(e.queue, e.end)
		}
		part.b, part.ends = t.chunks[0].b[:0], t.chunks[0].ends[:0]
		copy(t.chunks, t.chunks[1:])
		t.chunks = t.chunks[:len(t.chunks)-1]
	}
	t.chunks = append(t.chunks, part)
	return &t.chunks[len(t.chunks)-1]
}

func (t *tail) forget(q tailQueue, before int64) {
	r := t.queues[q]
	if r == nil {
		return
	}
	if r.forget(before); len(r.values) == 0 {
		delete(t.queues, q)
		if t.lastQueue == q {
			t.last = nil
		}
	}
}

func (t *tail) clear() {
	clear(t.queues)
	t.chunks, t.last = nil, nil
}

// read returns the messages of a queue from an offset on, as Store.Read does. It
// returns none if it does not have the first one.
func (t *tail) read(topic uint32, queue uint16, from, to int64, limit int, maxBytes int64) (ms []Message, offsets []int64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	r := t.queues[tailQueue{topic, queue}]
	if r == nil || from < r.first {
		return nil, nil
	}
	to = min(to, r.next(), from+int64(limit))
	if from >= to {
		return nil, nil
	}
	ms = make([]Message, to-from)
	offsets = make([]int64, 0, to-from)
	for i := range ms {
		if i > 0 && maxBytes <= 0 {
			return ms[:i], offsets
		}
		if err := decodeMessage(r.values[from-r.first], &ms[i]); err != nil {
			return ms[:i], offsets // the database returns the error
		}
		maxBytes -= int64(len(ms[i].Body))
		offsets = append(offsets, from)
		from++
	}
	return ms, offsets
}

// next returns the offset after the newest message of a queue. It returns false for a queue
// without recent messages, and if more than fewQueues have some.
func (t *tail) next(topic uint32, queue uint16) (int64, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	r := t.queues[tailQueue{topic, queue}]
	if r == nil || len(t.queues) > fewQueues {
		return 0, false
	}
	return r.next(), true
}

func splitMessageKey(k []byte) Place {
	return Place{Topic: binary.BigEndian.Uint32(k[1:]), Queue: binary.BigEndian.Uint16(k[5:]), Offset: messageOffset(k)}
}
