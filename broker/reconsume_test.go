package broker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// one receives the next message of a topic.
func one(t *testing.T, b *broker.Broker, group, topic string) *tidegate.Delivery {
	t.Helper()
	ds := receive(t, b, transport.ReceiveRequest{Group: group, Topic: topic, Wait: 300 * time.Hour})
	assert.MustEqual(t, "deliveries", len(ds), 1)
	return ds[0]
}

// TDMQ for Pulsar: retry and dead letters: "After reconsumeLater is executed, the original message
// in the topic is acknowledged and transferred to the retry topic. When the number of retries
// reaches the upper limit, the message is transferred to the dead letter queue. The PulsarClient
// automatically subscribes to the retry topic. However, messages in the dead letter queue are not
// automatically subscribed to"
//
// TDMQ for Pulsar: retry and dead letters: "Written to dead letter queue at the 17th retry"
//
// TDMQ for Pulsar: retry and dead letters: "REAL_TOPIC: original topic. ORIGIN_MESSAGE_ID: ID of
// the originally produced message. RETRY_TOPIC: retry topic. RECONSUMETIMES: number of message
// retries."
//
// Every retry has a message ID of its own.
//
// TDMQ for Pulsar: retry and dead letters: "Original consumption: msgid=1:1:0:1 First retry:
// msgid=2:1:-1 Second retry: msgid=2:2:-1"
// TDMQ for Pulsar: retry and dead letters: "When the number of retries reaches a threshold, no
// retry is performed, and the message is delivered to the dead letter topic"
// TDMQ for Pulsar: retry and dead letters: "You can write a dedicated client to subscribe to the
// dead letter topic to process such messages"
// TDMQ for Pulsar: retry and dead letters: "If the number of message retries reaches the maximum
// limit, the message is delivered to the dead letter queue. (Messages delivered to the dead letter
// queue are not automatically consumed. If required, users create additional consumers for
// consumption.) If the number of message retries does not reach the maximum limit, the message is
// delivered to the retry queue"
// TDMQ for Pulsar: retry and dead letters: "If consumption fails after the maximum number of
// retries is reached, the message is delivered to the corresponding dead letter queue for manual
// handling"
// TDMQ for Pulsar: retry and dead letters: "The number of retries is set to 16. (After 16 retries,
// a message is delivered to the dead letter queue at the 17th retry.)"
// TDMQ for Pulsar: retry and dead letters: "The interval increases progressively with each attempt.
// The specific interval is determined by the MESSAGE_DELAYLEVEL constant introduced in the second
// mode"
// TDMQ for Pulsar: retry and dead letters: "The number of retries obtained through the
// msg.getRedeliveryCount() API is the number of retries under the negativeAcknowledge retry
// mechanism"
func TestReconsumeLater(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "topic1", settings.Topic{})
		putGroup(t, b, "sub1", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})
		mustSend(t, b, &tidegate.Message{Topic: "topic1", ID: "m", Body: []byte("x"), Tag: "a", Properties: map[string]string{"k": "v"}})
		levels := settings.RetryTopic{}.WithDefaults().Levels
		ids := map[string]bool{"m": true}
		d := one(t, b, "sub1", "topic1")
		for times := 1; times <= 16; times++ {
			asked := time.Now()
			r := assert.Value(serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic}))(t)
			assert.MustThat(t, r.Topic == "topic1-sub1-RETRY" && r.Times == times && !r.DeadLetter && !ids[r.MessageID],
				"retry %d: %+v", times, r)
			ids[r.MessageID] = true
			assert.MustIs(t, "the original is not acknowledged", b.Ack(t.Context(), []*tidegate.Delivery{d})[0], tidegate.ErrInvalidHandle)
			d = one(t, b, "sub1", "topic1") // of the original topic
			waited := time.Since(asked)
			assert.That(t, waited == levels.Delay(times-1), "retry %d came after %v", times, waited)
			want := map[string]string{
				"REAL_TOPIC": "topic1", "ORIGIN_MESSAGE_ID": "m", "RETRY_TOPIC": "topic1-sub1-RETRY", "RECONSUMETIMES": fmt.Sprint(times), "k": "v",
			}
			if fmt.Sprint(d.Properties) != fmt.Sprint(want) || d.ID != r.MessageID || d.Topic != "topic1" || d.Tag != "a" || string(d.Body) != "x" || d.Attempt != 1 {
				t.Fatalf("retry %d: %+v", times, d)
			}
		}
		r, err := serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour})
		if err != nil || r.Topic != "topic1-sub1-DLQ" || !r.DeadLetter || r.Times != 16 || !r.DeliverAt.IsZero() || ids[r.MessageID] {
			t.Fatalf("the 17th: %+v, %v", r, err)
		}
		if ds := receive(t, b, transport.ReceiveRequest{Group: "sub1", Topic: "topic1", Wait: 300 * time.Hour}); len(ds) != 0 {
			t.Errorf("a dead letter was delivered: %+v", ds[0])
		}
		ds := receiveAll(t, b, "topic1-sub1-DLQ")
		if len(ds) != 1 || ds[0].ID != r.MessageID || ds[0].Properties["RECONSUMETIMES"] != "16" || ds[0].Properties["ORIGIN_MESSAGE_ID"] != "m" {
			t.Fatalf("%d dead letters", len(ds))
		}
		o, ok := ds[0].DeadLetter()
		assert.That(t, ok && o.Topic == "topic1" && o.MessageID == "m" && o.Group == "sub1", "the origin is %+v, %t", o, ok)
		if g, err := b.Group("sub1"); err != nil || len(g.Topics) != 2 || g.Topics[0].Backlog.Messages+g.Topics[1].Backlog.Messages != 0 || g.Topics[1].DeadLetters != 1 {
			t.Errorf("the group has %+v, %v", g.Topics, err)
		}
	})
}

