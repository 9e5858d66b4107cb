package interop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
)

// sizes collects the sizes of batches.
type sizes struct {
	mu   sync.Mutex
	list []int
}

func (s *sizes) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, n)
}

// Each message of a batch has the end of its verdict.
func TestBatchVerdicts(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", false, 16), Topic: x.topic("orders", settings.TopicNormal)}
		const each = 10
		var seen sizes
		c := x.consumeBatches(sub, func(_ context.Context, ds []*tidegate.Delivery) error {
			seen.add(len(ds))
			res := make(consumer.BatchResult, len(ds))
			for i, d := range ds {
				switch {
				case d.Attempt > 1:
				case string(d.Body) == "retry":
					res[i] = consumer.RetryIn(time.Second, errHandler)
				case string(d.Body) == "dead":
					res[i] = consumer.DeadLetterNow(errHandler)
				}
			}
			return res
		}, consumer.PushOptions{Batch: consumer.BatchOptions{MaxMessages: 20, MaxWait: time.Second}})
		p := x.producer(producer.Options{})
		want := map[string]int{"good 1 acked": each, "retry 1 retried": each, "retry 2 acked": each, "dead 1 dead-lettered": each}
		var wg sync.WaitGroup
		bodies := map[string]string{} // message ID → body
		var mu sync.Mutex
		for range each {
			for _, body := range []string{"good", "retry", "dead"} {
				wg.Go(func() {
					r, err := p.Send(x.ctx, &tidegate.Message{Topic: sub.Topic, Body: []byte(body)})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					bodies[r.MessageID] = body
				})
			}
		}
		wg.Wait()
		got := map[string]int{}
		for range 4 * each {
			o := c.outcome()
			got[fmt.Sprint(bodies[o.Delivery.ID], " ", o.Delivery.Attempt, " ", o.Disposition)]++
		}
		c.stop()
		assert.That(t, fmt.Sprint(got) == fmt.Sprint(want), "outcomes %v, want %v", got, want)
		t.Logf("sizes of the batches: %v", seen.list)
		n := slices.Max(seen.list)
		assert.That(t, n >= 2 && n <= 20, "the largest batch has %d messages", n)
		letters := consumer.Subscription{Group: x.group("undertaker", false, 17), Topic: tidegate.DeadLetterTopic(sub.Group)}
		for _, d := range x.take(letters, each) {
			assert.That(t, string(d.Body) == "dead", "dead letter %q", d.Body)
		}
	})
}

// Batches keep the order of each message group, also behind a failed message. A batch has at most
// one message of each message group, and on a RocketMQ, which locks queues, one of each queue.
func TestBatchesOfFIFOGroup(t *testing.T) {
	on(t, func(x *target) {
		sub := consumer.Subscription{Group: x.group("billing", true, 16), Topic: x.topic("lines", settings.TopicFIFO)}
		p := x.producer(producer.Options{})
		const each = 4
		groups := strings.Split("abcdefghijkl", "")
		for i := range each {
			for _, g := range groups {
				x.send(p, &tidegate.Message{Topic: sub.Topic, MessageGroup: g, Body: fmt.Append(nil, i)})
			}
		}
		var seen sizes
		c := x.consumeBatches(sub, func(_ context.Context, ds []*tidegate.Delivery) error {
			seen.add(len(ds))
			res := make(consumer.BatchResult, len(ds))
			of, queues := map[string]bool{}, map[int]bool{}
			for i, d := range ds {
				assert.That(t, !of[d.MessageGroup] && (x.broker != nil || !queues[d.Queue]),
					"two messages of group %s or of queue %d in a batch", d.MessageGroup, d.Queue)
				of[d.MessageGroup], queues[d.Queue] = true, true
				if d.MessageGroup == "a" && string(d.Body) == "1" && d.Attempt == 1 {
					res[i] = errHandler
				}
			}
			return res
		}, consumer.PushOptions{Batch: consumer.BatchOptions{MaxWait: 100 * time.Millisecond}})
		got := map[string]string{}
		for range each*len(groups) + 1 {
			d := c.next()
			got[d.MessageGroup] += fmt.Sprintf("%s/%d ", d.Body, d.Attempt)
		}
		c.stop()
		for _, g := range groups {
			want := "0/1 1/1 2/1 3/1"
			if g == "a" {
				want = "0/1 1/1 1/2 2/1 3/1"
			}
			s := strings.TrimSpace(got[g])
			assert.That(t, s == want, "group %s: delivered %s, want %s", g, s, want)
		}
		t.Logf("sizes of the batches: %v", seen.list)
		n := slices.Max(seen.list)
		assert.That(t, x.broker == nil || n == len(groups), "the largest batch has %d messages of %d groups", n, len(groups))
	})
}
