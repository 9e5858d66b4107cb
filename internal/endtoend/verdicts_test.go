package endtoend

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// A worker that vanishes with its connection spends the attempt at the end of the lease, and the
// retry schedule follows, with the same delays as after an error.
func TestLostWorkerHasTheSameDelay(t *testing.T) {
	const lease = 30 * time.Second
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		b.CreateGroup("billing", settings.Group{MaxAttempts: 4})
		b.Send(Order(1))
		began := make(chan int, 1)
		var waits []time.Duration
		var last time.Time
		for n := range 4 {
			wire := &cable{Broker: b}
			client := b.ClientWith(rocketmq.Options{Dialer: wire.Dial})
			stop := run(t, client, consumer.Subscription{Group: "billing", Topic: "orders"}, func(ctx context.Context, d *tidegate.Delivery) error {
				began <- d.Attempt
				<-ctx.Done()
				return context.Cause(ctx)
			}, consumer.PushOptions{InvisibleDuration: lease, ShutdownTimeout: time.Second})
			if attempt := <-began; attempt != n+1 {
				t.Errorf("delivery %d has attempt %d", n+1, attempt)
			}
			if n > 0 {
				waits = append(waits, (time.Since(last) - lease).Round(100*time.Millisecond))
			}
			last = time.Now()
			wire.Cut()
			stop()
			client.Close()
		}
		// RocketMQ: the retry schedule of unordered messages.
		if want := []time.Duration{10 * time.Second, 30 * time.Second, time.Minute}; !slices.Equal(waits, want) {
			t.Errorf("delivered %v after the lease ended, want %v", waits, want)
		}
		if l := b.WaitDeadLetter("billing"); l.Origin.Attempts != 4 || time.Since(last) > lease+2*time.Second {
			t.Errorf("dead letter after %v: %+v; want it when the last of 4 leases has ended", time.Since(last), l.Origin)
		}
	})
}

// 1 000 retries begin when they are due: p99 of the time from the due moment to the handler is
// below 10 ms.
//
// A retry that becomes due wakes the parked receive.
func TestRetriesReachTheirHandlersWhenDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", settings.Topic{})
		var mu sync.Mutex
		due := map[string]time.Time{}
		var late []time.Duration
		stop := runPush(t, b.Client(), func(_ context.Context, d *tidegate.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			if d.Attempt == 1 {
				delay := time.Duration(len(due)) * 37 * time.Millisecond
				due[d.ID] = time.Now().Add(delay)
				return consumer.RetryIn(delay, errors.New("not yet"))
			}
			late = append(late, time.Since(due[d.ID]))
			return nil
		}, consumer.PushOptions{Concurrency: 64})
		for n := range 1000 {
			b.Send(Order(n))
		}
		b.WaitIdle("billing", "orders")
		stop()
		slices.Sort(late)
		if len(late) != 1000 || late[0] < 0 || late[989] > 10*time.Millisecond || late[999] > 50*time.Millisecond {
			t.Fatalf("%d retries: the first %v, p99 %v, the last %v after they were due", len(late), late[0], late[len(late)*99/100], late[len(late)-1])
		}
		t.Logf("p50 %v, p99 %v, most %v after due", late[500], late[989], late[999])
	})
}
