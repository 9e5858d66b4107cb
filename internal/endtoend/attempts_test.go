package endtoend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// MaxAttempts is the total number of deliveries, for unordered and FIFO groups and each kind of
// failure. A retry schedule of the consumer does not change it. The broker alone counts and
// retries: there are as many deliveries as attempts, and the dead letter is there at once after the
// last.
func TestMaxAttemptsAreDeliveries(t *testing.T) {
	ways := map[string]consumer.Handler{
		"error":   func(context.Context, *tidegate.Delivery) error { return errors.New("out of stock") },
		"panic":   func(context.Context, *tidegate.Delivery) error { panic("out of stock") },
		"timeout": func(ctx context.Context, _ *tidegate.Delivery) error { <-ctx.Done(); return context.Cause(ctx) },
	}
	for way, fail := range ways {
		for _, fifo := range []bool{false, true} {
			for most := 1; most <= 4; most++ {
				t.Run(fmt.Sprintf("%s, fifo %v, %d", way, fifo, most), onBroker(func(t *testing.T, b *brokertest.Broker) {
					topic := settings.Topic{}
					if fifo {
						topic.Type = settings.TopicFIFO
					}
					b.CreateTopic("orders", topic)
					b.CreateGroup("billing", settings.Group{MaxAttempts: most, FIFO: fifo})
					var attempts []int
					var last time.Time
					var seen outcomes
					stop := runPush(t, b.Client(), func(ctx context.Context, d *tidegate.Delivery) error {
						attempts = append(attempts, d.Attempt)
						if way == "timeout" { // it fails when the broker's lease ends
							last = time.Now().Add(30 * time.Second)
							return fail(ctx, d)
						}
						last = time.Now()
						return fail(ctx, d)
					}, consumer.PushOptions{InvisibleDuration: 30 * time.Second, MaxExtension: -1, OnDelivery: seen.Add})
					m := Order(1)
					if fifo {
						m.MessageGroup = "customer 7"
					}
					b.Send(m)
					l := b.WaitDeadLetter("billing")
					synctest.Wait()
					// No request wakes the receive at the end of a lease: it checks every
					// second.
					if took := time.Since(last); took > 50*time.Millisecond && way != "timeout" || took > 2*time.Second {
						t.Errorf("the dead letter was there %v after the last failure", took)
					}
					stop()
					var want []int
					for n := range most {
						want = append(want, n+1)
					}
					assert.That(t, slices.Equal(attempts, want) && l.Origin.Attempts == most, "deliveries with attempts %v, the dead letter after %d; want %v", attempts, l.Origin.Attempts, want)
					if why := l.Origin.Reason; way != "timeout" && !strings.Contains(why, "out of stock") || why == "" {
						t.Errorf("the reason of the dead letter is %q", why)
					}
					list := seen.All()
					assert.That(t, way == "timeout" || list[most-1].Disposition == consumer.DeadLettered, "outcomes %+v", list)
				}))
			}
		}
	}
}

// The broker and its consumer restart at each attempt: after the failure of the attempt, or from
// the second attempt on while the handler works. (The first attempt is on disk once it has failed.)
// The message keeps its place and never has a second copy. It becomes a dead letter after exactly
// MaxAttempts deliveries.
func TestAttemptsSurviveRestarts(t *testing.T) {
	const most = 6
	for _, restartWhile := range []string{"waiting", "handled"} {
		t.Run(restartWhile, inBubble(func(t *testing.T) {
			b := brokertest.New(t)
			b.CreateTopic("orders", settings.Topic{})
			b.CreateGroup("billing", settings.Group{MaxAttempts: most})
			b.Send(Order(1))
			var first tidegate.Delivery
			for n := range most {
				began, returned := make(chan *tidegate.Delivery, 1), make(chan struct{}, 1)
				wire := &cable{Broker: b}
				client := b.ClientWith(rocketmq.Options{Dialer: wire.Dial})
				stop := runPush(t, client, func(ctx context.Context, d *tidegate.Delivery) error {
					began <- d
					if restartWhile == "handled" && d.Attempt > 1 {
						<-ctx.Done()
					}
					return errors.New("failed")
				}, consumer.PushOptions{InvisibleDuration: 10 * time.Second, ShutdownTimeout: time.Second, OnDelivery: func(consumer.Outcome) { returned <- struct{}{} }})
				d := <-began
				if n == 0 {
					first = *d
				}
				if d.Attempt != n+1 || d.ID != first.ID || d.Queue != first.Queue || d.Offset != first.Offset {
					t.Errorf("delivery %d: attempt %d of message %s at %d/%d, want that of %s at %d/%d", n+1,
						d.Attempt, d.ID, d.Queue, d.Offset, first.ID, first.Queue, first.Offset)
				}
				if restartWhile == "waiting" || n == 0 {
					<-returned
				}
				if s := b.Stats("billing", "orders"); n < most-1 && (s.Backlog.Messages != 1 || s.DeadLetters != 0) {
					t.Errorf("attempt %d: %d messages are left, %d dead letters", n+1, s.Backlog.Messages, s.DeadLetters)
				}
				wire.Cut() // or the consumer would release the message as it stops
				b.Restart()
				stop()
				client.Close()
			}
			l := b.WaitDeadLetter("billing")
			assert.That(t, l.Origin.Attempts == most && l.Origin.MessageID == first.ID, "dead letter %+v", l.Origin)
			s := b.Stats("billing", "orders")
			assert.That(t, s.Backlog.Messages == 0, "%d messages are left beside the dead letter", s.Backlog.Messages)
		}))
	}
}

