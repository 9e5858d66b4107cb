package engine

import (
	"bytes"
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

var seed = maphash.MakeSeed()

// fakeTopic is a Topic that records the calls for its messages.
type fakeTopic struct {
	id       uint32
	name     string
	deleted  atomic.Bool
	counters pendingCounters
	schedule checkSchedule

	mu        sync.Mutex
	delivered []string             // message IDs, once they are visible
	messages  map[string]time.Time // when each was delivered
	forgotten int
	last      store.Message
}

func newPendingTopic(id uint32, name string) *fakeTopic {
	return &fakeTopic{id: id, name: name, messages: map[string]time.Time{}, schedule: checkSchedule{Timeout: 6 * time.Second, Interval: 30 * time.Second, Max: 2}}
}

func (t *fakeTopic) ID() uint32                 { return t.id }
func (t *fakeTopic) Name() string               { return t.name }
func (t *fakeTopic) Deleted() bool              { return t.deleted.Load() }
func (t *fakeTopic) Counters() *pendingCounters { return &t.counters }
func (t *fakeTopic) Schedule() checkSchedule    { return t.schedule }

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
	if !slices.Equal(t.delivered, ids) {
		tb.Errorf("topic %s has %v, want %v", t.name, t.delivered, ids)
	}
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

// onCheck has a function asked from now on.
func (f *pendingFixture) onCheck(ask func(TransactionCheck) bool) { f.ask.Store(&ask) }

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
		if n := f.damaged.Load(); n > 0 {
			t.Errorf("%d messages are damaged", n)
		}
	})
	find := f.finder()
	if _, err := f.x.Recover(find, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := f.delayed.Recover(find); err != nil {
		t.Fatal(err)
	}
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
	if err := f.store.Close(); err != nil {
		f.t.Error(err)
	}
}

// delay stores a delayed message with a body of 10 bytes.
func (f *pendingFixture) delay(t *fakeTopic, id string, after time.Duration) (d store.Delayed) {
	f.t.Helper()
	m := store.Message{Message: tidegate.Message{ID: id, Body: make([]byte, 10), DeliverAt: time.Now().Add(after)}}
	if err := f.store.Messages.Add(func(w *store.Batch) { d = f.delayed.Put(w, t, &m, time.Now()) }, nil).Wait(); err != nil {
		f.t.Fatal(err)
	}
	f.delayed.Wake(d.Due)
	return d
}

// half stores a half message with a body of 10 bytes.
func (f *pendingFixture) half(t *fakeTopic, id string) (h store.HalfID) {
	f.t.Helper()
	m := store.Message{Message: tidegate.Message{ID: id, Body: make([]byte, 10)}}
	var due time.Time
	if err := f.store.Messages.Add(func(w *store.Batch) { h, due = f.x.Put(w, t, &m, 0, time.Now()) }, nil).Wait(); err != nil {
		f.t.Fatal(err)
	}
	f.x.Wake(due)
	return h
}

func (f *pendingFixture) wantDelayed(t *fakeTopic, messages int64) {
	f.t.Helper()
	if n, bytes := t.counters.Delayed(); n != messages || bytes != 10*messages {
		f.t.Errorf("%d messages wait in %s, %d bytes; want %d", n, t.name, bytes, messages)
	}
}

// After a start with a clock that is behind, checks of transactions and the retries of the broker
// come after the duration for which they were set. Other delayed messages keep their time.
func TestRecoverWithClockBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := openPending(t, vfs.NewMem())
		a := f.topics[1]
		id := f.half(a, "half")
		was, _, err := f.store.HalfState(id)
		if err != nil {
			t.Fatal(err)
		}
		timeout := time.Until(was.Due)
		user := f.delay(a, "user", time.Minute)
		retry := store.Message{Message: tidegate.Message{ID: "retry", Body: make([]byte, 10), DeliverAt: time.Now().Add(10 * time.Second),
			Properties: map[string]string{"RETRY_TOPIC": a.name}}}
		if err := f.store.Messages.Add(func(w *store.Batch) { f.delayed.Put(w, a, &retry, time.Now()) }, nil).Wait(); err != nil {
			t.Fatal(err)
		}
		now := time.Now().Add(-time.Hour) // of the next start
		newest, err := f.x.Recover(f.finder(), now)
		if err := errors.Join(err, f.delayed.AdvanceRetries(a, now)); err != nil || !newest.Equal(time.Now()) {
			t.Fatal(newest, err)
		}
		if is, _, err := f.store.HalfState(id); err != nil || !is.Due.Equal(now.Add(timeout)) || is.Checks != 0 {
			t.Errorf("the check is due %v after the start, %v; want %v", is.Due.Sub(now), err, timeout)
		}
		all, err := f.store.DelayedOf(a.id, store.StoredDelayed{}, 9)
		if err != nil || len(all) != 2 {
			t.Fatal(all, err)
		}
		for _, d := range all {
			m, ok, err := f.store.GetDelayed(d.Delayed)
			want := map[string]time.Time{"user": user.Due, "retry": now.Add(10 * time.Second)}[m.ID]
			if !ok || err != nil || !d.Due.Equal(want) || !m.DeliverAt.Equal(want) {
				t.Errorf("%s is due %v after the start, %v, %v; want %v", m.ID, d.Due.Sub(now), ok, err, want.Sub(now))
			}
		}
		due, _, _, err := f.store.Due(time.Time{}, now.Add(10*time.Second), 9, 99)
		if err != nil || len(due) != 1 {
			t.Errorf("%d messages are due, %v; want the retry alone", len(due), err)
		}
	})
}

