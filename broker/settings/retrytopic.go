package settings

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/protocol"
)

// The defaults and bounds of retry topics (TDMQ for Pulsar: retry and dead letters).
const (
	defaultMaxRetries       = 16
	defaultNegativeAckDelay = time.Minute
	minReconsumeDelay       = time.Second
	MaxReconsumeDelay       = 864_000 * time.Second
)

// retryLevels returns a new copy of the delay levels (MESSAGE_DELAYLEVEL): level 1 is 1 s, level 18
// is 2 h.
func retryLevels() backoff.Steps {
	return append(backoff.Steps{time.Second, 5 * time.Second}, backoff.RetryLadder()...)
}

// A RetryNaming is the form of the names of retry topics and their dead letter topics: the form of
// one version of TDMQ for Pulsar clusters.
type RetryNaming string

// The namings.
const (
	RetryNaming292 RetryNaming = "2.9.2" // topic-group-RETRY and topic-group-DLQ
	RetryNaming272 RetryNaming = "2.7.2" // group-RETRY and group-DLQ, for all topics of the group
	RetryNaming261 RetryNaming = "2.6.1" // group-retry and group-dlq, for all topics of the group
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

// A RetryTopic has the settings of retries through a retry topic (TDMQ for Pulsar: retry and dead
// letters). The broker's ReconsumeLater acknowledges a message and stores it in the retry topic,
// with a delay. Each receive of the group from the original topic also takes from the retry topic.
// Naming and Topic cannot change while the group receives from a retry topic, or while a retry
// topic still has messages for the group after Enabled was set to false.
type RetryTopic struct {
	// Enabled permits retries through a retry topic. Default: false.
	Enabled bool `json:"enabled,omitempty"`

	// Naming is the form of the names of the two topics. Default: RetryNaming292.
	Naming RetryNaming `json:"naming,omitempty"`

	// Topic and DeadLetterTopic replace the names by Naming, for all topics of the group. Topic
	// cannot be a retry topic of another group. Default: the names by Naming.
	Topic           string `json:"topic,omitempty"`
	DeadLetterTopic string `json:"dead_letter_topic,omitempty"`

	// MaxRetries is the maximum number of retries of a message. The next ReconsumeLater moves it to
	// the dead letter topic. Default: 16.
	MaxRetries int `json:"max_retries,omitempty"`

	// Levels are the delays of the levels, from level 1 on. Default: 1 s, 5 s, and the schedule of
	// backoff.RetryLadder(), to 2 h at level 18.
	Levels backoff.Steps `json:"levels,omitempty"`

	// SubscriptionType is the type of the group. Groups of type exclusive and failover retry
	// without delay. Default: SubscriptionShared.
	SubscriptionType SubscriptionType `json:"subscription_type,omitempty"`
}

// A NegativeAck has the settings of negative acknowledgements: the same message is delivered again,
// and no new message is stored (TDMQ for Pulsar: retry and dead letters).
type NegativeAck struct {
	// Delay is the time until the next delivery if the consumer requests none. Default: 1 min.
	Delay Duration `json:"delay,omitempty"`

	// MaxRedeliveries is the maximum number of redeliveries of a message. The next negative
	// acknowledgement makes it a dead letter. Zero means no maximum.
	MaxRedeliveries int `json:"max_redeliveries,omitempty"`
}

// WithDefaults returns c with the default of every zero field.
func (c RetryTopic) WithDefaults() RetryTopic {
	if c.Naming == "" {
		c.Naming = RetryNaming292
	}
	if c.MaxRetries == 0 {
		c.MaxRetries = defaultMaxRetries
	}
	if len(c.Levels) == 0 {
		c.Levels = retryLevels()
	}
	if c.SubscriptionType == "" {
		c.SubscriptionType = SubscriptionShared
	}
	return c
}

func (c RetryTopic) validate(fifo bool) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("retry_topic."+format, args...)) }
	switch c.Naming {
	case RetryNaming292, RetryNaming272, RetryNaming261:
	default:
		bad("naming is %q; give %s, %s or %s", c.Naming, RetryNaming292, RetryNaming272, RetryNaming261)
	}
	switch c.SubscriptionType {
	case SubscriptionShared, SubscriptionKeyShared, SubscriptionExclusive, SubscriptionFailover:
	default:
		bad("subscription_type is %q; give %s, %s, %s or %s", c.SubscriptionType,
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
		bad("topic and retry_topic.dead_letter_topic are both %q; give two different topics", c.Topic)
	}
	if c.MaxRetries < 0 {
		bad("max_retries is %d; give 1 or more", c.MaxRetries)
	}
	for i, d := range c.Levels {
		if d < minReconsumeDelay || d > MaxReconsumeDelay {
			bad("levels: level %d is %v; give %v to %v", i+1, d, minReconsumeDelay, MaxReconsumeDelay)
		}
	}
	if c.Enabled && fifo {
		bad("enabled is true, and the group is FIFO; a retry topic does not keep the order, so set one of the two")
	}
	return errors.Join(errs...)
}

