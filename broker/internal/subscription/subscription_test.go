package subscription

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/duplicates"
	"github.com/tidegate/tidegate/broker/internal/filter"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/heartbeat"
	"github.com/tidegate/tidegate/broker/internal/histogram"
	"github.com/tidegate/tidegate/broker/internal/limits"
	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/tally"
	"github.com/tidegate/tidegate/transport"
)

// A fixture has a store in memory, the topic t with one queue, and the parts of a broker that the
// group g uses.
type fixture struct {
	Env
	t      *testing.T
	topic  *topic.Topic
	group  *topic.Group
	topics map[string]*topic.Topic // all

	cannotCreate error  // of CreateOwnTopic
	creating     func() // called by CreateOwnTopic, if not nil
}

func (f *fixture) FindTopic(name string) *topic.Topic { return f.topics[name] }

func (f *fixture) CreateOwnTopic(name string, c settings.Topic, _ bool) error {
	if f.creating != nil {
		f.creating()
	}
	if f.cannotCreate != nil {
		return f.cannotCreate
	}
	f.create(name, c)
	return nil
}

func (f *fixture) create(name string, c settings.Topic) *topic.Topic {
	id := uint32(len(f.topics) + 1)
	loop := maintain.New(f.t.Context(), f.Logger, nil)
	f.topics[name] = topic.New(topic.Config{
		ID: id, Name: name, Retention: loop.Add(maintain.TaskConfig{}),
		IDs: duplicates.NewMemory(id, store.IDKey{}, loop.Add(maintain.TaskConfig{})),
	}, c.WithDefaults())
	return f.topics[name]
}

func (f *fixture) RetrySubscriptions(context.Context, *Subscription) ([]*Subscription, error) {
	return nil, nil
}

func (f *fixture) Begin() bool { return true }
func (f *fixture) End()        {}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	st, err := store.Open(store.Options{Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	life, end := context.WithCancel(t.Context())
	t.Cleanup(func() {
		end()
		_ = st.Close()
	})
	f := &fixture{t: t, topics: map[string]*topic.Topic{}}
	lateness, damaged := histogram.Durations(), new(atomic.Int64)
	t.Cleanup(func() {
		if damaged.Load() > 0 {
			t.Error("a message is damaged")
		}
	})
	l, err := limits.New(limits.Config{Store: st, Logger: logger}, settings.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	f.Env = Env{
		Leases: NewLeases(1 << 30), Store: st, Logger: logger, Reads: NewReads(), MaxInvisible: time.Hour, Life: life, Lateness: &lateness,
		Owners: &heartbeat.Owners{}, Calls: f, Topics: f, Limits: l, Events: tally.New(logger), Damaged: damaged,
	}
	f.topic = f.create("t", settings.Topic{Queues: 1})
	f.group = topic.NewGroup("g", 2, settings.Group{}.WithDefaults())
	return f
}

// subscribe adds a subscription of the group to the topic.
func (f *fixture) subscribe(restoring bool) *Subscription {
	s := New(&f.Env, f.group, f.topic, restoring)
	f.topic.AddSubscription(s)
	f.t.Cleanup(s.Stop)
	return s
}

// send adds messages to the first queue of the topic.
func (f *fixture) send(ms ...store.Message) {
	f.t.Helper()
	q := f.topic.Queues()[0]
	if err := f.Store.Messages.Add(func(w *store.Batch) {
		for i := range ms {
			f.topic.Put(w, q, &ms[i], time.Now())
		}
	}, func(error) {
		q.Publish(q.Next().Offset)
		f.topic.Wake(q, int64(len(ms)))
	}).Wait(); err != nil {
		f.t.Fatal(err)
	}
}

func message(id, tag string) store.Message {
	return store.Message{Message: tidegate.Message{ID: id, Tag: tag, Body: []byte("x")}}
}

// Skipping messages, those of other tags or of blocked message groups, is done in large steps, and
// a receive can end in between.
func TestSkippingIsInBoundedSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		const n = 3 * consume.MaxSkipped
		for sent := 0; sent < n; sent += 1024 {
			ms := make([]store.Message, 1024)
			for i := range ms {
				ms[i] = message("", "other")
			}
			f.send(ms...)
		}
		nothing, err := filter.Tags("no such tag")
		if err != nil {
			t.Fatal(err)
		}
		s := f.subscribe(false)
		next := func() (at int64) {
			s.Look(func(p *consume.Progress) { at = p.Cursor(0).Next })
			return at
		}
		for calls := 0; ; calls++ {
			before := next()
			grants, _, w, err := s.take(&Request{ReceiveRequest: transport.ReceiveRequest{Queue: -1, Max: 1}, Match: nothing})
			if len(grants) != 0 || err != nil {
				t.Fatal(grants, err)
			}
			if w != nil {
				if next() != n || calls < 3 {
					t.Errorf("it waits at %d after %d calls", next(), calls)
				}
				return
			}
			if at := next(); at < min(n, before+consume.MaxSkipped) || at > before+consume.MaxSkipped+consume.MaxChunk {
				t.Errorf("one call skipped %d messages", at-before)
			}
		}
	})
}

