package settings

import (
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/backoff"
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
	errs = append(errs, c.MaxBacklog.Validate("max_backlog"), c.RetryTopic.validate(c.FIFO), c.NegativeAck.validate())
	return errors.Join(errs...)
}
