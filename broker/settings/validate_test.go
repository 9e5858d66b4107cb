package settings

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/backoff"
)

// Validate names each invalid field, with its value.
func TestValidateNamesFields(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want string // in the error, separated by |; empty for a nil error
	}{
		{Topic{}.Validate(), ""},
		{Topic{Type: "ODD", Queues: -1}.Validate(), `type is "ODD"|queues is -1; give 1 to 1024`},
		{Topic{Queues: MaxQueues + 1}.Validate(), "queues is 1025"},
		{Topic{Queues: MaxQueues, DuplicateWindow: -1, Retention: Retention{Time: -1}}.Validate(), ""},
		{Topic{Retention: Retention{Bytes: -1}}.Validate(), "retention.bytes is -1"},
		{Topic{MaxBacklog: Limit{Messages: -1, Age: 1}}.Validate(), "max_backlog is -1 messages and 0 bytes|max_backlog.age is 1ns; give 100ms or more"},
		{Topic{MaxRate: Rate{Burst: 1}}.Validate(), "max_rate.burst is 1"},
		{Topic{Transaction: Transaction{Timeout: -1, CheckInterval: -1, CheckMax: -2}}.Validate(), "transaction.timeout is -1ns|transaction.check_interval is -1ns|transaction.check_max is -2"},
		{Limits{}.Validate(), ""},
		{Limits{ClientQuota: Quota{Burst: 1}}.Validate(), "client_quota is 0 messages per second with a burst of 1"},
		{Limits{ClientQuota: Quota{MessagesPerSecond: .5, Burst: 1}}.Validate(), ""},
		{Group{}.Validate(), ""},
		{Group{MaxAttempts: -2, FIFORetryInterval: -1, Start: "middle", OnExhausted: "odd"}.Validate(), `max_attempts is -2|fifo_retry_interval is -1ns|start is "middle"|on_exhausted is "odd"`},
		{Group{OnExhausted: OnExhaustedPark}.Validate(), `on_exhausted is "park" and fifo is false`},
		{Group{FIFO: true, OnExhausted: OnExhaustedPark}.Validate(), ""},
		{Group{Retry: backoff.Steps{time.Second, -1}}.Validate(), "retry: backoff: step 2 of 2 is -1ns"},
		{Group{FIFO: true, RetryTopic: RetryTopic{Enabled: true}}.Validate(), "retry_topic.enabled is true, and the group is FIFO"},
		{Group{RetryTopic: RetryTopic{Naming: "1", MaxRetries: -1, SubscriptionType: "odd", Topic: "a b"}}.Validate(), `retry_topic.naming is "1"|retry_topic.max_retries is -1|retry_topic.subscription_type is "odd"|retry_topic.topic is "a b"`},
		{Group{NegativeAck: NegativeAck{Delay: -1, MaxRedeliveries: -1}}.Validate(), "negative_ack.delay is -1ns|negative_ack.max_redeliveries is -1"},
		{Group{RetryTopic: RetryTopic{Topic: "t-g-DLQ"}}.Validate(), ""}, // legal for most groups
		{Group{RetryTopic: RetryTopic{Topic: "t-g-DLQ"}}.ValidateFor("g"), `retry_topic.topic is "t-g-DLQ", the name of dead letter topics by naming 2.9.2`},
		{Group{RetryTopic: RetryTopic{Topic: "t-g-DLQ"}}.ValidateFor("h"), ""},
		{Group{RetryTopic: RetryTopic{Naming: "2.7.2", DeadLetterTopic: "g-RETRY"}}.ValidateFor("g"), `retry_topic.dead_letter_topic is "g-RETRY", the name of retry topics by naming 2.7.2`},
	} {
		if c.want == "" {
			if c.err != nil {
				t.Errorf("legal settings are rejected: %v", c.err)
			}
			continue
		}
		for part := range strings.SplitSeq(c.want, "|") {
			if c.err == nil || !strings.Contains(c.err.Error(), part) {
				t.Errorf("the error lacks %q: %v", part, c.err)
			}
		}
	}
}

// The defaults are valid settings, and have defaults no more.
func TestDefaults(t *testing.T) {
	t.Parallel()
	if got, want := (Topic{}).WithDefaults(), (Topic{Type: TopicNormal, Queues: defaultQueues}); got != want {
		t.Errorf("the defaults of a topic are %+v", got)
	}
	g := Group{}.WithDefaults()
	if g.Start != StartEarliest || g.OnExhausted != OnExhaustedDeadLetter || g.MaxAttempts != 17 || time.Duration(g.FIFORetryInterval) != 3*time.Second ||
		time.Duration(g.NegativeAck.Delay) != time.Minute || g.RetryTopic.MaxRetries != 16 || g.RetryTopic.Naming != "2.9.2" {
		t.Errorf("the defaults of a group are %+v", g)
	}
	if err := g.Validate(); err != nil {
		t.Error(err)
	}
	if first, last := g.Interval(1), g.Interval(100); first != 10*time.Second || last != 2*time.Hour {
		t.Errorf("the intervals are %v to %v", first, last)
	}
	fifo := Group{FIFO: true}.WithDefaults()
	if first, ladder := fifo.Interval(5), fifo.Ladder(); first != 3*time.Second || len(ladder) != 1 {
		t.Errorf("a FIFO group has the interval %v of %v", first, ladder)
	}
	broker := Transaction{CheckMax: 3}.WithDefaults()
	if got, want := (Transaction{Timeout: 1}).Or(broker), (Transaction{Timeout: 1, CheckInterval: Duration(30 * time.Second), CheckMax: 3}); got != want {
		t.Errorf("a topic's transactions have %+v, want %+v", got, want)
	}
	for window, want := range map[time.Duration]time.Duration{0: 2 * time.Minute, -1: 0, time.Hour: time.Hour} {
		if c := (Topic{DuplicateWindow: Duration(window)}); c.IDWindow() != want {
			t.Errorf("a window of %v is %v, want %v", window, c.IDWindow(), want)
		}
	}
}

// A duration is a text in JSON; one that is not is an error with the remedy.
func TestDurationAsJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{`"90s"`: `"1m30s"`, `"-3h"`: `"-1s"`, `"0s"`: `"0s"`, `5`: "", `"soon"`: "", `"5"`: ""} {
		var d Duration
		err := json.Unmarshal([]byte(text), &d)
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), `give a text such as "1m30s"`) {
				t.Errorf("%s: %v, %v", text, time.Duration(d), err)
			}
			continue
		}
		if s := d.String(); s != time.Duration(d).String() {
			t.Errorf("%s has the string %s", text, s)
		}
		if got, e := json.Marshal(d); err != nil || e != nil || string(got) != want {
			t.Errorf("%s became %s, want %s; %v, %v", text, got, want, err, e)
		}
	}
}
