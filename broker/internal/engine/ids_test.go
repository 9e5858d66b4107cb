package engine

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/internal/assert"
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
	n := r.Len()
	assert.That(t, n <= 2*idCapacity && n >= idCapacity, "%d are remembered", n)
	qs := queuesUpTo(1, last+1)
	for i := last - idCapacity + 1; i <= last; i++ {
		l, ok := r.Find(hashOf(fmt.Sprint(i)), qs)
		assert.MustThat(t, ok && l.Offset == int64(i), "%d, one of the last %d, is forgotten: %v, %v", i, idCapacity, l, ok)
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
	l, ok := r.Find(h, queuesUpTo(8, 10))
	assert.That(t, ok && l == (PendingLocation{Queue: 3, Offset: 6}), "%+v, %v", l, ok)
	l, ok = r.Find(h^1, queuesUpTo(8, 10))
	assert.That(t, ok && l == (PendingLocation{Offset: 5}), "the other ID is at %+v, %v", l, ok)
}

func TestLastBefore(t *testing.T) {
	const m = 1 << offsetBits
	for _, c := range []struct{ at, next, want int64 }{
		{0, 1, 0}, {m - 1, m, m - 1}, {m, m + 1, m}, {5 * m, 6 * m, 5 * m}, {5*m + 3, 6*m + 3, 5*m + 3}, {5*m + 3, 6*m + 4, 6*m + 3},
	} {
		got := slotOf(1<<tagBits-1, PendingLocation{Queue: maxQueues - 1, Offset: c.at}).lastBefore(c.next)
		assert.That(t, got == c.want, "offset %d before %d: %d, want %d", c.at, c.next, got, c.want)
	}
}

// Find returns no location in a queue that does not exist or has no messages.
func TestNoSuchQueue(t *testing.T) {
	var r recentIDs
	h := hashOf("a")
	r.Add(h, PendingLocation{Queue: 7, Offset: 6}, time.Hour, time.Now())
	for queues, next := range map[int]int64{7: 10, 8: 0} {
		l, ok := r.Find(h, queuesUpTo(queues, next))
		assert.That(t, !ok, "%d queues up to %d: %+v", queues, next, l)
	}
}

func TestRun(t *testing.T) {
	const window = 100
	type message struct{ offset, at int64 }
	for name, c := range map[string]struct {
		messages []message
		written  [][]uint64 // records written because of Over; hashes are the offsets
		left     []uint64
		first    int64 // offset of the first message that is left
	}{
		"one after another":             {[]message{{5, 0}, {6, 50}, {7, 99}}, nil, []uint64{5, 6, 7}, 5},
		"as old as the window":          {[]message{{5, 0}, {6, 50}, {7, 100}, {8, 101}}, [][]uint64{{5, 6}}, []uint64{7, 8}, 7},
		"the window is over each time":  {[]message{{5, 0}, {6, 100}, {7, 200}}, [][]uint64{{5}, {6}}, []uint64{7}, 7},
		"others in between":             {[]message{{5, 0}, {6, 1}, {9, 2}, {10, 3}}, nil, []uint64{9, 10}, 9},
		"others in between, much later": {[]message{{5, 0}, {9, 200}}, nil, []uint64{9}, 9},
	} {
		var r runOfIDs
		var written [][]uint64
		for _, m := range c.messages {
			if r.Over(m.offset, m.at, window) {
				ids := r.Take(3)
				written = append(written, slices.Clone(ids.Hashes))
			}
			assert.That(t, !r.Add(m.offset, uint64(m.offset), m.at), "%s: it is full", name)
		}
		last := c.messages[len(c.messages)-1]
		for now, fresh := range map[int64]bool{last.at + window - 1: true, last.at + window: false} {
			got := r.Fresh(window, time.Unix(0, now))
			assert.That(t, got == fresh, "%s: fresh at %d: %t", name, now, got)
		}
		left := r.Take(3)
		assert.That(t, slices.EqualFunc(written, c.written, slices.Equal) && slices.Equal(left.Hashes, c.left),
			"%s: written %d, left %d; want %d and %d", name, written, left.Hashes, c.written, c.left)
		assert.That(t, left.Queue == 3 && left.First() == c.first && left.End == last.offset+1 && left.At.UnixNano() == last.at,
			"%s: the record is %+v", name, left)
		if r.Len() != 0 || r.Fresh(window, time.Unix(0, last.at)) {
			t.Errorf("%s: %d are left", name, r.Len())
		}
	}
}

func TestRunIsFull(t *testing.T) {
	var r runOfIDs
	for offset := range int64(3 * store.MaxRecentIDs) {
		full := r.Add(offset, uint64(offset)+1, 7)
		assert.MustThat(t, full == ((offset+1)%store.MaxRecentIDs == 0), "with offset %d it is full: %t", offset, full)
		if full {
			if ids := r.Take(0); len(ids.Hashes) != store.MaxRecentIDs || ids.End != offset+1 {
				t.Fatalf("the record has %d up to %d", len(ids.Hashes), ids.End)
			}
		}
	}
}

