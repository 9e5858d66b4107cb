package broker_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// Each failure of a delivery is recorded with its cause and the fate of the message.
func TestFailures(t *testing.T) {
	t.Parallel()
	fail := func(after time.Duration, reason string) func(*testing.T, *broker.Broker, *tidegate.Delivery) error {
		return func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) error {
			_, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: after, Reason: reason})
			return err
		}
	}
	long := strings.Repeat("x", 2<<10)
	for name, c := range map[string]struct {
		group   settings.Group
		address settings.Address
		topic   settings.TopicType
		do      func(*testing.T, *broker.Broker, *tidegate.Delivery) error // nil for a timeout
		want    status.Failure
	}{
		"retry":        {settings.Group{}, settings.Address{}, "", fail(5*time.Second, "no account 17"), status.Failure{Reason: "no account 17", Cause: "failed", Fate: "retry", Delay: settings.Duration(5 * time.Second)}},
		"no reason":    {settings.Group{}, settings.Address{}, "", fail(0, ""), status.Failure{Cause: "failed", Fate: "retry"}},
		"long reason":  {settings.Group{}, settings.Address{}, "", fail(0, long), status.Failure{Reason: long[:1<<10], Cause: "failed", Fate: "retry"}},
		"last":         {settings.Group{MaxAttempts: 1}, settings.Address{}, "", fail(0, "r"), status.Failure{Reason: "r", Cause: "failed", Fate: "dead_letter"}},
		"removed":      {settings.Group{}, settings.Address{MaxDeliveryAttempts: new(1)}, "", fail(0, "r"), status.Failure{Reason: "r", Cause: "failed", Fate: "removed"}},
		"parked":       {settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedPark}, settings.Address{}, settings.TopicFIFO, fail(0, "r"), status.Failure{Reason: "r", Cause: "failed", Fate: "parked"}},
		"blocked":      {settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedBlock}, settings.Address{}, settings.TopicFIFO, fail(time.Second, "r"), status.Failure{Reason: "r", Cause: "failed", Fate: "blocked", Delay: settings.Duration(time.Second)}},
		"timeout":      {settings.Group{}, settings.Address{}, "", nil, status.Failure{Cause: "timeout", Fate: "retry"}},
		"last timeout": {settings.Group{MaxAttempts: 1}, settings.Address{}, "", nil, status.Failure{Cause: "timeout", Fate: "dead_letter"}},
		"requested": {settings.Group{}, settings.Address{}, "", func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) error {
			_, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "poison"})
			return err
		}, status.Failure{Reason: "poison", Cause: "dead_letter", Fate: "dead_letter"}},
		"retry topic": {settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}}, settings.Address{}, "", func(t *testing.T, b *broker.Broker, d *tidegate.Delivery) error {
			_, err := serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic, Delay: 7 * time.Second})
			return err
		}, status.Failure{Cause: "reconsume_later", Fate: "retry_topic", Delay: settings.Duration(7 * time.Second)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, broker.Options{})
				putTopic(t, b, "t", settings.Topic{Type: c.topic, Queues: 1})
				putAddress(t, b, "t", c.address)
				putGroup(t, b, "g", c.group)
				m := &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")}
				if c.topic == settings.TopicFIFO {
					m.MessageGroup = "mg"
				}
				mustSend(t, b, m)
				d := one(t, b, "g", "t")
				if c.do == nil {
					elapse(31 * time.Second)
				} else if err := c.do(t, b, d); err != nil {
					t.Fatal(err)
				}
				page, err := serve(b).Failures("g", status.FailureQuery{})
				if err != nil || len(page.Failures) != 1 || page.Next != "" {
					t.Fatalf("%+v, %v", page, err)
				}
				got := page.Failures[0]
				if (got.Fingerprint != "") != (c.want.Reason != "") || time.Since(got.Time) > time.Minute {
					t.Errorf("%+v", got)
				}
				c.want.Time, c.want.Fingerprint, c.want.Topic, c.want.MessageID, c.want.Attempt = got.Time, got.Fingerprint, "t", "m", 1
				if got != c.want {
					t.Errorf("%+v, want %+v", got, c.want)
				}
				trace, err := serve(b).Trace("t", status.MessageQuery{MessageFilter: status.MessageFilter{ID: "m"}}, 0, func(string) bool { return true })
				if err != nil || len(trace.Messages) != 1 {
					t.Fatalf("%+v, %v", trace, err)
				}
				c.want.MessageID = ""
				for _, f := range trace.Messages[0].Groups {
					if f.Group == "g" && (len(f.Failures) != 1 || f.Failures[0] != c.want) {
						t.Errorf("the trace has %+v, want %+v", f.Failures, c.want)
					}
				}
			})
		})
	}
}

// Pages have all failures once, the newest first; the settlements that are no failures have none.
func TestFailurePages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		for _, topic := range []string{"t", "u"} {
			putTopic(t, b, topic, settings.Topic{Queues: 1})
			for range 5 {
				mustSend(t, b, &tidegate.Message{Topic: topic, Body: []byte("x")})
				if _, err := b.Settle(t.Context(), one(t, b, "g", topic), transport.Verdict{Kind: transport.Retry, Delay: time.Hour, Reason: topic}); err != nil {
					t.Fatal(err)
				}
			}
			mustSend(t, b, &tidegate.Message{Topic: topic, Body: []byte("x")})
			if err := b.Ack(t.Context(), []*tidegate.Delivery{one(t, b, "g", topic)})[0]; err != nil {
				t.Fatal(err)
			}
			mustSend(t, b, &tidegate.Message{Topic: topic, Body: []byte("x")})
			if _, err := b.Settle(t.Context(), one(t, b, "g", topic), transport.Verdict{Kind: transport.Snooze, Delay: time.Hour}); err != nil {
				t.Fatal(err)
			}
		}
		for limit := 1; limit < 12; limit++ {
			for topic, want := range map[string]string{"": "u4 u3 u2 u1 u0 t4 t3 t2 t1 t0", "t": "t4 t3 t2 t1 t0"} {
				var got []string
				for after := ""; ; {
					page, err := serve(b).Failures("g", status.FailureQuery{Topic: topic, Limit: limit, After: after})
					if err != nil || len(page.Failures) > limit {
						t.Fatalf("%+v, %v", page, err)
					}
					for _, f := range page.Failures {
						got = append(got, fmt.Sprint(f.Topic, f.Offset))
					}
					if after = page.Next; after == "" {
						break
					}
				}
				if strings.Join(got, " ") != want {
					t.Errorf("by %d, topic %q: %v, want %s", limit, topic, got, want)
				}
			}
		}
		for _, c := range []struct {
			group string
			query status.FailureQuery
			want  tidegate.Code
		}{
			{"x", status.FailureQuery{}, tidegate.CodeConsumerGroupNotFound},
			{"g", status.FailureQuery{Limit: 1001}, tidegate.CodeBadRequest},
			{"g", status.FailureQuery{After: "x"}, tidegate.CodeBadRequest},
			{"g", status.FailureQuery{After: "0"}, tidegate.CodeBadRequest},
		} {
			_, err := serve(b).Failures(c.group, c.query)
			if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.Code != c.want {
				t.Errorf("%+v: %v", c, err)
			}
		}
		if err := b.DeleteGroup(t.Context(), "g"); err != nil {
			t.Fatal(err)
		}
		putGroup(t, b, "g", settings.Group{})
		if page, err := serve(b).Failures("g", status.FailureQuery{}); err != nil || len(page.Failures) != 0 {
			t.Errorf("a new group has %+v, %v", page, err)
		}
	})
}
