package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
)

// inTopic adds n messages of a topic.
func (s *server) inTopic(queue int, topic, group string, n int) {
	for i := range n {
		s.add(queue, &tidegate.Message{ID: fmt.Sprint(topic, "-", group, i), Topic: topic, MessageGroup: group, Body: []byte("x")})
	}
}

func ofTopics(names ...string) map[string]tidegate.Filter {
	all := map[string]tidegate.Filter{}
	for _, name := range names {
		all[name] = tidegate.Filter{}
	}
	return all
}

// One consumer receives from several topics, each with its filter. The topics share the
// concurrency and the pause, and outcomes name the topic.
func TestTopicsShareTheConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		filters := map[string]tidegate.Filter{"orders": consumer.Tags("paid", "refunded"), "returns": {}, "stock": consumer.SQL("region = 'eu'")}
		for topic := range filters {
			s.inTopic(0, topic, "", 10)
		}
		var seen outcomes
		var running, most int
		var mu sync.Mutex
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			running += n
			most = max(most, running)
		}
		p, err := consumer.NewPush(s, consumer.Subscription{
			Group: "billing", Topic: "orders", Filter: filters["orders"],
			Topics: map[string]tidegate.Filter{"returns": filters["returns"], "stock": filters["stock"]},
		}, func(context.Context, *tidegate.Delivery) error {
			count(1)
			defer count(-1)
			time.Sleep(time.Second)
			return nil
		}, consumer.PushOptions{Concurrency: 5, OnDelivery: seen.add})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(6500 * time.Millisecond)
		synctest.Wait()
		if most != 5 || len(seen.all()) != 30 {
			t.Errorf("%d messages handled, %d at a time; want 30, 5 at a time", len(seen.all()), most)
		}
		handled := map[string]int{}
		for _, o := range seen.all() {
			handled[o.Delivery.Topic]++
		}
		for topic, filter := range filters {
			if handled[topic] != 10 {
				t.Errorf("%d messages of %s handled, want 10", handled[topic], topic)
			}
			s.mu.Lock()
			i := slices.IndexFunc(s.requests, func(r transport.ReceiveRequest) bool { return r.Topic == topic })
			if i < 0 || s.requests[i].Filter != filter || s.requests[i].Group != "billing" {
				t.Errorf("no receive from %s has the filter %+v", topic, filter)
			}
			s.mu.Unlock()
		}
		p.Pause()
		time.Sleep(time.Minute)
		for topic := range filters {
			s.inTopic(0, topic, "", 1)
		}
		time.Sleep(time.Minute)
		if n := len(seen.all()); n != 30 {
			t.Errorf("%d messages handled during the pause", n-30)
		}
		p.Resume()
		time.Sleep(time.Minute)
		if n := len(seen.all()); n != 33 {
			t.Errorf("%d messages handled after the pause, want 3", n-30)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A topic with a large backlog does not delay the messages of a quiet topic. These wait for one or
// two running handlers, for any number of queues and messages of the other topic.
func TestTopicWithBacklogDoesNotStarveAnother(t *testing.T) {
	for name, tt := range map[string]struct {
		caps     transport.Capabilities
		handling time.Duration
		fifo     bool
		limiter  ratelimit.Limiter
	}{
		"slow handlers":          {caps: ours, handling: 10 * time.Second},
		"quick handlers":         {caps: ours, handling: 10 * time.Millisecond},
		"slow ones, on RocketMQ": {handling: 10 * time.Second},
		"message groups":         {caps: ours, handling: 10 * time.Second, fifo: true},
		"a limiter":              {caps: ours, handling: 10 * time.Millisecond, limiter: rate.NewLimiter(100, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				s.caps, s.settings.FIFO = tt.caps, tt.fifo
				if tt.limiter == nil { // a limiter takes turns between queues
					s.queues = []int{0, 1, 2, 3, 4, 5, 6, 7}
				}
				const quiet = 10
				for i := range 20 * quiet {
					s.inTopic(i%8, "busy", fmt.Sprint(i), 1)
				}
				sent := map[string]time.Time{}
				var waits []time.Duration
				var mu sync.Mutex
				stop := start(t, s, consumer.Subscription{Topics: ofTopics("busy", "quiet")}, func(_ context.Context, d *tidegate.Delivery) error {
					if d.Topic == "quiet" {
						mu.Lock()
						waits = append(waits, time.Since(sent[d.ID]))
						mu.Unlock()
					}
					time.Sleep(tt.handling)
					return nil
				}, consumer.PushOptions{Concurrency: 4, ShutdownTimeout: time.Second, Limiter: tt.limiter})
				for i := range quiet {
					time.Sleep(3 * tt.handling)
					mu.Lock()
					m := &tidegate.Message{ID: fmt.Sprint("quiet", i), Topic: "quiet", MessageGroup: fmt.Sprint(i), Body: []byte("x")}
					sent[m.ID] = time.Now()
					mu.Unlock()
					s.add(0, m)
				}
				time.Sleep(3 * tt.handling)
				stop()
				if len(waits) != quiet || slices.Max(waits) > 2*tt.handling {
					t.Errorf("%d of %d messages of the quiet topic were handled, after %v; want each within %v", len(waits), quiet, waits, 2*tt.handling)
				}
			})
		})
	}
}

