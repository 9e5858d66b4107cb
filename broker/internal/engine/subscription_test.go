package engine

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
	"github.com/tidegate/tidegate/broker/internal/filter"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/tally"
	"github.com/tidegate/tidegate/transport"
)

// A subscriptionFixture has a store in memory, the topic t with one queue, and the parts of a
// broker that the group g uses.
type subscriptionFixture struct {
	Env
	t      *testing.T
	topic  *Topic
	group  *Group
	topics map[string]*Topic // all

	cannotCreate error  // of CreateOwnTopic
	creating     func() // called by CreateOwnTopic, if not nil
}

func (f *subscriptionFixture) FindTopic(name string) *Topic { return f.topics[name] }

func (f *subscriptionFixture) CreateOwnTopic(name string, c settings.Topic, _ bool) error {
	if f.creating != nil {
		f.creating()
	}
	if f.cannotCreate != nil {
		return f.cannotCreate
	}
	f.create(name, c)
	return nil
}

func (f *subscriptionFixture) create(name string, c settings.Topic) *Topic {
	id := uint32(len(f.topics) + 1)
	loop := newMaintenance(f.t.Context(), f.Logger, nil)
	f.topics[name] = newTopic(TopicConfig{
		ID: id, Name: name, Retention: loop.Add(taskConfig{}),
		IDs: newDuplicates(id, store.IDKey{}, loop.Add(taskConfig{})),
	}, c.WithDefaults())
	return f.topics[name]
}

func (f *subscriptionFixture) RetrySubscriptions(context.Context, *Subscription) ([]*Subscription, error) {
	return nil, nil
}

func (f *subscriptionFixture) Begin() bool { return true }
func (f *subscriptionFixture) End()        {}

func newSubscriptionFixture(t *testing.T) *subscriptionFixture {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	st := assert.Value(store.Open(store.Options{Logger: logger}))(t)
	life, end := context.WithCancel(t.Context())
	t.Cleanup(func() {
		end()
		_ = st.Close()
	})
	f := &subscriptionFixture{t: t, topics: map[string]*Topic{}}
	lateness, damaged := store.DurationHistogram(), new(atomic.Int64)
	t.Cleanup(func() {
		assert.That(t, damaged.Load() <= 0, "a message is damaged")
	})
	l := assert.Value(NewLimits(LimitsConfig{Store: st, Logger: logger}, settings.Limits{}))(t)
	f.Env = Env{
		Leases: NewLeases(1 << 30), Store: st, Logger: logger, Reads: NewReads(), MaxInvisible: time.Hour, Life: life, Lateness: &lateness,
		Owners: &Owners{}, Calls: f, Topics: f, Limits: l, Events: tally.New(logger), Damaged: damaged,
	}
	f.topic = f.create("t", settings.Topic{Queues: 1})
	f.group = newGroup("g", 2, settings.Group{}.WithDefaults())
	return f
}

// subscribe adds a subscription of the group to the topic.
func (f *subscriptionFixture) subscribe(restoring bool) *Subscription {
	s := newSubscription(&f.Env, f.group, f.topic, restoring)
	f.topic.AddSubscription(s)
	f.t.Cleanup(s.Stop)
	return s
}

