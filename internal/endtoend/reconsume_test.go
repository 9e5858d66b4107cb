package endtoend

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

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
