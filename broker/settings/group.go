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

// The defaults of Group.
const (
	defaultMaxAttempts       = 17 // one delivery and 16 retries (RocketMQ: consumption retry)
	defaultFIFORetryInterval = 3 * time.Second
)

// A Group has the settings of a consumer group. They can be changed while the group is in use. A
// change also applies to messages in flight.
type Group struct {
	// FIFO keeps the messages of one message group in order: while one of them is in flight or
	// waits for a retry, its successors wait. A receive of several messages therefore gets at most
	// one of each message group. RocketMQ delivers several of them, locks their queue, and if one
	// is not acknowledged, redelivers the acknowledged ones too. Default: false.
	FIFO bool `json:"fifo,omitempty"`

	// Start is the first position of the group in a topic. It does not apply to %DLQ% topics,
	// automatic dead letter queues and the group's own retry topics. Default: StartEarliest.
	Start Start `json:"start,omitempty"`

	// MaxAttempts is the maximum number of deliveries of a message, including the first one. After
	// the last one the message becomes a dead letter, unless the group is FIFO and OnExhausted is
	// block or park. -1 means no maximum. Default: 17.
	MaxAttempts int `json:"max_attempts,omitempty"`

	// OnExhausted is the behaviour of a FIFO group after the last attempt of a message. A message
	// without a message group always becomes a dead letter. Other groups support only
	// OnExhaustedDeadLetter. A change does not release parked messages. Default:
	// OnExhaustedDeadLetter.
	OnExhausted OnExhausted `json:"on_exhausted,omitempty"`

	// Retry is the retry schedule: the intervals after the first failed delivery, after the second,
	// and so on. The last interval repeats. It applies to push consumers of groups that are not
	// FIFO. Default: backoff.RetryLadder().
	Retry backoff.Steps `json:"retry,omitempty"`

	// FIFORetryInterval is the fixed retry interval of a FIFO group. Default: 3 s.
	FIFORetryInterval Duration `json:"fifo_retry_interval,omitempty"`

	// MaxBacklog is the backlog of the group in a topic at which the broker throttles sends to that
	// topic. Zero means no limit.
	MaxBacklog Limit `json:"max_backlog,omitzero"`

	// RetryTopic has the settings of retries through a retry topic, for consumers that call
	// ReconsumeLater. Zero means none.
	RetryTopic RetryTopic `json:"retry_topic,omitzero"`

	// NegativeAck has the settings of negative acknowledgements. Zero means the defaults.
	NegativeAck NegativeAck `json:"negative_ack,omitzero"`

	// Lite binds the group to the lite topics of a topic. Zero means none.
	Lite LiteGroup `json:"lite,omitzero"`
}

// A Start is the first position of a consumer group in a topic.
type Start string

// The first positions: the oldest message of the topic, or the next message to be stored, "from the
// maximum offset of the queue" (RocketMQ: sending retry and throttling).
const (
	StartEarliest Start = "earliest"
	StartLatest   Start = "latest"
)

// An OnExhausted is the behaviour of a FIFO group after the last attempt of a message.
type OnExhausted string

// The behaviours. Other message groups continue in all cases.
//
//   - OnExhaustedDeadLetter: the message becomes a dead letter, and its successors continue.
//   - OnExhaustedBlock: the message is retried without end at FIFORetryInterval, and its successors
//     wait.
//   - OnExhaustedPark: the message group is parked. The message, its successors and later messages
//     of the group wait in order until an operator redrives the message group.
const (
	OnExhaustedDeadLetter OnExhausted = "dead-letter"
	OnExhaustedBlock      OnExhausted = "block"
	OnExhaustedPark       OnExhausted = "park"
)

// WithDefaults returns c with the default of every zero field.
func (c Group) WithDefaults() Group {
	if c.Start == "" {
		c.Start = StartEarliest
	}
	if c.OnExhausted == "" {
		c.OnExhausted = OnExhaustedDeadLetter
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = defaultMaxAttempts
	}
	if len(c.Retry) == 0 {
		c.Retry = backoff.RetryLadder()
	}
	if c.FIFORetryInterval == 0 {
		c.FIFORetryInterval = Duration(defaultFIFORetryInterval)
	}
	c.RetryTopic = c.RetryTopic.WithDefaults()
	c.Lite = c.Lite.WithDefaults()
	if c.NegativeAck.Delay == 0 {
		c.NegativeAck.Delay = Duration(defaultNegativeAckDelay)
	}
	return c
}

