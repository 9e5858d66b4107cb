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
)

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
