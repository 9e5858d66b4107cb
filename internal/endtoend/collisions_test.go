package endtoend

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
)

// Messages that fail at the same time in a consumer are not redelivered at the same time. Each
// waits for the delay of its failure, which is a second at first and then twice as long each time
// up to the maximum. The delay is changed at random, by the factor at most. The outcome reports it
// to the millisecond.
//
// Artemis: undelivered messages: "By randomly padding the redelivery-delay by a small, configurable
// amount", and Artemis: undelivered messages: "the larger `redelivery-collision-avoidance-factor`
// you choose the larger the variance of the `redelivery-delay` will be".
func TestRedeliveriesAreSpread(t *testing.T) {
	const messages, failures = 60, 3
	const first, longest = time.Second, 3 * time.Second
	deviation := map[float64]float64{} // of the first delay, by the factor
	for _, factor := range []float64{0.15, 0.5} {
		synctest.Test(t, func(t *testing.T) {
			b := brokertest.New(t)
			b.CreateTopic("orders", settings.Topic{})
			if _, err := b.PutAddressSettings(t.Context(), "#", settings.Address{
				RedeliveryDelay: new(settings.Milliseconds(first.Milliseconds())), RedeliveryDelayMultiplier: new(2.0),
				MaxRedeliveryDelay: new(settings.Milliseconds(longest.Milliseconds())), RedeliveryCollisionAvoidanceFactor: &factor,
			}); err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			var waits [failures][]time.Duration
			failed, reported := map[string]time.Time{}, map[string]time.Duration{}
			stop := runPush(t, b.Client(), func(_ context.Context, d *tidegate.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				now := time.Now()
				if d.Attempt > 1 {
					wait := now.Sub(failed[d.ID])
					waits[d.Attempt-2] = append(waits[d.Attempt-2], wait)
					if late := wait - reported[d.ID]; late < -time.Millisecond || late > 10*time.Millisecond {
						t.Errorf("attempt %d came after %v, the outcome reported %v", d.Attempt, wait, reported[d.ID])
					}
				}
				if failed[d.ID] = now; d.Attempt > failures {
					return nil
				}
				return errors.New("the database is locked")
			}, consumer.PushOptions{Concurrency: messages, OnDelivery: func(o consumer.Outcome) {
				mu.Lock()
				defer mu.Unlock()
				reported[o.Delivery.ID] = o.Delay
			}})
			p := NewProducer(t, b, producer.Options{})
			for i := range messages {
				MustSend(t, p, Order(i))
			}
			<-time.After(time.Minute)
			stop()
			for n, list := range waits {
				base := min(first<<n, longest)
				low := time.Duration(float64(base) * (1 - factor))
				high := min(time.Duration(float64(base)*(1+factor)), longest)
				below, above, instants := 0, 0, map[time.Duration]bool{}
				var squares float64
				for _, wait := range list {
					if wait < low || wait > high+10*time.Millisecond {
						t.Errorf("factor %v: failure %d was followed by %v, want %v to %v", factor, n+1, wait, low, high)
					}
					instants[wait.Round(10*time.Millisecond)] = true
					if wait < base-base/100 {
						below++
					}
					if wait > base+base/100 {
						above++
					}
					squares += math.Pow(float64(wait-base)/float64(base), 2)
				}
				if len(list) != messages {
					t.Fatalf("factor %v: %d messages came after failure %d, want %d", factor, len(list), n+1, messages)
				}
				if n == 0 {
					deviation[factor] = math.Sqrt(squares / messages)
				}
				// Less than a tenth on one side has a chance below one to a billion.
				if below < messages/10 || base < longest && above < messages/10 || len(instants) < 10 {
					t.Errorf("factor %v, failure %d: %d waits below and %d above %v, %d different ones", factor, n+1, below, above, base, len(instants))
				}
			}
		})
	}
	if deviation[0.15] < 0.05 || deviation[0.5] < 2*deviation[0.15] {
		t.Errorf("relative deviations by factor %s, want them to grow with it", fmt.Sprint(deviation))
	}
}
