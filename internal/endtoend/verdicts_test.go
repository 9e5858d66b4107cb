package endtoend

import (
	"context"
	"errors"
	"fmt"
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

// A verdict is found in wrapped and in joined errors, and its delay is exact. Each
// is the verdict of the first delivery; the second one succeeds.
//
// The delay leaves the process, so one worker is enough.
func TestVerdictsInWrappedAndJoinedErrors(t *testing.T) {
	cause := errors.New("429 Too Many Requests")
	wraps := map[string]func(error) error{
		"plain":   func(err error) error { return err },
		"wrapped": func(err error) error { return fmt.Errorf("charge: %w", fmt.Errorf("call: %w", err)) },
		"joined":  func(err error) error { return errors.Join(errors.New("close: EOF"), err) },
	}
	for name, tt := range map[string]struct {
		verdict error
		want    consumer.Outcome
		attempt int           // of the second delivery; 0 for none
		after   time.Duration // of the second delivery
	}{
		"RetryIn":       {consumer.RetryIn(7*time.Minute, cause), consumer.Outcome{Disposition: consumer.Retried, Delay: 7 * time.Minute}, 2, 7 * time.Minute},
		"Snooze":        {consumer.Snooze(20 * time.Minute), consumer.Outcome{Disposition: consumer.Snoozed, Delay: 20 * time.Minute}, 1, 20 * time.Minute},
		"DeadLetterNow": {consumer.DeadLetterNow(cause), consumer.Outcome{Disposition: consumer.DeadLettered}, 0, 0},
		"error":         {cause, consumer.Outcome{Disposition: consumer.Retried, Delay: 10 * time.Second}, 2, 10 * time.Second},
	} {
		for how, wrap := range wraps {
			t.Run(name+" "+how, func(t *testing.T) {
				brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
					b.CreateTopic("orders", settings.Topic{})
					var seen outcomes
					var first time.Time
					var attempts []int
					var after time.Duration
					stop := runPush(t, b.Client(), func(_ context.Context, d *tidegate.Delivery) error {
						if string(d.Body) != "0" {
							return nil
						}
						if attempts = append(attempts, d.Attempt); len(attempts) > 1 {
							after = time.Since(first)
							return nil
						}
						first = time.Now()
						return wrap(tt.verdict)
					}, consumer.PushOptions{Concurrency: 1, OnDelivery: seen.Add})
					b.Send(Order(0), Order(1))
					<-time.After(time.Second)
					if n := len(seen.All()); n != 2 {
						t.Errorf("%d deliveries in the first second, want 2: the delay does not occupy the worker", n)
					}
					b.WaitIdle("billing", "orders")
					stop()
					o := seen.All()[slices.IndexFunc(seen.All(), func(o consumer.Outcome) bool { return o.Disposition != consumer.Acked })]
					if o.Disposition != tt.want.Disposition || o.Delay != tt.want.Delay || o.Delivery.Attempt != 1 || o.AttemptSpent {
						t.Errorf("outcome %+v, want %v after %v", o, tt.want.Disposition, tt.want.Delay)
					}
					want := []int{1, tt.attempt}
					if tt.attempt == 0 {
						want = want[:1]
						l := b.WaitDeadLetter("billing")
						if reason := wrap(tt.verdict).Error(); how != "joined" && l.Origin.Reason != reason || l.Origin.Attempts != 1 {
							t.Errorf("dead letter %+v, want the reason %q after attempt 1", l.Origin, reason)
						}
					}
					if !slices.Equal(attempts, want) || after.Round(10*time.Millisecond) != tt.after {
						t.Errorf("attempts %v, the second after %v; want %v after %v", attempts, after, want, tt.after)
					}
				})
			})
		}
	}
}

// A message that is postponed a thousand times is still in its first attempt.
func TestThousandSnoozesSpendNoAttempt(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		b.CreateGroup("billing", settings.Group{MaxAttempts: 2})
		deliveries := 0
		b.Consume("billing", "orders", func(_ context.Context, d *tidegate.Delivery) error {
			if deliveries++; d.Attempt != 1 {
				t.Errorf("delivery %d has attempt %d", deliveries, d.Attempt)
			}
			if deliveries <= 1000 {
				return consumer.Snooze(time.Second)
			}
			return nil
		})
		b.Send(Order(1))
		b.WaitIdle("billing", "orders")
		if s := b.Stats("billing", "orders"); deliveries != 1001 || s.DeadLetters != 0 {
			t.Errorf("%d deliveries, %+v", deliveries, s)
		}
	})
}

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
			c, err := consumer.NewPush(client, consumer.Subscription{Group: "billing", Topic: "orders"}, func(ctx context.Context, d *tidegate.Delivery) error {
				began <- d.Attempt
				<-ctx.Done()
				return context.Cause(ctx)
			}, consumer.PushOptions{InvisibleDuration: lease, ShutdownTimeout: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			if attempt := <-began; attempt != n+1 {
				t.Errorf("delivery %d has attempt %d", n+1, attempt)
			}
			if n > 0 {
				waits = append(waits, (time.Since(last) - lease).Round(100*time.Millisecond))
			}
			last = time.Now()
			wire.Cut()
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
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

// Dead letters at a high rate trip the kill switch. Polling stops, and the messages in the queue
// keep their attempts.
func TestDeadLetterFloodStopsTheConsumer(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		var mu sync.Mutex
		healed, calls := false, 0
		stop := runPush(t, b.Client(), func(_ context.Context, d *tidegate.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			if calls++; d.Attempt != 1 {
				t.Errorf("attempt %d", d.Attempt)
			}
			if healed {
				return nil
			}
			return consumer.DeadLetterNow(errors.New("unknown currency"))
		}, consumer.PushOptions{Concurrency: 4, KillSwitch: consumer.KillSwitch{DeadLetters: 10, Window: time.Minute, Probe: 10 * time.Second}})
		for n := range 300 {
			b.Send(Order(n))
		}
		<-time.After(5 * time.Second)
		s := b.Stats("billing", "orders")
		if s.DeadLetters < 10 || s.DeadLetters > 20 || s.Inflight != 0 {
			t.Errorf("%d dead letters and %d messages in flight; want the switch tripped by the 10th, and the unread messages released", s.DeadLetters, s.Inflight)
		}
		mu.Lock()
		healed = true
		mu.Unlock()
		b.WaitIdle("billing", "orders")
		stop()
		if n := b.Stats("billing", "orders").DeadLetters; n > s.DeadLetters+1 || calls < 280 {
			t.Errorf("%d dead letters after %d, in %d calls", n, s.DeadLetters, calls)
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