// Failures that a handler expects are logged at debug level, dead letters as one warning each.
func TestExpectedFailuresDoNotFloodTheLog(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		var log bytes.Buffer
		stop := runPush(t, b.Client(), func(_ context.Context, d *tidegate.Delivery) error {
			switch {
			case string(d.Body) == "7":
				return consumer.DeadLetterNow(errors.New("no such customer"))
			case d.Attempt <= 2:
				return consumer.RetryIn(time.Second, errors.New("429 Too Many Requests"))
			}
			return nil
		}, consumer.PushOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for n := range 500 {
			b.Send(Order(n))
		}
		b.WaitIdle("billing", "orders")
		stop()
		text := log.String()
		if strings.Contains(text, "Too Many Requests") || strings.Count(text, "level=WARN") != 1 || strings.Count(text, "no such customer") != 1 {
			t.Errorf("a thousand expected failures and a dead letter are logged as %d lines: %.500s", strings.Count(text, "\n"), text)
		}
	})
}

// dispositions runs a push consumer with the handler fail for ten minutes, and returns the outcomes
// of its deliveries.
func dispositions(t *testing.T, b *brokertest.Broker, sub consumer.Subscription, m *tidegate.Message, fail consumer.Handler) (list []consumer.Outcome) {
	t.Helper()
	var mu sync.Mutex
	stop := run(t, b.Client(), sub, fail, consumer.PushOptions{OnDelivery: func(o consumer.Outcome) {
		mu.Lock()
		defer mu.Unlock()
		list = append(list, o)
	}})
	<-time.After(time.Second) // the consumer gets the group's settings
	MustSend(t, NewProducer(t, b, producer.Options{}), m)
	<-time.After(10 * time.Minute)
	stop()
	return list
}

// The broker decides at the moment of the failure whether it was the last attempt. The consumer's
// copy of the maximum may be seconds old, and a dead letter would let the later messages of the
// group continue.
//
// RocketMQ: consumption retry: "Specified in the metadata when a consumer group is created"
func TestMaximumOfTheMomentHolds(t *testing.T) {
	for exhausted, want := range map[settings.OnExhausted]consumer.Disposition{
		settings.OnExhaustedPark: consumer.Parked, settings.OnExhaustedDeadLetter: consumer.DeadLettered,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := brokertest.New(t)
			b.CreateTopic("orders", settings.Topic{Type: settings.TopicFIFO})
			group := settings.Group{FIFO: true, MaxAttempts: 3, OnExhausted: exhausted, FIFORetryInterval: settings.Duration(time.Second)}
			b.CreateGroup("billing", group)
			failed := errors.New("out of stock")
			list := dispositions(t, b, consumer.Subscription{Topic: "orders", Group: "billing"},
				&tidegate.Message{Topic: "orders", MessageGroup: "customer 7", Body: []byte("x")},
				func(_ context.Context, d *tidegate.Delivery) error {
					if d.Attempt == 3 {
						group.MaxAttempts = 10
						assert.NoError(t, assert.Err(b.PutGroup(t.Context(), "billing", group)))
						<-time.After(time.Second)
					}
					return failed
				})
			assert.MustThat(t, len(list) == 10, "%s: %d deliveries, want 10: %+v", exhausted, len(list), list)
			for i, o := range list[:9] {
				assert.That(t, o.Delivery.Attempt == i+1 && o.Disposition == consumer.Retried && o.Delay == time.Second, "%s: delivery %d: %+v", exhausted, i+1, o)
			}
			if o := list[9]; o.Disposition != want || o.Delay != 0 || !errors.Is(o.Err, failed) || o.SettleErr != nil {
				t.Errorf("%s: the last delivery: %+v", exhausted, o)
			}
			page := assert.Value(b.Parked("billing", status.ParkedQuery{}))(t)
			reasons := []string{}
			for _, p := range page.Groups {
				reasons = append(reasons, p.Reason)
			}
			s := b.Stats("billing", "orders")
			assert.That(t, want != consumer.Parked || slices.Equal(reasons, []string{"out of stock"}) && s.DeadLetters == 0, "parked for %q, and %+v", reasons, s)
			assert.That(t, want != consumer.DeadLettered || len(reasons) == 0 && s.DeadLetters == 1, "parked for %q, and %+v", reasons, s)
		})
	}
}

