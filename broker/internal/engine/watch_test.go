package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker/internal/filter"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// noMemory rejects all bodies.
type noMemory struct{}

func (noMemory) Admit(int64) error { return errNoMemory }

// retried has retry topics for the group.
type retried struct {
	*subscriptionFixture
	subscriptions func() []*Subscription
}

func (r retried) RetrySubscriptions(context.Context, *Subscription) ([]*Subscription, error) {
	return r.subscriptions(), nil
}

// newWatch returns a watch and the number of times that it was woken.
func newWatch() (*Watch, *int) {
	n := new(int)
	return NewWatch(func() { *n++ }), n
}

func watching(w *Watch) *Request {
	return &Request{ReceiveRequest: transport.ReceiveRequest{Topic: "t", Queue: transport.AnyQueue, Max: 1}, Watch: w}
}

// A watch is at each source of its receive. The source that wakes it forgets it, the end removes it
// from the others.
func TestWatchLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newSubscriptionFixture(t)
		s := f.subscribe(false)
		retry := newSubscription(&f.Env, f.group, f.create("retry", settings.Topic{Queues: 1}), false)
		defer retry.Stop()
		f.Topics = retried{f, func() []*Subscription { return []*Subscription{retry} }}
		first, woken := newWatch()
		second, wokenToo := newWatch()
		for _, w := range []*Watch{first, second} {
			if ds, err := s.Receive(t.Context(), watching(w)); len(ds) > 0 || err != nil || !w.Left() {
				t.Fatalf("%d messages, left %t, error %v", len(ds), w.Left(), err)
			}
		}
		time.Sleep(time.Hour)
		if len(s.watches) != 2 || len(retry.watches) != 2 || s.Idle(time.Second, time.Now()) || retry.Idle(time.Second, time.Now()) {
			t.Fatalf("%d and %d watches, want 2 in each, and no idle subscription", len(s.watches), len(retry.watches))
		}
		f.send(message("a", ""))
		if len(s.watches) != 0 || *woken != 1 || *wokenToo != 1 {
			t.Errorf("a message has woken the watches %d and %d times, and %d are left", *woken, *wokenToo, len(s.watches))
		}
		retry.Wake(1, 0)
		if *woken != 1 || *wokenToo != 1 {
			t.Error("a watch is woken again")
		}
		third, _ := newWatch()
		if _, err := retry.Receive(t.Context(), watching(third)); err != nil {
			t.Fatal(err)
		}
		first.End()
		second.End()
		if len(retry.watches) != 1 {
			t.Errorf("%d watches are left after the end of all but one", len(retry.watches))
		}
		third.End()
		third.End() // has no effect
		if len(s.watches) != 0 || len(retry.watches) != 0 {
			t.Errorf("%d and %d watches are left", len(s.watches), len(retry.watches))
		}
		if now := time.Now(); s.Idle(time.Second, now) || !s.Idle(time.Second, now.Add(time.Second)) {
			t.Error("a watch does not count as a look for messages until its end")
		}
	})
}

// A receive that looks for messages several times decides each time about its watch.
func TestWatchOfAReceiveThatLooksAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newSubscriptionFixture(t)
		s := f.subscribe(false)
		w, woken := newWatch()
		p := watching(w)
		var err error
		if p.match, err = filter.Tags("this"); err != nil {
			t.Fatal(err)
		}
		look := func() error {
			_, lines, err := takeFirst(t.Context(), []subscriptionSource{{s, p}})
			leave(lines)
			return err
		}
		f.send(message("a", "other"))
		if err := look(); err != nil || !w.Left() || len(s.watches) != 1 {
			t.Errorf("a look that skips all messages: error %v, left %t, %d watches", err, w.Left(), len(s.watches))
		}
		if err := look(); err != nil || !w.Left() || len(s.watches) != 1 || *woken != 0 {
			t.Errorf("a look without messages: error %v, left %t, %d watches, woken %d times", err, w.Left(), len(s.watches), *woken)
		}
		p.Memory = noMemory{}
		f.send(message("b", "this"))
		if err := look(); err == nil || w.Left() || len(s.watches) != 0 || *woken != 1 {
			t.Errorf("a look that fails: error %v, left %t, %d watches, woken %d times", err, w.Left(), len(s.watches), *woken)
		}
		w.End()
	})
}

// A retry topic that is created or deleted while a receive looks for messages is not among its
// sources. The receive cannot leave the watch there, so it wakes the watch.
func TestWatchOfOutdatedSources(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(s, retry *Subscription) []*Subscription{
		"created": func(s, _ *Subscription) []*Subscription {
			defer s.AddSource()
			return nil
		},
		"deleted": func(_, retry *Subscription) []*Subscription {
			retry.Close(refusal.TopicNotFound("retry"))
			return []*Subscription{retry}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newSubscriptionFixture(t)
			s := f.subscribe(false)
			retry := newSubscription(&f.Env, f.group, f.create("retry", settings.Topic{Queues: 1}), false)
			defer retry.Stop()
			f.Topics = retried{f, func() []*Subscription { return change(s, retry) }}
			w, woken := newWatch()
			ds, err := s.Receive(t.Context(), watching(w))
			if len(ds) > 0 || err != nil || !w.Left() || *woken != 1 {
				t.Errorf("%s: %d messages, error %v, left %t, woken %d times; want a watch that was woken", name, len(ds), err, w.Left(), *woken)
			}
			if w.End(); len(s.watches) != 0 {
				t.Errorf("%s: a watch is left", name)
			}
		})
	}
}

// The end of a subscription wakes its watches: the next receive reports the reason.
func TestCloseWakesWatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newSubscriptionFixture(t)
		s := f.subscribe(false)
		w, woken := newWatch()
		if _, err := s.Receive(t.Context(), watching(w)); err != nil {
			t.Fatal(err)
		}
		if s.Close(refusal.GroupNotFound("g")); *woken != 1 || len(s.watches) != 0 {
			t.Errorf("woken %d times, and %d watches are left", *woken, len(s.watches))
		}
		late, _ := newWatch()
		if _, err := s.Receive(t.Context(), watching(late)); err == nil || late.Left() || len(s.watches) != 0 {
			t.Errorf("after the end, a receive has the error %v and leaves a watch: %t", err, late.Left())
		}
	})
}
