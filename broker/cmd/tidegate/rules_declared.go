package main

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
)

var topicTypes = []string{string(broker.TopicNormal), string(broker.TopicFIFO), string(broker.TopicDelay), string(broker.TopicTransaction)}

const (
	defaultMinPoll time.Duration = server.DefaultMinLongPolling
	defaultMaxPoll time.Duration = server.DefaultMaxLongPolling
)

// topicRules are all fields of a topic, named as over HTTP.
var topicRules = []rule[broker.TopicConfig]{
	keeps("that of the topic, or NORMAL for a new one", rule[broker.TopicConfig]{
		key: "type", text: func(c *broker.TopicConfig) string { return string(c.Type) },
		set: func(c *broker.TopicConfig, s string) error {
			if err := oneOf(topicTypes...)(s); err != nil {
				return err
			}
			c.Type = broker.TopicType(s)
			return nil
		},
	}),
	keeps(fmt.Sprintf("those of the topic, or %d for a new one", broker.DefaultQueues),
		integer("queues", "", "", 1, broker.MaxQueues, func(c *broker.TopicConfig) *int { return &c.Queues })),
	windowRule,
	inherits(brokersBacklog, integer("max_backlog.messages", "0", "", 0, math.MaxInt64, func(c *broker.TopicConfig) *int64 { return &c.MaxBacklog.Messages })),
	inherits(brokersBacklog, integer("max_backlog.bytes", "0", "", 0, math.MaxInt64, func(c *broker.TopicConfig) *int64 { return &c.MaxBacklog.Bytes })),
	inherits(brokersBacklog, age(func(c *broker.TopicConfig) *broker.Limit { return &c.MaxBacklog })),
	number("max_rate.messages_per_second", "", func(c *broker.TopicConfig) *float64 { return &c.MaxRate.MessagesPerSecond }),
	number("max_rate.bytes_per_second", "", func(c *broker.TopicConfig) *float64 { return &c.MaxRate.BytesPerSecond }),
	integer("max_rate.burst", "0", "", 0, math.MaxInt32, func(c *broker.TopicConfig) *int { return &c.MaxRate.Burst }),
	keeps("72h, or for ever for dead letters", retentionRule),
	integer("retention.bytes", "0", "", 0, math.MaxInt64, func(c *broker.TopicConfig) *int64 { return &c.Retention.Bytes }),
	yesNo("retention.consumed", "", func(c *broker.TopicConfig) *bool { return &c.Retention.Consumed }),

	inherits("that of transaction_timeout",
		duration("transaction.timeout", broker.Duration(0), "", 0, func(c *broker.TopicConfig) *broker.Duration { return &c.Transaction.Timeout })),
	inherits("that of transaction_check_interval",
		duration("transaction.check_interval", broker.Duration(0), "", 0, func(c *broker.TopicConfig) *broker.Duration { return &c.Transaction.CheckInterval })),
	inherits("that of transaction_check_max", integer("transaction.check_max", "0", "", -1, math.MaxInt32, func(c *broker.TopicConfig) *int { return &c.Transaction.CheckMax })),
}