// TDMQ for Pulsar: retry and dead letters: "It is disabled by default. Messages are sent to the
// retry topic only when the reconsumeLater() API is called."
func TestRetryTopicsAreOffByDefault(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		d := one(t, b, "g", "t")
		var e *tidegate.Error
		if _, err := serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic}); !errors.As(err, &e) || e.Code != tidegate.CodeBadRequest || !strings.Contains(err.Error(), "retry_topic.enabled") {
			t.Errorf("%v", err)
		}
		putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})
		if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: time.Second}); err != nil { // no ReconsumeLater
			t.Fatal(err)
		}
		if d = one(t, b, "g", "t"); d.Attempt != 2 || d.Properties["RETRY_TOPIC"] != "" {
			t.Errorf("%+v", d)
		}
		if ds := receiveAll(t, b, "t-g-RETRY"); len(ds) != 0 { // made by the first receive
			t.Errorf("%d messages in the retry topic", len(ds))
		}
		// A message that fails without it becomes a dead letter in the same place.
		settle(t, b, d, transport.Verdict{Kind: transport.DeadLetter, Reason: "no use"})
		assert.Equal(t, "dead letters", len(receiveAll(t, b, "t-g-DLQ")), 1)
	})
}

// TDMQ for Pulsar: retry and dead letters: "sub1 automatically subscribes to the retry topic
// automatically created during initial subscription creation (available in the topic list of the
// console)"
func TestRetryTopicIsMadeWithTheSubscription(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "topic1", settings.Topic{})
	putGroup(t, b, "sub1", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})
	receive(t, b, transport.ReceiveRequest{Group: "sub1", Topic: "topic1"})
	var topics []string
	for _, topic := range b.Topics() {
		topics = append(topics, topic.Name)
	}
	if want := []string{"topic1", "topic1-sub1-RETRY"}; !slices.Equal(topics, want) {
		t.Errorf("the topics are %q, want %q", topics, want)
	}
	g, err := b.Group("sub1")
	assert.That(t, err == nil && len(g.Topics) == 2 && g.Topics[1].Topic == "topic1-sub1-RETRY", "the group has %+v, %v", g.Topics, err)
}