// send adds messages to the first queue of the topic.
func (f *subscriptionFixture) send(ms ...store.Message) {
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
	bubble(t, func(t *testing.T) {
		f := newSubscriptionFixture(t)
		const n = 3 * consume.MaxSkipped
		for sent := 0; sent < n; sent += 1024 {
			ms := make([]store.Message, 1024)
			for i := range ms {
				ms[i] = message("", "other")
			}
			f.send(ms...)
		}
		nothing := assert.Value(filter.Tags("no such tag"))(t)
		s := f.subscribe(false)
		next := func() (at int64) {
			s.Look(func(p *consume.Progress) { at = p.Cursor(0).Next })
			return at
		}
		for calls := 0; ; calls++ {
			before := next()
			p := &Request{ReceiveRequest: transport.ReceiveRequest{Queue: -1, Max: 1}, match: nothing}
			p.begin()
			grants, _, w, err := s.take(p)
			assert.MustThat(t, len(grants) == 0 && err == nil, "%+v, %+v", grants, err)
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
	bubble(t, func(t *testing.T) {
		f := newSubscriptionFixture(t)
		f.send(message("a", ""))
		s := f.subscribe(true)
		lease := store.Lease{State: uint8(consume.Inflight), Attempt: 1, Size: 1, Due: time.Now().Add(time.Second)}
		s.Update(func(p *consume.Progress) {
			p.RestoreCursor(0, store.Cursor{Next: 1, Bytes: 1})
			p.RestoreLease(0, 0, lease, false, time.Now())
		})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.Equal(t, "during the restore", s.Status().Inflight, 1)
		s.Resume()
		synctest.Wait()
		d := s.Status()
		assert.That(t, d.Inflight == 0 && d.Ready == 1, "after the restore: %+v", d)
	})
}

// A group that retention has moved on while corrupt messages were read does not go back to them.
func TestMissingMessagesDoNotMoveBack(t *testing.T) {
	t.Parallel()
	f := newSubscriptionFixture(t)
	f.send(message("a", ""), message("b", ""), message("c", ""), message("d", ""))
	s := f.subscribe(false)
	for range 3 {
		errs := make([]error, 1)
		if s.Ack([]consume.Handle{f.receive(s)}, errs); errs[0] != nil {
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
		got := attemptClass(attempt)
		assert.That(t, got == want, "attempt %d: class %d, want %d", attempt, got, want)
	}
}

// A number is a subscription that only has an identity.
type number struct {
	TopicSubscription
	n int
}

// A list of subscriptions does not change for its reader when others are added or removed.
func TestSubscriptionsOfReaderRemain(t *testing.T) {
	tp := newTopic(TopicConfig{}, settings.Topic{})
	var lists [][]TopicSubscription
	for n := range 100 {
		tp.AddSubscription(&number{n: n})
		lists = append(lists, tp.Subscriptions())
		if n%7 == 6 {
			tp.RemoveSubscription(tp.Subscriptions()[n/7])
			lists = append(lists, tp.Subscriptions())
		}
		_ = append(lists[n/2], &number{n: -1}) // in no other list
	}
	for i, list := range lists {
		last := -1
		for _, s := range list {
			got := s.(*number).n
			assert.MustThat(t, got > last, "list %d has %d after %d", i, got, last)
			last = got
		}
	}
	assert.Equal(t, "subscriptions are left", len(tp.Subscriptions()), 100-14)
}

// To add n subscriptions takes memory for n of them, not for n². The bytes are those of the whole
// process, so the limit leaves room for others.
func TestAddSubscriptionDoesNotCopy(t *testing.T) {
	const (
		n     = 10_000
		limit = 16 << 20 // copies of the list would take 800 MB
	)
	tp := newTopic(TopicConfig{}, settings.Topic{})
	s := &number{}
	if got := assert.AllocatedBytes(func() {
		for range n {
			tp.AddSubscription(s)
		}
	}); got > limit {
		t.Errorf("%d subscriptions took %d bytes, want at most %d", n, got, limit)
	}
}

func TestReadAheadSkip(t *testing.T) {
	t.Parallel()
	offsets := []int64{10, 11, 14, 15}
	for _, c := range []struct {
		from  int64
		ok    bool
		first int64
	}{
		{9, false, 0}, // before the messages that were read: there may be others
		{10, true, 10}, {11, true, 11}, {12, true, 14}, {14, true, 14}, {15, true, 15},
		{16, false, 0},
	} {
		a := readAhead{from: 10, messages: make([]store.Message, len(offsets)), offsets: offsets}
		if ok := a.skip(c.from); ok != c.ok || ok && (a.offsets[0] != c.first || len(a.messages) != len(a.offsets)) {
			t.Errorf("skip(%d) = %v, leaves %v", c.from, ok, a.offsets)
		}
	}
}

// The bounds of the messages of a receive are those of store.Read.
func TestReadAheadFirst(t *testing.T) {
	t.Parallel()
	body := func(n int) store.Message { return store.Message{Message: tidegate.Message{Body: make([]byte, n)}} }
	a := readAhead{messages: []store.Message{body(5), body(5), body(0), body(5)}}
	for _, c := range []struct {
		limit    int
		maxBytes int64
		want     int
	}{{9, 100, 4}, {2, 100, 2}, {9, 0, 1}, {9, 5, 1}, {9, 6, 2}, {9, 10, 2}, {9, 11, 4}} {
		got := a.first(c.limit, c.maxBytes)
		assert.That(t, got == c.want, "first(%d, %d) = %d, want %d", c.limit, c.maxBytes, got, c.want)
	}
}

// A count has every event of the last 60 minutes, and none that is older than 65.
func TestLastHour(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 2, 30, 0, time.UTC)
	at := func(minutes float64) time.Time { return start.Add(time.Duration(minutes * float64(time.Minute))) }
	for name, c := range map[string]struct {
		events []float64 // minutes after start
		now    float64
		want   int64
	}{
		"none":                   {nil, 0, 0},
		"at once":                {[]float64{0, 0, 0}, 0, 3},
		"an hour later":          {[]float64{0, 0}, 60, 2},
		"more than an hour":      {[]float64{0, 0}, 65, 0},
		"some are too old":       {[]float64{0, 4, 30, 61, 66}, 67, 4},
		"a pause of days":        {[]float64{0, 1, 2, 10_000}, 10_001, 1},
		"a pause without events": {[]float64{0, 1, 2}, 10_000, 0},
		"clock goes back":        {[]float64{10, 3}, 4, 2},
	} {
		var h lastHour
		for _, m := range c.events {
			h.add(at(m))
		}
		for range 2 { // a look changes nothing
			got := h.count(at(c.now))
			assert.That(t, got == c.want, "%s: %d, want %d", name, got, c.want)
		}
	}
}

// receive receives one message, and returns its handle.
func (f *subscriptionFixture) receive(s *Subscription) consume.Handle {
	f.t.Helper()
	ds, err := s.Receive(f.t.Context(), &Request{ReceiveRequest: transport.ReceiveRequest{Queue: -1, Max: 1, InvisibleDuration: time.Minute}})
	assert.MustThat(f.t, err == nil && len(ds) == 1, "%+v, %+v", ds, err)
	h, err := consume.ParseHandle(ds[0].Handle)
	assert.Must(f.t, err)
	return h
}

var giveUp = transport.Verdict{Kind: transport.DeadLetter, Reason: "no"}

// A repeated request fails if the first one does.
func TestRepeatedDeadLetterFailsWithTheFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSubscriptionFixture(t)
		f.send(message("a", ""))
		s := f.subscribe(false)
		h := f.receive(s)
		f.cannotCreate = errors.New("no room")
		repeated := make(chan error, 1)
		f.creating = func() {
			f.creating = nil
			go func() {
				_, err := s.Settle(t.Context(), h, giveUp, 16)
				repeated <- err
			}()
			synctest.Wait()
		}
		assert.Is(t, "the first request", assert.Err(s.Settle(t.Context(), h, giveUp, 16)), f.cannotCreate)
		assert.Is(t, "the repeated request", <-repeated, f.cannotCreate)
	})
}
