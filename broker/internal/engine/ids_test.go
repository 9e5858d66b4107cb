package engine

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"testing"
	"time"
)

var testSeed = maphash.MakeSeed()

func hashOf(id string) uint64 { return maphash.String(testSeed, id) }

// queuesUpTo returns the function next of Find for n queues with the same next offset.
func queuesUpTo(n int, next int64) func(uint16) int64 {
	return func(queue uint16) int64 {
		if int(queue) < n {
			return next
		}
		return 0
	}
}

func TestIDsAreBounded(t *testing.T) {
	var r recentIDs
	now := time.Now()
	const last = 3*idCapacity + 9
	for i := range last + 1 {
		r.Add(hashOf(fmt.Sprint(i)), PendingLocation{Offset: int64(i)}, time.Hour, now)
	}
	if n := r.Len(); n > 2*idCapacity || n < idCapacity {
		t.Errorf("%d are remembered", n)
	}
	qs := queuesUpTo(1, last+1)
	for i := last - idCapacity + 1; i <= last; i++ {
		if l, ok := r.Find(hashOf(fmt.Sprint(i)), qs); !ok || l.Offset != int64(i) {
			t.Fatalf("%d, one of the last %d, is forgotten: %v, %v", i, idCapacity, l, ok)
		}
	}
	slots := 0
	for _, g := range []*idGeneration{r.newer, r.older} {
		if len(g.overflow) > 16 {
			t.Errorf("%d of %d are in the overflow", len(g.overflow), g.len())
		}
		for _, s := range g.shards {
			slots += cap(s.slots)
		}
	}
	if bytes := slots * 8; bytes > 8<<20 {
		t.Errorf("%d IDs take %d bytes", r.Len(), bytes)
	}
}

// IDs must have the content of a map after random operations: add, move, forget, and expire.
func TestIDsRandom(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	const window = time.Minute
	var r recentIDs
	type memory struct {
		PendingLocation
		at   time.Time
		gone bool
	}
	model := map[string]memory{}
	qs := queuesUpTo(maxQueues, 1<<40)
	now := time.Unix(1<<30, 0)
	for step := range 200_000 {
		id := fmt.Sprint(rnd.IntN(5000))
		switch rnd.IntN(12) {
		case 0:
			if m := model[id]; m.Moves() {
				r.Forget(hashOf(id))
				m.gone = true // Find may return its earlier location in a queue
				model[id] = m
			}
		case 1:
			if rnd.IntN(100) == 0 {
				now = now.Add(time.Duration(rnd.Int64N(int64(2 * window))))
			}
			now = now.Add(time.Duration(rnd.Int64N(int64(window / 500))))
		case 2:
			if next := r.Expire(window, now); !next.IsZero() && !next.After(now) || r.Forgotten() != next.IsZero() {
				t.Fatalf("seed %d, step %d: expired at %v, next %v, empty %v", seed, step, now, next, r.Forgotten())
			}
		default:
			l := PendingLocation{Queue: uint16(rnd.IntN(maxQueues)), Offset: 1<<40 - 1 - rnd.Int64N(1<<offsetBits)}
			switch rnd.IntN(4) {
			case 0:
				l = PendingLocation{Half: true, Offset: rnd.Int64()}
			case 1:
				l = PendingLocation{Due: rnd.Int64() + 1, Offset: rnd.Int64()}
			}
			r.Add(hashOf(id), l, window, now)
			model[id] = memory{PendingLocation: l, at: now}
		}
		id = fmt.Sprint(rnd.IntN(5000))
		want, known := model[id]
		got, ok := r.Find(hashOf(id), qs)
		recent := known && !want.gone && now.Sub(want.at) < window
		if recent && (!ok || got != want.PendingLocation) || ok && !known || ok && want.gone && got == want.PendingLocation {
			t.Fatalf("seed %d, step %d: ID %s is at %+v, %v; want %+v, %v", seed, step, id, got, ok, want, known)
		}
	}
}

// Two IDs of the same shard and tag are both remembered.
func TestEqualTags(t *testing.T) {
	var r recentIDs
	now := time.Now()
	r.rotate(now)
	r.newer = &idGeneration{}
	h := hashOf("a")
	r.newer.put(h^1, PendingLocation{Offset: 5}) // another ID, whose hash has the same shard and tag
	r.Add(h, PendingLocation{Queue: 3, Offset: 6}, time.Hour, now)
	if l, ok := r.Find(h, queuesUpTo(8, 10)); !ok || l != (PendingLocation{Queue: 3, Offset: 6}) {
		t.Errorf("%+v, %v", l, ok)
	}
	if l, ok := r.Find(h^1, queuesUpTo(8, 10)); !ok || l != (PendingLocation{Offset: 5}) {
		t.Errorf("the other ID is at %+v, %v", l, ok)
	}
}

func TestLastBefore(t *testing.T) {
	const m = 1 << offsetBits
	for _, c := range []struct{ at, next, want int64 }{
		{0, 1, 0}, {m - 1, m, m - 1}, {m, m + 1, m}, {5 * m, 6 * m, 5 * m}, {5*m + 3, 6*m + 3, 5*m + 3}, {5*m + 3, 6*m + 4, 6*m + 3},
	} {
		if got := slotOf(1<<tagBits-1, PendingLocation{Queue: maxQueues - 1, Offset: c.at}).lastBefore(c.next); got != c.want {
			t.Errorf("offset %d before %d: %d, want %d", c.at, c.next, got, c.want)
		}
	}
}

// Find returns no location in a queue that does not exist or has no messages.
func TestNoSuchQueue(t *testing.T) {
	var r recentIDs
	h := hashOf("a")
	r.Add(h, PendingLocation{Queue: 7, Offset: 6}, time.Hour, time.Now())
	for queues, next := range map[int]int64{7: 10, 8: 0} {
		if l, ok := r.Find(h, queuesUpTo(queues, next)); ok {
			t.Errorf("%d queues up to %d: %+v", queues, next, l)
		}
	}
}

// BenchmarkIDs searches and adds new IDs, as sends do. It allocates only the growing table.
func BenchmarkIDs(b *testing.B) {
	next := queuesUpTo(8, 1<<30)
	now := time.Now()
	var r recentIDs
	b.ReportAllocs()
	for i := range b.N {
		h := uint64(i) * 0x9e3779b97f4a7c15 // distributes the first bits
		if l, ok := r.Find(h, next); ok {
			b.Fatalf("%d is at %+v", i, l)
		}
		r.Add(h, PendingLocation{Queue: uint16(i % 8), Offset: int64(i / 8)}, time.Hour, now)
	}
}

// BenchmarkFind searches remembered IDs. It does not allocate.
func BenchmarkFind(b *testing.B) {
	next := queuesUpTo(8, idCapacity)
	now := time.Now()
	var r recentIDs
	for i := range idCapacity {
		r.Add(uint64(i)*0x9e3779b97f4a7c15, PendingLocation{Queue: uint16(i % 8), Offset: int64(i / 8)}, time.Hour, now)
	}
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i++ {
		if _, ok := r.Find(i%idCapacity*0x9e3779b97f4a7c15, next); !ok {
			b.Fatalf("%d is forgotten", i%idCapacity)
		}
	}
}