func TestDelayed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		f := openPending(t, fs)
		a, b := f.topics[1], f.topics[2]
		f.delay(a, "3", 3*time.Minute)
		f.delay(a, "1", time.Minute)
		f.delay(b, "2", 2*time.Minute)
		recalled := f.delay(a, "4", 4*time.Minute)
		f.delay(b, "5", 5*time.Minute)
		f.wantDelayed(a, 3)
		elapse(time.Minute - 1)
		a.want(t)
		elapse(time.Minute + 1)
		a.want(t, "1")
		b.want(t, "2")
		f.wantDelayed(a, 2)
		if id, ok, err := f.delayed.Recall(t.Context(), a, recalled); id != "4" || !ok || err != nil || a.forgotten != 1 {
			t.Errorf("recalled %q, %v, %v", id, ok, err)
		}
		if _, ok, err := f.delayed.Recall(t.Context(), a, recalled); ok || err != nil {
			t.Errorf("recalled twice: %v, %v", ok, err)
		}
		f.close()

		f = openPending(t, fs)
		a, b = f.topics[1], f.topics[2]
		f.wantDelayed(a, 1)
		f.short.Store(true)
		elapse(2 * time.Minute)
		a.want(t)
		f.short.Store(false)
		elapse(time.Second)
		a.want(t, "3")
		elapse(time.Hour)
		a.want(t, "3")
		b.want(t, "5")
		f.wantDelayed(a, 0)
		f.wantDelayed(b, 0)
		if at := f.delayed.From(); !at.Equal(farAhead) {
			t.Errorf("nothing waits, and the next look begins at %v", at)
		}
	})
}

// A removal leaves messages of other topics, and those that were written after it began.
func TestRemoveDelayed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := openPending(t, vfs.NewMem())
		a, b := f.topics[1], f.topics[2]
		for _, id := range []string{"1", "2", "3"} {
			f.delay(a, id, time.Hour)
			f.delay(b, id, time.Hour)
		}
		last := f.delayed.Last()
		f.delay(a, "new", 2*time.Hour)
		var removed store.Waiting
		if err := f.delayed.Remove(t.Context(), a, last, func(messages, bytes int64) {
			removed.Messages += messages
			removed.Bytes += bytes
		}); err != nil || removed != (store.Waiting{Messages: 3, Bytes: 30}) {
			t.Errorf("removed %+v, %v", removed, err)
		}
		f.wantDelayed(a, 1)
		elapse(3 * time.Hour)
		a.want(t, "new")
		b.want(t, "1", "2", "3")
	})
}

// The task of the delayed messages is never held for long, and a canceled recall ends at once.
func TestRecallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := openPending(t, vfs.NewMem())
		d := f.delay(f.topics[1], "1", time.Hour)
		release, err := f.delayed.Task.Hold(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, ok, err := f.delayed.Recall(ctx, f.topics[1], d); ok || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Recall returned %v, %v", ok, err)
		}
		release()
		elapse(time.Hour)
		f.topics[1].want(t, "1")
	})
}

// Producers are asked at the times of the schedule; after the last check the message goes to the
// topic of those given up.
func TestChecks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := openPending(t, vfs.NewMem())
		begin := time.Now()
		var mu sync.Mutex
		var asked []time.Duration
		f.onCheck(func(c TransactionCheck) bool {
			mu.Lock()
			defer mu.Unlock()
			if c.Message.ID != "1" || c.Message.Topic != "a" || c.Number != len(asked)+1 {
				t.Errorf("asked %+v", c)
			}
			asked = append(asked, time.Since(begin))
			return true
		})
		f.half(f.topics[1], "1")
		elapse(67 * time.Second)
		mu.Lock()
		if !slices.Equal(asked, []time.Duration{6 * time.Second, 36 * time.Second}) {
			t.Errorf("asked after %v", asked)
		}
		mu.Unlock()
		c := &f.topics[1].counters
		if f.created.Load() != 2 || f.givenUp.Load() == nil || c.Half.Load() != 0 || c.GivenUp.Load() != 1 || c.Checks.Load() != 2 {
			t.Fatalf("the topic was created %d times; %d wait, %d given up, %d checks", f.created.Load(), c.Half.Load(), c.GivenUp.Load(), c.Checks.Load())
		}
		elapse(time.Minute)
		f.givenUp.Load().want(t, "1")
		if p := f.givenUp.Load().last.Properties; p[propertyCheckTimes] != "2" || p[protocol.PropertyDeadLetterTopic] != "a" || p[protocol.PropertyDeadLetterMessageID] != "1" {
			t.Errorf("properties %v", p)
		}
		if log := f.log.String(); !strings.Contains(log, "no luck") || !strings.Contains(log, "transaction abandoned") {
			t.Errorf("the log is %s", log)
		}
	})
}

