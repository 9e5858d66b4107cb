package settings

import (
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/backoff"
)

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
