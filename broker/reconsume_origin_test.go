package broker_test

import (
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

// deadAfter sends a message to topic and has the group retry it through its
// retry topic until it is a dead letter.
func deadAfter(t *testing.T, b *broker.Broker, group, topic string, retries int) {
	t.Helper()
	mustSend(t, b, &tidegate.Message{Topic: topic, ID: "m", Body: []byte("x")})
	for i := range retries + 1 {
		r, err := serve(b).ReconsumeLater(t.Context(), one(t, b, group, topic), transport.Verdict{Kind: transport.RetryTopic})
		if err != nil || r.DeadLetter != (i == retries) {
			t.Fatalf("retry %d: %+v, %v", i+1, r, err)
		}
	}
}

// A consumed dead letter is retried as a message of its dead letter topic. Its retries begin again,
// and reach the consumers of that topic: those of another group, or of the group that failed.
func TestDeadLettersAreReconsumed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		naming      settings.RetryNaming
		group       string // that consumes the dead letters
		dead, retry string // topics
		deadAgain   string
	}{
		{settings.RetryNaming292, "g2", "t-g-DLQ", "t-g-DLQ-g2-RETRY", "t-g-DLQ-g2-DLQ"},
		{settings.RetryNaming292, "g", "t-g-DLQ", "t-g-DLQ-g-RETRY", "t-g-DLQ-g-DLQ"},
		{settings.RetryNaming272, "g2", "g-DLQ", "g2-RETRY", "g2-DLQ"},
		{settings.RetryNaming272, "g", "g-DLQ", "g-RETRY", "g-DLQ"},
	} {
		t.Run(fmt.Sprint(c.naming, c.group), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, broker.Options{})
				putTopic(t, b, "t", settings.Topic{})
				for _, g := range []string{"g", "g2"} {
					putGroup(t, b, g, settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, Naming: c.naming, MaxRetries: 3}})
				}
				deadAfter(t, b, "g", "t", 3)
				for times := 1; times <= 3; times++ {
					d := one(t, b, c.group, c.dead)
					if times == 1 && d.Properties["RECONSUMETIMES"] != "3" {
						t.Fatalf("the dead letter: %q", d.Properties)
					}
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
				if err != nil || !r.DeadLetter || r.Topic != c.deadAgain {
					t.Errorf("%+v, %v", r, err)
				}
				ds := receiveAll(t, b, c.deadAgain)
				last := ds[len(ds)-1]
				if origin, ok := last.DeadLetter(); !ok || last.ID != r.MessageID || origin.Topic != "t" || origin.MessageID != "m" {
					t.Errorf("%+v, %+v", last, origin)
				}
			})
		})
	}
}

// A dead letter that was sent back to its topic is retried as often as a new message.
func TestRedrivenMessageIsReconsumed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, DeadLetterTopic: "%DLQ%g"}})
		deadAfter(t, b, "g", "t", 16)
		if done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{}); err != nil || done.Redriven != 1 {
			t.Fatalf("%+v, %v", done, err)
		}
		if r, err := serve(b).ReconsumeLater(t.Context(), one(t, b, "g", "t"), transport.Verdict{Kind: transport.RetryTopic}); err != nil || r.DeadLetter || r.Times != 1 || r.Topic != "t-g-RETRY" {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// A message that was sent to a retry topic is retried there.
func TestMessageSentToARetryTopic(t *testing.T) {
	t.Parallel()
	for naming, retry := range map[settings.RetryNaming]string{settings.RetryNaming292: "t-g-RETRY", settings.RetryNaming261: "g-retry"} {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{})
			putTopic(t, b, retry, settings.Topic{})
			putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, Naming: naming}})
			mustSend(t, b, &tidegate.Message{Topic: retry, ID: "m", Body: []byte("x")})
			for times := 1; times <= 2; times++ {
				d := one(t, b, "g", "t")
				if r, err := serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic}); err != nil || r.Topic != retry || r.Times != times {
					t.Fatalf("%+v, %v", r, err)
				}
			}
			if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Hour}); len(ds) != 1 {
				t.Errorf("%s: it is not redelivered", naming)
			}
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
		{settings.RetryTopic{Naming: settings.RetryNaming272, Topic: "g-DLQ"}, false},
		{settings.RetryTopic{Naming: settings.RetryNaming272, Topic: "g-dlq"}, true},
		{settings.RetryTopic{Naming: settings.RetryNaming272, DeadLetterTopic: "g-RETRY"}, false},
		{settings.RetryTopic{Naming: settings.RetryNaming261, Topic: "g-dlq"}, false},
		{settings.RetryTopic{Naming: settings.RetryNaming261, DeadLetterTopic: "g-retry"}, false},
		{settings.RetryTopic{Topic: "t-g-DLQ"}, false}, // of topic t
		{settings.RetryTopic{Topic: "t-h-DLQ"}, true},
		{settings.RetryTopic{DeadLetterTopic: "t-g-RETRY"}, false},
		{settings.RetryTopic{DeadLetterTopic: "t-g-DLQ"}, true},
	} {
		_, err := b.PutGroup(t.Context(), "g", settings.Group{RetryTopic: c.config})
		if (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.config, err)
		}
		if err != nil && !strings.Contains(err.Error(), "retry_topic") {
			t.Errorf("the error does not name the fault: %v", err)
		}
	}
}

// Retry topics can get other names once they are switched off, but not while
// the group has retries in the old ones that it would never receive.
func TestRetryTopicsAreRenamedWhenEmpty(t *testing.T) {
	t.Parallel()
	on := settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}}
	renamed := settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, Naming: settings.RetryNaming272}}
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, broker.Options{})
				putTopic(t, b, "t", settings.Topic{})
				putGroup(t, b, "g", settings.Group{})
				if c.received {
					putGroup(t, b, "g", on)
				}
				mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
				d := one(t, b, "g", "t")
				putGroup(t, b, "g", on)
				if _, err := serve(b).ReconsumeLater(t.Context(), d, c.mode); err != nil {
					t.Fatal(err)
				}
				elapse(c.wait)
				putGroup(t, b, "g", settings.Group{})
				if _, err := b.PutGroup(t.Context(), "g", renamed); err == nil || !strings.Contains(err.Error(), "t-g-RETRY") {
					t.Errorf("renamed with a retry in it: %v", err)
				}
				putGroup(t, b, "g", on)
				d = one(t, b, "g", "t")
				if d.Properties["ORIGIN_MESSAGE_ID"] != "m" {
					t.Fatalf("%+v", d)
				}
				if err := b.Ack(t.Context(), []*tidegate.Delivery{d})[0]; err != nil {
					t.Fatal(err)
				}
				putGroup(t, b, "g", settings.Group{})
				putGroup(t, b, "g", renamed)
			})
		})
	}
}
