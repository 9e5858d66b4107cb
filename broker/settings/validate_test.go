package settings

import (
	"encoding/json"
	"math"
	"reflect"
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
		{Topic{Type: TopicLite}.Validate(), ""},
		{Topic{Type: TopicLite, Lite: LiteParent{Expiry: Duration(time.Second), MaxTopics: 65_000}}.Validate(), ""},
		{Topic{Type: TopicLite, Lite: LiteParent{Expiry: -1}}.Validate(), ""},
		{Topic{Type: TopicLite, Queues: 2}.Validate(), "queues is 2 and the type is LITE, which has a queue for each lite topic; leave queues out"},
		{Topic{Type: TopicLite, Lite: LiteParent{Expiry: 1, MaxTopics: 65_001}}.Validate(), "lite.expiry is 1ns; give at least 1s|lite.max_topics is 65001; give 1 to 65000"},
		{Topic{Type: TopicLite, Lite: LiteParent{MaxTopics: -1}}.Validate(), "lite.max_topics is -1"},
		{Topic{Lite: LiteParent{MaxTopics: 1}}.Validate(), "lite is set and the type is NORMAL; give the type LITE, or leave lite out"},
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
		{Group{FIFO: true, Lite: LiteGroup{Topic: "t", Exclusive: true}}.Validate(), ""},
		{Group{Lite: LiteGroup{Topic: "t"}}.Validate(), "lite.topic is set and fifo is false; set fifo"},
		{Group{FIFO: true, Lite: LiteGroup{Exclusive: true}}.Validate(), "lite is set without lite.topic; give the parent of the lite topics"},
		{Group{FIFO: true, Lite: LiteGroup{Topic: "a b", MaxTopics: 65_001}}.Validate(), `lite.topic: |"a b"|lite.max_topics is 65001; give 1 to 65000`},
		{Group{FIFO: true, Lite: LiteGroup{Topic: "t", MaxTopics: -1}}.Validate(), "lite.max_topics is -1"},
		{Group{RetryTopic: RetryTopic{Enabled: true}, Lite: LiteGroup{Topic: "t"}}.Validate(), "lite.topic and retry_topic.enabled are set; leave out one of them"},
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
	lite := Topic{Type: TopicLite}.WithDefaults()
	if lite.Queues != 1 || time.Duration(lite.Lite.Expiry) != 72*time.Hour || lite.Lite.MaxTopics != 20_000 {
		t.Errorf("the defaults of a topic of type LITE are %+v", lite)
	}
	if g := (Group{Lite: LiteGroup{Topic: "t"}}).WithDefaults(); g.Lite != (LiteGroup{Topic: "t", MaxTopics: 2_000}) {
		t.Errorf("the defaults of a group with lite topics are %+v", g.Lite)
	}
	g := Group{}.WithDefaults()
	if g.Lite != (LiteGroup{}) {
		t.Errorf("a group without lite topics has %+v", g.Lite)
	}
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

// Artemis: undelivered messages: "The `redelivery-collision-avoidance-factor` must be between 0.0
// and 1.0."
func TestCollisionAvoidanceFactorBounds(t *testing.T) {
	t.Parallel()
	for factor, legal := range map[float64]bool{0: true, .5: true, 1: true, -.01: false, 1.01: false} {
		if err := (Address{RedeliveryCollisionAvoidanceFactor: &factor}).Validate(); (err == nil) != legal {
			t.Errorf("%v: %v", factor, err)
		}
	}
}

// A field of the more specific settings wins, and a nil field is inherited.
func TestAddressSettingsMerge(t *testing.T) {
	t.Parallel()
	typ := reflect.TypeFor[Address]()
	for i := range typ.NumField() {
		set := reflect.New(typ).Elem()
		set.Field(i).Set(reflect.New(typ.Field(i).Type.Elem()))
		s, none := set.Interface().(Address), Address{}
		other := reflect.New(typ).Elem()
		other.Field(i).Set(reflect.New(typ.Field(i).Type.Elem()))
		if got := s.Over(other.Interface().(Address)); got != s {
			t.Errorf("%s: the less specific one won", typ.Field(i).Name)
		}
		if got := none.Over(s); got != s {
			t.Errorf("%s is not inherited", typ.Field(i).Name)
		}
	}
}

func FuzzMilliseconds(f *testing.F) {
	for _, s := range []string{"5000", "-1", `"5s"`, `"1m30s"`, "1.5", "null", `"1ns"`, "1e3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var m, again Milliseconds
		if json.Unmarshal([]byte(text), &m) != nil {
			return
		}
		b, err := json.Marshal(m)
		if err != nil || json.Unmarshal(b, &again) != nil || m != again {
			t.Errorf("%s became %d, %s, %v, %d", text, m, b, err, again)
		}
	})
}

