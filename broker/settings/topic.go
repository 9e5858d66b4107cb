package settings

import (
	"errors"
	"fmt"
	"time"
)

// A TopicType is the kind of messages that a topic accepts.
type TopicType string

// The types of topics. A message with a message group is FIFO, one with a delivery time DELAY, a
// half message TRANSACTION, others are NORMAL.
const (
	TopicNormal      TopicType = "NORMAL"
	TopicFIFO        TopicType = "FIFO"
	TopicDelay       TopicType = "DELAY"
	TopicTransaction TopicType = "TRANSACTION"
)

// The defaults and bounds of Topic.
const (
	defaultQueues          = 8
	MaxQueues              = 1024
	defaultDuplicateWindow = 2 * time.Minute
)

// A Topic has the settings of a topic. They can be changed while the topic is in use, except that
// the number of queues can only grow and the type cannot change.
type Topic struct {
	// Type is the kind of messages that the topic accepts. Default: TopicNormal.
	Type TopicType `json:"type,omitempty"`

	// Queues is the number of queues, at most MaxQueues. All messages of a message group are in one
	// queue. The other messages of a request share a queue, and requests take the queues in turn.
	// Default: 8.
	Queues int `json:"queues,omitempty"`

	// DuplicateWindow is how long the broker remembers the ID of a message, also after a restart. A
	// send with a remembered ID returns the first receipt and stores nothing. The broker remembers
	// at most the last 262 144 messages. Negative means that duplicates are stored. Default: 2 min.
	DuplicateWindow Duration `json:"duplicate_window,omitempty"`

	// MaxBacklog is the backlog at which the broker throttles sends to the topic, until the backlog
	// is at 80 % of the limit. The backlog is that of the slowest group, or all messages
	// if the topic has no group. Zero means the limit of the whole broker, Limits.MaxBacklog.
	MaxBacklog Limit `json:"max_backlog,omitzero"`

	// MaxRate is the rate above which the broker throttles sends. Messages that are rejected for
	// another reason do not count. Zero means no limit.
	MaxRate Rate `json:"max_rate,omitzero"`

	// Retention decides when messages are removed. Zero means after 72 hours, consumed or not, and
	// never in topics of dead letters.
	Retention Retention `json:"retention,omitzero"`

	// Transaction has the times of checks for unresolved transactions of a TRANSACTION topic. Zero
	// fields mean the settings of the broker.
	Transaction Transaction `json:"transaction,omitzero"`
}

// WithDefaults returns c with the defaults of Type and Queues. It leaves the other fields as they
// are, because their defaults depend on the broker or on the topic's name.
func (c Topic) WithDefaults() Topic {
	if c.Type == "" {
		c.Type = TopicNormal
	}
	if c.Queues == 0 {
		c.Queues = defaultQueues
	}
	return c
}

// Validate returns an error that names every field with an invalid value, or nil.
func (c Topic) Validate() error {
	c = c.WithDefaults()
	var errs []error
	switch c.Type {
	case TopicNormal, TopicFIFO, TopicDelay, TopicTransaction:
	default:
		errs = append(errs, fmt.Errorf("type is %q; give NORMAL, FIFO, DELAY or TRANSACTION", c.Type))
	}
	if c.Queues < 1 || c.Queues > MaxQueues {
		errs = append(errs, fmt.Errorf("queues is %d; give 1 to %d", c.Queues, MaxQueues))
	}
	errs = append(errs, atMost("duplicate_window", c.DuplicateWindow), c.MaxBacklog.Validate("max_backlog"), c.MaxRate.Validate("max_rate"), c.Retention.validate(), c.Transaction.Validate("transaction"))
	return errors.Join(errs...)
}

// IDWindow returns how long the topic remembers message IDs: DuplicateWindow, or its default. Zero
// means that it remembers none.
func (c *Topic) IDWindow() time.Duration {
	switch {
	case c.DuplicateWindow < 0:
		return 0
	case c.DuplicateWindow == 0:
		return defaultDuplicateWindow
	}
	return time.Duration(c.DuplicateWindow)
}

// DefaultRetention is the age at which a message is removed. Messages of dead letter topics are
// kept forever, unless the topic is configured otherwise.
const DefaultRetention = 72 * time.Hour

// A Retention decides when the messages of a topic are removed, the oldest of each queue first. If
// a consumer group has not consumed a removed message, the message counts in the group's Overtaken,
// and a warning is logged. A message is not removed:
//
//   - while it is in flight or waits for a retry of any group, nor within an hour (or Time, if that
//     is less) after it became ready again;
//   - while its message group is parked or blocked. Its successors and all later messages of the
//     queue stay for this time too. After a redrive the failed message and its successors stay
//     until the group has consumed them;
//   - within the topic's duplicate window, because a duplicate gets its receipt. It can be removed
//     if more than 524 288 later messages are in its queue;
//   - before its delivery time.
//
// The zero value keeps messages for 72 hours. A group that begins later starts at the oldest
// message that is left.
type Retention struct {
	// Time is the age at which a message is removed, consumed or not. The removal can be up to a
	// minute later, or 1/64 of Time if that is less, so that many messages are removed at once.
	// Negative means never. Default: 72 hours, and never in topics of dead letters.
	Time Duration `json:"time,omitempty"`

	// Bytes is the maximum size of all bodies in the topic. The oldest messages above it are
	// removed within about a second, consumed or not. Zero means no bound.
	Bytes int64 `json:"bytes,omitempty"`

	// Consumed removes a message within about a second after every group of the topic has
	// acknowledged it, made it a dead letter or filtered it out. A group counts from its first
	// receive on. A topic without any group keeps everything.
	Consumed bool `json:"consumed,omitempty"`
}

func (r Retention) validate() error {
	errs := []error{atMost("retention.time", r.Time)}
	if r.Bytes < 0 {
		errs = append(errs, fmt.Errorf("retention.bytes is %d; it must not be negative, 0 is no limit", r.Bytes))
	}
	return errors.Join(errs...)
}