func TestIndexExpires(t *testing.T) {
	const window = 100
	at := func(n int64) time.Time { return time.Unix(0, n) }
	for name, c := range map[string]struct {
		index  idIndex
		window time.Duration
		now    int64
		want   outdatedIDs
		from   int64 // Index.From afterwards
	}{
		"there is none":                {idIndex{}, window, 1000, outdatedIDs{}, 0},
		"nothing is old":               {idIndex{Last: 1000, From: 950}, window, 1001, outdatedIDs{Next: at(1100)}, 950},
		"old for less than half of it": {idIndex{Last: 1000, From: 850}, window, 1000, outdatedIDs{Next: at(1100)}, 850},
		"old for half of it":           {idIndex{Last: 1000, From: 849}, window, 1000, outdatedIDs{From: at(849), To: at(900), Next: at(1100)}, 900},
		"no record is written":         {idIndex{Last: 1000}, window, 1050, outdatedIDs{Next: at(1100)}, 0},
		"all but the last":             {idIndex{Last: 1000, From: 1}, window, 1099, outdatedIDs{From: at(1), To: at(999), Next: at(1100)}, 999},
		"all":                          {idIndex{Last: 1000, From: 900}, window, 1100, outdatedIDs{All: true}, 900},
		"no window any more":           {idIndex{Last: 1000, From: 900}, 0, 1000, outdatedIDs{All: true}, 900},
	} {
		if got := c.index.Expire(c.window, at(c.now)); got != c.want || c.index.From != c.from {
			t.Errorf("%s: %+v, from %d; want %+v, from %d", name, got, c.index.From, c.want, c.from)
		}
	}
}

// From is the time of the oldest record, regardless of the order of writes.
func TestIndexBegins(t *testing.T) {
	var x idIndex
	for _, c := range []struct{ at, from int64 }{{50, 50}, {60, 50}, {40, 40}, {45, 40}} {
		if x.Wrote(store.RecentIDs{At: time.Unix(0, c.at)}); x.From != c.from {
			t.Errorf("with a record of %d it begins at %d, want %d", c.at, x.From, c.from)
		}
	}
}

// Restore returns the latest location of each ID. The location may come from a record or from a
// message, and the order of the arguments has no effect.
func TestRecentRestore(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	begun := time.Unix(1<<30, 0)
	for range 50 {
		const queues = 3
		var ends [queues]int64
		var records []store.RecentIDs
		var read []recentStored
		want := map[uint64]PendingLocation{}
		at := begun.Add(-time.Minute)
		for range rnd.IntN(30) {
			q := uint16(rnd.IntN(queues))
			ids := store.RecentIDs{Queue: q}
			for range 1 + rnd.IntN(20) {
				at = at.Add(time.Millisecond)
				h := hashOf(fmt.Sprint(rnd.IntN(300)))
				want[h] = PendingLocation{Queue: q, Offset: ends[q]}
				ends[q]++
				ids.Hashes = append(ids.Hashes, h)
				ids.End, ids.At = ends[q], at
			}
			if rnd.IntN(2) == 0 {
				records = append(records, ids)
				continue
			}
			first := at.Add(-time.Duration(len(ids.Hashes)-1) * time.Millisecond)
			for i, h := range ids.Hashes {
				read = append(read, recentStored{Queue: q, Offset: ids.First() + int64(i), Hash: h, At: first.Add(time.Duration(i) * time.Millisecond)})
			}
		}
		rnd.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
		rnd.Shuffle(len(read), func(i, j int) { read[i], read[j] = read[j], read[i] })
		r := restore(begun, records, read)
		if r.Forgotten() != (len(want) == 0) || r.since != begun {
			t.Fatalf("seed %d: of %d IDs none: %t, begun at %v", seed, len(want), r.Forgotten(), r.since)
		}
		next := func(q uint16) int64 { return ends[q] }
		for h, l := range want {
			got, ok := r.Find(h, next)
			assert.MustThat(t, ok && got == l, "seed %d: %x is at %+v, %t; want %+v", seed, h, got, ok, l)
		}
	}
}

// Restore allocates tables of the right size: they do not grow.
func TestRestoreMakesRoom(t *testing.T) {
	for _, n := range []int{idCapacity, 2 * idCapacity} {
		read := make([]recentStored, n)
		for i := range read {
			read[i] = recentStored{Offset: int64(i), Hash: hashOf(fmt.Sprint(i))}
		}
		r := restore(time.Now(), nil, read)
		assert.Equal(t, "are remembered", r.Len(), n)
		for i, s := range r.newer.shards {
			if cap(s.slots) != n*3/2>>shardBits {
				t.Errorf("of %d, shard %d has %d slots", n, i, cap(s.slots))
			}
		}
	}
}