// setDurations calls try with each duration among the settings of v set to d, one at a time.
func setDurations(v reflect.Value, name string, d time.Duration, try func(name string)) {
	switch before := reflect.ValueOf(v.Interface()); v.Interface().(type) {
	case Duration, time.Duration:
		v.SetInt(int64(d))
		try(name)
		v.Set(before)
	case Milliseconds:
		v.SetInt(int64(d/time.Millisecond) + 1)
		try(name)
		v.Set(before)
	case backoff.Steps:
		v.Set(reflect.ValueOf(backoff.Steps{time.Second, d}))
		try(name)
		v.Set(before)
	default:
		switch v.Kind() {
		case reflect.Pointer:
			if v.Type().Elem().Kind() == reflect.Int64 {
				v.Set(reflect.New(v.Type().Elem()))
				setDurations(v.Elem(), name, d, try)
				v.Set(before)
			}
		case reflect.Struct:
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.IsExported() {
					tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
					if tag == "" {
						tag = f.Name
					}
					setDurations(v.Field(i), tag, d, try)
				}
			}
		}
	}
}

// Validate rejects each duration above MaxDuration, and names its field.
func TestDurationsOfSettingsAreBounded(t *testing.T) {
	t.Parallel()
	type validated interface{ Validate() error }
	tried := 0
	for _, c := range []validated{&Topic{Type: TopicLite}, &Group{}, &Address{}} {
		v := reflect.ValueOf(c).Elem()
		for _, d := range []time.Duration{math.MaxInt64 - time.Second, MaxDuration + 1} {
			setDurations(v, "", d, func(name string) {
				tried++
				if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("%T with %s set to %v: %v", c, name, d, err)
				}
			})
		}
	}
	if tried < 2*11 {
		t.Errorf("there are %d durations only", tried/2)
	}
	longest := Topic{
		DuplicateWindow: Duration(MaxDuration), Retention: Retention{Time: Duration(MaxDuration)}, MaxBacklog: Limit{Age: Duration(MaxDuration)},
		Transaction: Transaction{Timeout: Duration(MaxDuration), CheckInterval: Duration(MaxDuration)},
	}
	if err := longest.Validate(); err != nil {
		t.Error(err)
	}
	group := Group{FIFO: true, FIFORetryInterval: Duration(MaxDuration), Retry: backoff.Steps{MaxDuration}}
	if err := group.Validate(); err != nil {
		t.Error(err)
	}
}

func TestRateIsChecked(t *testing.T) {
	t.Parallel()
	err := Topic{MaxRate: Rate{MessagesPerSecond: -1, BytesPerSecond: math.NaN(), Burst: -1}}.Validate()
	for _, w := range []string{"max_rate.messages_per_second is -1", "max_rate.bytes_per_second is NaN", "max_rate.burst is -1"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not contain %q: %v", w, err)
		}
	}
}

func TestPressureIsChecked(t *testing.T) {
	t.Parallel()
	err := Limits{Pressure: Pressure{MinFreeDisk: -2, MaxCompactionDebt: -2, MaxColdReads: -1, ColdDistance: -1}}.Validate()
	for _, w := range []string{"min_free_disk_bytes is -2", "max_compaction_debt_bytes is -2", "max_cold_reads_bytes_per_second is -1", "cold_distance_bytes is -1"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not contain %q: %v", w, err)
		}
	}
}

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

// TDMQ for Pulsar: retry and dead letters: "2.9.2 version cluster: [Topic name]-[Subscription
// name]-RETRY"
//
// TDMQ for Pulsar: retry and dead letters: "2.7.2 version cluster: [Subscription name]-RETRY"
//
// TDMQ for Pulsar: retry and dead letters: "2.6.1 Version Cluster: [Subscription name]-retry" TDMQ
// for Pulsar: retry and dead letters: "The retry queue is specified as [Topic name]-[Subscription
// name]-RETRY. The dead letter queue is specified as [Topic name]-[Subscription name]-DLQ" TDMQ for
// Pulsar: retry and dead letters: "The retry queue is specified as [Subscription name]-RETRY. The
// dead letter queue is specified as [Subscription name]-DLQ" TDMQ for Pulsar: retry and dead
// letters: "The retry queue is specified as [Subscription name]-retry. The dead letter queue is
// specified as [Subscription name]-dlq" TDMQ for Pulsar: retry and dead letters: "To customize
// these parameters, use the deadLetterPolicy API"
func TestRetryTopicNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config      RetryTopic
		retry, dead string
		original    string
	}{
		{RetryTopic{}, "topic1-sub1-RETRY", "topic1-sub1-DLQ", "topic1"},
		{RetryTopic{Naming: "2.9.2"}, "topic1-sub1-RETRY", "topic1-sub1-DLQ", "topic1"},
		{RetryTopic{Naming: "2.7.2"}, "sub1-RETRY", "sub1-DLQ", ""},
		{RetryTopic{Naming: "2.6.1"}, "sub1-retry", "sub1-dlq", ""},
		// .retryLetterTopic("..."), .deadLetterTopic("...") of the document's deadLetterPolicy
		{RetryTopic{Topic: "my-retry", DeadLetterTopic: "my-dlq"}, "my-retry", "my-dlq", ""},
		{RetryTopic{Enabled: true, Topic: "my-retry"}, "my-retry", "topic1-sub1-DLQ", ""},
	} {
		rc := c.config.WithDefaults()
		if got := rc.RetryName("topic1", "sub1"); got != c.retry {
			t.Errorf("%q: the retry topic is %s, want %s", c.config.Naming, got, c.retry)
		}
		if got := rc.DeadLetterName("topic1", "sub1"); got != c.dead {
			t.Errorf("%q: the dead letter topic is %s, want %s", c.config.Naming, got, c.dead)
		}
		if got, ok := rc.Original(c.retry, "sub1"); !ok || got != c.original {
			t.Errorf("%q: %s is the retry topic of %q, %t", c.config.Naming, c.retry, got, ok)
		}
		if retry, dead := rc.Topics("topic1", "sub1"); retry != c.retry || dead != c.dead {
			t.Errorf("%q: the topics are %s and %s", c.config.Naming, retry, dead)
		}
		if got, ok := rc.Original("topic1", "sub1"); ok {
			t.Errorf("%q: topic1 is the retry topic of %q", c.config.Naming, got)
		}
	}
}

