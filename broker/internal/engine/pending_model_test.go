package engine

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/transport"
)

// Random delayed messages and half messages, with recalls, ends of transactions, a disk that is
// short of room for a while, and restarts. Each delayed message is in its queue when it is due, and
// later only by the time in which the disk was short. Each transaction that nothing ends is given
// up after its last check. In the end nothing waits. The steps are bounded by the messages and by
// the seconds in which the disk was short.
func TestPendingModel(t *testing.T) {
	t.Parallel()
	model.Run(t, 40, func(t *testing.T, r *rand.Rand) {
		synctest.Test(t, func(t *testing.T) { pendingRunModel(t, r) })
	})
}

// A pendingModelRun is a fixture over restarts, with the expected state of the messages.
type pendingModelRun struct {
	*pendingFixture
	t    *testing.T
	fs   vfs.FS
	rnd  *rand.Rand
	next int

	due      map[string]time.Time // delayed messages that are not recalled
	places   map[string]store.Delayed
	half     map[string]store.HalfID // transactions that have not ended
	ended    map[string]bool         // committed: in the queue of a
	short    time.Duration           // for which the disk was short
	since    time.Time               // when it became short; zero if it is not
	steps    int64
	restarts int

	delivered map[string]time.Time // over all restarts
	givenUp   map[string]bool
}

// schedule is that of newTopic: checks after 6 s and each 30 s, two of them.
const (
	lastCheck         = 6*time.Second + 2*30*time.Second
	pendingModelPause = time.Second // of a step that failed, and of one that found no room
)

func pendingRunModel(t *testing.T, rnd *rand.Rand) {
	r := &pendingModelRun{
		t: t, fs: vfs.NewMem(), rnd: rnd, due: map[string]time.Time{}, places: map[string]store.Delayed{}, half: map[string]store.HalfID{},
		ended: map[string]bool{}, delivered: map[string]time.Time{}, givenUp: map[string]bool{},
	}
	r.pendingFixture = openPending(t, r.fs)
	for range 10 + rnd.IntN(30) {
		r.act()
	}
	r.setShort(false)
	elapse(3*time.Minute + lastCheck + time.Duration(r.restarts+3)*10*time.Second)
	r.collect()
	for id, due := range r.due {
		if at, ok := r.delivered[id]; !ok {
			t.Errorf("%s is not in its queue", id)
		} else if at.Before(due) || at.Sub(due) > r.short+2*pendingModelPause {
			t.Errorf("%s came %v after its time; the disk was short for %v", id, at.Sub(due), r.short)
		}
	}
	for id := range r.half {
		if !r.givenUp[id] {
			t.Errorf("transaction %s was not given up", id)
		}
	}
	for id := range r.delivered {
		if _, due := r.due[id]; !due && !r.ended[id] {
			t.Errorf("%s was delivered, although it was recalled or not committed", id)
		}
	}
	for _, tp := range r.topics {
		if n, bytes := tp.counters.Delayed(); n != 0 || bytes != 0 || tp.counters.Half.Load() != 0 {
			t.Errorf("in %s wait %d messages of %d bytes and %d half messages", tp.name, n, bytes, tp.counters.Half.Load())
		}
	}
	if at := r.pendingFixture.delayed.From(); !at.IsZero() && !at.Equal(farAhead) {
		t.Errorf("nothing waits, and the next look begins at %v", at)
	}
	before := r.looks.Load()
	r.steps += before
	elapse(time.Hour)
	if n := r.looks.Load() - before; n > 0 {
		t.Errorf("%d steps in an hour in which nothing waits", n)
	}
	// A message has at most a move, or two checks, an end and a failure; a start looks twice.
	if most := int64(8*r.next + 4*int(r.short/pendingModelPause) + 8*(r.restarts+1)); r.steps > most {
		t.Errorf("%d steps for %d messages, want at most %d", r.steps, r.next, most)
	}
}

// act makes one random event.
func (r *pendingModelRun) act() {
	a, b := r.topics[1], r.topics[2]
	id := fmt.Sprint(r.next)
	switch r.rnd.IntN(9) {
	case 0, 1, 2:
		r.next++
		after := time.Duration(r.rnd.IntN(120)) * time.Second
		r.places[id] = r.delay([]*fakeTopic{a, b}[r.rnd.IntN(2)], id, after)
		r.due[id] = r.places[id].Due
	case 3, 4:
		r.next++
		r.half[id] = r.pendingFixture.half(a, id)
	case 5:
		r.recall()
	case 6:
		r.end()
	case 7:
		r.setShort(r.since.IsZero())
	case 8:
		if r.rnd.IntN(3) == 0 {
			r.restart()
		}
	}
	elapse(time.Duration(r.rnd.IntN(20_000)) * time.Millisecond)
}

// recall recalls one message, if it is not in its queue yet.
func (r *pendingModelRun) recall() {
	for id, at := range r.places {
		delete(r.places, id)
		_, ok, err := r.pendingFixture.delayed.Recall(r.t.Context(), r.topics[at.Topic], at)
		if err != nil {
			r.t.Error(err)
		}
		if ok {
			delete(r.due, id)
		}
		return
	}
}

// end commits or rolls back one transaction, if it was not given up.
func (r *pendingModelRun) end() {
	r.collect()
	for id, h := range r.half {
		if r.givenUp[id] {
			continue
		}
		how := []transport.Resolution{transport.Commit, transport.Rollback}[r.rnd.IntN(2)]
		if err := r.x.End(r.t.Context(), transactionEnd{Topic: r.topics[1], ID: h, Resolution: how}); err != nil {
			r.t.Error(err)
			return
		}
		delete(r.half, id)
		r.ended[id] = how == transport.Commit
		return
	}
}

func (r *pendingModelRun) setShort(short bool) {
	if !r.since.IsZero() {
		r.short += time.Since(r.since)
		r.since = time.Time{}
	}
	if short {
		r.since = time.Now()
	}
	r.pendingFixture.short.Store(short)
}

func (r *pendingModelRun) restart() {
	r.collect()
	r.restarts++
	r.steps += r.looks.Load()
	r.pendingFixture.close()
	r.pendingFixture = openPending(r.t, r.fs)
	r.pendingFixture.short.Store(!r.since.IsZero())
}

// collect notes the deliveries since the last restart.
func (r *pendingModelRun) collect() {
	for _, tp := range r.topics {
		tp.mu.Lock()
		maps.Copy(r.delivered, tp.messages)
		tp.mu.Unlock()
	}
	if tp := r.pendingFixture.givenUp.Load(); tp != nil {
		tp.mu.Lock()
		for id := range tp.messages {
			r.givenUp[id] = true
		}
		tp.mu.Unlock()
	}
}
