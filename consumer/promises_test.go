package consumer

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
)

// newItemOf returns a delivery of a hand whose lease ends after inv.
func newItemOf(t *testing.T, h *hand, inv time.Duration) *item {
	t.Helper()
	h.armed = time.Now().Add(time.Hour)
	src := &source{topic: &topic{name: "orders"}}
	src.topic.settings.Store(&transport.ConsumerSettings{})
	h.arrive(arrival{
		list: []*tidegate.Delivery{{Message: tidegate.Message{ID: "m", Topic: "orders"}, Handle: "h", Attempt: 1}},
		caps: func(string) transport.Capabilities { return transport.Capabilities{} }, source: src, sent: time.Now(), invisible: inv,
	}, time.Now())
	return h.all()[0]
}

func newTestHand(o PushOptions) *hand {
	o = o.withDefaults()
	return newHand(&o)
}

// The server counts an extension from a moment before its response, so the lease counts it from the
// request.
func TestExtensionCountsFromTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestHand(PushOptions{})
		it := newItemOf(t, h, 30*time.Second)
		sent := time.Now()
		time.Sleep(8 * time.Second)
		h.extended(it, extension{sent: sent, now: time.Now(), inv: 30 * time.Second, handle: "new"})
		if end := it.lease.Until.Sub(sent); end > 30*time.Second || end < 29*time.Second {
			t.Errorf("the lease ends %v after the request, want just below 30 s", end)
		}
	})
}

// After an extension with a lost response the handle is uncertain, also if the next attempt was
// certainly rejected, until one succeeds.
func TestHandleStaysUncertain(t *testing.T) {
	lost := &tidegate.Error{MaybeStored: true, Message: "the connection broke"}
	throttled := &tidegate.Error{Code: tidegate.CodeTooManyRequests}
	var it item
	for i, step := range []struct {
		err  error
		want bool
	}{{throttled, false}, {lost, true}, {throttled, true}, {nil, false}, {throttled, false}} {
		if it.takeOver(extension{err: step.err}); it.unsure != step.want {
			t.Errorf("after step %d (%v) the handle is uncertain: %v", i, step.err, it.unsure)
		}
	}
}

// A receive loop that waits for credits ends when its queue is removed.
func TestRemovedQueueEndsItsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestHand(PushOptions{})
		h.pause(true, time.Now())
		s := &source{topic: &topic{name: "orders"}}
		done := make(chan bool, 1)
		go func() {
			_, ok := h.reserve(s, 32, true, false)
			done <- ok
		}()
		synctest.Wait()
		h.remove(s)
		synctest.Wait()
		select {
		case ok := <-done:
			if ok {
				t.Error("a removed queue got credits")
			}
		default:
			t.Error("the loop of a removed queue waits")
			h.stop(true)
		}
	})
}

// A retry of RocketMQ whose reminder is due before the next check wakes maintainLeases.
func TestReminderWakesTheCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestHand(PushOptions{})
		it := newItemOf(t, h, time.Hour)
		for len(h.kicked) > 0 {
			<-h.kicked
		}
		h.armed = time.Now().Add(time.Hour)
		h.take(func(error) {})
		it.disposition, it.delay = Retried, time.Second
		h.removeSettled(time.Now(), it)
		if len(h.kicked) != 1 || h.armed.After(time.Now().Add(4*time.Second)) {
			t.Errorf("the next check is after %v, and %d wake-ups are pending", time.Until(h.armed), len(h.kicked))
		}
	})
}

// The settings of a topic have no attempts for its retry topic.
func TestAttemptsOfARetryTopicAreUnknown(t *testing.T) {
	src := &source{topic: &topic{name: "orders"}}
	src.topic.settings.Store(&transport.ConsumerSettings{MaxAttempts: 3})
	r := &run{}
	for name, want := range map[string]int{"orders": 3, "orders-billing-RETRY": 0} {
		it := &item{source: src, current: tidegate.Delivery{Message: tidegate.Message{Topic: name}, Attempt: 3}}
		if got := r.maxAttempts(it); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

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
		stop := start(t, s, Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil }, PushOptions{})
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
		stop := start(t, s, Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
			if d.ID == "m0" || d.ID == "m5" || d.ID == "late0" {
				time.Sleep(10 * time.Minute)
			}
			return nil
		}, PushOptions{Concurrency: 1, StuckAfter: time.Minute, MaxExtension: time.Hour})
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
		stop := start(t, s, Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil },
			PushOptions{OnReceiveFailure: func(ReceiveFailure) {}})
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
		stop := start(t, s, Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil },
			PushOptions{ShutdownTimeout: 2 * time.Second, InvisibleDuration: time.Hour, OnDelivery: seen.add})
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
		stop := start(t, f, Subscription{}, func(ctx context.Context, _ *tidegate.Delivery) error {
			handled.Add(1)
			select {
			case <-time.After(5 * time.Minute):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}, PushOptions{OnDelivery: out.add})
		s.fill(1)
		time.Sleep(10 * time.Minute)
		stop()
		if !f.lost.Load() || f.repeats.Load() != 1 || handled.Load() != 1 || s.left() != 0 {
			t.Errorf("a response was lost: %v; %d repetitions, %d calls of the handler, %d messages left; want 1, 1, 0: %+v", f.lost.Load(), f.repeats.Load(), handled.Load(), s.left(), out.all())
		}
	})
}
