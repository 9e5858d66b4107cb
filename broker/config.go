package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
)

// A TopicType is what kind of messages a topic takes.
type TopicType string

// The types of topics. A message with a message group is FIFO, one with a
// delivery time DELAY, others are NORMAL.
const (
	TopicNormal TopicType = "NORMAL"
	TopicFIFO   TopicType = "FIFO"
	TopicDelay  TopicType = "DELAY"
)

// Bounds and defaults of settings.
const (
	DefaultQueues            = 8
	MaxQueues                = 1024
	DefaultMaxAttempts       = 17 // one delivery and 16 retries, seed 000
	DefaultFIFORetryInterval = 3 * time.Second
	// ResumePercent of a backlog limit is where a throttle ends.
	ResumePercent = 80
)

// A Limit bounds a backlog: what a consumer group has not consumed yet, be it
// ready, in flight or waiting for a retry. Zero fields do not bound.
type Limit struct {
	Messages int64 `json:"messages,omitempty"`
	Bytes    int64 `json:"bytes,omitempty"`
}

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
}

// A GroupConfig is how a consumer group is. It can be changed while in use,
// and a change holds for messages under way.
type GroupConfig struct {
	// FIFO keeps the messages of one message group in order: while one of
	// them is in flight or waits for a retry, those after it wait too.
	FIFO bool `json:"fifo,omitempty"`

	// MaxAttempts is how often a message is delivered, the first time
	// included, before it becomes a dead letter. -1 for ever, 0 for
	// DefaultMaxAttempts.
	MaxAttempts int `json:"max_attempts,omitempty"`

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

func (c GroupConfig) withDefaults() GroupConfig {
	if c.MaxAttempts == 0 {
		c.MaxAttempts = DefaultMaxAttempts
	}
	if len(c.Retry) == 0 {
		c.Retry = backoff.RetryLadder()
	}
	if c.FIFORetryInterval == 0 {
		c.FIFORetryInterval = Duration(DefaultFIFORetryInterval)
	}
	return c
}

// interval returns the retry interval after delivery attempt failed.
func (c GroupConfig) interval(attempt int) time.Duration {
	if c.FIFO {
		return time.Duration(c.FIFORetryInterval)
	}
	return c.Retry.Delay(attempt - 1)
}

// exhausted reports whether delivery attempt was the last one.
func (c GroupConfig) exhausted(attempt int) bool {
	return c.MaxAttempts > 0 && attempt >= c.MaxAttempts
}

func (l Limit) validate(field string) error {
	if l.Messages < 0 || l.Bytes < 0 {
		return fmt.Errorf("%s is %d messages, %d bytes: neither may be negative; 0 is no limit", field, l.Messages, l.Bytes)
	}
	return nil
}

func (c TopicConfig) validate(name string) error {
	var errs []error
	if c.Type != TopicNormal && c.Type != TopicFIFO && c.Type != TopicDelay {
		errs = append(errs, fmt.Errorf("type is %q: this broker has NORMAL, FIFO and DELAY", c.Type))
	}
	if c.Queues < 1 || c.Queues > MaxQueues {
		errs = append(errs, fmt.Errorf("queues is %d: give 1 to %d", c.Queues, MaxQueues))
	}
	errs = append(errs, c.MaxBacklog.validate("max_backlog"))
	return badConfig("PutTopic", name, errors.Join(errs...))
}

func (c GroupConfig) validate(name string) error {
	var errs []error
	if c.MaxAttempts < -1 {
		errs = append(errs, fmt.Errorf("max_attempts is %d: give 1 or more, or -1 for ever", c.MaxAttempts))
	}
	if err := c.Retry.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("retry: %w", err))
	}
	if c.FIFORetryInterval < 0 {
		errs = append(errs, fmt.Errorf("fifo_retry_interval is %v: it may not be negative", time.Duration(c.FIFORetryInterval)))
	}
	errs = append(errs, c.MaxBacklog.validate("max_backlog"))
	return badConfig("PutGroup", name, errors.Join(errs...))
}

func badConfig(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &tidegate.Error{Op: op, Subject: name, Code: tidegate.CodeBadRequest, Err: err}
}

// A Duration is a time.Duration that JSON writes as "1m30s" and reads from
// such a text.
type Duration time.Duration

// MarshalJSON returns the quoted text of d.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads a quoted duration such as "1m30s".
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%s is not a duration: give a text such as \"1m30s\"", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is not a duration: give a text such as \"1m30s\"", s)
	}
	*d = Duration(v)
	return nil
}
