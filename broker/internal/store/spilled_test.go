package store

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
)

// Spilled messages come back by message group and queue, in order, whole,
// and goes with the group's progress.
func TestSpilled(t *testing.T) {
	fs := vfs.NewMem()
	s, err := openDir("data", fs)
	if err != nil {
		t.Fatal(err)
	}
	add := func(write func(*Batch)) {
		t.Helper()
		if err := s.Groups.Add(write, nil).Wait(); err != nil {
			t.Fatal(err)
		}
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
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = openDir("data", fs); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, mg := range []string{"a", "ab", "b", "\xff", ""} {
		for from, want := range map[int64][]int64{0: {1, 2}, 2: {2, 300}, 3: {300}, 301: nil} {
			ls, offsets, err := s.Spilled(7, 3, 1, mg, from, 2)
			if err != nil || !slices.Equal(offsets, want) || len(ls) != len(want) {
				t.Errorf("message group %q from %d: %v, %v", mg, from, offsets, err)
			}
			for i, l := range ls {
				if l.Group != mg || l.Size != offsets[i] || l.State != 7 {
					t.Errorf("%+v", l)
				}
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
		if err != nil {
			t.Fatal(err)
		}
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

// Times and bytes of a queue with gaps, against counting.
func TestSeekAgainstCounting(t *testing.T) {
	rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
	s, err := openDir("data", vfs.NewMem())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	start := time.Unix(1_000_000, 0)
	const n = 200
	var stored [n]time.Time
	var before [n + 1]int64
	at := start
	if err := s.Messages.Add(func(b *Batch) {
		for i := range n {
			at = at.Add(time.Duration(rnd.IntN(3)) * time.Second)
			m := Message{Message: tidegate.Message{Body: make([]byte, rnd.IntN(9))}, StoredAt: at}
			stored[i], before[i+1] = at, before[i]+int64(len(m.Body))
			m.Cumulative = before[i+1]
			b.PutMessage(Place{Topic: 1, Queue: 0, Offset: int64(i)}, &m)
		}
		b.PutMessage(Place{Topic: 1, Queue: 1, Offset: 0}, &Message{StoredAt: start})
	}, nil).Wait(); err != nil {
		t.Fatal(err)
	}
	gone := map[int64]bool{}
	for round := range 4 {
		for range 300 {
			from := rnd.Int64N(n)
			to := from + rnd.Int64N(n-from+1)
			when := start.Add(time.Duration(rnd.IntN(2*n)) * time.Second)
			got, err := s.FirstThat(Range{Topic: 1, Queue: 0, From: from, To: to}, func(m Stored) bool { return !m.At.Before(when) })
			if err != nil || got < from || got > to {
				t.Fatalf("%d to %d: %d, %v", from, to, got, err)
			}
			for i := from; i < to; i++ {
				if !gone[i] && (i >= got) == stored[i].Before(when) {
					t.Fatalf("round %d: the first since %v in %d to %d is %d, but %d was stored at %v", round, when, from, to, got, i, stored[i])
				}
			}
			b, ok, err := s.BytesBefore(1, 0, from)
			last := int64(n) - 1
			for gone[last] {
				last--
			}
			if want := before[from]; err != nil || ok != (from <= last) || ok && (b != want && !gone[from] || b < want) {
				t.Fatalf("%d bytes before %d, %v, %v; want %d", b, from, ok, err, want)
			}
		}
		if err := s.Messages.Add(func(b *Batch) {
			for range 30 {
				i := rnd.Int64N(n)
				gone[i] = true
				b.DeleteMessage(Place{Topic: 1, Queue: 0, Offset: i})
			}
			b.PutRemoved(1, 0, Removed{Messages: int64(len(gone)), End: n, Sum: before[n]})
		}, nil).Wait(); err != nil {
			t.Fatal(err)
		}
		q, err := s.Queue(1, 0)
		if err != nil || q.End != (Mark{Offset: n, Bytes: before[n]}) || q.Removed.Messages != int64(len(gone)) {
			t.Errorf("%+v, %v", q, err)
		}
	}
	if err := s.Messages.Add(func(b *Batch) {
		for i := range int64(n) {
			b.DeleteMessage(Place{Topic: 1, Queue: 0, Offset: i})
		}
	}, nil).Wait(); err != nil {
		t.Fatal(err)
	}
	q, err := s.Queue(1, 0)
	if err != nil || q.First != (Mark{}) || q.End != (Mark{Offset: n, Bytes: before[n]}) || q.Removed.Messages != int64(len(gone)) {
		t.Errorf("an empty queue is %+v, %v", q, err)
	}
	if _, ok, err := s.BytesBefore(1, 0, 5); ok || err != nil {
		t.Errorf("an empty queue reports bytes: %v, %v", ok, err)
	}
}
