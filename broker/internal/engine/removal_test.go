package engine

import (
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
)

// topics are all topics by number.
type topics map[uint32]*Topic

func (m topics) TopicsByID() map[uint32]*Topic { return m }

// newRemover returns a Remover on a store in memory, whose loop runs until the end of the test.
func newRemover(t *testing.T, all topics) *Remover {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	st, err := store.Open(store.Options{Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	loop := newMaintenance(t.Context(), logger, nil)
	r := NewRemoval(RemovalConfig{Store: st, Loop: loop, Logger: logger, Directory: all})
	loop.Start()
	t.Cleanup(func() {
		loop.Stop()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// elapse lets virtual time pass, and then all goroutines come to rest.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// Disk space that the store failed to return is returned a minute later.
func TestReclaimIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRemover(t, nil)
		r.Freed().Add(store.Range{Topic: 1, Queue: 0, From: 5, To: 5}, retention.ReclaimBytes) // an empty range cannot be compacted
		r.ReclaimSoon()
		elapse(time.Second)
		if n := r.Freed().Bytes(); n != retention.ReclaimBytes {
			t.Fatalf("%d bytes are not returned yet, want %d", n, retention.ReclaimBytes)
		}
		r.Freed().Add(store.Range{Topic: 1, Queue: 0, From: 4, To: 6}, 0)
		elapse(time.Minute)
		if n := r.Freed().Bytes(); n != 0 {
			t.Errorf("%d bytes are not returned a minute later", n)
		}
	})
}

// Little removed space is not returned: a compaction costs more.
func TestLittleIsNotReclaimed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRemover(t, nil)
		r.Freed().Add(store.Range{Topic: 1, Queue: 0, From: 4, To: 6}, retention.ReclaimBytes-1)
		r.ReclaimSoon()
		elapse(time.Hour)
		if n := r.Freed().Bytes(); n != retention.ReclaimBytes-1 {
			t.Errorf("%d bytes wait, want %d", n, retention.ReclaimBytes-1)
		}
	})
}

// A look finds the topics whose round is due, and the time of the next one.
func TestLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all, now := topics{}, time.Now()
		r := newRemover(t, all)
		add := func(id uint32, due time.Duration) {
			all[id] = newTopic(TopicConfig{ID: id, Name: "t", Retention: newMaintenance(t.Context(), r.Logger, nil).Add(taskConfig{})}, settings.Topic{Queues: 1})
			if due != 0 {
				all[id].WakeRetention(now.Add(due))
			}
		}
		for id, due := range map[uint32]time.Duration{1: -time.Hour, 2: time.Minute, 3: 0, 4: time.Hour, 5: -1} {
			add(id, due)
		}
		due, next := r.look(now)
		var ids []uint32
		for _, tp := range due {
			ids = append(ids, tp.ID())
		}
		if slices.Sort(ids); !slices.Equal(ids, []uint32{1, 5}) || !next.Equal(now.Add(time.Minute)) {
			t.Errorf("the topics %v are due, and the next one at %v; want 1 and 5, and a minute later", ids, next.Sub(now))
		}
		delete(all, 2)
		delete(all, 4)
		if _, next := r.look(now); !next.IsZero() {
			t.Errorf("the next topic is due at %v, want none", next)
		}
	})
}

// A deleted topic leaves the space of its messages; a topic that was never used leaves nothing.
func TestTopicDeleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRemover(t, nil)
		unused := newTopic(TopicConfig{ID: 1, Name: "unused"}, settings.Topic{Queues: 3})
		r.TopicDeleted(unused)
		if ranges, deleted := r.Freed().Remembered(); ranges != 0 || deleted != 0 {
			t.Errorf("an unused topic leaves %d ranges and %d topics", ranges, deleted)
		}
		ids := newDuplicates(2, store.IDKey{}, newMaintenance(t.Context(), r.Logger, nil).Add(taskConfig{}))
		used := newTopic(TopicConfig{ID: 2, Name: "used", IDs: ids}, settings.Topic{Queues: 3, DuplicateWindow: -1})
		q := used.Queues()[1]
		if err := r.Store.Messages.Add(func(w *store.Batch) {
			used.Put(w, q, &store.Message{}, time.Now())
		}, nil).Wait(); err != nil {
			t.Fatal(err)
		}
		r.TopicDeleted(used)
		if _, deleted := r.Freed().Remembered(); deleted != 1 {
			t.Errorf("%d deleted topics are remembered, want 1", deleted)
		}
	})
}