// With the older namings, one retry topic serves all topics of a group: a delivery has its topic,
// and can be settled.
func TestSharedRetryTopic(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, Naming: "2.6.1"}})
		for _, topic := range []string{"t1", "t2"} {
			putTopic(t, b, topic, settings.Topic{})
			mustSend(t, b, &tidegate.Message{Topic: topic, ID: "of " + topic, Body: []byte("x")})
			r, err := serve(b).ReconsumeLater(t.Context(), one(t, b, "g", topic), transport.Verdict{Kind: transport.RetryTopic, Level: 1})
			assert.MustThat(t, err == nil && r.Topic == "g-retry", "%+v, %v", r, err)
		}
		for range 2 {
			d := one(t, b, "g", "t1")
			assert.That(t, d.Properties["ORIGIN_MESSAGE_ID"] == "of "+d.Topic, "%s: %q", d.Topic, d.Properties)
			assert.NoError(t, b.Ack(t.Context(), []*tidegate.Delivery{d})[0])
		}
		_, err := b.PutGroup(t.Context(), "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})
		assert.That(t, err != nil && strings.Contains(err.Error(), "g-retry"), "the naming changed under a group that uses it: %v", err)
		for _, c := range []settings.Group{{RetryTopic: settings.RetryTopic{Enabled: true}}, {FIFO: true}, {MaxAttempts: -2}} {
			_, put := b.PutGroup(t.Context(), "g", c)
			err := b.CheckGroup("g", c)
			assert.That(t, err != nil && put != nil && err.Error() == put.Error(), "it is checked as %v and put as %v", err, put)
		}
		err = errors.Join(b.CheckGroup("g", settings.Group{}), b.CheckGroup("new", settings.Group{FIFO: true}))
		assert.That(t, err != nil && strings.Contains(err.Error(), "g-retry") && !strings.Contains(err.Error(), "new"), "%v", err)
		putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, Naming: "2.6.1", MaxRetries: 1}})
	})
}

// A receive that waits is woken by both: a new message, and one of the retry topic.
//
// TDMQ for Pulsar: retry and dead letters: "the retry queue corresponding to the subscription name
// is automatically subscribed to"
// TDMQ for Pulsar: retry and dead letters: "a delayed message is delivered to the retry queue, and
// the delay time is specified by the user in reconsumeLater"
func TestRetryTopicWakes(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "retried", Body: []byte("x")})
		_, err := serve(b).ReconsumeLater(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour})
		assert.MustThat(t, err == nil, "%+v", err)
		start := time.Now()
		time.AfterFunc(time.Minute, func() { mustSend(t, b, &tidegate.Message{Topic: "t", ID: "new", Body: []byte("x")}) })
		if d := one(t, b, "g", "t"); d.ID != "new" || time.Since(start) != time.Minute {
			t.Errorf("%s came after %v", d.ID, time.Since(start))
		} else {
			b.Ack(t.Context(), []*tidegate.Delivery{d})
		}
		if d := one(t, b, "g", "t"); d.Properties["ORIGIN_MESSAGE_ID"] != "retried" || time.Since(start) != time.Hour {
			t.Errorf("%s came after %v", d.ID, time.Since(start))
		}
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Second})
		assert.That(t, len(ds) == 0 && time.Since(start) == time.Hour+time.Second, "%d deliveries after %v", len(ds), time.Since(start))
		for _, s := range serve(b).Stats().Groups {
			assert.That(t, s.Waiting == 0, "%d receives are left in line for %s", s.Waiting, s.Topic)
		}
	})
}

// Power fails at a random moment of retries: every message is with the group
// afterwards, as itself or as a retry of it, and never as both.
func TestReconsumeSurvivesPowerLoss(t *testing.T) {
	t.Parallel()
	runSequences(t, "model", *modelSeed, soak(8), loseReconsumed)
}

