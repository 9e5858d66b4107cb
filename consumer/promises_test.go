package consumer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/transport"
)

// slowServer needs a second for each receive, and counts those under way.
type slowServer struct {
	*server
	underWay, most atomic.Int64
}

func (s *slowServer) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	s.most.Store(max(s.most.Load(), s.underWay.Add(1)))
	defer s.underWay.Add(-1)
	if err := backoff.Sleep(ctx, time.Second); err != nil {
		return nil, err
	}
	return s.server.Receive(ctx, r)
}

// With a backlog, receives of one queue overlap.
func TestReceivesOverlapWithABacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowServer{server: newServer(t)}
		s.caps = ours
		s.fill(3000)
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{})
		time.Sleep(20 * time.Second)
		if n := s.most.Load(); n < 4 {
			t.Errorf("%d receives at a time with a backlog, want several", n)
		}
		stop()
	})
}

// When a stuck handler returns, its place is free for the next stuck handler.
func TestStuckHandlersAreReplacedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps = ours
		s.fill(10)
		begin := time.Now()
		stop := start(t, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
			if d.ID == "m0" || d.ID == "m5" || d.ID == "late0" {
				time.Sleep(10 * time.Minute)
			}
			return nil
		}, consumer.PushOptions{Concurrency: 1, StuckAfter: time.Minute, MaxExtension: time.Hour})
		for s.left() > 0 && time.Since(begin) < 6*time.Hour {
			time.Sleep(time.Minute)
		}
		s.add(0, &tidegate.Message{ID: "late0", Topic: "orders"}, &tidegate.Message{ID: "late1", Topic: "orders"})
		time.Sleep(2 * time.Minute)
		if n := s.left(); n != 1 {
			t.Errorf("%d messages left beside a stuck handler, want its own alone", n)
		}
		time.Sleep(10 * time.Minute)
		stop()
	})
}

// mute blocks the first request for settings until its context ends.
type mute struct {
	*server
	asked atomic.Int64
}

func (m *mute) ConsumerSettings(ctx context.Context, group, topic string) (transport.ConsumerSettings, error) {
	if m.asked.Add(1) == 1 {
		<-ctx.Done()
		return transport.ConsumerSettings{}, context.Cause(ctx)
	}
	return m.server.ConsumerSettings(ctx, group, topic)
}

// A server that does not respond to the request for settings does not hold up the consumer.
func TestSettingsHaveATimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &mute{server: newServer(t)}
		s.fill(1)
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil },
			consumer.PushOptions{OnReceiveFailure: func(consumer.ReceiveFailure) {}})
		time.Sleep(20 * time.Second)
		if s.left() != 0 {
			t.Error("the consumer waits for the settings")
		}
		stop()
	})
}

// A settlement that fails after the end of the shutdown time is not postponed: Run returns.
func TestNoSettlementAfterTheShutdownTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps = ours
		s.fill(1)
		var seen outcomes
		s.onAck = func(*tidegate.Delivery) error {
			time.Sleep(1900 * time.Millisecond)
			return errors.New("connection lost")
		}
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil },
			consumer.PushOptions{ShutdownTimeout: 2 * time.Second, InvisibleDuration: time.Hour, OnDelivery: seen.add})
		time.Sleep(100 * time.Millisecond)
		begin := time.Now()
		stop()
		if d := time.Since(begin); d > 6*time.Second || len(seen.all()) != 1 {
			t.Errorf("Run returned after %v with %d outcomes", d, len(seen.all()))
		}
	})
}

// A forgetful server loses the response to the first extension. As the broker does, it knows the
// handle that this extension has replaced, if the request says that it is a repetition.
type forgetful struct {
	*server
	lost    atomic.Bool
	repeats atomic.Int64
}

func (f *forgetful) Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, repeat bool) (string, error) {
	if repeat {
		f.repeats.Add(1)
		own := *d
		f.mu.Lock()
		own.Handle = f.entries[d.Offset].handle
		f.mu.Unlock()
		return f.server.Extend(ctx, &own, dur, true)
	}
	h, err := f.server.Extend(ctx, d, dur, false)
	if err == nil && !f.lost.Swap(true) {
		return "", &tidegate.Error{Err: tidegate.ErrUnavailable, MaybeStored: true}
	}
	return h, err
}

// After the lost response to an extension, the next one is sent as a repetition to a server that
// knows repetitions: the lease goes on, and the message is handled once.
func TestLostExtensionIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps = ours
		f := &forgetful{server: s}
		var handled atomic.Int64
		var out outcomes
		stop := start(t, f, consumer.Subscription{}, func(ctx context.Context, _ *tidegate.Delivery) error {
			handled.Add(1)
			select {
			case <-time.After(5 * time.Minute):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}, consumer.PushOptions{OnDelivery: out.add})
		s.fill(1)
		time.Sleep(10 * time.Minute)
		stop()
		if !f.lost.Load() || f.repeats.Load() != 1 || handled.Load() != 1 || s.left() != 0 {
			t.Errorf("a response was lost: %v; %d repetitions, %d calls of the handler, %d messages left; want 1, 1, 0: %+v", f.lost.Load(), f.repeats.Load(), handled.Load(), s.left(), out.all())
		}
	})
}
