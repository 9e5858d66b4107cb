package endtoend

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
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
	p, err := consumer.NewPush(c, consumer.Subscription{Group: "sub1", Topic: "topic1"}, func(ctx context.Context, d *tidegate.Delivery) error {
		mu.Lock()
		list = append(list, seenDelivery{at: time.Since(begin).Round(100 * time.Millisecond), topic: d.Topic, properties: d.Properties})
		mu.Unlock()
		return handle(ctx, d)
	}, consumer.PushOptions{Concurrency: 1, OnDelivery: func(o consumer.Outcome) {
		mu.Lock()
		defer mu.Unlock()
		list[len(list)-1].Outcome = o
	}})
	if err != nil {
		t.Fatal(err)
	}
	b.Send(&tidegate.Message{Topic: "topic1", ID: "m", Tag: "tag", Body: []byte("x"), Properties: map[string]string{"k": "v"}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	time.Sleep(lasts)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
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
		"exclusive": {settings.RetryTopic{MaxRetries: 2, SubscriptionType: settings.SubscriptionExclusive},
			func(int) error {
				return consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour}, errAway)
			}, []time.Duration{0, 0}},
		"failover": {settings.RetryTopic{MaxRetries: 2, SubscriptionType: settings.SubscriptionFailover},
			func(int) error { return consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, errAway) }, []time.Duration{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
				if got := waits(list); !slices.Equal(got, tt.want) {
					t.Fatalf("it was delivered again after %v, want %v", got, tt.want)
				}
				for i, d := range list {
					want := consumer.DeadLettered
					if i < len(tt.want) {
						want = consumer.Reconsumed
					}
					if d.Disposition != want || d.Delivery.Attempt != 1 || d.Err == nil || d.SettleErr != nil {
						t.Errorf("delivery %d: %+v, want %v", i, d.Outcome, want)
					}
					if i < len(tt.want) && (d.Delay > tt.want[i] || d.Delay < tt.want[i]-100*time.Millisecond) {
						t.Errorf("delivery %d: a delay of %v, want %v", i, d.Delay, tt.want[i])
					}
				}
			})
		})
	}
}

// The bounds of a delay are the broker's; a delay beyond them is replaced by a retry in the
// message's own topic.
//
// TDMQ for Pulsar: retry and dead letters: "The value ranges of delay time and delayed messages are
// the same, ranging from 1 to 864,000 seconds."
func TestReconsumeDelayBoundsThroughTheSDK(t *testing.T) {
	for delay, want := range map[time.Duration]struct {
		disposition consumer.Disposition
		delay       time.Duration
	}{
		time.Second:             {consumer.Reconsumed, time.Second},
		864_000 * time.Second:   {consumer.Reconsumed, 864_000 * time.Second},
		time.Second - 1:         {consumer.Retried, time.Second - 1},
		864_000*time.Second + 1: {consumer.Retried, 12 * time.Hour},
		-time.Second:            {consumer.Retried, 0},
		100 * 24 * time.Hour:    {consumer.Retried, 12 * time.Hour},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := brokertest.New(t)
			b.CreateTopic("topic1", settings.Topic{})
			b.CreateGroup("sub1", retryGroup(settings.RetryTopic{}))
			first := true
			d := story(t, b, b.Client(), time.Minute, func(context.Context, *tidegate.Delivery) error {
				if !first {
					return nil
				}
				first = false
				return consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: delay}, errAway)
			})[0]
			if d.Disposition != want.disposition || d.Delay.Round(time.Millisecond) != want.delay.Round(time.Millisecond) || (d.SettleErr != nil) != (want.disposition == consumer.Retried) {
				t.Errorf("%v: %+v, want %v after %v", delay, d.Outcome, want.disposition, want.delay)
			}
		})
	}
}

