package store

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
)

func openInMemory(t *testing.T, memTable uint64) *Store {
	t.Helper()
	s, err := Open(Options{Logger: slog.New(slog.DiscardHandler), MemTableBytes: memTable})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func commit(t *testing.T, s *Store, write func(*Batch)) {
	t.Helper()
	if err := s.Messages.Add(write, nil).Wait(); err != nil {
		t.Fatal(err)
	}
}

// After any writes and removals, the tail has the same messages as the database.
func TestTailIsTheDatabase(t *testing.T) {
	for seed := range uint64(20) {
		s := openInMemory(t, 0)
		rnd := rand.New(rand.NewPCG(seed, 7))
		const topics, queues = 2, 3
		var next [topics][queues]int64
		hits := 0
		for step := range 400 {
			commit(t, s, func(b *Batch) {
				for range 1 + rnd.IntN(8) {
					topic, queue := rnd.IntN(topics), rnd.IntN(queues)
					n := &next[topic][queue]
					place := Place{Topic: uint32(topic + 1), Queue: uint16(queue), Offset: *n}
					switch x := rnd.IntN(100); {
					case x < 92:
						size := rnd.IntN(4000)
						if x == 0 {
							size = tailChunk + rnd.IntN(100)
						}
						b.PutMessage(place, &Message{Message: tidegate.Message{ID: fmt.Sprint(step), Body: make([]byte, size)}, StoredAt: time.Unix(int64(step), 0)})
						*n++
					case x < 95:
						*n += int64(rnd.IntN(3)) // a gap
					case x < 98:
						place.Offset -= int64(rnd.IntN(20))
						b.DeleteMessage(place)
					case x < 99:
						to := max(0, *n-int64(rnd.IntN(30)))
						b.DeleteMessages(Range{Topic: place.Topic, Queue: place.Queue, From: max(0, to-int64(rnd.IntN(100))), To: to})
					default:
						if seed%2 == 1 && rnd.IntN(10) == 0 {
							b.DeleteTopic(fmt.Sprint("t", topic), uint32(topic+1))
						}
					}
				}
			})
			for range 4 {
				topic, queue := rnd.IntN(topics), rnd.IntN(queues)
				from := max(0, next[topic][queue]-int64(rnd.IntN(40)))
				to := from + int64(rnd.IntN(40))
				limit, maxBytes := 1+rnd.IntN(32), int64(rnd.IntN(20000))
				ms, offsets := s.tail.read(uint32(topic+1), uint16(queue), from, to, limit, maxBytes)
				if len(ms) == 0 {
					continue
				}
				hits++
				want, wantOffsets, err := s.readQueue(uint32(topic+1), uint16(queue), from, to, limit, maxBytes)
				if err != nil {
					t.Fatal(err)
				}
				// It may end sooner: a gap follows its messages.
				if n := len(offsets); n > len(wantOffsets) || !slices.Equal(offsets, wantOffsets[:n]) || !reflect.DeepEqual(ms, want[:n]) {
					t.Fatalf("seed %d, step %d: the tail has %v, the database %v", seed, step, offsets, wantOffsets)
				}
			}
		}
		if hits < 500 {
			t.Errorf("seed %d: the tail had %d of 1600 reads", seed, hits)
		}
		if seed%2 == 0 && len(s.tail.chunks) != tailChunks {
			t.Errorf("the tail has %d chunks, and was never full", len(s.tail.chunks))
		}
	}
}

// The memory of the tail is bounded, and released when a queue gets no more messages.
func TestTailIsBounded(t *testing.T) {
	s := openInMemory(t, 0)
	for q := range uint16(1000) {
		commit(t, s, func(b *Batch) {
			b.PutMessage(Place{Topic: 1, Queue: q, Offset: 0}, &Message{Message: tidegate.Message{ID: "a", Body: make([]byte, 10_000)}})
		})
	}
	size := 0
	for _, p := range s.tail.chunks {
		size += cap(p.b)
	}
	if size > tailChunks*tailChunk || len(s.tail.queues) > size/10_000 {
		t.Errorf("the tail has %d bytes and %d queues; chunks allow %d bytes", size, len(s.tail.queues), tailChunks*tailChunk)
	}
	if ms, _ := s.tail.read(1, 0, 0, 1, 1, 1); ms != nil {
		t.Error("the oldest message is still there")
	}
	if ms, _ := s.tail.read(1, 999, 0, 1, 1, 1); len(ms) != 1 {
		t.Error("the newest message is not there")
	}
}

// A batch that Pebble keeps as a table of its own, for its size, is followed as well.
func TestTailFollowsLargeBatches(t *testing.T) {
	s := openInMemory(t, 256<<10)
	commit(t, s, func(b *Batch) {
		for i := range int64(600) {
			b.PutMessage(Place{Topic: 1, Queue: 0, Offset: i}, &Message{Message: tidegate.Message{ID: "a", Body: make([]byte, 1000)}})
		}
	})
	if ms, _ := s.tail.read(1, 0, 590, 600, 32, 1<<20); len(ms) != 10 {
		t.Errorf("it has %d messages of the last 10", len(ms))
	}
}

// BenchmarkNewest reads the five newest messages of a queue, as a consumer that keeps up does, and
// prints the cost in comparison with the database.
func BenchmarkNewest(b *testing.B) {
	s, err := Open(Options{Dir: b.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const queues, messages = 8, 20_000
	for i := int64(0); i < messages; i += 100 {
		f := s.Messages.Add(func(w *Batch) {
			for q := range uint16(queues) {
				for o := i; o < i+100; o++ {
					w.PutMessage(Place{Topic: 1, Queue: q, Offset: o}, &Message{Message: tidegate.Message{ID: "a", Body: make([]byte, 1024)}})
				}
			}
		}, nil)
		if err := f.Wait(); err != nil {
			b.Fatal(err)
		}
	}
	var tail, database time.Duration
	for i := range b.N {
		q := uint16(i % queues)
		begin := time.Now()
		if ms, _ := s.tail.read(1, q, messages-5, messages, 32, 1<<20); len(ms) != 5 {
			b.Fatalf("the tail has %d messages", len(ms))
		}
		between := time.Now()
		if ms, _, err := s.readQueue(1, q, messages-5, messages, 32, 1<<20); err != nil || len(ms) != 5 {
			b.Fatalf("the database has %d messages, %v", len(ms), err)
		}
		tail += between.Sub(begin)
		database += time.Since(between)
	}
	b.ReportMetric(float64(tail.Nanoseconds())/float64(b.N), "tail-ns")
	b.ReportMetric(float64(database.Nanoseconds())/float64(b.N), "database-ns")
	b.ReportMetric(float64(tail)/float64(database), "tail/ratio")
}
