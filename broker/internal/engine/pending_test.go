package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/transport"
)

var seed = maphash.MakeSeed()

// fakeTopic is a Topic that records the calls for its messages.
type fakeTopic struct {
	id       uint32
	name     string
	deleted  atomic.Bool
	counters PendingCounters
	schedule CheckSchedule

	mu        sync.Mutex
	delivered []string             // message IDs, once they are visible
	messages  map[string]time.Time // when each was delivered
	forgotten int
	last      store.Message
}

func newPendingTopic(id uint32, name string) *fakeTopic {
	return &fakeTopic{id: id, name: name, messages: map[string]time.Time{}, schedule: CheckSchedule{Timeout: 6 * time.Second, Interval: 30 * time.Second, Max: 2}}
}

func (t *fakeTopic) ID() uint32                 { return t.id }
func (t *fakeTopic) Name() string               { return t.name }
func (t *fakeTopic) Deleted() bool              { return t.deleted.Load() }
func (t *fakeTopic) Counters() *PendingCounters { return &t.counters }
func (t *fakeTopic) Schedule() CheckSchedule    { return t.schedule }

func (t *fakeTopic) Deliver(_ *store.Batch, m *store.Message, now time.Time) (publish func(error)) {
	delivered := *m
	return func(err error) {
		if err != nil {
			return
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.delivered = append(t.delivered, delivered.ID)
		t.messages[delivered.ID] = now
		t.last = delivered
	}
}

func (t *fakeTopic) Remember(m *store.Message, _ PendingLocation, _ time.Time) { t.HashID(m) }
func (t *fakeTopic) HashID(m *store.Message)                                   { m.IDHash = maphash.String(seed, m.ID) }

func (t *fakeTopic) Forget(uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgotten++
}

func (t *fakeTopic) want(tb testing.TB, ids ...string) {
	tb.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	assert.That(tb, slices.Equal(t.delivered, ids), "topic %s has %v, want %v", t.name, t.delivered, ids)
}

// A pendingFixture is a store with the pending messages of two topics.
type pendingFixture struct {
	t       *testing.T
	store   *store.Store
	loop    *maintenance
	log     bytes.Buffer
	delayed *delayed
	x       *transactions
	topics  map[uint32]*fakeTopic
	givenUp atomic.Pointer[fakeTopic]
	created atomic.Int32
	short   atomic.Bool
	damaged atomic.Int64
	looks   atomic.Int64 // calls of Topics: a step that found something due makes one
	cancel  context.CancelFunc
	ask     atomic.Pointer[func(TransactionCheck) bool] // nil: no producer
}

func (f *pendingFixture) Topics() func(uint32) pendingTopic {
	f.looks.Add(1)
	return f.finder()
}

func (f *pendingFixture) ShortOfDisk() bool { return f.short.Load() }

func (f *pendingFixture) Room(ctx context.Context, n int64) error {
	return f.store.Messages.Room(ctx, n, nil)
}

func (f *pendingFixture) GivenUp() pendingTopic {
	if t := f.givenUp.Load(); t != nil {
		return t
	}
	return nil
}

func (f *pendingFixture) Ask(c TransactionCheck) bool {
	ask := f.ask.Load()
	return ask != nil && (*ask)(c)
}

func (f *pendingFixture) CreateGivenUp() error {
	if f.created.Add(1) == 1 {
		return errors.New("no luck")
	}
	f.givenUp.Store(newPendingTopic(3, "given up"))
	return nil
}

// openPending opens a fixture on a file system, which outlives it.
func openPending(t *testing.T, fs vfs.FS) *pendingFixture {
	t.Helper()
	f := &pendingFixture{t: t, topics: map[uint32]*fakeTopic{1: newPendingTopic(1, "a"), 2: newPendingTopic(2, "b")}}
	var err error
	if f.store, err = store.Open(store.Options{Dir: "data", FS: fs, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	logger := slog.New(slog.NewTextHandler(&f.log, nil))
	f.cancel, f.loop = cancel, newMaintenance(ctx, logger, nil)
	late := store.DurationHistogram()
	c := pendingConfig{Store: f.store, Loop: f.loop, Logger: logger, pendingParts: f, Damaged: &f.damaged, Late: &late}
	f.delayed, f.x = newDelayed(c), newTransactions(c)
	t.Cleanup(func() {
		n := f.damaged.Load()
		assert.That(t, n <= 0, "%d messages are damaged", n)
	})
	find := f.finder()
	assert.Must(t, assert.Err(f.x.Recover(find, time.Now())))
	assert.Must(t, f.delayed.Recover(find))
	f.loop.Start()
	t.Cleanup(f.close)
	return f
}

func (f *pendingFixture) finder() func(id uint32) pendingTopic {
	return func(id uint32) pendingTopic {
		if t := f.topics[id]; t != nil {
			return t
		}
		return nil
	}
}

func (f *pendingFixture) close() {
	if f.cancel == nil {
		return
	}
	f.cancel()
	f.cancel = nil
	f.loop.Stop()
	assert.NoError(f.t, f.store.Close())
}

// delay stores a delayed message with a body of 10 bytes.
func (f *pendingFixture) delay(t *fakeTopic, id string, after time.Duration) (d store.Delayed) {
	f.t.Helper()
	m := store.Message{Message: tidegate.Message{ID: id, Body: make([]byte, 10), DeliverAt: time.Now().Add(after)}}
	assert.Must(f.t, f.store.Messages.Add(func(w *store.Batch) { d = f.delayed.Put(w, t, &m, time.Now()) }, nil).Wait())
	f.delayed.Wake(d.Due)
	return d
}

// half stores a half message with a body of 10 bytes.
func (f *pendingFixture) half(t *fakeTopic, id string) (h store.HalfID) {
	f.t.Helper()
	m := store.Message{Message: tidegate.Message{ID: id, Body: make([]byte, 10)}}
	var due time.Time
	assert.Must(f.t, f.store.Messages.Add(func(w *store.Batch) { h, due = f.x.Put(w, t, &m, 0, time.Now()) }, nil).Wait())
	f.x.Wake(due)
	return h
}

// After a start with a clock that is behind, checks of transactions and the retries of the broker
// come after the duration for which they were set. Other delayed messages keep their time.
func TestRecoverWithClockBehind(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := openPending(t, vfs.NewMem())
		a := f.topics[1]
		id := f.half(a, "half")
		was, _, err := f.store.HalfState(id)
		assert.Must(t, err)
		timeout := time.Until(was.Due)
		user := f.delay(a, "user", time.Minute)
		retry := store.Message{Message: tidegate.Message{ID: "retry", Body: make([]byte, 10), DeliverAt: time.Now().Add(10 * time.Second),
			Properties: map[string]string{"RETRY_TOPIC": a.name}}}
		assert.Must(t, f.store.Messages.Add(func(w *store.Batch) { f.delayed.Put(w, a, &retry, time.Now()) }, nil).Wait())
		now := time.Now().Add(-time.Hour) // of the next start
		newest, err := f.x.Recover(f.finder(), now)
		if err := errors.Join(err, f.delayed.AdvanceRetries(a, now)); err != nil || !newest.Equal(time.Now()) {
			t.Fatal(newest, err)
		}
		if is, _, err := f.store.HalfState(id); err != nil || !is.Due.Equal(now.Add(timeout)) || is.Checks != 0 {
			t.Errorf("the check is due %v after the start, %v; want %v", is.Due.Sub(now), err, timeout)
		}
		all, err := f.store.DelayedOf(a.id, store.StoredDelayed{}, 9)
		assert.MustThat(t, err == nil && len(all) == 2, "%+v, %+v", all, err)
		for _, d := range all {
			m, ok, err := f.store.GetDelayed(d.Delayed)
			want := map[string]time.Time{"user": user.Due, "retry": now.Add(10 * time.Second)}[m.ID]
			if !ok || err != nil || !d.Due.Equal(want) || !m.DeliverAt.Equal(want) {
				t.Errorf("%s is due %v after the start, %v, %v; want %v", m.ID, d.Due.Sub(now), ok, err, want.Sub(now))
			}
		}
		due, _, _, err := f.store.Due(time.Time{}, now.Add(10*time.Second), 9, 99)
		assert.That(t, err == nil && len(due) == 1, "%d messages are due, %v; want the retry alone", len(due), err)
	})
}

// The task of the delayed messages is never held for long, and a canceled recall ends at once.
func TestRecallEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := openPending(t, vfs.NewMem())
		d := f.delay(f.topics[1], "1", time.Hour)
		release := assert.Value(f.delayed.Task.Hold(t.Context()))(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, ok, err := f.delayed.Recall(ctx, f.topics[1], d)
		assert.That(t, !ok && errors.Is(err, context.DeadlineExceeded), "Recall returned %v, %v", ok, err)
		release()
		elapse(time.Hour)
		f.topics[1].want(t, "1")
	})
}