// TDMQ for Pulsar: retry and dead letters: "When the number of retries reaches a threshold, no
// retry is performed, and the message is delivered to the dead letter topic"
// TDMQ for Pulsar: retry and dead letters: "You can write a dedicated client to subscribe to the
// dead letter topic to process such messages"
// TDMQ for Pulsar: retry and dead letters: "2.9.2 version cluster: [Topic name]-[Subscription
// name]-RETRY"
// TDMQ for Pulsar: retry and dead letters: "2.7.2 version cluster: [Subscription name]-RETRY"
// TDMQ for Pulsar: retry and dead letters: "2.6.1 Version Cluster: [Subscription name]-retry"
// TDMQ for Pulsar: retry and dead letters: "the retry queue corresponding to the subscription name
// is automatically subscribed to"
// TDMQ for Pulsar: retry and dead letters: "If the number of message retries reaches the maximum
// limit, the message is delivered to the dead letter queue. (Messages delivered to the dead letter
// queue are not automatically consumed. If required, users create additional consumers for
// consumption.) If the number of message retries does not reach the maximum limit, the message is
// delivered to the retry queue"
// TDMQ for Pulsar: retry and dead letters: "sub1 automatically subscribes to the retry topic
// automatically created during initial subscription creation (available in the topic list of the
// console)"
// TDMQ for Pulsar: retry and dead letters: "If consumption fails after the maximum number of
// retries is reached, the message is delivered to the corresponding dead letter queue for manual
// handling"
// TDMQ for Pulsar: retry and dead letters: "The number of retries is set to 16. (After 16 retries,
// a message is delivered to the dead letter queue at the 17th retry.)"
// TDMQ for Pulsar: retry and dead letters: "The retry queue is specified as [Topic
// name]-[Subscription name]-RETRY. The dead letter queue is specified as [Topic name]-[Subscription
// name]-DLQ"
// TDMQ for Pulsar: retry and dead letters: "The retry queue is specified as [Subscription
// name]-RETRY. The dead letter queue is specified as [Subscription name]-DLQ"
// TDMQ for Pulsar: retry and dead letters: "The retry queue is specified as [Subscription
// name]-retry. The dead letter queue is specified as [Subscription name]-dlq"
// TDMQ for Pulsar: retry and dead letters: "REAL_TOPIC: original topic. ORIGIN_MESSAGE_ID: ID of
// the originally produced message. RETRY_TOPIC: retry topic. RECONSUMETIMES: number of message
// retries."
// TDMQ for Pulsar: retry and dead letters: "Original consumption: msgid=1:1:0:1 First retry:
// msgid=2:1:-1 Second retry: msgid=2:2:-1"
// TDMQ for Pulsar: retry and dead letters: "Written to dead letter queue at the 17th retry"
// TDMQ for Pulsar: retry and dead letters: "After reconsumeLater is executed, the original message
// in the topic is acknowledged and transferred to the retry topic. When the number of retries
// reaches the upper limit, the message is transferred to the dead letter queue. The PulsarClient
// automatically subscribes to the retry topic. However, messages in the dead letter queue are not
// automatically subscribed to"
// TDMQ for Pulsar: retry and dead letters: "The number of retries obtained through the
// msg.getRedeliveryCount() API is the number of retries under the negativeAcknowledge retry
// mechanism"
func TestReconsumedUntilDeadThroughTheSDK(t *testing.T) {
	for naming, want := range map[settings.RetryNaming]struct {
		retry, dead string // topics
		maxRetries  int    // of the group; 0 means the default
		retries     int
	}{
		"":                      {"topic1-sub1-RETRY", "topic1-sub1-DLQ", 0, 16},
		settings.RetryNaming292: {"topic1-sub1-RETRY", "topic1-sub1-DLQ", 3, 3},
		settings.RetryNaming272: {"sub1-RETRY", "sub1-DLQ", 3, 3},
		settings.RetryNaming261: {"sub1-retry", "sub1-dlq", 3, 3},
	} {
		t.Run(string(naming), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := brokertest.New(t)
				b.CreateTopic("topic1", settings.Topic{})
				b.CreateGroup("sub1", retryGroup(settings.RetryTopic{Naming: naming, MaxRetries: want.maxRetries}))
				lasts := 2 * time.Hour // 16 retries take 1 h 45 m
				if want.retries == 3 {
					lasts = time.Minute
				}
				list := story(t, b, b.Client(), lasts, func(context.Context, *tidegate.Delivery) error {
					return consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, errAway)
				})
				deliveries := 1 + want.retries
				if len(list) != deliveries || list[deliveries-1].Disposition != consumer.DeadLettered {
					t.Fatalf("%d deliveries, want %d and a dead letter: %+v", len(list), deliveries, list)
				}
				ids := map[string]bool{}
				for i, d := range list {
					ids[d.Delivery.ID] = true
					times := ""
					if i > 0 {
						times = strconv.Itoa(i)
						if p := d.properties; p["REAL_TOPIC"] != "topic1" || p["ORIGIN_MESSAGE_ID"] != "m" || p["RETRY_TOPIC"] != want.retry || p["k"] != "v" {
							t.Errorf("retry %d has the properties %v", i, p)
						}
					}
					if d.topic != "topic1" || d.properties["RECONSUMETIMES"] != times || d.Delivery.Attempt != 1 {
						t.Errorf("delivery %d is of %s with %v, attempt %d", i, d.topic, d.properties, d.Delivery.Attempt)
					}
				}
				if len(ids) != deliveries || !ids["m"] {
					t.Errorf("%d message IDs, want one of each delivery: %v", len(ids), ids)
				}
				if s := b.Stats("sub1", "topic1"); s.Acked != 1 || s.Backlog.Messages != 0 {
					t.Errorf("the original is not acknowledged: %+v", s)
				}
				if s := b.Stats("sub1", want.retry); s.Backlog.Messages != 0 {
					t.Errorf("the retry topic has %+v", s)
				}
				letters := make(chan *tidegate.Delivery, 10)
				defer b.Consume("ops", want.dead, func(_ context.Context, d *tidegate.Delivery) error { letters <- d; return nil })()
				time.Sleep(time.Minute)
				if len(letters) != 1 {
					t.Fatalf("%d dead letters in %s", len(letters), want.dead)
				}
				if d := <-letters; string(d.Body) != "x" || d.Tag != "tag" || ids[d.ID] || d.Properties["REAL_TOPIC"] != "topic1" || d.Properties["RECONSUMETIMES"] != strconv.Itoa(want.retries) {
					t.Errorf("the dead letter is %+v", d)
				}
			})
		})
	}
}