// Ladder returns the retry intervals of the group: Retry, or the fixed one of a FIFO group.
func (c Group) Ladder() backoff.Steps {
	c = c.WithDefaults()
	if c.FIFO {
		return backoff.Steps{time.Duration(c.FIFORetryInterval)}
	}
	return c.Retry
}

// Interval returns the retry interval after the failure of a delivery attempt. The first attempt is
// 1. The fields must have their defaults (WithDefaults).
func (c *Group) Interval(attempt int) time.Duration {
	if c.FIFO {
		return time.Duration(c.FIFORetryInterval)
	}
	return c.Retry.Delay(attempt - 1)
}

// ValidateFor is Validate for the group with the given name. It also checks the names of the
// group's retry topic and dead letter topic.
func (c Group) ValidateFor(name string) error {
	return errors.Join(c.Validate(), c.RetryTopic.WithDefaults().validateNames(name))
}

// Validate returns an error that names every field with an invalid value, or nil.
func (c Group) Validate() error {
	c = c.WithDefaults()
	var errs []error
	if c.MaxAttempts < -1 {
		errs = append(errs, fmt.Errorf("max_attempts is %d; give 1 or more, or -1 for no maximum", c.MaxAttempts))
	}
	if err := c.Retry.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("retry: %w", err))
	}
	for i, d := range c.Retry {
		errs = append(errs, atMost(fmt.Sprintf("retry: step %d of %d", i+1, len(c.Retry)), d))
	}
	if c.FIFORetryInterval < 0 {
		errs = append(errs, fmt.Errorf("fifo_retry_interval is %v; it must not be negative", time.Duration(c.FIFORetryInterval)))
	}
	errs = append(errs, atMost("fifo_retry_interval", c.FIFORetryInterval))
	if c.Start != StartEarliest && c.Start != StartLatest {
		errs = append(errs, fmt.Errorf("start is %q; give earliest or latest", c.Start))
	}
	switch {
	case c.OnExhausted != OnExhaustedDeadLetter && c.OnExhausted != OnExhaustedBlock && c.OnExhausted != OnExhaustedPark:
		errs = append(errs, fmt.Errorf("on_exhausted is %q; give dead-letter, block or park", c.OnExhausted))
	case c.OnExhausted != OnExhaustedDeadLetter && !c.FIFO:
		errs = append(errs, fmt.Errorf("on_exhausted is %q and fifo is false; set fifo, or give dead-letter", c.OnExhausted))
	}
	errs = append(errs, c.MaxBacklog.Validate("max_backlog"), c.RetryTopic.validate(c.FIFO), c.NegativeAck.validate(), c.Lite.validate(&c))
	return errors.Join(errs...)
}

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

// The values of RetryTopic.Naming.
const (
	naming292 = "2.9.2"
	naming272 = "2.7.2"
	naming261 = "2.6.1"
)

// The values of RetryTopic.SubscriptionType.
const (
	subscriptionShared    = "shared"
	subscriptionKeyShared = "key_shared"
	subscriptionExclusive = "exclusive"
	subscriptionFailover  = "failover"
)

// A RetryTopic has the settings of retries through a retry topic (TDMQ for Pulsar: retry and dead
// letters). The broker's ReconsumeLater acknowledges a message and stores it in the retry topic,
// with a delay. Each receive of the group from the original topic also takes from the retry topic.
// Naming and Topic cannot change while the group receives from a retry topic, or while a retry
// topic still has messages for the group after Enabled was set to false.
type RetryTopic struct {
	// Enabled permits retries through a retry topic. Default: false.
	Enabled bool `json:"enabled,omitempty"`

	// Naming is the form of the names of the two topics: that of one version of TDMQ for Pulsar
	// clusters. Default: "2.9.2".
	//
	//	"2.9.2"  topic-group-RETRY and topic-group-DLQ
	//	"2.7.2"  group-RETRY and group-DLQ, for all topics of the group
	//	"2.6.1"  group-retry and group-dlq, for all topics of the group
	Naming string `json:"naming,omitempty"`

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

	// SubscriptionType is the declared type of the group: "shared", "key_shared", "exclusive" or
	// "failover". It does not limit the number of its consumers. Groups of type exclusive and
	// failover retry without delay, since delays need the other two (TDMQ for Pulsar: retry and
	// dead letters). Default: "shared".
	SubscriptionType string `json:"subscription_type,omitempty"`
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
		c.Naming = naming292
	}
	if c.MaxRetries == 0 {
		c.MaxRetries = defaultMaxRetries
	}
	if len(c.Levels) == 0 {
		c.Levels = retryLevels()
	}
	if c.SubscriptionType == "" {
		c.SubscriptionType = subscriptionShared
	}
	return c
}