// Without room on the disk a transaction is not given up.
func TestGiveUpWaitsForRoom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := openPending(t, vfs.NewMem())
		f.created.Store(1) // the next creation succeeds
		f.short.Store(true)
		f.half(f.topics[1], "1")
		elapse(10 * time.Minute)
		if n := f.topics[1].counters.Half.Load(); n != 1 || f.topics[1].counters.Unheard.Load() != 2 {
			t.Errorf("%d wait, %d unheard checks", n, f.topics[1].counters.Unheard.Load())
		}
		f.short.Store(false)
		elapse(giveUpPause)
		n := f.topics[1].counters.Half.Load()
		assert.MustThat(t, n == 0 && f.givenUp.Load() != nil, "%d wait", n)
		f.givenUp.Load().want(t, "1")
	})
}

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
		assert.That(t, r.givenUp[id], "transaction %s was not given up", id)
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
	at := r.pendingFixture.delayed.From()
	assert.That(t, at.IsZero() || at.Equal(farAhead), "nothing waits, and the next look begins at %v", at)
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
		assert.NoError(r.t, err)
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

func TestSchedule(t *testing.T) {
	t.Parallel()
	c := CheckSchedule{Timeout: 6 * time.Second, Interval: 30 * time.Second, Max: 15}
	now := time.Unix(1000, 0)
	s := c.First(0, now)
	want := now.Add(6 * time.Second)
	assert.That(t, s.Due.Equal(want) && s.Checks == 0, "first: %+v, want %v", s, want)
	if s := c.First(time.Hour, now); !s.Due.Equal(now.Add(time.Hour)) {
		t.Errorf("the message's own first check: %+v", s)
	}
	for name, x := range map[string]struct {
		checks int
		late   time.Duration
		max    int
		next   time.Duration // after now
		giveUp bool
	}{
		"in time":         {0, 0, 15, 30 * time.Second, false},
		"late":            {3, time.Second, 15, 29 * time.Second, false},
		"very late":       {3, time.Hour, 15, 30 * time.Second, false},
		"the last":        {14, 0, 15, 30 * time.Second, false},
		"after the last":  {15, 0, 15, 0, true},
		"lowered":         {9, 0, 5, 0, true},
		"without an end":  {1 << 20, 0, -1, 30 * time.Second, false},
		"only one":        {0, 0, 1, 30 * time.Second, false},
		"after the first": {1, 0, 1, 0, true},
	} {
		c.Max = x.max
		before := s
		before.Checks = x.checks
		now := before.Due.Add(x.late)
		after, giveUp := c.Next(before, now)
		assert.That(t, giveUp == x.giveUp && (giveUp || after.Due.Equal(now.Add(x.next)) && after.Checks == x.checks+1),
			"%s: %+v, %t; want after %v, %t", name, after, giveUp, x.next, x.giveUp)
	}
}