// Where the group has no retry topics, the message is retried in its own topic after the same
// delay, and the outcome has the broker's reason.
//
// TDMQ for Pulsar: retry and dead letters: "It is disabled by default. Messages are sent to the
// retry topic only when the reconsumeLater() API is called."
func TestReconsumeWithoutRetryTopicsThroughTheSDK(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("topic1", settings.Topic{})
		b.CreateGroup("sub1", settings.Group{MaxAttempts: 4})
		fails := []error{consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: 20 * time.Minute}, errAway), consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Level: 3}, errAway), consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, errAway), consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, errAway)}
		n := 0
		list := story(t, b, b.Client(), 25*time.Minute, func(context.Context, *tidegate.Delivery) error { n++; return fails[n-1] })
		if got, want := waits(list), []time.Duration{20 * time.Minute, 10 * time.Second, 10 * time.Second}; !slices.Equal(got, want) {
			t.Errorf("it was delivered again after %v, want %v", got, want) // the third failure's level is 3
		}
		for i, d := range list {
			want := consumer.Retried
			if i == 3 {
				want = consumer.DeadLettered
			}
			e, _ := errors.AsType[*tidegate.Error](d.SettleErr)
			if d.Disposition != want || d.Delivery.Attempt != i+1 || d.Delivery.ID != "m" || e == nil || e.Code != tidegate.CodeBadRequest {
				t.Errorf("delivery %d: %+v", i, d.Outcome)
			}
		}
		for _, topic := range b.Topics() {
			if topic.Name == "topic1-sub1-RETRY" {
				t.Error("a retry topic was created")
			}
		}
	})
}