// Without room on the disk a transaction is not given up.
func TestGiveUpWaitsForRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
		if n := f.topics[1].counters.Half.Load(); n != 0 || f.givenUp.Load() == nil {
			t.Fatalf("%d wait", n)
		}
		f.givenUp.Load().want(t, "1")
	})
}

// A check that is overdue after a restart waits for another Timeout.
func TestOverdueAfterARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		f := openPending(t, fs)
		f.half(f.topics[1], "1")
		f.close()
		elapse(time.Hour)
		f = openPending(t, fs)
		begin := time.Now()
		asked := make(chan time.Duration, 1)
		f.onCheck(func(TransactionCheck) bool { asked <- time.Since(begin); return true })
		if n := f.topics[1].counters.Half.Load(); n != 1 {
			t.Errorf("%d wait", n)
		}
		if got := <-asked; got != 6*time.Second {
			t.Errorf("asked after %v, want 6s", got)
		}
	})
}

func TestEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := openPending(t, vfs.NewMem())
		a := f.topics[1]
		ids := map[string]store.HalfID{}
		for _, id := range []string{"1", "2", "3", "4"} {
			ids[id] = f.half(a, id)
		}
		end := func(id, messageID string, r transport.Resolution) error {
			return f.x.End(t.Context(), transactionEnd{Topic: a, ID: ids[id], MessageID: messageID, Resolution: r})
		}
		if err := end("1", "", transport.ResolutionUnknown); err != nil {
			t.Error(err)
		}
		var other *otherMessageError
		if err := end("1", "2", transport.Commit); !errors.As(err, &other) || other.Is != "1" || other.Named != "2" {
			t.Errorf("an end for another message: %v", err)
		}
		if err := errors.Join(end("1", "1", transport.Commit), end("2", "", transport.Rollback)); err != nil {
			t.Error(err)
		}
		for _, id := range []string{"1", "2"} {
			if err := end(id, "", transport.Commit); !errors.Is(err, errNoTransaction) {
				t.Errorf("a second end of %s: %v", id, err)
			}
		}
		a.want(t, "1")
		if a.last.Properties[protocol.PropertyTransactionID] == "" {
			t.Errorf("properties %v", a.last.Properties)
		}
		a.deleted.Store(true)
		if err := end("3", "", transport.Commit); !errors.Is(err, errTopicDeleted) {
			t.Errorf("the topic is deleted: %v", err)
		}
		a.deleted.Store(false)
		release, err := f.x.Claim(t.Context(), ids["4"])
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := f.x.End(ctx, transactionEnd{Topic: a, ID: ids["4"], Resolution: transport.Rollback}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the end of a claimed transaction: %v", err)
		}
		release()
		if err := end("4", "", transport.Rollback); err != nil {
			t.Error(err)
		}
		c := &a.counters
		if c.Half.Load() != 1 || c.Committed.Load() != 1 || c.RolledBack.Load() != 2 || f.x.Claimed() != 0 {
			t.Errorf("%d wait, %d committed, %d rolled back, %d claimed", c.Half.Load(), c.Committed.Load(), c.RolledBack.Load(), f.x.Claimed())
		}
	})
}

func TestRemoveHalfMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := openPending(t, vfs.NewMem())
		a, b := f.topics[1], f.topics[2]
		for range CheckBatch + 2 {
			f.half(a, "old")
		}
		f.half(b, "other")
		last := f.x.Last()
		f.half(a, "new")
		var removed store.Waiting
		calls := 0
		if err := f.x.Remove(t.Context(), a, last, func(messages, bytes int64) {
			calls++
			removed.Messages += messages
			removed.Bytes += bytes
		}); err != nil || calls != 2 || removed != (store.Waiting{Messages: CheckBatch + 2, Bytes: 10 * (CheckBatch + 2)}) {
			t.Errorf("removed %+v in %d writes, %v", removed, calls, err)
		}
		if a.counters.Half.Load() != 1 || b.counters.Half.Load() != 1 {
			t.Errorf("%d and %d wait", a.counters.Half.Load(), b.counters.Half.Load())
		}
	})
}
