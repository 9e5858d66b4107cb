package broker

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
)

// The defaults and bounds of retry topics (TDMQ for Pulsar: retry and dead letters).
const (
	DefaultMaxRetries       = 16
	DefaultNegativeAckDelay = time.Minute
	MinReconsumeDelay       = time.Second
	MaxReconsumeDelay       = 864_000 * time.Second
)

// RetryLevels returns a new copy of the delay levels (MESSAGE_DELAYLEVEL): level 1 is
// 1 s, level 18 is 2 h.
func RetryLevels() backoff.Steps {
	return append(backoff.Steps{time.Second, 5 * time.Second}, backoff.RetryLadder()...)
}

// A RetryNaming is the form of the names of retry topics and their dead letter topics: that of a
// version of TDMQ for Pulsar's clusters.
type RetryNaming string

// The namings.
const (
	RetryNaming292 RetryNaming = "2.9.2" // topic-group-RETRY and topic-group-DLQ
	RetryNaming272 RetryNaming = "2.7.2" // group-RETRY and group-DLQ, for all topics of the group
	RetryNaming261 RetryNaming = "2.6.1" // group-retry and group-dlq, likewise
)

// A SubscriptionType is the declared type of a group. It does not limit the number of its
// consumers.
type SubscriptionType string

// The types. Delays need Shared or KeyShared (TDMQ for Pulsar: retry and dead letters).
const (
	SubscriptionShared    SubscriptionType = "shared"
	SubscriptionKeyShared SubscriptionType = "key_shared"
	SubscriptionExclusive SubscriptionType = "exclusive"
	SubscriptionFailover  SubscriptionType = "failover"
)

// A RetryTopicConfig has the settings of retries through a retry topic (TDMQ for Pulsar: retry and
// dead letters). [Broker.ReconsumeLater] acknowledges a message and stores it in the retry topic,
// with a delay. Each receive of the group from the original topic also takes from the retry topic.
// Naming and Topic cannot change while the group receives from a retry topic, or while a retry
// topic still has messages for the group after Enabled was set to false.
type RetryTopicConfig struct {
	// Enabled permits retries through a retry topic. Default: false.
	Enabled bool `json:"enabled,omitempty"`

	// Naming is the form of the names of the two topics. Default: RetryNaming292.
	Naming RetryNaming `json:"naming,omitempty"`

	// Topic and DeadLetterTopic replace the names by Naming, for all topics of the group. Topic
	// cannot be a retry topic of another group. Default: the names by Naming.
	Topic           string `json:"topic,omitempty"`
	DeadLetterTopic string `json:"dead_letter_topic,omitempty"`

	// MaxRetries is the maximum number of retries of a message. The next ReconsumeLater moves it to
	// the dead letter topic. Default: DefaultMaxRetries.
	MaxRetries int `json:"max_retries,omitempty"`

	// Levels are the delays of the levels, from level 1 on. Default: RetryLevels().
	Levels backoff.Steps `json:"levels,omitempty"`

	// SubscriptionType is the type of the group. Groups of type exclusive and failover retry
	// without delay. Default: SubscriptionShared.
	SubscriptionType SubscriptionType `json:"subscription_type,omitempty"`
}

// A NegativeAckConfig has the settings of negative acknowledgements: the same message is delivered
// again, and no new message is stored (TDMQ for Pulsar: retry and dead letters).
type NegativeAckConfig struct {
	// Delay is the time until the next delivery if the consumer requests none. Default:
	// DefaultNegativeAckDelay.
	Delay Duration `json:"delay,omitempty"`

	// MaxRedeliveries is the maximum number of redeliveries of a message. The next negative
	// acknowledgement makes it a dead letter. Zero means no maximum.
	MaxRedeliveries int `json:"max_redeliveries,omitempty"`
}

func (c RetryTopicConfig) withDefaults() RetryTopicConfig {
	if c.Naming == "" {
		c.Naming = RetryNaming292
	}
	if c.MaxRetries == 0 {
		c.MaxRetries = DefaultMaxRetries
	}
	if len(c.Levels) == 0 {
		c.Levels = RetryLevels()
	}
	if c.SubscriptionType == "" {
		c.SubscriptionType = SubscriptionShared
	}
	return c
}

func (c RetryTopicConfig) validate(fifo bool) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("retry_topic."+format, args...)) }
	switch c.Naming {
	case RetryNaming292, RetryNaming272, RetryNaming261:
	default:
		bad("naming is %q: give %s, %s or %s", c.Naming, RetryNaming292, RetryNaming272, RetryNaming261)
	}
	switch c.SubscriptionType {
	case SubscriptionShared, SubscriptionKeyShared, SubscriptionExclusive, SubscriptionFailover:
	default:
		bad("subscription_type is %q: give %s, %s, %s or %s", c.SubscriptionType,
			SubscriptionShared, SubscriptionKeyShared, SubscriptionExclusive, SubscriptionFailover)
	}
	for name, topic := range map[string]string{"topic": c.Topic, "dead_letter_topic": c.DeadLetterTopic} {
		if topic != "" {
			if err := tidegate.ValidateTopic(topic); err != nil {
				bad("%s is %q: %w", name, topic, err)
			}
		}
	}
	if c.Topic != "" && c.Topic == c.DeadLetterTopic {
		bad("topic and retry_topic.dead_letter_topic are both %q: give two topics", c.Topic)
	}
	if c.MaxRetries < 0 {
		bad("max_retries is %d: give 1 or more", c.MaxRetries)
	}
	for i, d := range c.Levels {
		if d < MinReconsumeDelay || d > MaxReconsumeDelay {
			bad("levels: level %d is %v: give %v to %v", i+1, d, MinReconsumeDelay, MaxReconsumeDelay)
		}
	}
	if c.Enabled && fifo {
		bad("enabled is true and fifo too: a retry topic does not keep the order; give one of them")
	}
	return errors.Join(errs...)
}

