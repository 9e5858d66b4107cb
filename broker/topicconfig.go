package broker

import (
	"errors"
	"fmt"
)

// A TopicType is the kind of messages that a topic accepts.
type TopicType string

// The types of topics. A message with a message group is FIFO, one with a
// delivery time DELAY, a half message TRANSACTION, others are NORMAL.
const (
	TopicNormal      TopicType = "NORMAL"
	TopicFIFO        TopicType = "FIFO"
	TopicDelay       TopicType = "DELAY"
	TopicTransaction TopicType = "TRANSACTION"
)

// A TopicConfig has the settings of a topic. They can be changed while the topic is in use, except
// that the number of queues can only grow and the type cannot change.
type TopicConfig struct {
	// Type is the kind of messages that the topic accepts. Default: TopicNormal.
	Type TopicType `json:"type,omitempty"`

	// Queues is the number of queues, at most MaxQueues. Default: DefaultQueues.
	Queues int `json:"queues,omitempty"`

	// DuplicateWindow is how long the broker remembers the ID of a message, also after a restart. A
	// send with a remembered ID returns the first receipt and stores nothing. The broker remembers
	// at most the last 262 144 messages. Negative means that duplicates are stored. Default:
	// DefaultDuplicateWindow.
	DuplicateWindow Duration `json:"duplicate_window,omitempty"`

	// MaxBacklog is the backlog at which the broker throttles sends to the topic, until the backlog
	// is at ResumePercent of the limit. The backlog is that of the slowest group, or all messages
	// if the topic has no group. Zero means Options.MaxBacklog.
	MaxBacklog Limit `json:"max_backlog,omitzero"`

	// MaxRate is the rate above which the broker throttles sends. Messages that are rejected for
	// another reason do not count. Zero means no limit.
	MaxRate Rate `json:"max_rate,omitzero"`

	// Retention decides when messages are removed. Zero means after 72 hours, consumed or not, and
	// never in topics of dead letters.
	Retention Retention `json:"retention,omitzero"`

	// Transaction has the times of checks for unresolved transactions of a TRANSACTION topic. Zero
	// fields mean those of Options.Transaction.
	Transaction TransactionConfig `json:"transaction,omitzero"`
}

// withDefaults returns c with the default of every zero field.
func (c TopicConfig) withDefaults() TopicConfig {
	if c.Type == "" {
		c.Type = TopicNormal
	}
	if c.Queues == 0 {
		c.Queues = DefaultQueues
	}
	return c
}

func (c TopicConfig) validate(name string) error { return badConfig("PutTopic", name, c.Validate()) }

// Validate returns an error that names every field with an invalid value, or nil.
func (c TopicConfig) Validate() error {
	c = c.withDefaults()
	var errs []error
	switch c.Type {
	case TopicNormal, TopicFIFO, TopicDelay, TopicTransaction:
	default:
		errs = append(errs, fmt.Errorf("type is %q: this broker has NORMAL, FIFO, DELAY and TRANSACTION", c.Type))
	}
	if c.Queues < 1 || c.Queues > MaxQueues {
		errs = append(errs, fmt.Errorf("queues is %d: give 1 to %d", c.Queues, MaxQueues))
	}
	errs = append(errs, atMost("duplicate_window", c.DuplicateWindow), c.MaxBacklog.validate("max_backlog"), c.MaxRate.validate("max_rate"), c.Retention.validate(), c.Transaction.validate("transaction"))
	return errors.Join(errs...)
}
