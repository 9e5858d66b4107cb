package endtoend

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
)

// runBatches runs a batch consumer of the group billing and the topic orders until stop is called.
func runBatches(t *testing.T, b *brokertest.Broker, h consumer.BatchHandler, o consumer.PushOptions) (stop func()) {
	t.Helper()
	c, err := consumer.NewBatch(b.Client(), consumer.Subscription{Group: "billing", Topic: "orders"}, h, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Each message of a batch is acknowledged, retried, postponed or a dead letter by its own verdict.
// A retried message is in a later batch.
func TestBatchVerdictsOnABroker(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		b.CreateGroup("billing", settings.Group{MaxAttempts: 3, Retry: backoff.Steps{time.Second, time.Minute}})
		var mu sync.Mutex
		tries := map[string]string{} // body → attempts and their times
		begin := time.Now()
		stop := runBatches(t, b, func(_ context.Context, ds []*tidegate.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			res := make(consumer.BatchResult, len(ds))
			for i, d := range ds {
				body := string(d.Body)
				tries[body] += fmt.Sprintf("%d@%v ", d.Attempt, time.Since(begin).Round(time.Second))
				switch {
				case body == "poison":
					res[i] = errors.New("no such customer")
				case body == "hopeless":
					res[i] = consumer.DeadLetterNow(errors.New("no such product"))
				case body == "busy" && d.Attempt == 1:
					res[i] = consumer.RetryIn(10*time.Second, errors.New("busy"))
				case body == "later" && time.Since(begin) < time.Minute:
					res[i] = consumer.Snooze(time.Minute)
				}
			}
			return res
		}, consumer.PushOptions{Batch: consumer.BatchOptions{MaxMessages: 10, MaxWait: 50 * time.Millisecond}})
		for _, body := range []string{"good", "poison", "hopeless", "busy", "later"} {
			b.Send(&tidegate.Message{Topic: "orders", Body: []byte(body)})
		}
		b.WaitIdle("billing", "orders")
		stop()
		for body, want := range map[string]string{
			"good": "1@0s ", "poison": "1@0s 2@1s 3@1m1s ", "hopeless": "1@0s ", "busy": "1@0s 2@10s ", "later": "1@0s 1@1m0s ",
		} {
			if tries[body] != want {
				t.Errorf("%s was handled in attempts %s, want %s", body, tries[body], want)
			}
		}
		for range 2 {
			l := b.WaitDeadLetter("billing")
			if want := map[string]string{"poison": "no such customer", "hopeless": "no such product"}[string(l.Body)]; l.Origin.Reason != want || want == "" {
				t.Errorf("dead letter %q with the reason %q", l.Body, l.Origin.Reason)
			}
		}
	})
}
