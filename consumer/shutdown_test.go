package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
)

// fillQuick fills the server with messages that have the consumer receive ahead, as their handlers
// are quick.
func (s *server) fillQuick() { s.fillWith("quick", 300) }

// fillSlow adds messages for which slow is true, after the quick ones are handled.
func (s *server) fillSlow(n int) {
	time.Sleep(100 * time.Millisecond)
	s.fillWith("slow", n)
}

func (s *server) fillWith(body string, n int) {
	for i := range n {
		s.add(0, &tidegate.Message{ID: fmt.Sprint(body, i), Topic: "orders", Body: []byte(body)})
	}
}

func slow(d *tidegate.Delivery) bool { return string(d.Body) == "slow" }

// Running handlers finish and their messages are settled; unhandled messages are released.
func TestShutdownIsOrderly(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.fillQuick()
		var seen outcomes
		var report consumer.StopReport
		stop := start(t, s, consumer.Subscription{}, func(ctx context.Context, d *tidegate.Delivery) error {
			if slow(d) {
				time.Sleep(5 * time.Second)
			}
			return ctx.Err()
		}, consumer.PushOptions{Concurrency: 2, OnDelivery: seen.add, OnStop: func(r consumer.StopReport) { report = r }})
		s.fillSlow(50)
		time.Sleep(time.Second)
		begin := time.Now()
		if err := stop(); err != nil || time.Since(begin) != 4*time.Second {
			t.Errorf("Run: %v, after %v; want nil when the handlers were done, after 4s", err, time.Since(begin))
		}
		got := map[consumer.Disposition]int{}
		for _, o := range seen.list {
			got[o.Disposition]++
		}
		if got[consumer.Acked] != 302 || got[consumer.Released] < 20 || len(s.released) != got[consumer.Released] || s.left() != 48 || s.handed != 0 {
			t.Errorf("outcomes %v, %d released, %d left, %d in hand", got, len(s.released), s.left(), s.handed)
		}
		for _, e := range s.entries {
			assert.That(t, e.done || e.attempt == 0, "message %s spent %d attempts", e.msg.ID, e.attempt)
		}
		want := (consumer.StopReport{Acked: 2, Released: got[consumer.Released], Took: 4 * time.Second})
		assert.That(t, report == want, "report %+v, want %+v", report, want)
	})
}

// A server that counts attempts of released messages gets the buffered ones handled instead.
func TestShutdownWithoutSuspend(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.fillQuick()
		stop := start(t, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
			if slow(d) {
				time.Sleep(100 * time.Millisecond)
			}
			return nil
		}, consumer.PushOptions{Concurrency: 2})
		s.fillSlow(50)
		time.Sleep(time.Second)
		begin := time.Now()
		if err := stop(); err != nil || time.Since(begin) > 5*time.Second || len(s.released) != 0 || s.handed != 0 {
			t.Errorf("Run: %v, after %v; %d released, %d in hand", err, time.Since(begin), len(s.released), s.handed)
		}
	})
}

// The polls under way end without a cancellation on such a server: a cancelled one may take a
// message along.
func TestShutdownLetsPollsEnd(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		var handled atomic.Int64
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { handled.Add(1); return nil }, consumer.PushOptions{})
		time.Sleep(time.Second)
		time.AfterFunc(2*time.Second, func() { s.fill(1) })
		begin := time.Now()
		if err := stop(); err != nil || handled.Load() != 1 || s.left() != 0 || time.Since(begin) > 5*time.Second {
			t.Errorf("Run: %v after %v, %d handled, %d left; want the message handled that the last poll brought", err, time.Since(begin), handled.Load(), s.left())
		}
	})
}

func TestShutdownTimeout(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.fill(1)
		var seen outcomes
		begin := time.Now()
		stop := start(t, s, consumer.Subscription{}, func(ctx context.Context, _ *tidegate.Delivery) error {
			<-ctx.Done()
			cause := context.Cause(ctx)
			assert.That(t, cause == consumer.ErrShutdown, "cause %v", cause)
			time.Sleep(time.Second)
			return ctx.Err()
		}, consumer.PushOptions{ShutdownTimeout: 7 * time.Second, OnDelivery: seen.add})
		synctest.Wait()
		if err := stop(); err != nil || time.Since(begin) != 7300*time.Millisecond {
			t.Errorf("Run: %v after %v, want nil after 7.3s: nine tenths of the timeout, and the handler's second", err, time.Since(begin))
		}
		assert.That(t, len(seen.list) == 1 && seen.list[0].Disposition == consumer.Released && len(s.retries) == 0,
			"outcomes %+v, retries %v; want the message released, not failed", seen.list, s.retries)
	})
}

// Run ends within ShutdownTimeout if the handlers return when their contexts end, also if more
// settlements wait than there are requests at the same time and no request gets a response. A
// handler that returns later has one second for its settlement.
func TestShutdownTimeoutIsALimit(t *testing.T) {
	for name, tt := range map[string]struct {
		fail    bool          // the handlers return an error
		hurried bool          // the handlers return when their contexts end
		late    time.Duration // later than that
		want    time.Duration // the longest time until Run ends
	}{
		"failures":                  {fail: true, want: 7 * time.Second},
		"successes":                 {want: 7 * time.Second},
		"released by the shutdown":  {fail: true, hurried: true, want: 7 * time.Second},
		"successes at the last":     {hurried: true, want: 7 * time.Second},
		"successes after the limit": {hurried: true, late: 2 * time.Second, want: 6300*time.Millisecond + 3*time.Second},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			s := newServer(t)
			s.caps, s.silent = ours, true
			s.fill(1000)
			stop := start(t, s, consumer.Subscription{}, func(ctx context.Context, _ *tidegate.Delivery) error {
				if tt.hurried {
					<-ctx.Done()
					time.Sleep(tt.late)
				}
				if tt.fail {
					return errors.New("failed")
				}
				return nil
			}, consumer.PushOptions{Concurrency: 200, ShutdownTimeout: 7 * time.Second})
			time.Sleep(time.Second)
			begin := time.Now()
			if err := stop(); err != nil || time.Since(begin) > tt.want {
				t.Errorf("Run: %v after %v, want at most %v", err, time.Since(begin), tt.want)
			}
		})
	}
}

// A handler that returns after ShutdownTimeout has one second for the settlement of its message,
// also if the settlements of several messages share a request.
func TestHandlerAfterTheShutdownTimeoutIsSettled(t *testing.T) {
	// Of each handler, after the end of ShutdownTimeout.
	late := []time.Duration{time.Second, time.Second, 1500 * time.Millisecond, 2 * time.Second, 2 * time.Second}
	withBroker(t, func(t *testing.T, s *server) {
		s.fill(len(late))
		var seen outcomes
		stop := start(t, s, consumer.Subscription{}, func(ctx context.Context, d *tidegate.Delivery) error {
			<-ctx.Done()
			time.Sleep(time.Second/10 + late[d.Offset])
			return nil
		}, consumer.PushOptions{Concurrency: len(late), ShutdownTimeout: time.Second, OnDelivery: seen.add})
		synctest.Wait()
		begin := time.Now()
		err := stop()
		assert.That(t, err == nil && time.Since(begin) <= 4*time.Second, "Run: %v after %v, want nil after at most 4s", err, time.Since(begin))
		for _, o := range seen.all() {
			assert.That(t, o.Disposition == consumer.Acked, "message %s: %v, %v, want it acked", o.Delivery.ID, o.Disposition, o.SettleErr)
		}
		assert.That(t, s.left() == 0, "%d messages are not consumed", s.left())
	})
}