func (c RetryTopic) validate(fifo bool) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("retry_topic."+format, args...)) }
	switch c.Naming {
	case naming292, naming272, naming261:
	default:
		bad("naming is %q; give %s, %s or %s", c.Naming, naming292, naming272, naming261)
	}
	switch c.SubscriptionType {
	case subscriptionShared, subscriptionKeyShared, subscriptionExclusive, subscriptionFailover:
	default:
		bad("subscription_type is %q; give %s, %s, %s or %s", c.SubscriptionType,
			subscriptionShared, subscriptionKeyShared, subscriptionExclusive, subscriptionFailover)
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
	case c.Topic != "" && c.DeadLetterTopic == "" && (retry == dead || c.Naming == naming292 && strings.HasSuffix(retry, dead)):
		return fmt.Errorf("retry_topic.topic is %q, the name of dead letter topics by naming %s; give another name", c.Topic, c.Naming)
	case c.Topic == "" && c.DeadLetterTopic != "" && (retry == dead || c.Naming == naming292 && strings.HasSuffix(dead, retry)):
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
func (c RetryTopic) suffixes() (retry, dead string) {
	if c.Naming == naming261 {
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
	suffix, _ := c.suffixes()
	return c.named(c.Topic, topic, group, suffix)
}

// DeadLetterName returns the name of the group's dead letter topic for a topic, as Topics does.
func (c RetryTopic) DeadLetterName(topic, group string) string {
	_, suffix := c.suffixes()
	return c.named(c.DeadLetterTopic, topic, group, suffix)
}

func (c RetryTopic) named(own, topic, group, suffix string) string {
	switch {
	case own != "":
		return own
	case c.Naming == naming292:
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
	if c.Topic != "" || c.Naming != naming292 {
		return "", name == c.RetryName("", group)
	}
	topic, retry = strings.CutSuffix(name, c.RetryName("", group))
	return topic, retry && topic != ""
}

// Reconsume returns the delay of a message's retry number times, which begins with 1 (TDMQ for
// Pulsar: retry and dead letters): the requested delay, 1 s to 864 000 s, or that of the requested
// level, which begins with 1. If both are zero, it is that of the next level: level 1 after the
// first failure, level 2 after the second, and so on; the last level repeats.
//
// It returns dead if times is above MaxRetries. The fields must have their defaults (WithDefaults).
// The error of an invalid request has code 40000 or, for the delay, 40012.
func (c RetryTopic) Reconsume(times int, requested time.Duration, level int) (delay time.Duration, dead bool, err error) {
	switch {
	case requested != 0 && level != 0:
		return 0, false, invalid(tidegate.CodeBadRequest, "reconsume mode", "it has the delay %v and the level %d; give one of them, or neither for the next level", requested, level)
	case requested != 0 && (requested < minReconsumeDelay || requested > MaxReconsumeDelay):
		return 0, false, invalid(protocol.CodeIllegalDeliveryTime, "delay", "it is %v; give %v to %v", requested, minReconsumeDelay, MaxReconsumeDelay)
	case level < 0 || level > len(c.Levels):
		return 0, false, invalid(tidegate.CodeBadRequest, "level", "it is %d; give 1 to %d", level, len(c.Levels))
	}
	switch {
	case times > c.MaxRetries:
		return 0, true, nil
	case c.SubscriptionType == subscriptionExclusive || c.SubscriptionType == subscriptionFailover:
		return 0, false, nil
	case requested != 0:
		return requested, false, nil
	case level != 0:
		return c.Levels.Delay(level - 1), false, nil
	}
	return c.Levels.Delay(times - 1), false, nil
}

func invalid(code tidegate.Code, subject, format string, args ...any) error {
	return &tidegate.Error{Code: code, Subject: subject, Message: fmt.Sprintf(format, args...)}
}
