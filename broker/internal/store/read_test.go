package store

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

func openInMemory(t *testing.T, memTable uint64) *Store {
	t.Helper()
	s := assert.Value(Open(Options{Logger: slog.New(slog.DiscardHandler), MemTableBytes: memTable}))(t)
	t.Cleanup(func() { s.Close() })
	return s
}

func commit(t *testing.T, s *Store, write func(*Batch)) {
	t.Helper()
	assert.Must(t, s.Messages.Add(write, nil).Wait())
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
				assert.Must(t, err)
				// It may end sooner: a gap follows its messages.
				if n := len(offsets); n > len(wantOffsets) || !slices.Equal(offsets, wantOffsets[:n]) || !reflect.DeepEqual(ms, want[:n]) {
					t.Fatalf("seed %d, step %d: the tail has %v, the database %v", seed, step, offsets, wantOffsets)
				}
			}
		}
		assert.That(t, hits >= 500, "seed %d: the tail had %d of 1600 reads", seed, hits)
		assert.That(t, seed%2 != 0 || len(s.tail.chunks) == tailChunks, "the tail has %d chunks, and was never full", len(s.tail.chunks))
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
	assert.That(t, size <= tailChunks*tailChunk && len(s.tail.queues) <= size/10_000,
		"the tail has %d bytes and %d queues; chunks allow %d bytes", size, len(s.tail.queues), tailChunks*tailChunk)
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
	ms, _ := s.tail.read(1, 0, 590, 600, 32, 1<<20)
	assert.That(t, len(ms) == 10, "it has %d messages of the last 10", len(ms))
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

// A reader returns the stored messages, for any order of the places, and nothing for a message that
// was removed or never stored.
func TestReader(t *testing.T) {
	const queues, messages = 3, 40
	for _, flushed := range []bool{false, true} {
		s := openInMemory(t, 0)
		rnd := rand.New(rand.NewPCG(11, 7))
		body := func(p Place) []byte {
			return bytes.Repeat([]byte{byte(p.Queue), byte(p.Offset)}, 1+1000*int(p.Offset)) // more than the tail has in all
		}
		var places []Place
		removed := map[Place]bool{}
		for queue := range uint16(queues) {
			for offset := range int64(messages) {
				p := Place{Topic: 1, Queue: queue, Offset: offset}
				places = append(places, p)
				commit(t, s, func(b *Batch) {
					b.PutMessage(p, &Message{Message: tidegate.Message{ID: fmt.Sprint(queue, offset), Body: body(p)}, StoredAt: time.Unix(1, 0)})
				})
			}
			places = append(places, Place{Topic: 1, Queue: queue, Offset: messages})
			removed[places[len(places)-1]] = true // never there
		}
		for range 10 {
			p := places[rnd.IntN(len(places))]
			removed[p] = true
			commit(t, s, func(b *Batch) { b.DeleteMessage(p) })
		}
		if flushed {
			assert.Must(t, s.messages.Flush())
		}
		for range 3 {
			r := s.Reader(1)
			for _, p := range places {
				m, ok, err := r.Get(p)
				if err != nil || ok == removed[p] {
					t.Fatalf("%+v: found %v, removed %v: %v", p, ok, removed[p], err)
				}
				assert.MustThat(t, !ok || m.ID == fmt.Sprint(p.Queue, p.Offset) && bytes.Equal(m.Body, body(p)),
					"%+v is message %q with %d bytes", p, m.ID, len(m.Body))
			}
			r.Close()
			rnd.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
		}
	}
}

// Damage at one message is reported for that message only.
func TestReaderReportsDamage(t *testing.T) {
	s := openInMemory(t, 0)
	place := func(offset int64) Place { return Place{Topic: 1, Offset: offset} }
	for offset := range int64(3) {
		commit(t, s, func(b *Batch) {
			b.PutMessage(place(offset), &Message{Message: tidegate.Message{ID: fmt.Sprint(offset)}, StoredAt: time.Unix(1, 0)})
		})
	}
	s.tail.mu.Lock()
	s.tail.clear()
	s.tail.mu.Unlock()
	assert.Must(t, s.messages.Set(appendMessageKey(nil, place(1)), []byte{0xff}, nil))
	r := s.Reader(1)
	defer r.Close()
	for offset := range int64(3) {
		if m, ok, err := r.Get(place(offset)); IsDamage(err) != (offset == 1) || ok == (offset == 1) || ok && m.ID != fmt.Sprint(offset) {
			t.Errorf("offset %d: %q, %v, %v", offset, m.ID, ok, err)
		}
	}
}

