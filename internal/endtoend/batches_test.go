package endtoend

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// Batches of a FIFO group keep the order of each message group on a broker, over failures, panics
// and dead letters. Other message groups do not wait for the retry.
func TestBatchesKeepOrderOnABroker(t *testing.T) {
	const groups, each = 4, 5
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{Type: settings.TopicFIFO})
		b.CreateGroup("billing", settings.Group{FIFO: true, MaxAttempts: 3, FIFORetryInterval: settings.Duration(time.Second)})
		for i := range each {
			for g := range groups {
				b.Send(&tidegate.Message{Topic: "orders", MessageGroup: fmt.Sprint("g", g), Body: fmt.Append(nil, i)})
			}
		}
		var mu sync.Mutex
		got := map[string]string{}
		begin := time.Now()
		var others time.Duration // until the last message of a group without a failure
		stop := runBatches(t, b, func(_ context.Context, ds []*tidegate.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			res, seen := make(consumer.BatchResult, len(ds)), map[string]bool{}
			for i, d := range ds {
				if seen[d.MessageGroup] {
					t.Errorf("two messages of %s in a batch", d.MessageGroup)
				}
				seen[d.MessageGroup] = true
				got[d.MessageGroup] += fmt.Sprintf("%s/%d ", d.Body, d.Attempt)
				switch id := d.MessageGroup + "/" + string(d.Body); {
				case id == "g0/1" && d.Attempt == 1, id == "g1/2":
					res[i] = errors.New("out of stock")
				case id == "g3/4":
					others = time.Since(begin)
				}
			}
			return res
		}, consumer.PushOptions{Batch: consumer.BatchOptions{MaxWait: 10 * time.Millisecond}})
		b.WaitIdle("billing", "orders")
		stop()
		for g, want := range []string{"0/1 1/1 1/2 2/1 3/1 4/1", "0/1 1/1 2/1 2/2 2/3 3/1 4/1", "0/1 1/1 2/1 3/1 4/1", "0/1 1/1 2/1 3/1 4/1"} {
			if s := strings.TrimSpace(got[fmt.Sprint("g", g)]); s != want {
				t.Errorf("g%d was handled as %s, want %s", g, s, want)
			}
		}
		if others >= time.Second {
			t.Errorf("a message group without a failure took %v, as long as the retry of another one", others)
		}
	})
}
