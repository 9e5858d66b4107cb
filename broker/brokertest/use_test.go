package brokertest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/endtoend"
	"github.com/tidegate/tidegate/producer"
)

func TestConsumeUntilIdle(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		var mu sync.Mutex
		attempts := map[string]int{}
		stop := b.Consume("billing", "orders", func(_ context.Context, d *tidegate.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			attempts[string(d.Body)] = d.Attempt
			if string(d.Body) == "2" && d.Attempt < 3 {
				return errors.New("not yet")
			}
			return nil
		})
		start := time.Now()
		receipts := b.Send(endtoend.Order(1), endtoend.Order(2), endtoend.Order(3))
		b.WaitIdle("billing", "orders")
		// The schedule of RocketMQ's consumption retry: 10 s, then 30 s.
		took := time.Since(start)
		assert.That(t, took >= 40*time.Second && took <= 42*time.Second, "idle after %v, want the two intervals of 10 s and 30 s", took)
		stop()
		stop()
		if want := map[string]int{"1": 1, "2": 3, "3": 1}; fmt.Sprint(attempts) != fmt.Sprint(want) {
			t.Errorf("attempts %v, want %v", attempts, want)
		}
		assert.That(t, len(receipts) == 3 && receipts[0].MessageID != "" && receipts[0].MessageID != receipts[1].MessageID,
			"receipts %+v: want three with IDs of their own", receipts)
	})
}

func TestWaitDeadLetterReturnsEachOnce(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		b.Consume("billing", "orders", func(_ context.Context, d *tidegate.Delivery) error {
			return consumer.DeadLetterNow(errors.New("poison " + string(d.Body)))
		})
		var reasons []string
		for n := range 3 {
			b.Send(endtoend.Order(n))
			l := b.WaitDeadLetter("billing")
			reasons = append(reasons, fmt.Sprintf("%s: %s", l.Body, l.Origin.Reason))
		}
		if want := []string{"0: poison 0", "1: poison 1", "2: poison 2"}; !slices.Equal(reasons, want) {
			t.Errorf("dead letters %q, want %q", reasons, want)
		}
	})
}

// A wait without a consumer fails the test, names the state and ends.
func TestWaitWithoutAConsumerFails(t *testing.T) {
	for want, wait := range map[string]func(*brokertest.Broker){
		"wait until group billing is idle in orders: the group has not received yet; does a consumer run? (no client has reached the broker for 1h0m0s)": func(b *brokertest.Broker) {
			b.WaitIdle("billing", "orders")
		},
		"it has not received from ordres; the topics are orders": func(b *brokertest.Broker) {
			b.Consume("billing", "orders", func(context.Context, *tidegate.Delivery) error { return nil })
			b.WaitIdle("billing", "ordres")
		},
		"wait for a dead letter of group billing: there is no other one; it has not received yet; does a consumer run?": func(b *brokertest.Broker) {
			b.CreateGroup("billing", settings.Group{})
			b.WaitDeadLetter("billing")
		},
		"there is no other one; topic orders: 0 ready, 0 in flight, 0 waiting for a retry, 1 acknowledged, 0 dead letters": func(b *brokertest.Broker) {
			b.Consume("billing", "orders", func(context.Context, *tidegate.Delivery) error { return nil })
			b.WaitDeadLetter("billing")
		},
		"topic orders: 1 ready, 0 in flight, 0 waiting for a retry, 1 acknowledged, 0 dead letters; does a consumer run?": func(b *brokertest.Broker) {
			stop := b.Consume("billing", "orders", func(context.Context, *tidegate.Delivery) error { return nil })
			b.WaitIdle("billing", "orders")
			stop()
			b.Send(endtoend.Order(2))
			b.WaitIdle("billing", "orders")
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &failing{TB: t}
			if !strings.Contains(want, "1h0m0s") { // the end of the test is sooner
				var cancel context.CancelFunc
				f.ctx, cancel = context.WithTimeout(t.Context(), 30*time.Minute)
				defer cancel()
			}
			b := brokertest.New(f)
			b.CreateTopic("orders", settings.Topic{})
			b.Send(endtoend.Order(1))
			got := f.catch(func() { wait(b) })
			assert.That(t, strings.Contains(got, want), "the test failed with %q, want %q in it", got, want)
		})
	}
}

// A misspelt topic fails the test at once, instead of a wait for 25 h.
func TestConsumeUnknownTopicFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{TB: t}
		b := brokertest.New(f)
		b.CreateTopic("orders", settings.Topic{})
		start := time.Now()
		got := f.catch(func() { b.Consume("billing", "ordres", func(context.Context, *tidegate.Delivery) error { return nil }) })
		assert.Contains(t, "the text", got, "ordres", "the topics are orders", "CreateTopic")
		assert.Equal(t, "it failed after", time.Since(start), 0)
	})
}