// validateNames is the part of validate that the group's name is needed for:
// where one of the two topics has a name of its own, Naming may give it to the
// other one, though it be for one topic only.
func (c RetryTopicConfig) validateNames(group string) error {
	retry, dead := c.retryTopic("", group), c.deadLetterTopic("", group) // with 2.9.2, what a name ends with
	switch {
	case c.Topic != "" && c.DeadLetterTopic == "" && (retry == dead || c.Naming == RetryNaming292 && strings.HasSuffix(retry, dead)):
		return fmt.Errorf("retry_topic.topic is %q, which naming %s gives to dead letters: give another one", c.Topic, c.Naming)
	case c.Topic == "" && c.DeadLetterTopic != "" && (retry == dead || c.Naming == RetryNaming292 && strings.HasSuffix(dead, retry)):
		return fmt.Errorf("retry_topic.dead_letter_topic is %q, which naming %s gives to retries: give another one", c.DeadLetterTopic, c.Naming)
	}
	return nil
}

func (c NegativeAckConfig) validate() error {
	var errs []error
	if d := time.Duration(c.Delay); d < 0 || d > MaxReconsumeDelay {
		errs = append(errs, fmt.Errorf("negative_ack.delay is %v: give up to %v", d, MaxReconsumeDelay))
	}
	if c.MaxRedeliveries < 0 {
		errs = append(errs, fmt.Errorf("negative_ack.max_redeliveries is %d: give 1 or more, or 0 for no maximum", c.MaxRedeliveries))
	}
	return errors.Join(errs...)
}

// suffixes are how the names of the two topics end.
func (n RetryNaming) suffixes() (retry, dead string) {
	if n == RetryNaming261 {
		return "-retry", "-dlq"
	}
	return "-RETRY", "-DLQ"
}

// Topics returns the names of the two topics that the group's failures in a
// topic, which is none of these itself, go to.
func (c RetryTopicConfig) Topics(topic, group string) (retry, deadLetter string) {
	return c.retryTopic(topic, group), c.deadLetterTopic(topic, group)
}

// retryTopic returns the name of the group's retry topic for a topic.
func (c RetryTopicConfig) retryTopic(topic, group string) string {
	suffix, _ := c.Naming.suffixes()
	return c.named(c.Topic, topic, group, suffix)
}

// deadLetterTopic returns the name of the topic for what was retried too often.
func (c RetryTopicConfig) deadLetterTopic(topic, group string) string {
	_, suffix := c.Naming.suffixes()
	return c.named(c.DeadLetterTopic, topic, group, suffix)
}

func (c RetryTopicConfig) named(own, topic, group, suffix string) string {
	switch {
	case own != "":
		return own
	case c.Naming == RetryNaming292:
		return topic + "-" + group + suffix
	}
	return group + suffix
}

// original returns the topic that a name is the group's retry topic for, and
// whether it is one at all; empty if it is one for all topics.
func (c RetryTopicConfig) original(name, group string) (topic string, retry bool) {
	if c.Topic != "" || c.Naming != RetryNaming292 {
		return "", name == c.retryTopic("", group)
	}
	topic, retry = strings.CutSuffix(name, c.retryTopic("", group))
	return topic, retry && topic != ""
}

// A ReconsumeMode is the mode of a ReconsumeLater (TDMQ for Pulsar: retry and dead letters). The
// zero value is the third one: after the first failure level 1, after the
// second level 2, and so on to the last level.
type ReconsumeMode struct {
	// Delay is any time, 1 s to 864 000 s.
	Delay time.Duration

	// Level is one of the group's levels, from 1 on.
	Level int
}

// reconsume decides about retry number times: how long it waits, or that it
// is one too many.
func (c RetryTopicConfig) reconsume(times int, m ReconsumeMode) (delay time.Duration, dead bool, err error) {
	switch {
	case m.Delay != 0 && m.Level != 0:
		return 0, false, newError(tidegate.CodeBadRequest, "reconsume mode", "it has the delay %v and level %d: give one of them, or none for the next level", m.Delay, m.Level)
	case m.Delay != 0 && (m.Delay < MinReconsumeDelay || m.Delay > MaxReconsumeDelay):
		return 0, false, newError(tidegate.CodeIllegalDeliveryTime, "delay", "it is %v; give %v to %v", m.Delay, MinReconsumeDelay, MaxReconsumeDelay)
	case m.Level < 0 || m.Level > len(c.Levels):
		return 0, false, newError(tidegate.CodeBadRequest, "level", "it is %d; the group has 1 to %d", m.Level, len(c.Levels))
	}
	switch {
	case times > c.MaxRetries:
		return 0, true, nil
	case c.SubscriptionType == SubscriptionExclusive || c.SubscriptionType == SubscriptionFailover:
		return 0, false, nil
	case m.Delay != 0:
		return m.Delay, false, nil
	case m.Level != 0:
		return c.Levels.Delay(m.Level - 1), false, nil
	}
	return c.Levels.Delay(times - 1), false, nil
}
