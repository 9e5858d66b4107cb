package brokertest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/endtoend"
)

// seen are the deliveries of one message.
type seen struct {
	times    []time.Duration // since the start
	attempts []int
}

// consumeWith consumes n messages of the topic with the chaos, one after another, and returns the
// bodies in the order of their first delivery, and the deliveries of each.
func consumeWith(t *testing.T, b *brokertest.Broker, c brokertest.Chaos, n int) (order []string, of map[string]*seen) {
	t.Helper()
	var mu sync.Mutex
	start := time.Now()
	of = map[string]*seen{}
	p, err := consumer.NewPush(b.ChaosClient(c), consumer.Subscription{Group: "billing", Topic: "orders"},
		func(_ context.Context, d *tidegate.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			body := string(d.Body)
			if of[body] == nil {
				of[body] = &seen{}
				order = append(order, body)
			}
			of[body].times = append(of[body].times, time.Since(start))
			of[body].attempts = append(of[body].attempts, d.Attempt)
			return nil
		}, consumer.PushOptions{Concurrency: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	b.WaitIdle("billing", "orders")
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(of) != n {
		t.Errorf("%d of %d messages were delivered", len(of), n)
	}
	return order, of
}

func TestChaosDuplicates(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		for n := range 100 {
			b.Send(endtoend.Order(n))
		}
		_, of := consumeWith(t, b, brokertest.Chaos{Duplicate: 1}, 100)
		for body, s := range of {
			if !slices.Equal(s.attempts, []int{1, 1}) {
				t.Errorf("message %s was delivered with attempts %v, want twice with attempt 1", body, s.attempts)
			}
		}
	})
}

func TestChaosPostpones(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		for n := range 200 {
			b.Send(endtoend.Order(n))
		}
		_, of := consumeWith(t, b, brokertest.Chaos{Seed: 1, Late: 0.5, Lateness: 10 * time.Minute}, 200)
		late := 0
		for body, s := range of {
			if !slices.Equal(s.attempts, []int{1}) {
				t.Errorf("message %s was delivered with attempts %v, want once with attempt 1", body, s.attempts)
			}
			if s.times[0] > time.Minute {
				late++
			}
			// A message can be postponed several times; ten halves are one in a thousand.
			if s.times[0] > 200*time.Minute {
				t.Errorf("message %s came after %v", body, s.times[0])
			}
		}
		if late < 60 || late > 140 {
			t.Errorf("%d of 200 messages were late, want about half", late)
		}
	})
}

func TestChaosReordersOnlyAcrossGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, fifo := range map[string]bool{"plain": false, "fifo": true} {
			b := brokertest.New(t)
			if fifo {
				b.CreateTopic("orders", settings.Topic{Type: settings.TopicFIFO})
				b.CreateGroup("billing", settings.Group{FIFO: true})
			} else {
				b.CreateTopic("orders", settings.Topic{Queues: 1})
			}
			var want []string
			for n := range 60 {
				m := endtoend.Order(n)
				if fifo {
					m.MessageGroup = "one"
				}
				b.Send(m)
				want = append(want, fmt.Sprint(n))
			}
			got, _ := consumeWith(t, b, brokertest.Chaos{Seed: 2, Reorder: 1, Late: 0.2}, 60)
			if same := slices.Equal(got, want); same != fifo {
				t.Errorf("%s: order %v; the same as sent: %v, want %v", name, got, same, fifo)
			}
		}
	})
}

func TestChaosIsSeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var orders [3][]string
		for i, seed := range []uint64{7, 7, 8} {
			b := brokertest.New(t)
			b.CreateTopic("orders", settings.Topic{Queues: 1})
			for n := range 60 {
				b.Send(endtoend.Order(n))
			}
			orders[i], _ = consumeWith(t, b, brokertest.Chaos{Seed: seed, Late: 0.5}, 60)
		}
		if !slices.Equal(orders[0], orders[1]) || slices.Equal(orders[0], orders[2]) {
			t.Errorf("the orders of seeds 7, 7 and 8 are\n%v\n%v\n%v", orders[0], orders[1], orders[2])
		}
	})
}

func TestChaosRejectsBadValues(t *testing.T) {
	f := &failing{TB: t}
	b := brokertest.New(f)
	for want, c := range map[string]brokertest.Chaos{
		"Chaos.Duplicate is 1.5": {Duplicate: 1.5}, "Chaos.Late is -1": {Late: -1}, "Chaos.Lateness is -1s": {Lateness: -time.Second},
	} {
		f.message = ""
		if got := f.catch(func() { b.ChaosClient(c) }); !strings.Contains(got, want) {
			t.Errorf("%+v: %q, want %q in it", c, got, want)
		}
	}
}
