package broker_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// one receives the next message of a topic.
func one(t *testing.T, b *broker.Broker, group, topic string) *tidegate.Delivery {
	t.Helper()
	ds := receive(t, b, transport.ReceiveRequest{Group: group, Topic: topic, Wait: 300 * time.Hour})
	if len(ds) != 1 {
		t.Fatalf("%d deliveries", len(ds))
	}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "topic1", settings.Topic{})
		putGroup(t, b, "sub1", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})
		mustSend(t, b, &tidegate.Message{Topic: "topic1", ID: "m", Body: []byte("x"), Tag: "a", Properties: map[string]string{"k": "v"}})
		levels := settings.RetryTopic{}.WithDefaults().Levels
		ids := map[string]bool{"m": true}
		d := one(t, b, "sub1", "topic1")
		for times := 1; times <= 16; times++ {
			asked := time.Now()
			r, err := serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic})
			if err != nil {
				t.Fatal(err)
			}
			if r.Topic != "topic1-sub1-RETRY" || r.Times != times || r.DeadLetter || ids[r.MessageID] {
				t.Fatalf("retry %d: %+v", times, r)
			}
			ids[r.MessageID] = true
			if err := b.Ack(t.Context(), []*tidegate.Delivery{d})[0]; !errors.Is(err, tidegate.ErrInvalidHandle) {
				t.Fatalf("the original is not acknowledged: %v", err)
			}
			d = one(t, b, "sub1", "topic1") // of the original topic
			if waited := time.Since(asked); waited != levels.Delay(times-1) {
				t.Errorf("retry %d came after %v", times, waited)
			}
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
		if o, ok := ds[0].DeadLetter(); !ok || o.Topic != "topic1" || o.MessageID != "m" || o.Group != "sub1" {
			t.Errorf("the origin is %+v, %t", o, ok)
		}
		if g, err := b.Group("sub1"); err != nil || len(g.Topics) != 2 || g.Topics[0].Backlog.Messages+g.Topics[1].Backlog.Messages != 0 || g.Topics[1].DeadLetters != 1 {
			t.Errorf("the group has %+v, %v", g.Topics, err)
		}
	})
}

// TDMQ for Pulsar: retry and dead letters: "It is disabled by default. Messages are sent to the
// retry topic only when the reconsumeLater() API is called."
func TestRetryTopicsAreOffByDefault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
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
		if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "no use"}); err != nil {
			t.Fatal(err)
		}
		if n := len(receiveAll(t, b, "t-g-DLQ")); n != 1 {
			t.Errorf("%d dead letters", n)
		}
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
	if g, err := b.Group("sub1"); err != nil || len(g.Topics) != 2 || g.Topics[1].Topic != "topic1-sub1-RETRY" {
		t.Errorf("the group has %+v, %v", g.Topics, err)
	}
}

// With the older namings, one retry topic serves all topics of a group: a delivery has its topic,
// and can be settled.
func TestSharedRetryTopic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, Naming: settings.RetryNaming261}})
		for _, topic := range []string{"t1", "t2"} {
			putTopic(t, b, topic, settings.Topic{})
			mustSend(t, b, &tidegate.Message{Topic: topic, ID: "of " + topic, Body: []byte("x")})
			if r, err := serve(b).ReconsumeLater(t.Context(), one(t, b, "g", topic), transport.Verdict{Kind: transport.RetryTopic, Level: 1}); err != nil || r.Topic != "g-retry" {
				t.Fatalf("%+v, %v", r, err)
			}
		}
		for range 2 {
			d := one(t, b, "g", "t1")
			if d.Properties["ORIGIN_MESSAGE_ID"] != "of "+d.Topic {
				t.Errorf("%s: %q", d.Topic, d.Properties)
			}
			if err := b.Ack(t.Context(), []*tidegate.Delivery{d})[0]; err != nil {
				t.Error(err)
			}
		}
		if _, err := b.PutGroup(t.Context(), "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}}); err == nil || !strings.Contains(err.Error(), "g-retry") {
			t.Errorf("the naming changed under a group that uses it: %v", err)
		}
		for _, c := range []settings.Group{{RetryTopic: settings.RetryTopic{Enabled: true}}, {FIFO: true}, {MaxAttempts: -2}} {
			_, put := b.PutGroup(t.Context(), "g", c)
			if err := b.CheckGroup("g", c); err == nil || put == nil || err.Error() != put.Error() {
				t.Errorf("it is checked as %v and put as %v", err, put)
			}
		}
		if err := errors.Join(b.CheckGroup("g", settings.Group{}), b.CheckGroup("new", settings.Group{FIFO: true})); err == nil || !strings.Contains(err.Error(), "g-retry") || strings.Contains(err.Error(), "new") {
			t.Errorf("%v", err)
		}
		putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, Naming: settings.RetryNaming261, MaxRetries: 1}})
	})
}

// A receive that waits is woken by both: a new message, and one of the retry topic.
//
// TDMQ for Pulsar: retry and dead letters: "the retry queue corresponding to the subscription name
// is automatically subscribed to"
// TDMQ for Pulsar: retry and dead letters: "a delayed message is delivered to the retry queue, and
// the delay time is specified by the user in reconsumeLater"
func TestRetryTopicWakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "retried", Body: []byte("x")})
		if _, err := serve(b).ReconsumeLater(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
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
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Second}); len(ds) != 0 || time.Since(start) != time.Hour+time.Second {
			t.Errorf("%d deliveries after %v", len(ds), time.Since(start))
		}
		for _, s := range serve(b).Stats().Groups {
			if s.Waiting != 0 {
				t.Errorf("%d receives are left in line for %s", s.Waiting, s.Topic)
			}
		}
	})
}

// The process ends after the message is in the retry topic and before the
// original's lease is removed: after the restart the group gets the new one only.
func TestReconsumeOnceAcrossACrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
		s, h := locate(t, b, one(t, b, "g", "t"))
		d := departing(s, func(p *consume.Progress) {
			if err := p.Reconsume(h, "", time.Now()); err != nil {
				t.Fatal(err)
			}
		})
		retry := &deadletter.Retry{ID: "m2", Times: 1, From: "t", Due: time.Now().Add(time.Hour)}
		d.Redirect("t-g-RETRY", retry)
		startOnDisk(t, b, d)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = open(t, broker.Options{Dir: "data"}.On(fs))
		if d := one(t, b, "g", "t"); d.ID != "m2" || d.Topic != "t" {
			t.Errorf("%s of %s was delivered", d.ID, d.Topic)
		} else if err := b.Ack(t.Context(), []*tidegate.Delivery{d})[0]; err != nil {
			t.Error(err)
		}
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Hour}); len(ds) != 0 {
			t.Errorf("%s was delivered too", ds[0].ID)
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
		putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, SubscriptionType: settings.SubscriptionFailover}})
		for i := range n {
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: fmt.Sprint(i), Body: []byte("x")})
		}
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: n, InvisibleDuration: time.Minute})
		for _, d := range ds {
			if _, err := serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic}); err != nil {
				t.Fatal(err)
			}
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