// TDMQ for Pulsar: retry and dead letters: "When a token is used to access the retry/dead letter
// queue, you need to grant the message production permission to the role used by the consumer"
func TestReconsumeNeedsToSendThroughTheSDK(t *testing.T) {
	for granted, want := range map[string]consumer.Disposition{
		"": consumer.Retried, "topic1-sub1-RETRY": consumer.Retried, "topic1-sub1-*": consumer.Reconsumed,
	} {
		synctest.Test(t, func(t *testing.T) {
			allow := []server.Rule{{Actions: []server.Action{server.ActionReceive}, Topics: []string{"topic1"}, Groups: []string{"sub1"}}}
			if granted != "" {
				allow = append(allow, server.Rule{Actions: []server.Action{server.ActionSend}, Topics: []string{granted}})
			}
			b := brokertest.NewWith(t, brokertest.Options{Access: server.AccessConfig{Keys: []server.Key{
				{Name: "billing", Secrets: []server.Secret{server.NewSecret("secret")}, Allow: allow},
			}}})
			b.CreateTopic("topic1", settings.Topic{})
			b.CreateGroup("sub1", retryGroup(settings.RetryTopic{}))
			c := b.ClientWith(rocketmq.Options{Credentials: tidegate.Credentials{AccessKey: "billing", SecretKey: "secret"}})
			first := true
			list := story(t, b, c, 2*time.Minute, func(context.Context, *tidegate.Delivery) error {
				if first {
					first = false
					return consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: time.Minute}, errAway)
				}
				return nil
			})
			if len(list) != 2 || list[0].Disposition != want || list[1].Disposition != consumer.Acked || list[1].at-list[0].at != time.Minute {
				t.Fatalf("with a right to send to %q: %+v, want %v", granted, list, want)
			}
			if denied := errors.Is(list[0].SettleErr, tidegate.ErrForbidden); denied != (want == consumer.Retried) {
				t.Errorf("with a right to send to %q: %v", granted, list[0].SettleErr)
			}
		})
	}
}

