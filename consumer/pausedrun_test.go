package consumer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
)

// A consumer that is paused when Run begins receives nothing until Resume.
func TestRunOfAPausedConsumerWaitsForResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps = ours
		s.fill(1)
		var handled atomic.Int64
		p, err := consumer.NewPush(s, consumer.Subscription{Group: "billing", Topic: "orders"},
			func(context.Context, *tidegate.Delivery) error { handled.Add(1); return nil }, consumer.PushOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.Pause()
		stop := runPush(t, p)
		time.Sleep(time.Hour)
		synctest.Wait()
		s.mu.Lock()
		receives := len(s.polls)
		s.mu.Unlock()
		if n := handled.Load(); n != 0 || receives != 0 {
			t.Errorf("%d messages handled and %d receives before Resume", n, receives)
		}
		p.Resume()
		time.Sleep(time.Second)
		synctest.Wait()
		if n := handled.Load(); n != 1 {
			t.Errorf("%d messages handled after Resume, want 1", n)
		}
		stop()
	})
}

// Run of a paused consumer ends within ShutdownTimeout, also if messages wait that the server does
// not take back without counting an attempt.
func TestPausedRunEndsWithWaitingMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t) // without Suspend
		s.fillQuick()
		var report consumer.StopReport
		p, err := consumer.NewPush(s, consumer.Subscription{Group: "billing", Topic: "orders"}, func(_ context.Context, d *tidegate.Delivery) error {
			if slow(d) {
				time.Sleep(time.Second)
			}
			return nil
		}, consumer.PushOptions{Concurrency: 2, ShutdownTimeout: 10 * time.Second, OnStop: func(r consumer.StopReport) { report = r }})
		if err != nil {
			t.Fatal(err)
		}
		stop := runPush(t, p)
		s.fillSlow(50)
		time.Sleep(time.Second)
		p.Pause()
		time.Sleep(3 * time.Second)
		if s.inHand() == 0 {
			t.Fatal("no message waits for a handler")
		}
		begin := time.Now()
		if err := stop(); err != nil || time.Since(begin) > 10*time.Second {
			t.Errorf("Run: %v after %v, want nil within 10s", err, time.Since(begin))
		}
		if s.inHand() != 0 || report.Released == 0 {
			t.Errorf("%d deliveries in hand, report %+v; want the waiting messages released", s.inHand(), report)
		}
	})
}
