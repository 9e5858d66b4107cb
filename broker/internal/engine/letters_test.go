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
	"github.com/tidegate/tidegate/internal/assert"
)

// progress is a subscription with a fixed progress in each queue.
type progress struct {
	TopicSubscription // nil: the tests call no other method

	unfinished int64 // the first message that the group has received and not finished; -1: none
	next       int64 // the next new message
	noQueue    bool  // the subscription does not have the queue yet
}

func (p progress) Unconsumed(_ uint16, begin, end int64) (first, next int64, ok bool) {
	if first = max(p.unfinished, begin); p.unfinished < 0 {
		first = end
	}
	return first, p.next, !p.noQueue
}

// Consumed messages are removed before the slowest group. A few unfinished messages of a group do
// not prevent the removal of the others.
func TestConsumedBefore(t *testing.T) {
	t.Parallel()
	const begin, end = 10, 10_000
	for name, c := range map[string]struct {
		groups []TopicSubscription
		want   int64
	}{
		"no group":                                {nil, begin},
		"all consumed":                            {[]TopicSubscription{progress{unfinished: -1, next: end}}, end},
		"half received":                           {[]TopicSubscription{progress{unfinished: -1, next: 5000}}, 5000},
		"one unfinished":                          {[]TopicSubscription{progress{unfinished: 4500, next: 5000}}, 4500},
		"one unfinished far behind":               {[]TopicSubscription{progress{unfinished: 100, next: 5000}}, 5000},
		"unfinished far behind another group":     {[]TopicSubscription{progress{unfinished: 100, next: 5000}, progress{unfinished: -1, next: 600}}, 100},
		"the slowest of two groups":               {[]TopicSubscription{progress{unfinished: -1, next: end}, progress{unfinished: -1, next: 20}}, 20},
		"a group without the queue":               {[]TopicSubscription{progress{unfinished: -1, next: end}, progress{unfinished: -1, next: end, noQueue: true}}, begin},
		"a group that starts before the messages": {[]TopicSubscription{progress{unfinished: -1, next: 0}}, begin},
	} {
		q := &retention.QueuePlan{Begin: store.Mark{Offset: begin}, End: end}
		got := consumedBefore(c.groups, q)
		assert.That(t, got == c.want, "%s: removed before %d, want %d", name, got, c.want)
	}
}

// topics are all topics by number.
type topics map[uint32]*Topic

func (m topics) TopicsByID() map[uint32]*Topic { return m }

// newRemover returns a Remover on a store in memory, whose loop runs until the end of the test.
func newRemover(t *testing.T, all topics) *Remover {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	st := assert.Value(store.Open(store.Options{Logger: logger}))(t)
	loop := newMaintenance(t.Context(), logger, nil)
	r := NewRemoval(RemovalConfig{Store: st, Loop: loop, Logger: logger, Directory: all})
	loop.Start()
	t.Cleanup(func() {
		loop.Stop()
		assert.NoError(t, st.Close())
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
	bubble(t, func(t *testing.T) {
		r := newRemover(t, nil)
		r.Freed().Add(store.Range{Topic: 1, Queue: 0, From: 5, To: 5}, retention.ReclaimBytes) // an empty range cannot be compacted
		r.ReclaimSoon()
		elapse(time.Second)
		assert.MustEqual(t, "bytes are not returned yet", r.Freed().Bytes(), retention.ReclaimBytes)
		r.Freed().Add(store.Range{Topic: 1, Queue: 0, From: 4, To: 6}, 0)
		elapse(time.Minute)
		assert.Equal(t, "bytes are not returned a minute later", r.Freed().Bytes(), 0)
	})
}

// Little removed space is not returned: a compaction costs more.
func TestLittleIsNotReclaimed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRemover(t, nil)
		r.Freed().Add(store.Range{Topic: 1, Queue: 0, From: 4, To: 6}, retention.ReclaimBytes-1)
		r.ReclaimSoon()
		elapse(time.Hour)
		assert.Equal(t, "bytes wait", r.Freed().Bytes(), retention.ReclaimBytes-1)
	})
}

// A look finds the topics whose round is due, and the time of the next one.
func TestLook(t *testing.T) {
	bubble(t, func(t *testing.T) {
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
	bubble(t, func(t *testing.T) {
		r := newRemover(t, nil)
		unused := newTopic(TopicConfig{ID: 1, Name: "unused"}, settings.Topic{Queues: 3})
		r.TopicDeleted(unused)
		ranges, deleted := r.Freed().Remembered()
		assert.That(t, ranges == 0 && deleted == 0, "an unused topic leaves %d ranges and %d topics", ranges, deleted)
		ids := newDuplicates(2, store.IDKey{}, newMaintenance(t.Context(), r.Logger, nil).Add(taskConfig{}))
		used := newTopic(TopicConfig{ID: 2, Name: "used", IDs: ids}, settings.Topic{Queues: 3, DuplicateWindow: -1})
		q := used.Queues()[1]
		if err := r.Store.Messages.Add(func(w *store.Batch) {
			used.Put(w, q, &store.Message{}, time.Now())
		}, nil).Wait(); err != nil {
			t.Fatal(err)
		}
		r.TopicDeleted(used)
		_, deleted = r.Freed().Remembered()
		assert.That(t, deleted == 1, "%d deleted topics are remembered, want 1", deleted)
	})
}
