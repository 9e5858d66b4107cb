package engine

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
)

const (
	duplicatesTopic = 7
	window          = 2 * time.Minute
)

// A duplicatesFixture is a store with the memory of one topic of two queues.
type duplicatesFixture struct {
	*duplicates
	t     *testing.T
	store *store.Store
	ends  []int64
	task  *task // calls Expire
}

func duplicatesOpen(t *testing.T, fs vfs.FS, ends ...int64) *duplicatesFixture {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	s, err := store.Open(store.Options{Dir: "data", FS: fs, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	key, err := s.IDKey()
	if err != nil {
		t.Fatal(err)
	}
	f := &duplicatesFixture{t: t, store: s, ends: ends, task: newMaintenance(t.Context(), logger, nil).Add(taskConfig{})}
	f.duplicates = newDuplicates(duplicatesTopic, key, f.task)
	if err := f.Restore(duplicatesSource{Store: s, Logger: logger, Topic: "t", Ends: ends, Window: window, Now: time.Now()}); err != nil {
		t.Fatal(err)
	}
	return f
}

// close closes the store. For a regular end it writes the rest of the index before.
func (f *duplicatesFixture) close(orderly bool) {
	f.t.Helper()
	if orderly {
		f.add(func(w *store.Batch) { f.WriteRest(w, window, time.Now()) })
	}
	if err := f.store.Close(); err != nil {
		f.t.Fatal(err)
	}
}

func (f *duplicatesFixture) add(write func(w *store.Batch)) {
	f.t.Helper()
	if err := f.store.Messages.Add(write, nil).Wait(); err != nil {
		f.t.Fatal(err)
	}
}

// put stores n messages in a queue. Their IDs have a prefix.
func (f *duplicatesFixture) put(prefix string, queue uint16, n int) {
	f.t.Helper()
	f.add(func(w *store.Batch) {
		for i := range n {
			m := &store.Message{Message: tidegate.Message{ID: fmt.Sprint(prefix, i), Body: []byte("x")}, StoredAt: time.Now()}
			offset := f.ends[queue]
			f.ends[queue]++
			m.Cumulative = f.ends[queue]
			w.PutMessage(store.Place{Topic: duplicatesTopic, Queue: queue, Offset: offset}, m)
			f.Put(w, m, queue, offset, window, time.Now())
		}
	})
}

// known returns how many of n IDs with a prefix Find finds at the offsets of a queue from first on.
func (f *duplicatesFixture) known(prefix string, queue uint16, from int64, n int) (found int) {
	for i := range n {
		l, ok := f.Find(f.Hash(fmt.Sprint(prefix, i)), func(q uint16) int64 { return f.ends[q] })
		if ok && l == (PendingLocation{Queue: queue, Offset: from + int64(i)}) {
			found++
		}
	}
	return found
}

// After a restart the IDs of the window are known, even if the index did not have all of them.
func TestRestore(t *testing.T) {
	t.Parallel()
	for _, orderly := range []bool{true, false} {
		t.Run(fmt.Sprint("orderly ", orderly), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				f := duplicatesOpen(t, fs, 0, 0)
				f.put("old", 0, 10)
				time.Sleep(window - time.Second)
				const n = 2*store.MaxRecentIDs + 5
				f.put("a", 0, n)
				f.put("b", 1, 3)
				if got := f.State(); got.IDs != 10+n+3 || !got.Expires || got.From == 0 {
					t.Errorf("before the restart: %+v", got)
				}
				f.close(orderly)
				time.Sleep(2 * time.Second) // the window of the old ones is over
				f = duplicatesOpen(t, fs, f.ends...)
				if got := f.known("a", 0, 10, n) + f.known("b", 1, 0, 3); got != n+3 {
					t.Errorf("%d of %d are known", got, n+3)
				}
				at := f.ExpiresAt(window, time.Now())
				if time.Until(at) != window {
					t.Errorf("they expire at %v", at)
				}
				time.Sleep(window)
				for range 2 { // two generations
					var next time.Time
					f.add(func(w *store.Batch) { next = f.Expire(w, window, time.Now()) })
					if next.IsZero() {
						break
					}
					time.Sleep(time.Until(next))
				}
				if got := f.State(); got != (duplicatesState{}) {
					t.Errorf("after the window: %+v", got)
				}
				if some, err := f.store.HasRecentIDs(duplicatesTopic); some || err != nil {
					t.Errorf("records are left: %v, %v", some, err)
				}
				f.close(true)
			})
		})
	}
}

// The locations of delayed and half messages are remembered, and forgotten when the messages move.
func TestPendingMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		f := duplicatesOpen(t, fs, 0)
		d := store.Delayed{Due: time.Now().Add(time.Hour), Topic: duplicatesTopic, Number: 5}
		h := store.HalfID{Topic: duplicatesTopic, Number: 9}
		messages := map[string]PendingLocation{"delayed": delayedLocation(d), "half": halfLocation(h)}
		f.add(func(w *store.Batch) {
			for id, at := range messages {
				m := &store.Message{Message: tidegate.Message{ID: id, Body: []byte("x"), DeliverAt: d.Due}, StoredAt: time.Now()}
				f.HashID(m)
				if id == "half" {
					w.PutHalf(h, m, store.HalfState{Due: d.Due})
				} else {
					w.PutDelayed(d, m)
				}
				f.Remember(m, at, window, time.Now())
			}
		})
		if d := time.Until(f.task.Due()); d != window {
			t.Errorf("they expire in %v", d)
		}
		f.close(true)
		f = duplicatesOpen(t, fs, 0)
		for id, at := range messages {
			if l, ok := f.Find(f.Hash(id), nil); !ok || l != at {
				t.Errorf("%s is at %+v, %v; want %+v", id, l, ok, at)
			}
			f.Forget(f.Hash(id))
			if _, ok := f.Find(f.Hash(id), nil); ok {
				t.Errorf("%s is not forgotten", id)
			}
		}
		f.close(true)
	})
}

func TestForgetAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := duplicatesOpen(t, vfs.NewMem(), 0)
		f.put("a", 0, store.MaxRecentIDs+3)
		f.add(f.ForgetAll)
		if n := f.known("a", 0, 0, store.MaxRecentIDs+3); n != 0 {
			t.Errorf("%d are known", n)
		}
		if some, err := f.store.HasRecentIDs(duplicatesTopic); some || err != nil {
			t.Errorf("records are left: %v, %v", some, err)
		}
		// Without a window no IDs are remembered.
		f.add(func(w *store.Batch) {
			f.Put(w, &store.Message{Message: tidegate.Message{ID: "b"}}, 0, 99, 0, time.Now())
		})
		if got := f.State(); got.IDs != 0 || got.Unindexed != 0 {
			t.Errorf("it has %+v", got)
		}
		f.close(true)
	})
}

// A message that is sent while the window is 0 takes the place of a delayed message with its ID:
// the location of the delayed one is forgotten.
func TestSendWithoutAWindowForgetsADelayedMessage(t *testing.T) {
	f := duplicatesOpen(t, vfs.NewMem(), 5)
	now := time.Now()
	f.Remember(&store.Message{Message: tidegate.Message{ID: "a"}}, PendingLocation{Due: now.Add(time.Hour).UnixNano(), Offset: 3}, window, now)
	f.Remember(&store.Message{Message: tidegate.Message{ID: "a"}}, PendingLocation{Queue: 0, Offset: 4}, 0, now)
	if l, ok := f.Find(f.Hash("a"), func(uint16) int64 { return 5 }); ok {
		t.Errorf("the earlier location is remembered: %+v", l)
	}
	f.close(false)
}