func loseReconsumed(t *testing.T, seed uint64) {
	const n = 20
	moved := map[string]bool{}
	b := losePower(t, rand.New(rand.NewPCG(seed, 0)), n, func(b *broker.Broker, p *powerCut) {
		putTopic(t, b, "t", settings.Topic{Queues: 2})
		putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, SubscriptionType: "failover"}})
		for i := range n {
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: fmt.Sprint(i), Body: []byte("x")})
		}
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: n, InvisibleDuration: time.Minute})
		for _, d := range ds {
			assert.Must(t, assert.Err(serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic})))
			p.responded(func() { moved[d.ID] = true })
		}
	})
	asItself, asRetry := map[string]int{}, map[string]int{}
	for {
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: n, InvisibleDuration: time.Hour, Wait: 2 * time.Minute})
		if len(ds) == 0 {
			break
		}
		for _, d := range ds {
			if origin := d.Properties["ORIGIN_MESSAGE_ID"]; origin != "" {
				asRetry[origin]++
			} else {
				asItself[d.ID]++
			}
		}
	}
	for i := range n {
		id := fmt.Sprint(i)
		if asItself[id]+asRetry[id] != 1 || moved[id] && asRetry[id] != 1 {
			t.Errorf("message %s was delivered %d times itself, %d times as a retry; its retry was confirmed: %t", id, asItself[id], asRetry[id], moved[id])
		}
	}
}

// deadAfter sends a message to topic and has the group retry it through its
// retry topic until it is a dead letter.
func deadAfter(t *testing.T, b *broker.Broker, group, topic string, retries int) {
	t.Helper()
	mustSend(t, b, &tidegate.Message{Topic: topic, ID: "m", Body: []byte("x")})
	for i := range retries + 1 {
		r, err := serve(b).ReconsumeLater(t.Context(), one(t, b, group, topic), transport.Verdict{Kind: transport.RetryTopic})
		assert.MustThat(t, err == nil && r.DeadLetter == (i == retries), "retry %d: %+v, %v", i+1, r, err)
	}
}

// A consumed dead letter is retried as a message of its dead letter topic. Its retries begin again,
// and reach the consumers of that topic: those of another group, or of the group that failed.
func TestDeadLettersAreReconsumed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		naming      string
		group       string // that consumes the dead letters
		dead, retry string // topics
		deadAgain   string
	}{
		{"2.9.2", "g2", "t-g-DLQ", "t-g-DLQ-g2-RETRY", "t-g-DLQ-g2-DLQ"},
		{"2.9.2", "g", "t-g-DLQ", "t-g-DLQ-g-RETRY", "t-g-DLQ-g-DLQ"},
		{"2.7.2", "g2", "g-DLQ", "g2-RETRY", "g2-DLQ"},
		{"2.7.2", "g", "g-DLQ", "g-RETRY", "g-DLQ"},
	} {
		subtest(t, fmt.Sprint(c.naming, c.group), func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{})
			for _, g := range []string{"g", "g2"} {
				putGroup(t, b, g, settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, Naming: c.naming, MaxRetries: 3}})
			}
			deadAfter(t, b, "g", "t", 3)
			for times := 1; times <= 3; times++ {
				d := one(t, b, c.group, c.dead)
				assert.MustThat(t, times != 1 || d.Properties["RECONSUMETIMES"] == "3", "the dead letter: %q", d.Properties)
				asked := time.Now()
				r, err := serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic})
				if err != nil || r.Topic != c.retry || r.Times != times || r.DeadLetter || r.DeliverAt.Sub(asked) != (settings.RetryTopic{}).WithDefaults().Levels.Delay(times-1) {
					t.Fatalf("retry %d: %+v, %v", times, r, err)
				}
			}
			d := one(t, b, c.group, c.dead)
			if d.Topic != c.dead || d.Properties["REAL_TOPIC"] != c.dead || d.Properties["RETRY_TOPIC"] != c.retry || d.Properties["RECONSUMETIMES"] != "3" {
				t.Errorf("%s: %q", d.Topic, d.Properties)
			}
			r, err := serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic})
			assert.That(t, err == nil && r.DeadLetter && r.Topic == c.deadAgain, "%+v, %v", r, err)
			ds := receiveAll(t, b, c.deadAgain)
			last := ds[len(ds)-1]
			origin, ok := last.DeadLetter()
			assert.That(t, ok && last.ID == r.MessageID && origin.Topic == "t" && origin.MessageID == "m", "%+v, %+v", last, origin)
		})
	}
}