// groupRules are all fields of a consumer group, named as over HTTP.
var groupRules = []rule[broker.GroupConfig]{
	yesNo("fifo", "", func(c *broker.GroupConfig) *bool { return &c.FIFO }),
	{
		key: "start", preset: string(broker.StartEarliest), text: func(c *broker.GroupConfig) string { return string(c.Start) },
		set: func(c *broker.GroupConfig, s string) error {
			if err := oneOf(string(broker.StartEarliest), string(broker.StartLatest))(s); err != nil {
				return err
			}
			c.Start = broker.Start(s)
			return nil
		},
	},
	attemptsRule,
	{
		key: "on_exhausted", preset: string(broker.OnExhaustedDeadLetter), text: func(c *broker.GroupConfig) string { return string(c.OnExhausted) },
		set: func(c *broker.GroupConfig, s string) error {
			if err := oneOf(string(broker.OnExhaustedDeadLetter), string(broker.OnExhaustedBlock), string(broker.OnExhaustedPark))(s); err != nil {
				return err
			}
			c.OnExhausted = broker.OnExhausted(s)
			return nil
		},
	},
	ladder("retry", backoff.RetryLadder(), func(c *broker.GroupConfig) *backoff.Steps { return &c.Retry }),
	duration("fifo_retry_interval", broker.Duration(broker.DefaultFIFORetryInterval), "", 1,
		func(c *broker.GroupConfig) *broker.Duration { return &c.FIFORetryInterval }),
	integer("max_backlog.messages", "0", "", 0, math.MaxInt64, func(c *broker.GroupConfig) *int64 { return &c.MaxBacklog.Messages }),
	integer("max_backlog.bytes", "0", "", 0, math.MaxInt64, func(c *broker.GroupConfig) *int64 { return &c.MaxBacklog.Bytes }),
	age(func(c *broker.GroupConfig) *broker.Limit { return &c.MaxBacklog }),
	yesNo("retry_topic.enabled", "", func(c *broker.GroupConfig) *bool { return &c.RetryTopic.Enabled }),
	word("retry_topic.naming", broker.RetryNaming292, func(c *broker.GroupConfig) *broker.RetryNaming { return &c.RetryTopic.Naming },
		broker.RetryNaming272, broker.RetryNaming261),
	text("retry_topic.topic", "", "", func(c *broker.GroupConfig) *string { return &c.RetryTopic.Topic }, topicOrNone),
	text("retry_topic.dead_letter_topic", "", "", func(c *broker.GroupConfig) *string { return &c.RetryTopic.DeadLetterTopic }, topicOrNone),
	integer("retry_topic.max_retries", fmt.Sprint(broker.DefaultMaxRetries), "", 1, math.MaxInt32, func(c *broker.GroupConfig) *int { return &c.RetryTopic.MaxRetries }),
	ladder("retry_topic.levels", broker.RetryLevels(), func(c *broker.GroupConfig) *backoff.Steps { return &c.RetryTopic.Levels }),
	word("retry_topic.subscription_type", broker.SubscriptionShared, func(c *broker.GroupConfig) *broker.SubscriptionType { return &c.RetryTopic.SubscriptionType },
		broker.SubscriptionKeyShared, broker.SubscriptionExclusive, broker.SubscriptionFailover),
	duration("negative_ack.delay", broker.Duration(broker.DefaultNegativeAckDelay), "", 1, func(c *broker.GroupConfig) *broker.Duration { return &c.NegativeAck.Delay }),
	integer("negative_ack.max_redeliveries", "0", "", 0, math.MaxInt32, func(c *broker.GroupConfig) *int { return &c.NegativeAck.MaxRedeliveries }),
}

// age is the age of a backlog's oldest message.
func age[T any](limit func(*T) *broker.Limit) rule[T] {
	return duration("max_backlog.age", 0, "", 0, func(v *T) *broker.Duration { return &limit(v).Age })
}

// brokersBacklog is what holds for a topic without any limit of its own.
const brokersBacklog = "while all three are 0, the broker's max_backlog, max_backlog_bytes and max_backlog_age"

func inherits[T any](whose string, r rule[T]) rule[T] {
	r.inherits = whose
	return r
}

func keeps[T any](what string, r rule[T]) rule[T] {
	r.keeps = what
	return r
}

// windowRule is a duration that may be negative, for none; in the engine 0
// stands for the default.
var windowRule = notZero("give a duration above 0s, or -1s for none",
	duration("duplicate_window", broker.Duration(broker.DefaultDuplicateWindow), "", math.MinInt64,
		func(c *broker.TopicConfig) *broker.Duration { return &c.DuplicateWindow }))

// retentionRule is such a duration too. Its default depends on the topic.
var retentionRule = func() rule[broker.TopicConfig] {
	r := notZero("give a duration above 0s, or -1s for ever",
		duration("retention.time", broker.Duration(0), "", math.MinInt64, func(c *broker.TopicConfig) *broker.Duration { return &c.Retention.Time }))
	r.preset = ""
	return r
}()

// notZero makes a rule of a number or a duration refuse 0, which is the default in
// the engine, so that what is shown is what holds.
func notZero[T any](advice string, r rule[T]) rule[T] {
	set := r.set
	r.set = func(v *T, s string) error {
		next := *v
		if err := set(&next, s); err != nil {
			return err
		}
		if t := r.text(&next); t == "0" || t == "0s" {
			return errors.New(advice)
		}
		*v = next
		return nil
	}
	return r
}

var attemptsRule = orForever("max_attempts", broker.DefaultMaxAttempts, "", func(c *broker.GroupConfig) *int { return &c.MaxAttempts })

// orForever is a count that may be -1, for ever; in the engine 0 stands for
// the default.
func orForever[T any](key string, preset int, help string, field func(*T) *int) rule[T] {
	r := integer(key, fmt.Sprint(preset), help, -1, math.MaxInt32, field)
	set := r.set
	r.set = func(v *T, s string) error {
		next := *v
		if err := set(&next, s); err != nil || *field(&next) == 0 {
			return fmt.Errorf("give a whole number of 1 or more, or -1 for ever")
		}
		*v = next
		return nil
	}
	return r
}