// FirstThat agrees with a look at every message, and reads few.
func TestFirstThat(t *testing.T) {
	s := assert.Value(openDir("data", vfs.NewMem()))(t)
	defer s.Close()
	const n = 1000
	if err := s.Messages.Add(func(b *Batch) {
		for i := range int64(n) {
			b.PutMessage(Place{Topic: 1, Queue: 2, Offset: i}, &Message{Message: tidegate.Message{ID: "x", Body: []byte("12")}, Cumulative: 2 * (i + 1), StoredAt: time.Unix(i, 0)})
		}
	}, nil).Wait(); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		from := rand.Int64N(n)
		to, at := from+rand.Int64N(n-from+1), rand.Int64N(n+1)
		reads := 0
		got, err := s.FirstThat(Range{Topic: 1, Queue: 2, From: from, To: to}, func(m Stored) bool { reads++; return m.At.Unix() >= at && m.Cumulative >= 2*at && m.Size == 2 })
		if want := min(max(at, from), to); err != nil || got != want || reads > 22 {
			t.Fatalf("the first of %d-%d at %d: %d, %v, want %d; %d reads", from, to, at, got, err, want, reads)
		}
	}
	// The message after removed ones has their sums.
	if err := s.Messages.Add(func(b *Batch) {
		for _, i := range []int64{500, 501, n - 1} {
			b.DeleteMessage(Place{Topic: 1, Queue: 2, Offset: i})
		}
	}, nil).Wait(); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[int64]int64{499: 499, 500: 500, 502: 500, 503: 503, n - 1: n - 1} {
		got, err := s.FirstThat(Range{Topic: 1, Queue: 2, From: 0, To: n}, func(m Stored) bool { return m.At.Unix() >= at })
		assert.That(t, err == nil && got == want, "the first at %d: %d, %v, want %d", at, got, err, want)
	}
	gaps, err := s.Gaps(Range{Topic: 1, Queue: 2, From: 400, To: n}, 2*(n-400))
	assert.That(t, err == nil && gaps == (Removed{Messages: 3, Bytes: 6}), "gaps: %+v, %v", gaps, err)
	for _, c := range []struct{ from, to, enough, bytes, next int64 }{
		{0, n, 1, 2, 1}, {0, n, 3, 4, 2}, {499, n, 4, 4, 503}, {500, 502, 4, 0, 502}, {498, 504, 100, 8, 504}, {7, 7, 1, 0, 7},
	} {
		bytes, next, err := s.Live(Range{Topic: 1, Queue: 2, From: c.from, To: c.to}, c.enough)
		assert.That(t, err == nil && bytes == c.bytes && next == c.next, "%+v: %d bytes to %d, %v", c, bytes, next, err)
	}
}

// The messages that remain before the beginning of a queue are separate from those after it.
func TestQueueBeginning(t *testing.T) {
	fs := vfs.NewMem()
	s, err := openDir("data", fs)
	assert.Must(t, err)
	body := []byte("123")
	for i := range int64(10) {
		s.Messages.Add(func(b *Batch) {
			b.PutMessage(Place{Topic: 1, Queue: 2, Offset: i}, &Message{Message: tidegate.Message{ID: "x", Body: body}, Cumulative: 3 * (i + 1), StoredAt: time.Unix(i, 0)})
		}, nil)
	}
	for _, c := range []struct{ from, to int64 }{{0, 4}, {4, 10}} {
		leftovers := []int64{3, 7}
		if err := s.Messages.Add(func(b *Batch) {
			for _, r := range (Range{Topic: 1, Queue: 2, From: c.from, To: c.to}).Without(leftovers) {
				b.DeleteMessages(r)
			}
			b.PutMark(1, 2, Mark{Offset: c.to, Bytes: 3 * c.to})
		}, nil).Wait(); err != nil {
			t.Fatal(err)
		}
		assert.Must(t, s.Close())
		if s, err = openDir("data", fs); err != nil {
			t.Fatal(err)
		}
		q, err := s.Queue(1, 2)
		assert.That(t, err == nil && q.First == (Mark{Offset: c.to, Bytes: 3 * c.to}) && q.End == (Mark{Offset: 10, Bytes: 30}),
			"%+v, %v", q, err)
		var got []int64
		for o, m := range q.Leftovers {
			got = append(got, o)
			assert.That(t, m.At.Unix() == o && m.Size == 3 && m.Cumulative == 3*(o+1), "%d: %+v", o, m)
		}
		if slices.Sort(got); !slices.Equal(got, leftovers[:len(got)]) || len(got) != map[int64]int{4: 1, 10: 2}[c.to] {
			t.Errorf("kept %v", got)
		}
	}
	assert.Must(t, s.Close())
}