// TDMQ for Pulsar: retry and dead letters: "The message will be re-obtained after a certain period.
// The interval for re-obtaining the message can be specified by negativeAckRedeliveryDelay in the
// consumer"
// TDMQ for Pulsar: retry and dead letters: "After receiving the redelivery request from the client,
// the server repushes the message to the client"
// TDMQ for Pulsar: retry and dead letters: "In this mode, no new message is generated."
// TDMQ for Pulsar: retry and dead letters: "1 minute by default."
// TDMQ for Pulsar: retry and dead letters: "Under the negativeAcknowledge retry mechanism, messages
// to retry remain unacknowledged on the server."
// TDMQ for Pulsar: retry and dead letters: "Under the negativeAcknowledge retry mechanism, there is
// no maximum number of retries by default."
// TDMQ for Pulsar: retry and dead letters: "However, this can be implemented by configuring the
// maximum number of retries and the dead letter queue. In this mode, when a message has been
// retried for a specified number of times, it will be delivered to the dead letter queue."
// TDMQ for Pulsar: retry and dead letters: "Under the negativeAcknowledge retry mechanism, the
// number of retries can be obtained from msg.getRedeliveryCount()."
func TestNegativeAckThroughTheSDK(t *testing.T) {
	for name, tt := range map[string]struct {
		config settings.NegativeAck
		delay  time.Duration
		wait   time.Duration
		ends   int // at that delivery
		want   consumer.Disposition
	}{
		"as it is":       {settings.NegativeAck{}, 0, time.Minute, 6, consumer.Acked}, // the group allows 3 attempts, which do not count
		"group's delay":  {settings.NegativeAck{Delay: settings.Duration(10 * time.Minute)}, 0, 10 * time.Minute, 3, consumer.Acked},
		"own delay":      {settings.NegativeAck{Delay: settings.Duration(10 * time.Minute)}, 7 * time.Second, 7 * time.Second, 5, consumer.Acked},
		"with a maximum": {settings.NegativeAck{MaxRedeliveries: 5}, time.Second, time.Second, 6, consumer.DeadLettered},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := brokertest.New(t)
				b.CreateTopic("topic1", settings.Topic{})
				b.CreateGroup("sub1", settings.Group{MaxAttempts: 3, NegativeAck: tt.config})
				list := story(t, b, b.Client(), time.Duration(tt.ends)*tt.wait+time.Minute, func(_ context.Context, d *tidegate.Delivery) error {
					if s := b.Stats("sub1", "topic1"); s.Backlog.Messages != 1 || s.Acked != 0 {
						t.Errorf("it is acknowledged: %+v", s)
					}
					if d.Attempt == tt.ends && tt.want == consumer.Acked {
						return nil
					}
					return consumer.Reconsume(transport.Verdict{Kind: transport.NegativeAck, Delay: tt.delay}, errAway)
				})
				if len(list) != tt.ends || list[tt.ends-1].Disposition != tt.want {
					t.Fatalf("%d deliveries, the last %+v; want %d and %v", len(list), list[len(list)-1].Outcome, tt.ends, tt.want)
				}
				for i, d := range list {
					if d.Delivery.ID != "m" || d.Delivery.Attempt != i+1 || i > 0 && d.at-list[i-1].at != tt.wait {
						t.Errorf("delivery %d: %s, attempt %d, at %v", i, d.Delivery.ID, d.Delivery.Attempt, d.at)
					}
					if i < tt.ends-1 && (d.Disposition != consumer.Retried || d.SettleErr != nil || d.Delay != tt.wait) {
						t.Errorf("delivery %d: %+v", i, d.Outcome)
					}
				}
				if tt.want == consumer.DeadLettered {
					if letter := b.WaitDeadLetter("sub1"); letter.MessageID != "m" {
						t.Errorf("the dead letter is %s", letter.MessageID)
					}
				}
			})
		})
	}
}

// A simple consumer of the SDK settles deliveries in the same ways, and gets their fates as
// results.
func TestSimpleConsumerReconsumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("topic1", settings.Topic{})
		b.CreateGroup("sub1", retryGroup(settings.RetryTopic{MaxRetries: 1}))
		c, err := consumer.NewSimple(b.Client(), consumer.Subscription{Group: "sub1", Topic: "topic1"}, consumer.SimpleOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b.Send(&tidegate.Message{Topic: "topic1", ID: "m", Body: []byte("x")})
		for i, tt := range []struct {
			mode transport.Verdict
			dead bool
			wait time.Duration
		}{
			{transport.Verdict{Kind: transport.NegativeAck}, false, time.Minute},
			{transport.Verdict{Kind: transport.RetryTopic, Level: 5}, false, time.Minute},
			{transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour}, true, 0},
		} {
			start := time.Now()
			var ds []*tidegate.Delivery
			var err error
			for polls := 0; err == nil && len(ds) == 0 && polls < 10; polls++ {
				ds, err = c.Receive(t.Context(), 1)
			}
			if err != nil || len(ds) != 1 {
				t.Fatalf("delivery %d: %v, %v", i, ds, err)
			}
			if i > 0 && time.Since(start).Round(100*time.Millisecond) != time.Minute {
				t.Errorf("delivery %d after %v", i, time.Since(start))
			}
			got, err := c.Settle(t.Context(), ds[0], tt.mode)
			if err != nil || (got.Fate == transport.FateDeadLetter) != tt.dead || got.Delay.Round(100*time.Millisecond) != tt.wait {
				t.Errorf("delivery %d: %+v, %v", i, got, err)
			}
			if err := c.Ack(t.Context(), ds[0]); !errors.Is(err, tidegate.ErrInvalidHandle) {
				t.Errorf("delivery %d was acknowledged afterwards: %v", i, err)
			}
		}
	})
}