// The first dead letter creates the dead-letter topic of a group, so a consumer may wait for it.
func TestConsumeDeadLettersBeforeTheFirst(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		letters := make(chan string, 1)
		b.Consume("audit", tidegate.DeadLetterTopic("billing"), func(_ context.Context, d *tidegate.Delivery) error {
			letters <- string(d.Body)
			return nil
		})
		b.Consume("billing", "orders", func(context.Context, *tidegate.Delivery) error {
			return consumer.DeadLetterNow(errors.New("poison"))
		})
		b.Send(endtoend.Order(1))
		select {
		case body := <-letters:
			assert.Equal(t, "the dead letter is", body, "1")
		case <-time.After(time.Hour):
			t.Error("no dead letter within an hour")
		}
	})
}

// The error of the wait names a handler that never returns.
func TestWaitNamesTheRunningHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		f := &failing{TB: t, ctx: ctx}
		b := brokertest.New(f)
		b.CreateTopic("orders", settings.Topic{})
		release := make(chan struct{})
		b.Consume("billing", "orders", func(context.Context, *tidegate.Delivery) error {
			<-release
			return nil
		})
		r := b.Send(endtoend.Order(1))
		synctest.Wait()
		got := f.catch(func() { b.WaitIdle("billing", "invoices") })
		close(release)
		want := "the handler has not returned for 1h0m0s: message " + r[0].MessageID + " of topic orders (group billing, attempt 1)"
		assert.That(t, strings.Contains(got, want), "the test failed with %q, want %q in it", got, want)
	})
}

// A failing records the first fatal failure, and does not fail the test.
type failing struct {
	testing.TB
	ctx     context.Context // of the test, if it is not that of TB
	mu      sync.Mutex
	message string // guarded by mu
}

func (f *failing) Context() context.Context {
	if f.ctx != nil {
		return f.ctx
	}
	return f.TB.Context()
}

func (f *failing) Fatalf(format string, args ...any) {
	f.mu.Lock()
	if f.message == "" {
		f.message = fmt.Sprintf(format, args...)
	}
	f.mu.Unlock()
	runtime.Goexit()
}

// catch runs call, which Fatalf may end, and returns the failure.
func (f *failing) catch(call func()) string {
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	<-done
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.message
}

// A wait ends after an hour in which no client reaches the broker, with the last error, and not
// after the 25 h that retries can take.
func TestWaitIdleWithoutConsumers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before func(b *brokertest.Broker)
		want   []string
	}{
		"disconnected": {func(b *brokertest.Broker) {
			b.Consume("billing", "orders", func(context.Context, *tidegate.Delivery) error { return nil })
			b.WaitIdle("billing", "orders")
			b.Disconnect()
		}, []string{"no client has reached the broker for 1h0m", "the test has cut the network"}},
		"no consumer": {func(*brokertest.Broker) {}, []string{"no client has reached the broker for 1h0m", "does a consumer run?"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tb := &failing{TB: t}
				b := brokertest.New(tb)
				b.CreateTopic("orders", settings.Topic{})
				tt.before(b)
				b.Send(&tidegate.Message{Topic: "orders", Body: []byte("3 apples")})
				start := time.Now()
				text := tb.catch(func() { b.WaitIdle("billing", "orders") })
				took := time.Since(start)
				assert.That(t, took >= time.Hour && took <= 70*time.Minute, "the wait took %v", took)
				assert.Contains(t, "the text", text, tt.want...)
			})
		})
	}
}

// countRequests counts the requests to the broker.
func countRequests(b *brokertest.Broker) *atomic.Int64 {
	var n atomic.Int64
	b.Intercept(func(ctx context.Context, _ server.Call, next func(context.Context) error) error {
		n.Add(1)
		return next(ctx)
	})
	return &n
}

// consumeNothing runs an idle consumer for three hours.
func consumeNothing(tb testing.TB, b *brokertest.Broker) {
	b.CreateTopic("orders", settings.Topic{})
	b.Consume("billing", "orders", func(context.Context, *tidegate.Delivery) error { return nil })
	<-time.After(3 * time.Hour)
	assert.Equal(tb, "the consumer has not received", b.Stats("billing", "orders").Topic, "orders")
}