// A handler that always fails gets every delivery of the retry schedule through real gRPC: 17
// deliveries in 4 h 46 m, each at its exact time, then the dead letter.
// RocketMQ: consumption retry: "A message fails to be consumed. In this case, the consumer returns
// a failure status or the system throws an exception"
// RocketMQ: consumption retry: "Retry the message until the maximum number of retries is reached"
// RocketMQ: consumption retry: "You can consume messages in a dead-letter queue to restore your
// business"
func TestWholeLadderThroughGRPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", settings.Topic{})
		p := NewProducer(t, b, producer.Options{})
		MustSend(t, p, &tidegate.Message{Topic: "orders", Body: []byte("poison"), Tag: "t", Keys: []string{"k"}, Properties: map[string]string{"a": "b"}})

		start := time.Now()
		var at []time.Duration
		stop := Consume(t, b, consumer.Subscription{Group: "billing", Topic: "orders"}, func(_ context.Context, d *tidegate.Delivery) error {
			at = append(at, time.Since(start))
			assert.That(t, d.Attempt == len(at), "delivery %d has attempt %d", len(at), d.Attempt)
			return errors.New("out of stock")
		})
		defer stop()

		dead, err := consumer.NewSimple(b.Client(), consumer.Subscription{Group: "ops", Topic: tidegate.DeadLetterTopic("billing")}, consumer.SimpleOptions{})
		assert.Must(t, err)
		<-time.After(4*time.Hour + 47*time.Minute)
		ds, err := dead.Receive(t.Context(), 10)
		assert.MustThat(t, err == nil && len(ds) == 1, "%d dead letters, %v", len(ds), err)
		d := ds[0]
		assert.NoError(t, dead.Ack(t.Context(), d))

		want := time.Duration(0)
		ladder := backoff.RetryLadder()
		for i, got := range at {
			assert.That(t, got == want, "delivery %d was at %v, due at %v", i+1, got, want)
			want += ladder.Delay(i)
		}
		assert.MustThat(t, len(at) == 17, "%d deliveries, want 17", len(at))
		if at[16].Round(time.Minute) != 4*time.Hour+46*time.Minute {
			t.Errorf("the last one was after %v, want 4h46m", at[16])
		}
		o, ok := d.DeadLetter()
		assert.That(t, ok && o.Topic == "orders" && o.MessageID == d.ID && o.Group == "billing" && o.Attempts == 17 && o.Reason == "out of stock", "the origin of the dead letter is %+v, %v", o, ok)
		assert.That(t, string(d.Body) == "poison" && d.Tag == "t" && d.Keys[0] == "k" && d.Properties["a"] == "b", "the dead letter lost something: %+v", d)
	})
}

// A consumer without intervals of its own uses those of its group's metadata.
//
// RocketMQ: consumption retry: "Specified in the metadata when a consumer group is created.
// Unordered messages: incremental Ordered messages: fixed"
// RocketMQ: consumption retry: "You can increase the interval between retries to prevent frequent
// retries"
func TestIntervalsAreTheGroups(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		config settings.Group
		want   []time.Duration
	}{
		{settings.Group{MaxAttempts: 4, Retry: backoff.Steps{5 * s, 50 * s}}, []time.Duration{5 * s, 50 * s, 50 * s}},
		{settings.Group{MaxAttempts: 4, FIFO: true, FIFORetryInterval: settings.Duration(7 * s)}, []time.Duration{7 * s, 7 * s, 7 * s}},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := brokertest.New(t)
			topic, m := settings.Topic{}, &tidegate.Message{Topic: "orders", Body: []byte("x")}
			if c.config.FIFO {
				topic.Type, m.MessageGroup = settings.TopicFIFO, "a"
			}
			b.CreateTopic("orders", topic)
			b.CreateGroup("g", c.config)
			MustSend(t, NewProducer(t, b, producer.Options{}), m)
			var gaps []time.Duration
			var last time.Time
			stop := Consume(t, b, consumer.Subscription{Group: "g", Topic: "orders"}, func(context.Context, *tidegate.Delivery) error {
				if !last.IsZero() {
					gaps = append(gaps, time.Since(last))
				}
				last = time.Now()
				return errors.New("out of stock")
			})
			<-time.After(5 * time.Minute)
			stop()
			assert.That(t, slices.Equal(gaps, c.want), "%+v: delivered again after %v, want %v", c.config, gaps, c.want)
		})
	}
}

