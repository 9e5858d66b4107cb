package spool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// While messages are pending, a batch is available or the end of a pause lies in the future; each
// batch finishes a message or pauses all of its queues; the messages of a group leave in order; and
// after the last failure the index is empty within the longest pause.
func TestIndexModel(t *testing.T) {
	r := seeded(t)
	for range 300 {
		runIndexModel(t, r)
		if t.Failed() {
			return
		}
	}
}

func runIndexModel(t *testing.T, r *rand.Rand) {
	t.Helper()
	x := newIndex()
	seg := &segment{}
	now := time.Unix(0, 0)
	var rejected []*entry
	left := map[string]uint64{} // queue → last sequence that left
	calls, due := 0, 0
	add := func() {
		name := string(queueOf("t", []string{"", "a", "b", "c"}[r.IntN(4)]))
		x.add(name, &entry{seq: x.next, seg: seg, size: 1 + r.IntN(100)})
		due++
	}
	batch := func(fails bool) {
		list := x.batch(now)
		if len(list) == 0 {
			if at := x.wakeAt(); x.stats.Pending > 0 && !at.After(now) {
				t.Fatalf("%d messages are pending, no batch is available, and the next wake-up is at %v", x.stats.Pending, at)
			}
			return
		}
		calls++
		seen := map[*queue]bool{}
		queues, results := make([]*queue, len(list)), make([]error, len(list))
		for i, e := range list {
			q := e.queue
			assert.MustThat(t, !seen[q] || !grouped(q.name), "two messages of the group %q are in a batch", q.name)
			seen[q] = true
			if queues[i] = q; fails && r.IntN(2) == 0 {
				results[i] = []error{errRefused, tidegate.ErrUnavailable}[r.IntN(2)]
			}
		}
		x.note(queues, results, now)
		progress := false
		for i, e := range list {
			if !finished(results[i]) {
				continue
			}
			progress = true
			if grouped(queues[i].name) {
				if e.seq < left[queues[i].name] {
					t.Fatalf("message %d of %q left after %d", e.seq, queues[i].name, left[queues[i].name])
				}
				left[queues[i].name] = e.seq
			}
			if results[i] == nil {
				x.remove(e)
			} else {
				x.reject(e)
				rejected = append(rejected, e)
			}
		}
		if !progress {
			for q := range seen {
				assert.MustThat(t, q.paused >= 0 && q.until.After(now), "no message of a batch is finished, and queue %q has no pause", q.name)
				due++ // it is due again after the pause
			}
		}
	}
	for range 200 {
		switch r.IntN(5) {
		case 0, 1:
			add()
		case 2:
			now = now.Add(time.Duration(r.Int64N(int64(10 * time.Second))))
		case 3:
			batch(true)
		case 4:
			if len(rejected) > 0 {
				x.remove(rejected[0])
				rejected = rejected[1:]
			}
		}
		checkIndex(t, x)
	}
	for end := now.Add(6 * time.Second); x.stats.Pending > 0 && !now.After(end); {
		batch(false)
		if at := x.wakeAt(); at.After(now) && len(x.batch(now)) == 0 {
			now = at
		}
	}
	assert.MustThat(t, x.stats.Pending <= 0, "%d messages are pending after the last failure and the longest pause", x.stats.Pending)
	assert.MustThat(t, calls <= due, "%d batches, want at most %d", calls, due)
	checkIndex(t, x)
}

// checkIndex compares the counters with the entries.
func checkIndex(t *testing.T, x *index) {
	t.Helper()
	var want Stats
	for _, e := range x.all {
		switch {
		case e.gone:
			continue
		case e.rejected:
			want.Rejected++
		default:
			want.Pending++
		}
		want.Bytes += int64(e.size)
	}
	pending := 0
	for name, q := range x.queues {
		pending += q.pending
		assert.MustThat(t, q.name == name && q.pending != 0 && (q.paused >= 0) == slices.Contains(x.paused, q), "queue %q: %+v", name, q)
	}
	assert.MustThat(t, x.stats == want && pending == want.Pending && x.ready.Len()+len(x.paused) == len(x.queues),
		"the numbers are %+v, want %+v; %d queues, %d ready, %d paused", x.stats, want, len(x.queues), x.ready.Len(), len(x.paused))
}