// Nothing expires while Open restores a group: the head of a message group would be parked, or
// become a dead letter, while the messages after it are not known yet.
func TestNothingExpiresDuringRestore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.send(message("a", ""))
		s := f.subscribe(true)
		lease := store.Lease{State: uint8(consume.Inflight), Attempt: 1, Size: 1, Due: time.Now().Add(time.Second)}
		s.Update(func(p *consume.Progress) {
			p.RestoreCursor(0, store.Cursor{Next: 1, Bytes: 1})
			p.RestoreLease(0, 0, lease, false, time.Now())
		})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if d := s.Status(); d.Inflight != 1 {
			t.Errorf("during the restore: %+v", d)
		}
		s.Resume()
		synctest.Wait()
		if d := s.Status(); d.Inflight != 0 || d.Ready != 1 {
			t.Errorf("after the restore: %+v", d)
		}
	})
}

// A receive under way fails with the reason for which its subscription is closed.
func TestCloseEndsReceives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		s := f.subscribe(false)
		ended := make(chan error, 1)
		go func() {
			_, err := s.Receive(t.Context(), &Request{ReceiveRequest: transport.ReceiveRequest{Queue: -1, Max: 1, Wait: time.Hour}})
			ended <- err
		}()
		synctest.Wait()
		start := time.Now()
		s.Close(refusal.GroupNotFound("g"))
		if err := <-ended; !errors.Is(err, tidegate.ErrNotFound) || time.Since(start) != 0 {
			t.Errorf("the receive ended with %v after %v", err, time.Since(start))
		}
	})
}

// There are two messages and two receives, one of which reads a fixed queue. With either choice of
// the other receive, neither receive waits without need.
func TestWokenReceiveWakesTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.topic = f.create("two queues", settings.Topic{Queues: 2})
		s := f.subscribe(false)
		f.send(message("a", ""))
		h := f.receive(s)
		start := time.Now()
		done := make(chan string, 2)
		for _, queue := range []int{transport.AnyQueue, 1} {
			go func() {
				ds, err := s.Receive(t.Context(), &Request{ReceiveRequest: transport.ReceiveRequest{Queue: queue, Max: 1, InvisibleDuration: time.Minute, Wait: time.Hour}})
				if err != nil {
					t.Error(err)
				}
				for _, d := range ds {
					done <- d.ID
				}
			}()
			synctest.Wait()
		}
		// "b" comes and wakes the first one; before that one looks, "a" is ready again.
		second := f.topic.Queues()[1]
		s.Update(func(p *consume.Progress) {
			b := message("b", "")
			write := f.Store.Messages.Add(func(w *store.Batch) { f.topic.Put(w, second, &b, start) }, func(error) { second.Publish(second.End() + 1) })
			_ = write.Wait()
			e := p.Effects()
			e.Wakes = append(e.Wakes, consume.Wake{Queue: 1, N: 1})
			p.Release(h, start)
		})
		if got := <-done + <-done; got != "ab" && got != "ba" || time.Since(start) != 0 {
			t.Errorf("%q after %v", got, time.Since(start))
		}
	})
}

// A group that retention has moved on while corrupt messages were read does not go back to them.
func TestMissingMessagesDoNotMoveBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.send(message("a", ""), message("b", ""), message("c", ""), message("d", ""))
	s := f.subscribe(false)
	for range 3 {
		errs := make([]error, 1)
		if s.Ack([]handle.Receipt{f.receive(s)}, errs); errs[0] != nil {
			t.Fatal(errs[0])
		}
	}
	for _, c := range []struct{ to, next, backlog int64 }{{2, 3, 1}, {3, 3, 1}, {4, 4, 0}} {
		var next int64
		s.Update(func(p *consume.Progress) {
			p.SkipMissing(&consume.Receive{}, consume.Claim{From: p.Cursor(0).Next}, c.to, store.Mark{})
			next = p.Cursor(0).Next
		})
		if n := s.Backlog().Messages; next != c.next || n != c.backlog {
			t.Errorf("%+v: the group is at %d, its backlog is %d", c, next, n)
		}
	}
}

func TestAttemptClass(t *testing.T) {
	t.Parallel()
	for attempt, want := range map[int]int{1: 0, 2: 1, 3: 2, 4: 3, 8: 3, 9: 4, 1 << 20: 4} {
		if got := attemptClass(attempt); got != want {
			t.Errorf("attempt %d: class %d, want %d", attempt, got, want)
		}
	}
}
