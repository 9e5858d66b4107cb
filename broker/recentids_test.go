package broker

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
)

var testIDKey = store.IDKey{K0: rand.Uint64(), K1: rand.Uint64()}

// hashOf returns the hash of an ID, by a key of the tests.
func hashOf(id string) uint64 { return testIDKey.Hash(id) }

// queuesUpTo returns n queues with the given next offset.
func queuesUpTo(n int, next int64) []*queue {
	qs := make([]*queue, n)
	for i := range qs {
		qs[i] = &queue{number: uint16(i), nextOffset: next}
	}
	return qs
}

func TestRecentIDsAreBounded(t *testing.T) {
	var r recentIDs
	now := time.Now()
	const last = 3*maxRecentIDs + 9
	for i := range last + 1 {
		r.add(hashOf(fmt.Sprint(i)), location{offset: int64(i)}, time.Hour, now)
	}
	if n := r.newer.len() + r.older.len(); n > 2*maxRecentIDs || n < maxRecentIDs {
		t.Errorf("%d are remembered", n)
	}
	qs := queuesUpTo(1, last+1)
	for i := last - maxRecentIDs + 1; i <= last; i++ {
		if l, ok := r.find(hashOf(fmt.Sprint(i)), qs); !ok || l.offset != int64(i) {
			t.Fatalf("%d, one of the last %d, is forgotten: %v, %v", i, maxRecentIDs, l, ok)
		}
	}
	slots := 0
	for _, g := range []*generation{r.newer, r.older} {
		if len(g.aside) > 16 {
			t.Errorf("%d of %d are set aside", len(g.aside), g.len())
		}
		for _, s := range g.shards {
			slots += cap(s.slots)
		}
	}
	if bytes := slots * 8; bytes > 8<<20 {
		t.Errorf("%d IDs take %d bytes", r.newer.len()+r.older.len(), bytes)
	}
}

// What is remembered is what a map remembers, whatever was done: adding,
// moving, forgetting, time that passes.
func TestRecentIDsRandom(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	const window = time.Minute
	var r recentIDs
	type memory struct {
		location
		at   time.Time
		gone bool
	}
	model := map[string]memory{}
	qs := queuesUpTo(MaxQueues, 1<<40)
	now := time.Unix(1<<30, 0)
	for step := range 200_000 {
		id := fmt.Sprint(rnd.IntN(5000))
		switch rnd.IntN(12) {
		case 0:
			if m := model[id]; m.moves() {
				r.forget(hashOf(id))
				m.gone = true // where it was before, if it was in a queue, may be told again
				model[id] = m
			}
		case 1:
			if rnd.IntN(100) == 0 {
				now = now.Add(time.Duration(rnd.Int64N(int64(2 * window))))
			}
			now = now.Add(time.Duration(rnd.Int64N(int64(window / 500))))
		case 2:
			if next := r.expire(window, now); !next.IsZero() && !next.After(now) || r.forgotten() != next.IsZero() {
				t.Fatalf("seed %d, step %d: expired at %v, next %v, empty %v", seed, step, now, next, r.forgotten())
			}
		default:
			l := location{queue: uint16(rnd.IntN(MaxQueues)), offset: 1<<40 - 1 - rnd.Int64N(1<<offsetBits)}
			switch rnd.IntN(4) {
			case 0:
				l = location{half: true, offset: rnd.Int64()}
			case 1:
				l = location{due: rnd.Int64() + 1, offset: rnd.Int64()}
			}
			r.add(hashOf(id), l, window, now)
			model[id] = memory{location: l, at: now}
		}
		id = fmt.Sprint(rnd.IntN(5000))
		want, known := model[id]
		got, ok := r.find(hashOf(id), qs)
		recent := known && !want.gone && now.Sub(want.at) < window
		if recent && (!ok || got != want.location) || ok && !known || ok && want.gone && got == want.location {
			t.Fatalf("seed %d, step %d: ID %s is at %+v, %v; want %+v, %v", seed, step, id, got, ok, want, known)
		}
	}
}

// Two IDs of the same shard and tag are both remembered.
func TestEqualTags(t *testing.T) {
	var r recentIDs
	now := time.Now()
	r.turn(now)
	r.newer = &generation{}
	h := hashOf("a")
	r.newer.put(h^1, 5) // another ID, whose hash differs only where neither shard nor tag see it
	r.add(h, location{queue: 3, offset: 6}, time.Hour, now)
	if l, ok := r.find(h, queuesUpTo(8, 10)); !ok || l != (location{queue: 3, offset: 6}) {
		t.Errorf("%+v, %v", l, ok)
	}
	if r.newer.slot(h^1)&(1<<offsetBits-1) != 5 {
		t.Error("the other ID's place is lost")
	}
}

func TestLastWith(t *testing.T) {
	const m = 1 << offsetBits
	for _, c := range []struct{ at, next, want int64 }{
		{0, 1, 0}, {m - 1, m, m - 1}, {m, m + 1, m}, {5 * m, 6 * m, 5 * m}, {5*m + 3, 6*m + 3, 5*m + 3}, {5*m + 3, 6*m + 4, 6*m + 3},
	} {
		if got := lastWith(1<<60|uint64(c.at)%m, c.next); got != c.want {
			t.Errorf("offset %d before %d: %d, want %d", c.at, c.next, got, c.want)
		}
	}
}

// The IDs of a topic are forgotten when the window is over, though nothing is
// sent any more; nothing wakes the broker afterwards.
func TestIDsAreForgottenInSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		putTopic(t, b, "t", TopicConfig{})
		putTopic(t, b, "short", TopicConfig{DuplicateWindow: Duration(time.Second)})
		remembered := func(name string) (n int, watched bool) {
			tp, err := b.topic(name)
			if err != nil {
				t.Fatal(err)
			}
			b.store.Messages.Add(func(*store.Batch) { n, watched = tp.recent.newer.len()+tp.recent.older.len(), tp.forgets }, nil)
			return n, watched
		}
		for _, name := range []string{"t", "short"} {
			mustSend(t, b, &tidegate.Message{ID: "a", Topic: name, Body: []byte("x")})
		}
		for _, c := range []struct {
			wait    time.Duration
			name    string
			want    int
			watched bool
		}{
			{time.Second - 1, "short", 1, true},
			{1 + time.Second, "short", 0, false},
			{2*time.Minute - 2*time.Second, "t", 1, true},
			{2 * time.Minute, "t", 0, false},
		} {
			<-time.After(c.wait)
			synctest.Wait()
			if n, watched := remembered(c.name); n != c.want || watched != c.watched {
				t.Errorf("%s remembers %d, %v; want %d, %v", c.name, n, watched, c.want, c.watched)
			}
		}
		b.forgetting.mu.Lock()
		defer b.forgetting.mu.Unlock()
		if !b.forgetting.at.IsZero() {
			t.Error("the alarm is set although nothing is remembered")
		}
	})
}

func BenchmarkRecentIDs(b *testing.B) {
	ids := make([]string, 1<<16)
	for i := range ids {
		ids[i] = tidegate.NewMessageID()
	}
	qs := queuesUpTo(8, 1<<30)
	now := time.Now()
	var r recentIDs
	b.ReportAllocs()
	for i := range b.N {
		id := ids[i%len(ids)][:30] + fmt.Sprintf("%x", i>>16)
		h := hashOf(id)
		r.find(h, qs)
		r.add(h, location{queue: uint16(i % 8), offset: int64(i / 8)}, time.Hour, now)
	}
}