// Spilled messages come back by message group and queue, in order, whole,
// and goes with the group's progress.
func TestSpilled(t *testing.T) {
	fs := vfs.NewMem()
	s, err := openDir("data", fs)
	assert.Must(t, err)
	add := func(write func(*Batch)) {
		t.Helper()
		assert.Must(t, s.Groups.Add(write, nil).Wait())
	}
	add(func(b *Batch) {
		for _, mg := range []string{"a", "ab", "b", "\xff", ""} {
			for queue := range uint16(2) {
				for _, offset := range []int64{300, 2, 1} {
					b.PutSpilled(7, Place{Topic: 3, Queue: queue, Offset: offset}, &Lease{State: 7, Size: offset, Group: mg})
				}
			}
		}
		b.PutParked(7, Place{Topic: 3, Queue: 0, Offset: 9}, "why")
		b.PutLease(7, Place{Topic: 3, Queue: 0, Offset: 9}, &Lease{State: 6})
	})
	assert.Must(t, s.Close())
	if s, err = openDir("data", fs); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, mg := range []string{"a", "ab", "b", "\xff", ""} {
		for from, want := range map[int64][]int64{0: {1, 2}, 2: {2, 300}, 3: {300}, 301: nil} {
			ls, offsets, err := s.Spilled(7, 3, 1, mg, from, 2)
			assert.That(t, err == nil && slices.Equal(offsets, want) && len(ls) == len(want),
				"message group %q from %d: %v, %v", mg, from, offsets, err)
			for i, l := range ls {
				assert.That(t, l.Group == mg && l.Size == offsets[i] && l.State == 7, "%+v", l)
			}
		}
	}
	count := func() (spilled, parked, leases int) {
		t.Helper()
		err := errors.Join(
			s.AllSpilled(func(g uint32, p Place, mg string, l Lease) error {
				if spilled++; g != 7 || p.Topic != 3 || l.Group != mg {
					t.Errorf("%d %+v %q %+v", g, p, mg, l)
				}
				return nil
			}),
			s.AllParked(func(g uint32, p Place, reason string) error {
				if parked++; g != 7 || p != (Place{Topic: 3, Queue: 0, Offset: 9}) || reason != "why" {
					t.Errorf("%d %+v %q", g, p, reason)
				}
				return nil
			}),
			s.Leases(func(uint32, Place, Lease) error { leases++; return nil }))
		assert.Must(t, err)
		return spilled, parked, leases
	}
	expect := func(spilled, parked, leases int) {
		t.Helper()
		if a, p, l := count(); a != spilled || p != parked || l != leases {
			t.Errorf("%d spilled, %d parked, %d leases; want %d, %d, %d", a, p, l, spilled, parked, leases)
		}
	}
	expect(30, 1, 1)
	add(func(b *Batch) { b.DeleteSpilled(7, Place{Topic: 3, Queue: 1, Offset: 2}, "ab") })
	expect(29, 1, 1)
	add(func(b *Batch) { b.DeleteProgress(7, 3, 1) })
	expect(15, 1, 1)
	add(func(b *Batch) { b.DeleteSubscription(7, 3) })
	expect(0, 0, 0)
}