// A message that was sent to a retry topic is retried there.
func TestMessageSentToARetryTopic(t *testing.T) {
	t.Parallel()
	for naming, retry := range map[string]string{"2.9.2": "t-g-RETRY", "2.6.1": "g-retry"} {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{})
			putTopic(t, b, retry, settings.Topic{})
			putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, Naming: naming}})
			mustSend(t, b, &tidegate.Message{Topic: retry, ID: "m", Body: []byte("x")})
			for times := 1; times <= 2; times++ {
				d := one(t, b, "g", "t")
				r, err := serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic})
				assert.MustThat(t, err == nil && r.Topic == retry && r.Times == times, "%+v, %v", r, err)
			}
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Hour})
			assert.That(t, len(ds) == 1, "%s: it is not redelivered", naming)
		})
	}
}

// A group's retry topic is never its dead letter topic too, with any settings of the two names.
func TestRetryTopicIsNoDeadLetterTopic(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	for _, c := range []struct {
		config settings.RetryTopic
		ok     bool
	}{
		{settings.RetryTopic{}, true},
		{settings.RetryTopic{Topic: "x", DeadLetterTopic: "x"}, false},
		{settings.RetryTopic{Topic: "x", DeadLetterTopic: "y"}, true},
		{settings.RetryTopic{Naming: "2.7.2", Topic: "g-DLQ"}, false},
		{settings.RetryTopic{Naming: "2.7.2", Topic: "g-dlq"}, true},
		{settings.RetryTopic{Naming: "2.7.2", DeadLetterTopic: "g-RETRY"}, false},
		{settings.RetryTopic{Naming: "2.6.1", Topic: "g-dlq"}, false},
		{settings.RetryTopic{Naming: "2.6.1", DeadLetterTopic: "g-retry"}, false},
		{settings.RetryTopic{Topic: "t-g-DLQ"}, false}, // of topic t
		{settings.RetryTopic{Topic: "t-h-DLQ"}, true},
		{settings.RetryTopic{DeadLetterTopic: "t-g-RETRY"}, false},
		{settings.RetryTopic{DeadLetterTopic: "t-g-DLQ"}, true},
	} {
		_, err := b.PutGroup(t.Context(), "g", settings.Group{RetryTopic: c.config})
		assert.That(t, (err == nil) == c.ok, "%+v: %v", c.config, err)
		assert.That(t, err == nil || strings.Contains(err.Error(), "retry_topic"), "the error does not name the fault: %v", err)
	}
}

