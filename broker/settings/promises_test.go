package settings

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/tidegate/tidegate/backoff"
)

// The JSON text of every negative duration is "-1s", because all negative values mean none or
// never.
func TestNegativeDurationsHaveOneText(t *testing.T) {
	t.Parallel()
	for d, want := range map[Duration]string{
		-1: `"-1s"`, Duration(-time.Hour): `"-1s"`, math.MinInt64: `"-1s"`, 0: `"0s"`, Duration(90 * time.Second): `"1m30s"`,
	} {
		if got, err := json.Marshal(d); err != nil || string(got) != want {
			t.Errorf("%d: %s, %v; want %s", int64(d), got, err, want)
		}
	}
}

// Milliseconds are a whole number, or a duration without a fraction of a millisecond.
func TestMilliseconds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		json  string
		want  Milliseconds
		valid bool
	}{
		{"5000", 5000, true}, {`"5s"`, 5000, true}, {`"1m30s"`, 90_000, true}, {`"1500us"`, 0, false}, {`"1.5ms"`, 0, false},
		{"1.5", 0, false}, {`"soon"`, 0, false},
	} {
		var got Milliseconds
		if err := json.Unmarshal([]byte(tt.json), &got); (err == nil) != tt.valid || got != tt.want {
			t.Errorf("%s: %d, %v; want %d, valid: %t", tt.json, got, err, tt.want, tt.valid)
		}
	}
}

// The first nine fields of an Address are the settings of redelivery and dead letters; the others
// have no effect on redeliveries.
func TestRedelivers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		field string
		set   Address
		want  bool
	}{
		{"none", Address{}, false},
		{"RedeliveryDelay", Address{RedeliveryDelay: new(Milliseconds)}, true},
		{"RedeliveryDelayMultiplier", Address{RedeliveryDelayMultiplier: new(float64)}, true},
		{"RedeliveryCollisionAvoidanceFactor", Address{RedeliveryCollisionAvoidanceFactor: new(float64)}, true},
		{"MaxRedeliveryDelay", Address{MaxRedeliveryDelay: new(Milliseconds)}, true},
		{"MaxDeliveryAttempts", Address{MaxDeliveryAttempts: new(int)}, true},
		{"DeadLetterAddress", Address{DeadLetterAddress: new(string)}, true},
		{"AutoCreateDeadLetterResources", Address{AutoCreateDeadLetterResources: new(bool)}, true},
		{"DeadLetterQueuePrefix", Address{DeadLetterQueuePrefix: new(string)}, true},
		{"DeadLetterQueueSuffix", Address{DeadLetterQueueSuffix: new(string)}, true},
		{"PersistDeliveryCountBeforeDelivery", Address{PersistDeliveryCountBeforeDelivery: new(bool)}, false},
		{"AutoDeleteQueues", Address{AutoDeleteQueues: new(bool)}, false},
		{"ExpiryDelay", Address{ExpiryDelay: new(Milliseconds)}, false},
		{"ExpiryAddress", Address{ExpiryAddress: new(string)}, false},
	} {
		if got := tt.set.Redelivers(); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.field, got, tt.want)
		}
	}
}

// Validate accepts the bounds of a setting and rejects the next value.
func TestBoundsOfSettings(t *testing.T) {
	t.Parallel()
	attempts := func(n int) error { return Address{MaxDeliveryAttempts: &n}.Validate() }
	quota := func(r float64) error { return Quota{MessagesPerSecond: r}.Validate("q") }
	level := func(d time.Duration) error { return Group{RetryTopic: RetryTopic{Levels: backoff.Steps{d}}}.Validate() }
	topics := func(retry, dead string) error {
		return Group{RetryTopic: RetryTopic{Topic: retry, DeadLetterTopic: dead}}.Validate()
	}
	for _, tt := range []struct {
		name  string
		err   error
		valid bool
	}{
		{"no maximum of deliveries", attempts(-1), true},
		{"one delivery", attempts(1), true},
		{"no delivery", attempts(0), false},
		{"less than no maximum", attempts(-2), false},
		{"the most deliveries", attempts(math.MaxInt32), true},
		{"too many deliveries", attempts(math.MaxInt32 + 1), false},
		{"no quota", quota(0), true},
		{"a quota", quota(0.5), true},
		{"a quota that is no number", quota(math.NaN()), false},
		{"an infinite quota", quota(math.Inf(1)), false},
		{"a level of 1 s", level(time.Second), true},
		{"a shorter level", level(time.Second - 1), false},
		{"a level of 864 000 s", level(864_000 * time.Second), true},
		{"a longer level", level(864_000*time.Second + 1), false},
		{"a topic for retries and another for dead letters", topics("retries", "dead"), true},
		{"one topic for both", topics("both", "both"), false},
	} {
		if (tt.err == nil) != tt.valid {
			t.Errorf("%s: error %v, want validity %t", tt.name, tt.err, tt.valid)
		}
	}
}

// Original returns the topic that a retry topic is for; it is empty if the group has one retry
// topic for all its topics.
func TestOriginalOfRetryTopics(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		naming string
		own    string
		topic  string // the name in question
		want   string
		retry  bool
	}{
		{"of a topic", "2.9.2", "", "orders-billing-RETRY", "orders", true},
		{"of another group", "2.9.2", "", "orders-shipping-RETRY", "", false},
		{"of no topic", "2.9.2", "", "-billing-RETRY", "", false},
		{"of all topics", "2.7.2", "", "billing-RETRY", "", true},
		{"of all topics, lower case", "2.6.1", "", "billing-retry", "", true},
		{"a name of its own", "2.9.2", "again", "again", "", true},
		{"the name that it replaces", "2.9.2", "again", "orders-billing-RETRY", "", false},
	} {
		c := RetryTopic{Naming: tt.naming, Topic: tt.own}.WithDefaults()
		if got, retry := c.Original(tt.topic, "billing"); retry != tt.retry || retry && got != tt.want {
			t.Errorf("%s: %q is for %q, %t; want %q, %t", tt.name, tt.topic, got, retry, tt.want, tt.retry)
		}
	}
}
