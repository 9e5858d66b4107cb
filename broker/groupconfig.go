package broker

import (
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/backoff"
)

// A GroupConfig is how a consumer group is. It can be changed while in use,
// and a change holds for messages under way.
type GroupConfig struct {
	// FIFO keeps the messages of one message group in order: while one of them is in flight or
	// waits for a retry, those after it wait too. So a receive of several messages gets at most one
	// of each message group. RocketMQ hands out several, locks their queue, and redelivers the
	// acknowledged ones together with any that was not.
	FIFO bool `json:"fifo,omitempty"`

	// Start is where the group begins in a topic from which it receives for the
	// first time. It does not hold for %DLQ% topics, automatic dead-letter queues
	// and the group's own retry topics. Empty for StartEarliest.
	Start Start `json:"start,omitempty"`

	// MaxAttempts is how often a message is delivered, the first time
	// included, before it becomes a dead letter, or what OnExhausted says. -1
	// for ever, 0 for DefaultMaxAttempts.
	MaxAttempts int `json:"max_attempts,omitempty"`

	// OnExhausted is what a FIFO group does with a message whose last attempt
	// failed; a message without message group becomes a dead letter in any
	// case. Other groups have only OnExhaustedDeadLetter. A change holds for
	// messages under way; what is parked stays so. Empty for OnExhaustedDeadLetter.
	OnExhausted OnExhausted `json:"on_exhausted,omitempty"`

	// Retry is the ladder: the retry interval after the first failed
	// delivery, the second, and so on; the last step repeats. It holds for
	// push consumers of groups that are not FIFO. Empty for backoff.RetryLadder().
	Retry backoff.Steps `json:"retry,omitempty"`

	// FIFORetryInterval is the fixed retry interval of a FIFO group.
	// 0 for DefaultFIFORetryInterval.
	FIFORetryInterval Duration `json:"fifo_retry_interval,omitempty"`

	// MaxBacklog throttles sends to every topic in which this group's backlog
	// is at the limit. Zero: no limit.
	MaxBacklog Limit `json:"max_backlog,omitzero"`

	// RetryTopic retries through a topic of its own, for consumers that call
	// ReconsumeLater.
	RetryTopic RetryTopicConfig `json:"retry_topic,omitzero"`

	// NegativeAck is what negative acknowledgements do.
	NegativeAck NegativeAckConfig `json:"negative_ack,omitzero"`
}

// A Start is where a consumer group begins.
type Start string

// The choices: the oldest message of the topic, or the next one that is stored, "from the maximum
// offset of the queue" (RocketMQ: sending retry and throttling).
const (
	StartEarliest Start = "earliest"
	StartLatest   Start = "latest"
)

// An OnExhausted is what a FIFO group does after a message's last attempt.
type OnExhausted string

// The choices. With OnExhaustedDeadLetter the message becomes a dead letter
// and those after it in its message group go on without it. With
// OnExhaustedBlock it is retried for ever at FIFORetryInterval, and they wait.
// With OnExhaustedPark its message group is parked: it and those after it,
// those still to come included, wait in order until Broker.RedriveParked; see
// there. In all three other message groups flow.
const (
	OnExhaustedDeadLetter OnExhausted = "dead-letter"
	OnExhaustedBlock      OnExhausted = "block"
	OnExhaustedPark       OnExhausted = "park"
)

func (c GroupConfig) withDefaults() GroupConfig {
	if c.Start == "" {
		c.Start = StartEarliest
	}
	if c.OnExhausted == "" {
		c.OnExhausted = OnExhaustedDeadLetter
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = DefaultMaxAttempts
	}
	if len(c.Retry) == 0 {
		c.Retry = backoff.RetryLadder()
	}
	if c.FIFORetryInterval == 0 {
		c.FIFORetryInterval = Duration(DefaultFIFORetryInterval)
	}
	c.RetryTopic = c.RetryTopic.withDefaults()
	if c.NegativeAck.Delay == 0 {
		c.NegativeAck.Delay = Duration(DefaultNegativeAckDelay)
	}
	return c
}

// Ladder returns the retry intervals of the group: Retry, or the fixed one of a FIFO group.
func (c GroupConfig) Ladder() backoff.Steps {
	c = c.withDefaults()
	if c.FIFO {
		return backoff.Steps{time.Duration(c.FIFORetryInterval)}
	}
	return c.Retry
}

// interval returns the retry interval after delivery attempt failed.
func (c GroupConfig) interval(attempt int) time.Duration {
	if c.FIFO {
		return time.Duration(c.FIFORetryInterval)
	}
	return c.Retry.Delay(attempt - 1)
}

func (c GroupConfig) validate(name string) error {
	return badConfig("PutGroup", name, errors.Join(c.Validate(), c.RetryTopic.withDefaults().validateNames(name)))
}

// Validate returns an error that names every field with a value that is not
// legal, and nil if there is none.
func (c GroupConfig) Validate() error {
	c = c.withDefaults()
	var errs []error
	if c.MaxAttempts < -1 {
		errs = append(errs, fmt.Errorf("max_attempts is %d: give 1 or more, or -1 for ever", c.MaxAttempts))
	}
	if err := c.Retry.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("retry: %w", err))
	}
	for i, d := range c.Retry {
		errs = append(errs, atMost(fmt.Sprintf("retry: step %d of %d", i+1, len(c.Retry)), d))
	}
	if c.FIFORetryInterval < 0 {
		errs = append(errs, fmt.Errorf("fifo_retry_interval is %v: it may not be negative", time.Duration(c.FIFORetryInterval)))
	}
	errs = append(errs, atMost("fifo_retry_interval", c.FIFORetryInterval))
	if c.Start != StartEarliest && c.Start != StartLatest {
		errs = append(errs, fmt.Errorf("start is %q: give earliest or latest", c.Start))
	}
	switch {
	case c.OnExhausted != OnExhaustedDeadLetter && c.OnExhausted != OnExhaustedBlock && c.OnExhausted != OnExhaustedPark:
		errs = append(errs, fmt.Errorf("on_exhausted is %q: give dead-letter, block or park", c.OnExhausted))
	case c.OnExhausted != OnExhaustedDeadLetter && !c.FIFO:
		errs = append(errs, fmt.Errorf("on_exhausted is %q and fifo is false: only a FIFO group has an order to keep; set fifo, or give dead-letter", c.OnExhausted))
	}
	errs = append(errs, c.MaxBacklog.validate("max_backlog"), c.RetryTopic.validate(c.FIFO), c.NegativeAck.validate())
	return errors.Join(errs...)
}
