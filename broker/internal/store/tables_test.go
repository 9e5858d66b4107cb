package store

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"

	"github.com/tidegate/tidegate"
)

func TestTableEnd(t *testing.T) {
	key := func(topic uint32, queue uint16, offset int64) []byte {
		return appendMessageKey(nil, Place{Topic: topic, Queue: queue, Offset: offset})
	}
	next := func(topic uint32, queue uint16) (int64, bool) {
		if topic != 7 {
			return 0, false // nothing was sent recently
		}
		return 10_000 + int64(queue), true
	}
	for _, tt := range []struct {
		name       string
		first, end []byte
	}{
		{"settings before the messages", []byte("gname"), []byte("m")},
		{"all messages", []byte("m"), []byte("n")},
		{"all messages of a topic, as a range to delete", []byte("m\x00\x00\x00\x07"), []byte("n")},
		{"4096 newer messages", key(7, 2, 10_002-4096), []byte("m\x00\x00\x00\x07\x00\x03")},
		{"fewer", key(7, 2, 10_002-4095), []byte("n")},
		{"the last queue of a topic", key(7, 0xffff, 0), []byte("m\x00\x00\x00\x08")},
		{"an idle queue", key(8, 0, 0), []byte("n")},
		{"records after the messages", []byte("q\x00"), nil},
		{"nothing", nil, nil},
	} {
		end := tableEnd(tt.first, next)
		if !bytes.Equal(end, tt.end) {
			t.Errorf("%s: the table ends at %q, want %q", tt.name, end, tt.end)
		}
		if end != nil && bytes.Compare(end, tt.first) <= 0 {
			t.Errorf("%s: the end %q is not after the first key %q", tt.name, end, tt.first)
		}
	}
}

// Compacted tables have messages of one queue each, and every message is still there.
func TestTablesEndWithTheirQueue(t *testing.T) {
	s, err := Open(Options{Logger: slog.New(slog.DiscardHandler), MemTableBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const queues, messages, batch = 3, 3 * queueTable, 512
	for first := int64(0); first < messages; first += batch {
		w := s.Messages.Add(func(b *Batch) {
			for offset := first; offset < first+batch; offset++ {
				for q := range uint16(queues) {
					b.PutMessage(Place{Topic: 1, Queue: q, Offset: offset}, &Message{Message: tidegate.Message{ID: fmt.Sprint(q, offset)}})
				}
			}
		}, nil)
		if err := w.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.messages.Compact(t.Context(), []byte("m"), []byte("n"), false); err != nil {
		t.Fatal(err)
	}
	levels, err := s.messages.SSTables()
	if err != nil {
		t.Fatal(err)
	}
	ofQueue := map[uint16]int{}
	for level, tables := range levels {
		for _, table := range tables {
			from, to := table.Smallest.UserKey, table.Largest.UserKey
			if len(from) != messageKeyLen || len(to) != messageKeyLen {
				continue
			}
			if level == 0 || splitMessageKey(from).Queue != splitMessageKey(to).Queue {
				t.Errorf("a table of level %d has the messages from %x to %x", level, from, to)
			}
			ofQueue[splitMessageKey(from).Queue]++
		}
	}
	if len(ofQueue) != queues {
		t.Errorf("tables by queue: %v, want some for each of %d", ofQueue, queues)
	}
	for q := range uint16(queues) {
		ms, _, err := s.Read(1, q, 0, messages, messages, 1<<40)
		if err != nil || len(ms) != messages || ms[messages-1].ID != fmt.Sprint(q, messages-1) {
			t.Errorf("queue %d: %d messages, %v", q, len(ms), err)
		}
	}
}

// With many queues that receive messages, tables of single queues would be too small.
func TestTablesOfManyQueues(t *testing.T) {
	tail := newTail()
	for q := range uint16(fewQueues + 1) {
		if n, ok := tail.next(1, 0); q > 0 && (n != 7+1 || !ok) {
			t.Errorf("%d queues: the next offset is %d, %v, want 8", q, n, ok)
		}
		tail.put(Place{Topic: 1, Queue: q, Offset: 7}, []byte("v"))
	}
	if _, ok := tail.next(1, 0); ok {
		t.Errorf("the next offset is known with %d queues", fewQueues+1)
	}
	if _, ok := newTail().next(1, 0); ok {
		t.Error("the next offset of an idle queue is known")
	}
}
