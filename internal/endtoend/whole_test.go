package endtoend

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

// added are the properties that retries through a retry topic and dead letters add. Further ones of
// dead letters begin with DLQ_.
var added = []string{
	protocol.PropertyRealTopic, protocol.PropertyOriginMessageID, protocol.PropertyRetryTopic, protocol.PropertyReconsumeTimes,
}

// whole checks that a delivery is of the message that was sent: with all of its parts, and with no
// others than those that the way adds. born is the time of the send, zero if the way makes a new
// message.
func whole(t *testing.T, way string, sent *tidegate.Message, d *tidegate.Delivery, born time.Time) {
	t.Helper()
	got := d.Message
	if !bytes.Equal(got.Body, sent.Body) || got.Tag != sent.Tag || !slices.Equal(got.Keys, sent.Keys) ||
		got.MessageGroup != sent.MessageGroup || got.TraceContext != sent.TraceContext {
		t.Errorf("%s: delivered %+v, want %+v", way, got, *sent)
	}
	id := cmp.Or(got.Properties[protocol.PropertyOriginMessageID], got.ID) // a retry topic has new messages
	assert.That(t, born.IsZero() || id == sent.ID && d.BornAt.Equal(born), "%s: delivered message %s of %v, want %s of %v", way, id, d.BornAt, sent.ID, born)
	for name, value := range sent.Properties {
		assert.That(t, got.Properties[name] == value, "%s: property %q is %q, want %q", way, name, got.Properties[name], value)
	}
	for name := range got.Properties {
		assert.That(t, sent.Properties[name] != "" || strings.HasPrefix(name, "DLQ_") || slices.Contains(added, name), "%s: property %q was added", way, name)
	}
}

// A message keeps its body, tag, keys, message group, trace context, properties, ID and time of
// birth on every way back to a consumer: after each verdict of a handler, through a retry topic, as
// a dead letter, and sent back from there. A retry topic has its first ID as a property.
func TestMessagesStayWhole(t *testing.T) {
	failure := errors.New("no such customer")
	for name, tt := range map[string]struct {
		topic    settings.TopicType
		group    settings.Group
		verdicts []error // the last one makes the dead letter
	}{
		"message group": {settings.TopicFIFO, settings.Group{FIFO: true}, []error{
			failure, consumer.Snooze(time.Second), consumer.RetryIn(time.Second, failure), consumer.DeadLetterNow(failure),
		}},
		"own topic": {settings.TopicNormal, settings.Group{}, []error{
			failure, consumer.RetryIn(5*time.Second, failure), consumer.Snooze(time.Second), consumer.Reconsume(transport.Verdict{Kind: transport.NegativeAck, Delay: time.Second}, failure), consumer.DeadLetterNow(failure),
		}},
		"retry topic": {settings.TopicNormal, settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}}, []error{
			consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: time.Second}, failure), consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Level: 1}, failure), failure, consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, failure), consumer.DeadLetterNow(failure),
		}},
	} {
		t.Run(name, onBroker(func(t *testing.T, b *brokertest.Broker) {
			b.CreateTopic("orders", settings.Topic{Type: tt.topic})
			b.CreateGroup("billing", tt.group)
			sent := &tidegate.Message{
				ID: "01-order", Topic: "orders", Tag: "größe", Keys: []string{"k1", "k 2"}, Body: []byte{0, 1, 0xff, '\n'},
				Properties: map[string]string{"currency": "€", "empty space": " x "}, TraceContext: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			}
			if tt.topic == settings.TopicFIFO {
				sent.MessageGroup = "customer 7"
			}
			var mu sync.Mutex
			var seen []*tidegate.Delivery
			verdicts := tt.verdicts
			consume := func(sub consumer.Subscription) (stop func()) {
				return Consume(t, b, sub, func(_ context.Context, d *tidegate.Delivery) error {
					mu.Lock()
					defer mu.Unlock()
					seen = append(seen, d)
					if len(verdicts) == 0 {
						return nil
					}
					v := verdicts[0]
					verdicts = verdicts[1:]
					return v
				})
			}
			take := func(way string, n int) (list []*tidegate.Delivery) {
				t.Helper()
				<-time.After(2 * time.Minute)
				mu.Lock()
				defer mu.Unlock()
				if list, seen = seen, nil; len(list) != n {
					t.Fatalf("%s: %d deliveries, want %d", way, len(list), n)
				}
				return list
			}
			stop := consume(consumer.Subscription{Group: "billing", Topic: "orders"})
			MustSend(t, NewProducer(t, b, producer.Options{}), sent)
			list := take("verdicts", len(tt.verdicts))
			born := list[0].BornAt
			for i, d := range list {
				way := "sent"
				if i > 0 {
					way = "after " + tt.verdicts[i-1].Error()
				}
				whole(t, way, sent, d, born)
			}

			g, err := b.Group("billing")
			assert.MustThat(t, err == nil && len(g.DeadLetterTopics) == 1, "dead letter topics of %+v, %v", g, err)
			letters := g.DeadLetterTopics[0]
			stopLetters := consume(consumer.Subscription{Group: "undertaker", Topic: letters})
			letter := take("dead letter", 1)[0]
			whole(t, "dead letter", sent, letter, born)
			l, ok := letter.DeadLetter()
			assert.That(t, ok && l.Reason == failure.Error(), "the dead letter's origin is %+v, %v", l, ok)
			stopLetters()

			verdicts = []error{consumer.DeadLetterNow(failure)}
			if done, err := b.RedriveDeadLetters(t.Context(), "billing", status.DeadLetterSelection{In: letters}); err != nil || done.Redriven != 1 {
				t.Fatalf("redrive: %+v, %v", done, err)
			}
			whole(t, "redriven by the broker", sent, take("redriven by the broker", 1)[0], born)
			if letters != tidegate.DeadLetterTopic("billing") { // a Queue receives from that one alone
				stop()
				return
			}
			report, err := deadletter.Redrive(t.Context(), deadletter.Queue{Transport: b.Client(), Group: "billing", As: "clerk", Lease: time.Hour},
				deadletter.Options{Sender: b.Client(), Journal: filepath.Join(t.TempDir(), "journal")})
			assert.MustThat(t, err == nil && report.Redriven == 1, "redrive: %+v, %v", report, err)
			anew := take("sent anew", 1)[0]
			whole(t, "sent anew", sent, anew, time.Time{})
			assert.That(t, anew.ID == "01-order.redrive-2", "sent anew as %s", anew.ID)
			stop()
		}))
	}
}

// inBubble returns a subtest that is f in a bubble of package synctest.
func inBubble(f func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) { synctest.Test(t, f) }
}

// onBroker returns a subtest that is f with a broker, as brokertest.Run runs it.
func onBroker(f func(t *testing.T, b *brokertest.Broker)) func(t *testing.T) {
	return func(t *testing.T) { brokertest.Run(t, f) }
}