// The delays and the number of deliveries of the manual's example hold for a push consumer that was
// started before they were set. They override the delays that the consumer requests and the 3
// attempts that it was started with.
//
// Artemis: undelivered messages: "Both options can be combined for maximum flexibility."
func TestAddressSettingsThroughGRPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("exampleQueue", settings.Topic{})
		b.CreateGroup("g", settings.Group{MaxAttempts: 3})
		var mu sync.Mutex
		var waits []time.Duration
		var last time.Time
		stop := Consume(t, b, consumer.Subscription{Topic: "exampleQueue", Group: "g"}, func(context.Context, *tidegate.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			if !last.IsZero() {
				waits = append(waits, time.Since(last).Round(100*time.Millisecond))
			}
			last = time.Now()
			return errors.New("the database is away")
		})
		defer stop()
		<-time.After(time.Second)
		assert.Must(t, assert.Err(b.PutAddressSettings(t.Context(), "#", settings.Address{
			RedeliveryDelay: new(settings.Milliseconds(5000)), RedeliveryDelayMultiplier: new(2.0), MaxRedeliveryDelay: new(settings.Milliseconds(15000)),
			MaxDeliveryAttempts: new(5), DeadLetterAddress: new("deadLetterAddress"),
		})))
		stop2 := Consume(t, b, consumer.Subscription{Topic: "exampleQueue", Group: "g2"}, func(context.Context, *tidegate.Delivery) error { return nil })
		defer stop2()
		MustSend(t, NewProducer(t, b, producer.Options{}), &tidegate.Message{Topic: "exampleQueue", Body: []byte("x")})
		<-time.After(5 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		want := []time.Duration{5 * time.Second, 10 * time.Second, 15 * time.Second, 15 * time.Second}
		assert.That(t, slices.Equal(waits, want), "it was delivered again after %v, want %v", waits, want)
		ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "ops", Topic: "deadLetterAddress", Queue: transport.AnyQueue, InvisibleDuration: time.Minute})
		assert.That(t, err == nil && len(ds) == 1 && ds[0].Properties["_AMQ_ORIG_ADDRESS"] == "exampleQueue", "%d dead letters, %v", len(ds), err)
	})
}

// A seenDelivery is a delivery to a handler of a story, with its outcome.
type seenDelivery struct {
	consumer.Outcome

	at         time.Duration // since the story's beginning
	topic      string
	properties map[string]string
}