// Messages with the same message group in two topics do not wait for each other, and each topic
// keeps its order.
func TestTopicsKeepTheirOwnOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps, s.settings.FIFO = ours, true
		for _, topic := range []string{"a", "b"} {
			s.inTopic(0, topic, topic, 5) // the server of this test knows groups by name alone
		}
		var mu sync.Mutex
		order := map[string][]string{}
		begin := time.Now()
		stop := start(t, s, consumer.Subscription{Topics: ofTopics("a", "b")}, func(_ context.Context, d *tidegate.Delivery) error {
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			order[d.Topic] = append(order[d.Topic], fmt.Sprint(d.ID, "/", d.Attempt, "@", time.Since(begin)))
			if d.ID == "a-a1" && d.Attempt == 1 {
				return consumer.RetryIn(time.Second, errors.New("x"))
			}
			return nil
		}, consumer.PushOptions{})
		time.Sleep(time.Minute)
		stop()
		for topic, want := range map[string]string{
			"a": "[a-a0/1@1s a-a1/1@2s a-a1/2@4s a-a2/1@5s a-a3/1@6s a-a4/1@7s]",
			"b": "[b-b0/1@1s b-b1/1@2s b-b2/1@3s b-b3/1@4s b-b4/1@5s]",
		} {
			if got := fmt.Sprint(order[topic]); got != want {
				t.Errorf("topic %s: %s, want %s", topic, got, want)
			}
		}
	})
}

// The messages of several topics share batches, each with a verdict of its own.
func TestTopicsShareBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps = ours
		var seen outcomes
		var batches []string
		p, err := consumer.NewBatch(s, consumer.Subscription{Group: "billing", Topics: ofTopics("orders", "returns")}, func(_ context.Context, ds []*tidegate.Delivery) error {
			verdicts := make(consumer.BatchResult, len(ds))
			topics := map[string]int{}
			for i, d := range ds {
				if topics[d.Topic]++; d.Topic == "returns" && d.Attempt == 1 {
					verdicts[i] = consumer.RetryIn(time.Second, errors.New("x"))
				}
			}
			batches = append(batches, fmt.Sprint(topics))
			return verdicts
		}, consumer.PushOptions{Concurrency: 1, OnDelivery: seen.add})
		if err != nil {
			t.Fatal(err)
		}
		s.inTopic(0, "orders", "", 3)
		s.inTopic(0, "returns", "", 2)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
		if got, want := fmt.Sprint(batches), "[map[orders:3 returns:2] map[returns:2]]"; got != want {
			t.Errorf("batches %s, want %s", got, want)
		}
		for _, o := range seen.all() {
			if want := o.Delivery.Topic == "returns" && o.Delivery.Attempt == 1; want != (o.Disposition == consumer.Retried) {
				t.Errorf("outcome %+v", o)
			}
		}
	})
}