// Retry topics can get other names once they are switched off, but not while
// the group has retries in the old ones that it would never receive.
func TestRetryTopicsAreRenamedWhenEmpty(t *testing.T) {
	t.Parallel()
	on := settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}}
	renamed := settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, Naming: "2.7.2"}}
	for name, c := range map[string]struct {
		received bool // from the retry topic too
		mode     transport.Verdict
		wait     time.Duration
	}{
		"delayed":                    {false, transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour}, 0},
		"delayed, received before":   {true, transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour}, 0},
		"there":                      {false, transport.Verdict{Kind: transport.RetryTopic, Level: 1}, time.Minute},
		"there, and received before": {true, transport.Verdict{Kind: transport.RetryTopic, Level: 1}, time.Minute},
	} {
		subtest(t, name, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{})
			putGroup(t, b, "g", settings.Group{})
			if c.received {
				putGroup(t, b, "g", on)
			}
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
			d := one(t, b, "g", "t")
			putGroup(t, b, "g", on)
			assert.Must(t, assert.Err(serve(b).ReconsumeLater(t.Context(), d, c.mode)))
			elapse(c.wait)
			putGroup(t, b, "g", settings.Group{})
			_, err := b.PutGroup(t.Context(), "g", renamed)
			assert.That(t, err != nil && strings.Contains(err.Error(), "t-g-RETRY"), "renamed with a retry in it: %v", err)
			putGroup(t, b, "g", on)
			d = one(t, b, "g", "t")
			assert.MustThat(t, d.Properties["ORIGIN_MESSAGE_ID"] == "m", "%+v", d)
			assert.Must(t, b.Ack(t.Context(), []*tidegate.Delivery{d})[0])
			putGroup(t, b, "g", settings.Group{})
			putGroup(t, b, "g", renamed)
		})
	}
}

// The names of two topics and groups may make one name of a retry topic. Each
// group gets its own retries from it, and no other ones.
func TestTwoPairsWithOneRetryTopic(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		pairs := []struct{ topic, group string }{{"T-X", "B"}, {"T", "X-B"}}
		for _, p := range pairs {
			putTopic(t, b, p.topic, settings.Topic{})
			putGroup(t, b, p.group, settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})
			for i := range 3 {
				mustSend(t, b, &tidegate.Message{Topic: p.topic, ID: fmt.Sprint(p.topic, i), Body: []byte("x")})
				r, err := serve(b).ReconsumeLater(t.Context(), one(t, b, p.group, p.topic), transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour})
				assert.MustThat(t, err == nil && r.Topic == "T-X-B-RETRY", "%+v, %v", r, err)
			}
		}
		for _, p := range pairs {
			for range 3 {
				d := one(t, b, p.group, p.topic)
				assert.That(t, d.Topic == p.topic && strings.HasPrefix(d.Properties[protocol.PropertyOriginMessageID], p.topic),
					"%s got a message of %s: %v", p.group, d.Topic, d.Properties)
				ackDeliveries(t, b, []*tidegate.Delivery{d})
			}
			if ds := receive(t, b, transport.ReceiveRequest{Group: p.group, Topic: p.topic, Wait: time.Hour}); len(ds) != 0 {
				t.Errorf("%s got %+v too", p.group, ds[0].Message)
			}
			g := assert.Value(b.Group(p.group))(t)
			for _, s := range g.Topics {
				assert.That(t, s.Backlog == (status.Backlog{}), "%s is left with %+v of %s", p.group, s.Backlog, s.Topic)
			}
		}
	})
}

// A receive that would create its group's retry topic ends with its context while settings change.
func TestReceiveEndsWhileItsRetryTopicIsMade(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})
		defer holdSettings(t, b)()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := b.Receive(ctx, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Hour, InvisibleDuration: time.Minute})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// A receive waits for its topic, though the group's retry topic is deleted meanwhile.