// failAlways takes a message through the whole retry schedule.
func failAlways(tb testing.TB, b *brokertest.Broker) {
	b.CreateTopic("orders", settings.Topic{})
	b.Consume("billing", "orders", func(context.Context, *tidegate.Delivery) error { return errors.New("out of stock") })
	start := time.Now()
	b.Send(&tidegate.Message{Topic: "orders", Body: []byte("3 apples")})
	b.WaitDeadLetter("billing")
	// RocketMQ's 16 intervals from 10 s to 2 h are 4 h 46 m in all.
	assert.Equal(tb, "a dead letter after", time.Since(start).Round(time.Minute), 4*time.Hour+46*time.Minute)
}

// Requests are nearly the whole cost of an idle consumer. Every five minutes it sends a
// receive, a heartbeat and a request for changes, which are 108 in three hours.
func TestIdleConsumerSendsFewRequests(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		n := countRequests(b)
		consumeNothing(t, b)
		if n := n.Load(); n > 120 {
			t.Errorf("%d requests in three hours, want at most 120", n)
		}
	})
}

func TestRetryScheduleTakesFewRequests(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		n := countRequests(b)
		failAlways(t, b)
		if n := n.Load(); n > 280 {
			t.Errorf("%d requests for the retry schedule, want at most 280", n)
		}
	})
}

// A queue that is added while the consumer is idle is found, although the intervals are long.
func TestIdleConsumerFindsNewQueues(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{Type: settings.TopicFIFO, Queues: 1})
		b.CreateGroup("billing", settings.Group{FIFO: true})
		var handled atomic.Int64
		b.Consume("billing", "orders", func(context.Context, *tidegate.Delivery) error {
			handled.Add(1)
			return nil
		})
		time.Sleep(time.Hour)
		b.CreateTopic("orders", settings.Topic{Type: settings.TopicFIFO, Queues: 8})
		for _, group := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			b.Send(&tidegate.Message{Topic: "orders", MessageGroup: group, Body: []byte("3 apples")})
		}
		b.WaitIdle("billing", "orders")
		assert.Equal(t, "messages of 8 were handled", handled.Load(), 8)
	})
}

func TestInterceptDelaysRejectsAndThrottles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", settings.Topic{})
		client := b.Client()
		send := func() error {
			return client.Send(t.Context(), []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte("x")}})[0].Err
		}
		with := func(m brokertest.Middleware) (took time.Duration, err error) {
			remove := b.Intercept(func(ctx context.Context, call server.Call, next func(context.Context) error) error {
				if call.Op == "SendMessage" {
					return m(ctx, call, next)
				}
				return next(ctx)
			})
			defer remove()
			start := time.Now()
			err = send()
			return time.Since(start), err
		}
		if took, err := with(func(ctx context.Context, _ server.Call, next func(context.Context) error) error {
			<-time.After(2 * time.Second)
			return next(ctx)
		}); err != nil || took != 2*time.Second {
			t.Errorf("delayed: %v after %v", err, took)
		}
		_, err := with(func(context.Context, server.Call, func(context.Context) error) error {
			return brokertest.Throttled(7 * time.Second)
		})
		e, ok := errors.AsType[*tidegate.Error](err)
		assert.That(t, ok && errors.Is(err, tidegate.ErrThrottled) && e.RetryAfter == 7*time.Second, "throttled: %#v", err)
		_, err = with(func(context.Context, server.Call, func(context.Context) error) error {
			return &tidegate.Error{Code: tidegate.CodeForbidden, Message: "not today"}
		})
		assert.Is(t, "refused", err, tidegate.ErrForbidden)
		took, err := with(func(context.Context, server.Call, func(context.Context) error) error { return server.ErrNoAnswer })
		e, ok = errors.AsType[*tidegate.Error](err)
		assert.That(t, ok && e.MaybeStored && took == 3*time.Second, "no response: %v after %v", err, took)
		assert.NoError(t, send(), "after everything was removed")
	})
}

// Many starts and stops, with a producer and a consumer at work, leave no goroutine: a bubble does
// not end while one is left. The step "random tests" of .ci/run repeats this test.
func TestStartsAndStopsLeaveNothing(t *testing.T) {
	for i := range 40 {
		synctest.Test(t, func(t *testing.T) {
			b := brokertest.New(t)
			b.CreateTopic("orders", settings.Topic{Queues: 1})
			p := endtoend.NewProducer(t, b, producer.Options{})
			got := make(chan struct{})
			stop := endtoend.Consume(t, b, consumer.Subscription{Group: "g", Topic: "orders"}, func(context.Context, *tidegate.Delivery) error {
				got <- struct{}{}
				return nil
			})
			endtoend.MustSend(t, p, &tidegate.Message{Topic: "orders", Body: fmt.Append(nil, i)})
			<-got
			stop()
			if i%2 == 0 {
				b.Close() // before its clients
			}
		})
	}
}