// A drain of many groups with random failures ends soon after the last failure, with a bounded
// number of calls. This holds for messages of Put and of Requeue.
func TestDrainModel(t *testing.T) {
	r := seeded(t)
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			s := openMem(t, newMemDisk())
			calls := 0
			failing := true
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			faults := rand.New(rand.NewPCG(r.Uint64(), 0)) // of the other goroutine
			go func() {
				done <- s.Drain(ctx, func(_ context.Context, msgs []*tidegate.Message) []error {
					calls++
					errs := make([]error, len(msgs))
					for i := range errs {
						if failing {
							errs[i] = []error{nil, errRefused, tidegate.ErrUnavailable}[faults.IntN(3)]
						}
					}
					return errs
				})
			}()
			w := &workload{s: s, r: r}
			for range 100 {
				assert.Must(t, s.Put(t.Context(), w.message()))
				time.Sleep(time.Duration(r.Int64N(int64(300 * time.Millisecond))))
			}
			synctest.Wait()
			failing = false
			list := assert.Value(s.Entries(true, 0, 1000))(t)
			for _, e := range list {
				n, err := s.Requeue(e.Sequence)
				assert.That(t, n == 1 && err == nil, "Requeue: %d, %v", n, err)
			}
			time.Sleep(6 * time.Second) // the longest pause
			synctest.Wait()
			assert.Equal(t, "are left after the last failure and the longest pause", s.Stats(), (Stats{}))
			// 100 messages and at most 100 requeued ones, and a call for each pause of 3 queues.
			assert.That(t, calls <= 200+3*40, "%d calls for 100 messages", calls)
			before := calls
			time.Sleep(time.Hour)
			assert.That(t, calls == before, "%d calls of an empty spool in an hour", calls-before)
			cancel()
			assert.NoError(t, errors.Join(<-done, s.Close()))
		})
	}
}

// The messages of a topic without groups take at most half of a batch, so that other queues have
// their turn in it.
func TestATopicTakesHalfOfABatch(t *testing.T) {
	s := openMem(t, newMemDisk())
	var msgs []*tidegate.Message
	for i := range 2 * batchMessages {
		msgs = append(msgs, message(fmt.Sprint(i), ""))
	}
	msgs = append(msgs, message("other", "group"))
	assert.Must(t, errors.Join(s.PutBatch(t.Context(), msgs)...))
	batch, _, err := s.next()
	assert.That(t, err == nil && len(batch) == batchMessages/2+1 && batch[len(batch)-1].header.Message.ID == "other",
		"%d messages in the batch, %v; want %d and the other queue's", len(batch), err, batchMessages/2)
}

// A requeued message is as old as its Requeue, not as its Put.
func TestRequeueBeginsTheAgeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(t, Options{MaxAge: time.Minute})
		list := rejected(t, s, message("1", ""))
		time.Sleep(2 * time.Minute)
		if n, err := s.Requeue(list[0].Sequence); n != 1 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		f := &server{}
		drainOnce(t, s, f)
		got := f.ids()
		assert.That(t, slices.Equal(got, []string{"1"}), "sent %v, left %+v; want the requeued message sent", got, s.Stats())
	})
}

// The log shrinks when messages leave, also around a rejected message that stays.
func TestTheLogShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openMem(t, newMemDisk())
		f := &server{}
		f.setFail(func(m *tidegate.Message) error {
			if m.ID == "stays" {
				return errRefused
			}
			return nil
		})
		put(t, s, message("stays", ""))
		stop := drain(t, s, f)
		for i := range 500 {
			put(t, s, message(fmt.Sprint(i), "g"))
		}
		empty(s)
		stop()
		all, live := s.records.size()
		assert.That(t, all <= 2*live+4*s.records.most, "the log has %d bytes for %d bytes of messages", all, live)
		list, err := s.Entries(true, 0, 1)
		assert.That(t, err == nil && len(list) == 1 && list[0].Message != nil && list[0].Message.ID == "stays", "%+v, %v; want the rejected message", list, err)
		assert.NoError(t, s.Close())
	})
}
