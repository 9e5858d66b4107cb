package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

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
			if got, ok := r.Find(h, next); !ok || got != l {
				t.Fatalf("seed %d: %x is at %+v, %t; want %+v", seed, h, got, ok, l)
			}
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
		if r.Len() != n {
			t.Errorf("%d of %d are remembered", r.Len(), n)
		}
		for i, s := range r.newer.shards {
			if cap(s.slots) != n*3/2>>shardBits {
				t.Errorf("of %d, shard %d has %d slots", n, i, cap(s.slots))
			}
		}
	}
}