// A topic that does not exist, or that the credentials may not read, is reported with its name and
// does not stop the others. Credentials that are rejected for all topics end the consumer after a
// minute; a filter that the server cannot read ends it at once.
func TestTopicsThatFail(t *testing.T) {
	missing, forbidden, illegal := tidegate.CodeTopicNotFound, tidegate.CodeForbidden, tidegate.CodeIllegalFilterExpression
	for name, tt := range map[string]struct {
		fails map[string]tidegate.Code
		ends  time.Duration // 0: never
		topic string        // that the error names
	}{
		"one is missing":              {map[string]tidegate.Code{"orders": missing}, 0, ""},
		"one is forbidden":            {map[string]tidegate.Code{"orders": forbidden}, 0, ""},
		"one forbidden, one missing":  {map[string]tidegate.Code{"orders": forbidden, "returns": missing}, 0, ""},
		"both are forbidden":          {map[string]tidegate.Code{"orders": forbidden, "returns": forbidden}, verdict.CredentialsGrace, ""},
		"the filter of one is faulty": {map[string]tidegate.Code{"returns": illegal}, time.Nanosecond, "returns"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				s.caps = ours
				s.onTopic = func(topic string) error {
					if code := tt.fails[topic]; code != 0 {
						return &tidegate.Error{Op: "ReceiveMessage", Subject: topic, Code: code}
					}
					return nil
				}
				var mu sync.Mutex
				reported, handled := map[string]tidegate.Code{}, 0
				p, err := consumer.NewPush(s, consumer.Subscription{Group: "billing", Topic: "orders", Topics: ofTopics("returns")},
					func(context.Context, *tidegate.Delivery) error {
						mu.Lock()
						defer mu.Unlock()
						handled++
						return nil
					}, consumer.PushOptions{OnReceiveFailure: func(f consumer.ReceiveFailure) {
						mu.Lock()
						defer mu.Unlock()
						reported[f.Topic] = verdict.Code(f.Err)
					}})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				begin := time.Now()
				for i := range 10 {
					time.AfterFunc(time.Duration(i)*50*time.Second, func() {
						for _, topic := range []string{"orders", "returns"} {
							if tt.fails[topic] == 0 {
								s.inTopic(0, topic, "", 1)
							}
						}
					})
				}
				err = p.Run(ctx)
				took := time.Since(begin)
				if tt.ends == 0 && (err != nil || took != 10*time.Minute || len(tt.fails) == 1 && handled != 10) {
					t.Errorf("Run: %v after %v, %d messages of the other topic handled; want none for 10m, and 10", err, took, handled)
				}
				if tt.ends > 0 && (err == nil || took > tt.ends+40*time.Second || took < tt.ends-time.Nanosecond || !strings.Contains(err.Error(), `"`+tt.topic)) {
					t.Errorf("Run: %v after %v, want an error of topic %q after %v", err, took, tt.topic, tt.ends)
				}
				if fmt.Sprint(reported) != fmt.Sprint(tt.fails) {
					t.Errorf("reported %v, want %v", reported, tt.fails)
				}
			})
		})
	}
}

func TestTopicsAreChecked(t *testing.T) {
	for want, sub := range map[string]consumer.Subscription{
		`Subscription.Topic:`:        {},
		`"orders" is Subscription`:   {Topic: "orders", Topics: ofTopics("orders", "returns")},
		`"a b"`:                      {Topics: ofTopics("orders", "a b")},
		`Topic, which is empty; set`: {Filter: consumer.Tags("paid"), Topics: ofTopics("orders")},
	} {
		sub.Group = "billing"
		_, err := consumer.NewPush(newServer(t), sub, func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{})
		if !errors.Is(err, tidegate.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", sub, err, want)
		}
	}
	_, err := consumer.NewSimple(newServer(t), consumer.Subscription{Group: "billing", Topic: "orders", Topics: ofTopics("returns")}, consumer.SimpleOptions{})
	if !errors.Is(err, tidegate.ErrInvalid) || !strings.Contains(err.Error(), "Subscription.Topics") {
		t.Errorf("a simple consumer of two topics: %v", err)
	}
}