// TDMQ for Pulsar: retry and dead letters: "level 1 corresponds to 1s, and level 3 corresponds to
// 10s. If the default value does not meet actual business requirements, users can customize it."
//
// TDMQ for Pulsar: retry and dead letters: "After the first failure, the retry interval is 1
// second. After the second failure, it becomes 5 seconds."
//
// TDMQ for Pulsar: retry and dead letters: "The value ranges of delay time and delayed messages are
// the same, ranging from 1 to 864,000 seconds."
//
// TDMQ for Pulsar: retry and dead letters: "If the subscription mode is Exclusive or Failover, the
// specified retry interval does not take effect, and retries occur immediately." TDMQ for Pulsar:
// retry and dead letters: "To customize these parameters, use the deadLetterPolicy API" TDMQ for
// Pulsar: retry and dead letters: "Retry rules are implemented using the reconsumeLater API. Three
// modes are available" TDMQ for Pulsar: retry and dead letters: "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m
// 8m 9m 10m 20m 30m 1h 2h"
func TestReconsumeModes(t *testing.T) {
	t.Parallel()
	if got := retryLevels().String(); got != "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h" {
		t.Errorf("the levels are %s", got)
	}
	own := RetryTopic{Levels: backoff.Steps{time.Minute, time.Hour}, MaxRetries: 3}
	for _, c := range []struct {
		config RetryTopic
		times  int
		after  time.Duration
		level  int
		delay  time.Duration
		dead   bool
		err    string
	}{
		{RetryTopic{}, 1, time.Second, 0, time.Second, false, ""},
		{RetryTopic{}, 1, 864_000 * time.Second, 0, 864_000 * time.Second, false, ""},
		{RetryTopic{}, 1, time.Second - 1, 0, 0, false, "1s to 240h0m0s"},
		{RetryTopic{}, 1, -1, 0, 0, false, "1s to 240h0m0s"},
		{RetryTopic{}, 1, 864_001 * time.Second, 0, 0, false, "1s to 240h0m0s"},
		{RetryTopic{}, 5, 0, 1, time.Second, false, ""},
		{RetryTopic{}, 1, 0, 3, 10 * time.Second, false, ""},
		{RetryTopic{}, 1, 0, 18, 2 * time.Hour, false, ""},
		{RetryTopic{}, 1, 0, 19, 0, false, "give 1 to 18"},
		{RetryTopic{}, 1, 0, -1, 0, false, "give 1 to 18"},
		{RetryTopic{}, 1, time.Second, 1, 0, false, "one of them"},
		{RetryTopic{}, 1, 0, 0, time.Second, false, ""},
		{RetryTopic{}, 2, 0, 0, 5 * time.Second, false, ""},
		{RetryTopic{}, 16, 0, 0, 30 * time.Minute, false, ""},
		{RetryTopic{}, 17, 0, 0, 0, true, ""},
		{RetryTopic{}, 17, time.Hour, 0, 0, true, ""},
		{own, 1, 0, 0, time.Minute, false, ""},
		{own, 3, 0, 0, time.Hour, false, ""}, // the last level repeats
		{own, 4, 0, 0, 0, true, ""},
		{own, 1, 0, 2, time.Hour, false, ""},
		{RetryTopic{SubscriptionType: "key_shared"}, 1, 0, 3, 10 * time.Second, false, ""},
		{RetryTopic{SubscriptionType: "exclusive"}, 1, time.Hour, 0, 0, false, ""},
		{RetryTopic{SubscriptionType: "failover"}, 2, 0, 0, 0, false, ""},
		{RetryTopic{SubscriptionType: "failover"}, 17, 0, 0, 0, true, ""},
	} {
		delay, dead, err := c.config.WithDefaults().Reconsume(c.times, c.after, c.level)
		if delay != c.delay || dead != c.dead || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s, retry %d after %v at level %d: %v, %t, %v", c.config.SubscriptionType, c.times, c.after, c.level, delay, dead, err)
		}
	}
}
