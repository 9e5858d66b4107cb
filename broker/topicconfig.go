package broker

import (
	"errors"
	"fmt"
)

// A TopicType is what kind of messages a topic takes.
type TopicType string

// The types of topics. A message with a message group is FIFO, one with a
// delivery time DELAY, a half message TRANSACTION, others are NORMAL.
const (
	TopicNormal      TopicType = "NORMAL"
	TopicFIFO        TopicType = "FIFO"
	TopicDelay       TopicType = "DELAY"
	TopicTransaction TopicType = "TRANSACTION"
)

// A TopicConfig is how a topic is. It can be changed while in use, except
// that the number of queues can only grow and the type cannot change.
type TopicConfig struct {
	// Type is the kind of messages it takes. Empty for NORMAL.
	Type TopicType `json:"type,omitempty"`

	// Queues is the number of queues, at most MaxQueues. 0 for DefaultQueues.
	Queues int `json:"queues,omitempty"`

	// DuplicateWindow is how long the ID of a message is remembered: a message
	// with an ID that was stored within it is answered with the first one's
	// receipt and not stored again, also after a restart. If more than
	// 262 144 messages are sent within it, that many are remembered. Negative:
	// duplicates are stored. 0 for DefaultDuplicateWindow.
	DuplicateWindow Duration `json:"duplicate_window,omitempty"`

	// MaxBacklog throttles sends to the topic while the backlog of its
	// slowest group, or all that it holds if it has no group, is at the
	// limit, until it is down to ResumePercent of it. Zero for
	// Options.MaxBacklog.
	MaxBacklog Limit `json:"max_backlog,omitzero"`

	// MaxRate throttles sends that come faster. Messages that are refused for
	// another reason do not count. Zero: no limit.
	MaxRate Rate `json:"max_rate,omitzero"`

	// Retention says when messages are removed. Zero: after 72 hours, consumed
	// or not; in topics of dead letters never.
	Retention Retention `json:"retention,omitzero"`

	// Transaction is when producers are asked about transactions of a
	// TRANSACTION topic. Zero fields: those of Options.Transaction.
	Transaction TransactionConfig `json:"transaction,omitzero"`
}

// withDefaults returns c with every zero field set to what it stands for.
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

// Validate returns an error that names every field with a value that is not
// legal, and nil if there is none.
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