func TestRetryTopicIsDeletedWhileAReceiveWaits(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]bool{"waiting": false, "with retries": true} {
		subtest(t, name, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{Queues: 1})
			putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})
			receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
			if busy {
				mustSend(t, b, &tidegate.Message{Topic: "t", ID: "lost", Body: []byte("x")})
				_, err := serve(b).ReconsumeLater(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour})
				assert.MustThat(t, err == nil, "%+v", err)
			}
			start := time.Now()
			time.AfterFunc(time.Minute, func() {
				assert.NoError(t, b.DeleteTopic(t.Context(), "t-g-RETRY"))
			})
			time.AfterFunc(2*time.Minute, func() { mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")}) })
			d := one(t, b, "g", "t")
			if d.ID != "m" || time.Since(start) != 2*time.Minute {
				t.Errorf("%s came after %v", d.ID, time.Since(start))
			}
			ackDeliveries(t, b, []*tidegate.Delivery{d})
			receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
			assert.NoError(t, assert.Err(b.Topic("t-g-RETRY")), "the next receive does not make it anew")
			time.AfterFunc(time.Minute, func() {
				assert.NoError(t, b.DeleteGroup(t.Context(), "g"))
			})
			ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Hour, InvisibleDuration: time.Minute})
			assert.That(t, errors.Is(err, tidegate.ErrNotFound) && len(ds) == 0, "its group was deleted: %d deliveries, %v", len(ds), err)
		})
	}
}

// A retry topic that was named for a group is no other group's.
func TestRetryTopicOfTwoGroups(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		g, h settings.RetryTopic
		ok   bool
	}{
		{settings.RetryTopic{Topic: "x"}, settings.RetryTopic{Topic: "x"}, false},
		{settings.RetryTopic{Topic: "x"}, settings.RetryTopic{Topic: "y"}, true},
		{settings.RetryTopic{Topic: "x"}, settings.RetryTopic{}, true},
		{settings.RetryTopic{Topic: "x", DeadLetterTopic: "d"}, settings.RetryTopic{Topic: "y", DeadLetterTopic: "d"}, true},
		{settings.RetryTopic{Topic: "t-h-RETRY"}, settings.RetryTopic{}, false},
		{settings.RetryTopic{}, settings.RetryTopic{Topic: "t-g-RETRY"}, false},
		{settings.RetryTopic{Topic: "h-RETRY"}, settings.RetryTopic{Naming: "2.7.2"}, false},
		{settings.RetryTopic{Naming: "2.6.1"}, settings.RetryTopic{Topic: "g-retry"}, false},
		{settings.RetryTopic{Naming: "2.7.2"}, settings.RetryTopic{Naming: "2.7.2"}, true},
	} {
		b := open(t, broker.Options{})
		c.g.Enabled = true
		putGroup(t, b, "g", settings.Group{RetryTopic: c.g})
		putGroup(t, b, "h", settings.Group{RetryTopic: c.h}) // not enabled: nothing goes there
		c.h.Enabled = true
		_, err := b.PutGroup(t.Context(), "h", settings.Group{RetryTopic: c.h})
		assert.That(t, (err == nil) == c.ok && (err == nil || strings.Contains(err.Error(), "retry_topic.topic")),
			"%+v beside %+v: %v", c.h, c.g, err)
	}
}

// TDMQ for Pulsar: retry and dead letters: "In this mode, no new message is generated."
//
// TDMQ for Pulsar: retry and dead letters: "1 minute by default."
//
// TDMQ for Pulsar: retry and dead letters: "Under the negativeAcknowledge retry mechanism, messages
// to retry remain unacknowledged on the server."
//
// TDMQ for Pulsar: retry and dead letters: "Under the negativeAcknowledge retry mechanism, the
// number of retries can be obtained from msg.getRedeliveryCount()."
//
// TDMQ for Pulsar: retry and dead letters: "Under the negativeAcknowledge retry mechanism, there is
// no maximum number of retries by default."
// TDMQ for Pulsar: retry and dead letters: "After receiving the redelivery request from the client,
// the server repushes the message to the client"
func TestNegativeAck(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b, fs := openData(t)
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 2})
		putAddress(t, b, "t", settings.Address{RedeliveryDelay: new(settings.Milliseconds(7)), MaxDeliveryAttempts: new(3)})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
		d := one(t, b, "g", "t")
		for attempt := 2; attempt <= 40; attempt++ {
			asked := time.Now()
			assert.Must(t, serve(b).NegativeAck(t.Context(), d, 0))
			if attempt == 20 {
				b = reopen(t, b, fs)
			}
			if g, err := b.Group("g"); err != nil || g.Topics[0].Backlog.Messages != 1 || g.Topics[0].Acked != 0 {
				t.Fatalf("while it waits the group has %+v, %v", g.Topics, err)
			}
			if d = one(t, b, "g", "t"); d.ID != "m" || d.Attempt != attempt || time.Since(asked) != time.Minute {
				t.Fatalf("%s, attempt %d, came after %v", d.ID, d.Attempt, time.Since(asked))
			}
		}
	})
}

