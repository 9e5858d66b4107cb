package broker_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// A purge is over for every receive that begins afterwards, also if one was
// reading the dead letters meanwhile.
func TestPurgedAreNotReadAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		for i := range 6 {
			kill(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte("x")})
		}
		d := one(t, b, "reader", "%DLQ%g")
		s, _ := locate(t, b, d)
		r := consume.Receive{Queue: transport.AnyQueue, Max: 1, MaxBytes: 1}
		var c consume.Claim
		s.Update(func(p *consume.Progress) { // as a receive does that is reading
			p.Begin(&r, time.Now())
			c, _ = p.Claim(&r)
		})
		if readAheadBytes(b) == 0 {
			t.Fatal("nothing was read ahead")
		}
		if done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{}); err != nil || done.Purged != 6 {
			t.Fatalf("%+v, %v", done, err)
		}
		s.Update(func(p *consume.Progress) { p.Unclaim(&r, c.Queue) })
		if ds := receive(t, b, transport.ReceiveRequest{Group: "reader", Topic: "%DLQ%g", Max: 32}); len(ds) != 0 {
			t.Errorf("%v were delivered after they had been purged", idsOf(ds))
		}
	})
}

// A dead letter that was retried through a retry topic returns to its topic with its first content,
// without the delivery time of a retry.
func TestRetriedDeadLettersAreRedriven(t *testing.T) {
	t.Parallel()
	retries := settings.Group{MaxAttempts: 1, RetryTopic: settings.RetryTopic{Enabled: true, MaxRetries: 1}}
	reconsumed := func(t *testing.T, b *broker.Broker) {
		if r, err := serve(b).ReconsumeLater(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.RetryTopic, Level: 1}); err != nil || r.Topic != "t-g-RETRY" {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	for name, c := range map[string]struct {
		topic settings.TopicType
		die   func(*testing.T, *broker.Broker)
	}{
		"given up": {settings.TopicNormal, func(t *testing.T, b *broker.Broker) {
			if _, err := b.Settle(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.DeadLetter, Reason: "no use"}); err != nil {
				t.Fatal(err)
			}
		}},
		"last attempt": {settings.TopicNormal, func(t *testing.T, b *broker.Broker) {
			if _, err := b.Settle(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.Retry}); err != nil {
				t.Fatal(err)
			}
		}},
		"last retry": {settings.TopicDelay, func(t *testing.T, b *broker.Broker) {
			if r, err := serve(b).ReconsumeLater(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.RetryTopic}); err != nil || !r.DeadLetter {
				t.Fatalf("%+v, %v", r, err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				b := open(t, broker.Options{Dir: "data"}.On(fs))
				putTopic(t, b, "t", settings.Topic{Type: c.topic})
				putGroup(t, b, "g", retries)
				m := &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x"), Properties: map[string]string{"k": "v"}}
				if c.topic == settings.TopicDelay {
					m.DeliverAt = time.Now().Add(time.Minute)
				}
				mustSend(t, b, m)
				reconsumed(t, b)
				c.die(t, b)
				b = reopen(t, b, fs)
				done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{In: "t-g-DLQ"})
				if err != nil || done != (status.DeadLetterRedrive{Redriven: 1}) {
					t.Fatalf("%+v, %v", done, err)
				}
				d := one(t, b, "g", "t")
				if d.ID != "m" || d.Topic != "t" || !d.DeliverAt.IsZero() || len(d.Properties) != 2 || d.Properties["k"] != "v" || d.Properties[protocol.PropertyDeadLetterRedrives] != "1" {
					t.Errorf("the redriven message is %+v", d.Message)
				}
				if r, err := serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic}); err != nil || r.Times != 1 || r.DeadLetter {
					t.Errorf("its retries do not begin anew: %+v, %v", r, err)
				}
			})
		})
	}
}

// The origin of a message is the one of its group: a retry of another group, and a message that was
// forwarded, is a message of the topic in which it dies.
func TestOriginOfDeadLettersThatWereRetried(t *testing.T) {
	t.Parallel()
	giveUp := func(t *testing.T, b *broker.Broker, group, topic, from, id string) {
		t.Helper()
		if _, err := b.Settle(t.Context(), one(t, b, group, topic), transport.Verdict{Kind: transport.DeadLetter, Reason: "no use"}); err != nil {
			t.Fatal(err)
		}
		page, err := b.DeadLetters(group, status.DeadLetterQuery{})
		if err != nil || len(page.DeadLetters) != 1 || page.DeadLetters[0].Origin.Topic != from || page.DeadLetters[0].Origin.MessageID != id {
			t.Fatalf("%+v, %v; want one of %s in %s", page, err, id, from)
		}
	}
	t.Run("sent on elsewhere", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{})
			putTopic(t, b, "u", settings.Topic{})
			putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, MaxRetries: 1}})
			deadAfter(t, b, "g", "t", 1)
			if done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{In: "t-g-DLQ", To: "u"}); err != nil || done.Redriven != 1 {
				t.Fatalf("%+v, %v", done, err)
			}
			giveUp(t, b, "h", "u", "u", "m")
		})
	})
	t.Run("read in another group's retry topic", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{})
			putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
			r, err := serve(b).ReconsumeLater(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.RetryTopic, Level: 1})
			if err != nil {
				t.Fatal(err)
			}
			giveUp(t, b, "h", r.Topic, r.Topic, r.MessageID)
			ackDeliveries(t, b, []*tidegate.Delivery{one(t, b, "g", "t")})
			if done, err := b.RedriveDeadLetters(t.Context(), "h", status.DeadLetterSelection{}); err != nil || done.Redriven != 1 {
				t.Fatalf("%+v, %v", done, err)
			}
			d := one(t, b, "g", "t") // as it was
			if d.ID != r.MessageID || d.Topic != "t" || d.Properties[protocol.PropertyOriginMessageID] != "m" || d.Properties[protocol.PropertyReconsumeTimes] != "1" {
				t.Errorf("the redriven message is %+v", d.Message)
			}
		})
	})
}
