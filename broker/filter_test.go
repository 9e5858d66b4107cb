package broker_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// A retry topic that serves several topics has the retries of all of them. The
// filter of a receive from one topic does not decide about another's.
func TestSharedRetryTopicWithFilters(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]settings.RetryTopic{
		"2.7.2": {Naming: settings.RetryNaming272}, "2.6.1": {Naming: settings.RetryNaming261}, "own name": {Topic: "retries"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, broker.Options{})
				c.Enabled = true
				putGroup(t, b, "g", settings.Group{RetryTopic: c})
				for _, topic := range []string{"t1", "t2"} {
					putTopic(t, b, topic, settings.Topic{})
					mustSend(t, b, &tidegate.Message{Topic: topic, ID: topic, Tag: "b", Body: []byte("x")})
					if _, err := serve(b).ReconsumeLater(t.Context(), one(t, b, "g", topic), transport.Verdict{Kind: transport.RetryTopic, Level: 1}); err != nil {
						t.Fatal(err)
					}
				}
				elapse(time.Second)
				filtered := transport.ReceiveRequest{Group: "g", Topic: "t1", Filter: tidegate.Filter{Expression: "a"}, Wait: time.Second, Max: 32}
				var got []string
				for _, d := range append(receive(t, b, filtered), receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t2", Wait: time.Second})...) {
					got = append(got, d.Topic+" "+d.Properties["ORIGIN_MESSAGE_ID"])
				}
				if fmt.Sprint(got) != "[t2 t2]" {
					t.Errorf("%q were delivered, want the retry of t2: that of t1 does not match", got)
				}
				if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t1", Wait: time.Second}); len(ds) != 0 {
					t.Errorf("%+v was skipped, and is delivered", ds[0])
				}
			})
		})
	}
}

// A filter also applies to messages that are ready again, or that become the head of their message
// group: messages that do not match leave the group's backlog.
func TestFilterHoldsForRedeliveries(t *testing.T) {
	t.Parallel()
	for _, fifo := range []bool{false, true} {
		t.Run(fmt.Sprint("fifo ", fifo), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, broker.Options{})
				topic := settings.Topic{Queues: 1}
				if fifo {
					topic.Type = settings.TopicFIFO
				}
				putTopic(t, b, "t", topic)
				putGroup(t, b, "g", settings.Group{FIFO: fifo})
				for i, tag := range []string{"b", "b", "a"} {
					m := &tidegate.Message{Topic: "t", ID: fmt.Sprint(i), Tag: tag, Body: []byte("x")}
					if fifo {
						m.MessageGroup = "m"
					}
					mustSend(t, b, m)
				}
				// The cursor has passed all three; the response has none of them.
				receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Second})
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Filter: tidegate.Filter{Expression: "a"}, Max: 32, Wait: time.Minute})
				if len(ds) != 1 || ds[0].ID != "2" {
					t.Fatalf("%d deliveries: %+v", len(ds), ds)
				}
				if s := subscriptionOf(t, b, "g"); s.Backlog.Messages != 1 || s.Inflight != 1 || s.Ready != 0 || s.Acked != 0 {
					t.Errorf("the group has %+v", s)
				}
				if err := b.Ack(t.Context(), ds)[0]; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A message that was removed before its next delivery was not acknowledged.
func TestRemovedMessageIsNotAcknowledged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		kill(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		receive(t, b, transport.ReceiveRequest{Group: "other", Topic: "%DLQ%g", InvisibleDuration: time.Second})
		if done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{}); err != nil || done.Purged != 1 {
			t.Fatal(done, err)
		}
		if ds := receive(t, b, transport.ReceiveRequest{Group: "other", Topic: "%DLQ%g", Wait: time.Minute}); len(ds) != 0 {
			t.Errorf("%+v was delivered", ds[0])
		}
		if s := subscriptionOf(t, b, "other"); s.Acked != 0 || s.Backlog != (status.Backlog{}) || s.Inflight != 0 {
			t.Errorf("the group has %+v", s)
		}
	})
}