// TDMQ for Pulsar: retry and dead letters: "The message will be re-obtained after a certain period.
// The interval for re-obtaining the message can be specified by negativeAckRedeliveryDelay in the
// consumer"
func TestNegativeAckDelays(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{NegativeAck: settings.NegativeAck{Delay: settings.Duration(time.Hour)}})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		d := one(t, b, "g", "t")
		for given, want := range map[time.Duration]time.Duration{0: time.Hour, time.Nanosecond: time.Nanosecond, settings.MaxReconsumeDelay: settings.MaxReconsumeDelay} {
			asked := time.Now()
			assert.Must(t, serve(b).NegativeAck(t.Context(), d, given))
			if d = one(t, b, "g", "t"); time.Since(asked) != want {
				t.Errorf("%v: it came after %v", given, time.Since(asked))
			}
		}
		for _, delay := range []time.Duration{-1, settings.MaxReconsumeDelay + 1} {
			err := serve(b).NegativeAck(t.Context(), d, delay)
			assert.That(t, errors.Is(err, tidegate.ErrInvalid), "%v: %v", delay, err)
		}
	})
}

// TDMQ for Pulsar: retry and dead letters: "However, this can be implemented by configuring the
// maximum number of retries and the dead letter queue. In this mode, when a message has been
// retried for a specified number of times, it will be delivered to the dead letter queue."
func TestNegativeAckMaximum(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "sub1", settings.Group{
			NegativeAck: settings.NegativeAck{MaxRedeliveries: 5, Delay: settings.Duration(time.Second)},
			RetryTopic:  settings.RetryTopic{Enabled: true, DeadLetterTopic: "sub1-dlq"},
		})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
		var attempts []int
		for {
			ds := receive(t, b, transport.ReceiveRequest{Group: "sub1", Topic: "t", Wait: time.Hour})
			if len(ds) == 0 {
				break
			}
			attempts = append(attempts, ds[0].Attempt)
			assert.Must(t, serve(b).NegativeAck(t.Context(), ds[0], 0))
		}
		assert.Slices(t, "the attempts are", attempts, []int{1, 2, 3, 4, 5, 6})
		ds := receiveAll(t, b, "sub1-dlq")
		assert.That(t, len(ds) == 1 && ds[0].ID == "m", "%d dead letters", len(ds))
	})
}

// The mark of a negative acknowledgement lasts until the next delivery. A maximum that is lowered
// before that delivery does not end the message; one that is lowered after the next failure does.
func TestNegativeMarkEndsWithTheNextDelivery(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		allow := func(attempts int) {
			t.Helper()
			putGroup(t, b, "g", settings.Group{MaxAttempts: attempts, Retry: []time.Duration{time.Hour}})
		}
		allow(5)
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
		assert.Must(t, serve(b).NegativeAck(t.Context(), one(t, b, "g", "t"), time.Hour))
		allow(1)
		d := one(t, b, "g", "t")
		assert.MustEqual(t, "attempt", d.Attempt, 2)
		allow(5)
		settle(t, b, d, transport.Verdict{Kind: transport.Retry, Delay: time.Hour})
		allow(2)
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: 2 * time.Hour}); len(ds) != 0 {
			t.Errorf("attempt %d of 2", ds[0].Attempt)
		}
		ds := receiveAll(t, b, "%DLQ%g")
		assert.That(t, len(ds) == 1 && ds[0].ID == "m", "%d dead letters", len(ds))
	})
}