// validateNames returns an error if one of Topic and DeadLetterTopic is set, and Naming gives the
// same name to the other one, for at least one topic. The fields must have their defaults.
func (c RetryTopic) validateNames(group string) error {
	retry, dead := c.RetryName("", group), c.DeadLetterName("", group) // with 2.9.2, the ends of the names
	switch {
	case c.Topic != "" && c.DeadLetterTopic == "" && (retry == dead || c.Naming == RetryNaming292 && strings.HasSuffix(retry, dead)):
		return fmt.Errorf("retry_topic.topic is %q, the name of dead letter topics by naming %s; give another name", c.Topic, c.Naming)
	case c.Topic == "" && c.DeadLetterTopic != "" && (retry == dead || c.Naming == RetryNaming292 && strings.HasSuffix(dead, retry)):
		return fmt.Errorf("retry_topic.dead_letter_topic is %q, the name of retry topics by naming %s; give another name", c.DeadLetterTopic, c.Naming)
	}
	return nil
}

func (c NegativeAck) validate() error {
	var errs []error
	if d := time.Duration(c.Delay); d < 0 || d > MaxReconsumeDelay {
		errs = append(errs, fmt.Errorf("negative_ack.delay is %v; give up to %v", d, MaxReconsumeDelay))
	}
	if c.MaxRedeliveries < 0 {
		errs = append(errs, fmt.Errorf("negative_ack.max_redeliveries is %d; give 1 or more, or 0 for no maximum", c.MaxRedeliveries))
	}
	return errors.Join(errs...)
}

// suffixes returns the ends of the names of the retry topic and the dead letter topic.
func (n RetryNaming) suffixes() (retry, dead string) {
	if n == RetryNaming261 {
		return "-retry", "-dlq"
	}
	return "-RETRY", "-DLQ"
}

// Topics returns the names of the group's retry topic and dead letter topic for a topic. The topic
// must be neither of the two itself. The names can exceed the maximum length of a topic's name.
func (c RetryTopic) Topics(topic, group string) (retry, deadLetter string) {
	return c.RetryName(topic, group), c.DeadLetterName(topic, group)
}

// RetryName returns the name of the group's retry topic for a topic, as Topics does.
func (c RetryTopic) RetryName(topic, group string) string {
	suffix, _ := c.Naming.suffixes()
	return c.named(c.Topic, topic, group, suffix)
}

// DeadLetterName returns the name of the group's dead letter topic for a topic, as Topics does.
func (c RetryTopic) DeadLetterName(topic, group string) string {
	_, suffix := c.Naming.suffixes()
	return c.named(c.DeadLetterTopic, topic, group, suffix)
}

func (c RetryTopic) named(own, topic, group, suffix string) string {
	switch {
	case own != "":
		return own
	case c.Naming == RetryNaming292:
		return topic + "-" + group + suffix
	}
	return group + suffix
}

// RedriveName returns the name of the topic of messages that were redriven to the group alone, for
// their original topic. It does not depend on the settings. The name can exceed the maximum length
// of a topic's name.
func (RetryTopic) RedriveName(topic, group string) string {
	return protocol.RetryPrefix + group + "_" + topic
}

// Original reports whether name is a retry topic of the group, or one of RedriveName, and returns
// the topic that it is for. The topic is empty if the group has one retry topic for all its topics.
func (c RetryTopic) Original(name, group string) (topic string, retry bool) {
	if topic, retry = strings.CutPrefix(name, c.RedriveName("", group)); retry && topic != "" {
		return topic, true
	}
	if c.Topic != "" || c.Naming != RetryNaming292 {
		return "", name == c.RetryName("", group)
	}
	topic, retry = strings.CutSuffix(name, c.RetryName("", group))
	return topic, retry && topic != ""
}