// story has a push consumer of topic1 as sub1 handle one message, over gRPC, for a while.
func story(t *testing.T, b *brokertest.Broker, c *rocketmq.Client, lasts time.Duration, handle consumer.Handler) (list []seenDelivery) {
	t.Helper()
	var mu sync.Mutex
	begin := time.Now()
	p := assert.Value(consumer.NewPush(c, consumer.Subscription{Group: "sub1", Topic: "topic1"}, func(ctx context.Context, d *tidegate.Delivery) error {
		mu.Lock()
		list = append(list, seenDelivery{at: time.Since(begin).Round(100 * time.Millisecond), topic: d.Topic, properties: d.Properties})
		mu.Unlock()
		return handle(ctx, d)
	}, consumer.PushOptions{Concurrency: 1, OnDelivery: func(o consumer.Outcome) {
		mu.Lock()
		defer mu.Unlock()
		list[len(list)-1].Outcome = o
	}}))(t)
	b.Send(&tidegate.Message{Topic: "topic1", ID: "m", Tag: "tag", Body: []byte("x"), Properties: map[string]string{"k": "v"}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	time.Sleep(lasts)
	cancel()
	assert.NoError(t, <-done)
	return list
}

func retryGroup(c settings.RetryTopic) settings.Group {
	c.Enabled = true
	return settings.Group{RetryTopic: c}
}

var errAway = errors.New("the database is away")

// waits returns the times between the deliveries.
func waits(list []seenDelivery) (out []time.Duration) {
	for i := 1; i < len(list); i++ {
		out = append(out, list[i].at-list[i-1].at)
	}
	return out
}

// TDMQ for Pulsar: retry and dead letters: "Retry rules are implemented using the reconsumeLater
// API. Three modes are available"
// TDMQ for Pulsar: retry and dead letters: "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h
// 2h"
// TDMQ for Pulsar: retry and dead letters: "level 1 corresponds to 1s, and level 3 corresponds to
// 10s. If the default value does not meet actual business requirements, users can customize it."
// TDMQ for Pulsar: retry and dead letters: "After the first failure, the retry interval is 1
// second. After the second failure, it becomes 5 seconds."
// TDMQ for Pulsar: retry and dead letters: "The interval increases progressively with each attempt.
// The specific interval is determined by the MESSAGE_DELAYLEVEL constant introduced in the second
// mode"
// TDMQ for Pulsar: retry and dead letters: "If the subscription mode is Exclusive or Failover, the
// specified retry interval does not take effect, and retries occur immediately."
// TDMQ for Pulsar: retry and dead letters: "a delayed message is delivered to the retry queue, and
// the delay time is specified by the user in reconsumeLater"
// TDMQ for Pulsar: retry and dead letters: "Since the consumer automatically subscribes to this
// topic, the message will be re-consumed based on specific retry rules."
func TestReconsumeModesThroughTheSDK(t *testing.T) {
	const s = time.Second
	levels := []time.Duration{
		s, 5 * s, 10 * s, 30 * s, time.Minute, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute, 5 * time.Minute, 6 * time.Minute,
		7 * time.Minute, 8 * time.Minute, 9 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour,
	}
	own := []time.Duration{time.Minute, 7 * time.Minute}
	for name, tt := range map[string]struct {
		config settings.RetryTopic
		fail   func(times int) error // after that many retries
		want   []time.Duration
	}{
		"any delay": {settings.RetryTopic{MaxRetries: 2}, func(times int) error {
			return consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: []time.Duration{s, 90 * s, s}[times]}, errAway)
		}, []time.Duration{s, 90 * s}},
		"a level": {settings.RetryTopic{MaxRetries: 3}, func(times int) error {
			return consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Level: []int{3, 1, 14, 1}[times]}, errAway)
		}, []time.Duration{10 * s, s, 10 * time.Minute}},
		"the next level": {settings.RetryTopic{MaxRetries: 18}, func(int) error { return consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, errAway) }, levels},
		"own levels":     {settings.RetryTopic{MaxRetries: 3, Levels: own}, func(int) error { return consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, errAway) }, []time.Duration{own[0], own[1], own[1]}},
		"a level of theirs": {settings.RetryTopic{MaxRetries: 1, Levels: own}, func(int) error {
			return consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Level: 2}, errAway)
		}, own[1:]},
		"exclusive": {settings.RetryTopic{MaxRetries: 2, SubscriptionType: "exclusive"},
			func(int) error {
				return consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour}, errAway)
			}, []time.Duration{0, 0}},
		"failover": {settings.RetryTopic{MaxRetries: 2, SubscriptionType: "failover"},
			func(int) error { return consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, errAway) }, []time.Duration{0, 0}},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			b := brokertest.New(t)
			b.CreateTopic("topic1", settings.Topic{})
			b.CreateGroup("sub1", retryGroup(tt.config))
			lasts := time.Minute
			for _, d := range tt.want {
				lasts += d
			}
			list := story(t, b, b.Client(), lasts, func(_ context.Context, d *tidegate.Delivery) error {
				times, _ := strconv.Atoi(d.Properties[protocol.PropertyReconsumeTimes])
				return tt.fail(times)
			})
			assert.MustSlices(t, "it was delivered again after", waits(list), tt.want)
			for i, d := range list {
				want := consumer.DeadLettered
				if i < len(tt.want) {
					want = consumer.Reconsumed
				}
				assert.That(t, d.Disposition == want && d.Delivery.Attempt == 1 && d.Err != nil && d.SettleErr == nil, "delivery %d: %+v, want %v", i, d.Outcome, want)
				if i < len(tt.want) && (d.Delay > tt.want[i] || d.Delay < tt.want[i]-100*time.Millisecond) {
					t.Errorf("delivery %d: a delay of %v, want %v", i, d.Delay, tt.want[i])
				}
			}
		}))
	}
}
