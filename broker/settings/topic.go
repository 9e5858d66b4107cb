// Package settings has the settings of topics, consumer groups, addresses and the whole broker,
// with their defaults, their validation and their form in JSON. The broker, its HTTP
// administration and its configuration file use the same types. A PUT over HTTP replaces all
// settings of its subject: a zero field has its default, also when the subject exists.
//
// The package has no state and needs neither the storage engine nor gRPC, so a program that only
// checks or writes settings can import it alone.
//
// The zero value of each type is valid and means the defaults. WithDefaults sets the default of
// each zero field. Validate returns one error that names all fields with an invalid value, each
// with the value and the permitted values.
package settings

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
)

// A TopicType is the kind of messages that a topic accepts.
type TopicType string

// The types of topics. A message with a message group is FIFO, one with a delivery time DELAY, a
// half message TRANSACTION, one with a lite topic LITE, others are NORMAL. A message with a priority
// is PRIORITY, and such a topic takes NORMAL ones with the priority 0.
const (
	TopicNormal      TopicType = "NORMAL"
	TopicFIFO        TopicType = "FIFO"
	TopicDelay       TopicType = "DELAY"
	TopicTransaction TopicType = "TRANSACTION"
	TopicPriority    TopicType = "PRIORITY"
	TopicLite        TopicType = "LITE"
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
	// queue. The other messages of a request share a queue, and requests take the queues in turn. In
	// a topic of type PRIORITY each queue has the messages of one priority, the last queue also those
	// of higher ones. A topic of type LITE has one for each lite topic, and the setting must not be
	// above 1. Default: 8, and 1 with LITE.
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

	// Lite has the settings of the lite topics below a topic of type LITE. Other topics reject it.
	// Zero means the defaults.
	Lite LiteParent `json:"lite,omitzero"`

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
	switch {
	case c.Type == TopicLite:
		c.Lite = c.Lite.WithDefaults()
		c.Queues = max(c.Queues, 1)
	case c.Queues == 0:
		c.Queues = defaultQueues
	}
	return c
}

// Validate returns an error that names every field with an invalid value, or nil.
func (c Topic) Validate() error {
	c = c.WithDefaults()
	var errs []error
	switch c.Type {
	case TopicNormal, TopicFIFO, TopicDelay, TopicTransaction, TopicPriority, TopicLite:
	default:
		errs = append(errs, fmt.Errorf("type is %q; give NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY or LITE", c.Type))
	}
	if c.Queues < 1 || c.Queues > MaxQueues {
		errs = append(errs, fmt.Errorf("queues is %d; give 1 to %d", c.Queues, MaxQueues))
	}
	if c.Type == TopicLite && c.Queues > 1 {
		errs = append(errs, fmt.Errorf("queues is %d and the type is LITE, which has a queue for each lite topic; leave queues out", c.Queues))
	}
	errs = append(errs, c.Lite.validate(c.Type), atMost("duplicate_window", c.DuplicateWindow), c.MaxBacklog.Validate("max_backlog"), c.MaxRate.Validate("max_rate"), c.Retention.validate(), c.Transaction.Validate("transaction"))
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

// The defaults of Transaction, which are RocketMQ's: transactionTimeOut, transactionCheckInterval
// and transactionCheckMax.
const (
	defaultTransactionTimeout       = 6 * time.Second
	defaultTransactionCheckInterval = 30 * time.Second
	defaultTransactionCheckMax      = 15
)

// A Transaction has the times of checks: the broker asks the producers of unresolved transactions
// whether to commit. A change applies from the next check of each transaction on. The default of a
// zero field of a topic is that of the broker (Options.Transaction).
type Transaction struct {
	// Timeout is the time from the send of the half message to the first check. A half message can
	// request another one. Default of the broker: 6 s.
	Timeout Duration `json:"timeout,omitempty"`

	// CheckInterval is the time between two checks. Default of the broker: 30 s.
	CheckInterval Duration `json:"check_interval,omitempty"`

	// CheckMax is the maximum number of checks, including those without a connected producer. One
	// CheckInterval after the last check the broker ends the transaction: the message is not
	// delivered and becomes a dead letter in the topic AbandonedTransactions. -1 means no maximum.
	// Default of the broker: 15.
	CheckMax int `json:"check_max,omitempty"`
}

// Or returns c with every zero field set to that of d.
func (c Transaction) Or(d Transaction) Transaction {
	if c.Timeout == 0 {
		c.Timeout = d.Timeout
	}
	if c.CheckInterval == 0 {
		c.CheckInterval = d.CheckInterval
	}
	if c.CheckMax == 0 {
		c.CheckMax = d.CheckMax
	}
	return c
}

// WithDefaults returns c with the default of every zero field.
func (c Transaction) WithDefaults() Transaction {
	return c.Or(Transaction{
		Timeout: Duration(defaultTransactionTimeout), CheckInterval: Duration(defaultTransactionCheckInterval), CheckMax: defaultTransactionCheckMax,
	})
}

// Validate returns an error that names every field with an invalid value, or nil. The names in the
// error begin with field, the name of the setting that has the times.
func (c Transaction) Validate(field string) error {
	var errs []error
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("%s.timeout is %v; it must not be negative, 0 means the default", field, time.Duration(c.Timeout)))
	}
	if c.CheckInterval < 0 {
		errs = append(errs, fmt.Errorf("%s.check_interval is %v; it must not be negative, 0 means the default", field, time.Duration(c.CheckInterval)))
	}
	if c.CheckMax < -1 {
		errs = append(errs, fmt.Errorf("%s.check_max is %d; give 1 or more, -1 for no maximum, or 0 for the default", field, c.CheckMax))
	}
	errs = append(errs, atMost(field+".timeout", c.Timeout), atMost(field+".check_interval", c.CheckInterval))
	return errors.Join(errs...)
}

// MaxDuration is the maximum of all durations of settings, 876 000 h. A time that far in the future
// or past can still be stored.
const MaxDuration = 100 * 365 * 24 * time.Hour

const maxMilliseconds = Milliseconds(MaxDuration / time.Millisecond)

// atMost returns an error with the field's name if d is above MaxDuration, or nil.
func atMost[D ~int64](field string, d D) error {
	if time.Duration(d) <= MaxDuration {
		return nil
	}
	return fmt.Errorf("%s is %v; give at most %v", field, time.Duration(d), MaxDuration)
}

// A Duration is a time.Duration that is a string in JSON, such as "1m30s". It is at most
// MaxDuration.
type Duration time.Duration

// String returns the text of d, as time.Duration does.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON returns the quoted text of d. The text of every negative duration is "-1s", because
// all negative values mean none or never.
func (d Duration) MarshalJSON() ([]byte, error) {
	if d < 0 {
		return []byte(`"-1s"`), nil
	}
	return json.Marshal(time.Duration(d).String())
}

// UnmarshalJSON reads a quoted duration such as "1m30s".
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%s is not a duration; give a text such as \"1m30s\"", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is not a duration; give a text such as \"1m30s\"", s)
	}
	*d = Duration(v)
	return nil
}

// Milliseconds is a number of milliseconds, the unit of Artemis's address settings. In JSON it is
// that number. A quoted duration such as "5s" is also accepted.
type Milliseconds int64

// Duration returns m as a time.Duration.
func (m Milliseconds) Duration() time.Duration { return time.Duration(m) * time.Millisecond }

// parseMilliseconds reads a whole number of milliseconds, or a duration such as "5s" or "1m30s". A
// duration with a fraction of a millisecond is an error.
func parseMilliseconds(text string) (Milliseconds, error) {
	var n json.Number
	if err := json.Unmarshal([]byte(text), &n); err == nil {
		if v, err := n.Int64(); err == nil {
			return Milliseconds(v), nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d%time.Millisecond != 0 {
		return 0, fmt.Errorf("%q is not a time; give whole milliseconds such as 5000, or a duration such as \"5s\"", text)
	}
	return Milliseconds(d / time.Millisecond), nil
}

// UnmarshalJSON reads a number of milliseconds or a quoted duration.
func (m *Milliseconds) UnmarshalJSON(b []byte) error {
	text := string(b)
	if len(b) > 0 && b[0] == '"' {
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
	}
	v, err := parseMilliseconds(text)
	if err != nil {
		return err
	}
	*m = v
	return nil
}

// The defaults and bounds of lite topics. RocketMQ has the same number of lite topics for a client.
const (
	defaultLiteExpiry      = 72 * time.Hour
	defaultMaxLiteTopics   = 20_000
	maxLiteTopics          = 65_000
	defaultMaxLiteConsumed = 2_000
	minLiteExpiry          = time.Second
)

// A LiteParent has the settings of the lite topics below a topic of the type LITE.
type LiteParent struct {
	// Expiry is the time after which a lite topic is removed with its messages, consumed or not, if
	// no message was sent to it and no consumer had subscribed to it meanwhile. The removal can be up
	// to a minute later, or 1/64 of Expiry if that is less. Negative means never. Default: 72 h.
	Expiry Duration `json:"expiry,omitempty"`

	// MaxTopics is the maximum number of lite topics, at most 65 000. Default: 20 000.
	MaxTopics int `json:"max_topics,omitempty"`
}

// A LiteGroup has the settings of a group that consumes lite topics.
type LiteGroup struct {
	// Topic is the parent of the lite topics. The group receives from this topic alone, and is FIFO.
	// Empty means that the group consumes no lite topics.
	Topic string `json:"topic,omitempty"`

	// MaxTopics is the maximum number of lite topics of one consumer, at most 65 000. Default: 2 000.
	MaxTopics int `json:"max_topics,omitempty"`

	// Exclusive means that a lite topic has one consumer of the group at a time: a new subscription
	// ends that of another consumer. Default: false, consumers with the same lite topic share its
	// messages.
	Exclusive bool `json:"exclusive,omitempty"`
}

// WithDefaults returns c with the default of every zero field.
func (c LiteParent) WithDefaults() LiteParent {
	if c.Expiry == 0 {
		c.Expiry = Duration(defaultLiteExpiry)
	}
	if c.MaxTopics == 0 {
		c.MaxTopics = defaultMaxLiteTopics
	}
	return c
}

// WithDefaults returns c with the default of every zero field, if it has a topic.
func (c LiteGroup) WithDefaults() LiteGroup {
	if c.Topic != "" && c.MaxTopics == 0 {
		c.MaxTopics = defaultMaxLiteConsumed
	}
	return c
}

func (c LiteParent) validate(t TopicType) error {
	if t != TopicLite {
		if c != (LiteParent{}) {
			return fmt.Errorf("lite is set and the type is %s; give the type LITE, or leave lite out", t)
		}
		return nil
	}
	c = c.WithDefaults()
	var errs []error
	if c.Expiry > 0 && time.Duration(c.Expiry) < minLiteExpiry {
		errs = append(errs, fmt.Errorf("lite.expiry is %v; give at least %v, or a negative time for never", c.Expiry, minLiteExpiry))
	}
	if c.MaxTopics < 1 || c.MaxTopics > maxLiteTopics {
		errs = append(errs, fmt.Errorf("lite.max_topics is %d; give 1 to %d", c.MaxTopics, maxLiteTopics))
	}
	return errors.Join(append(errs, atMost("lite.expiry", c.Expiry))...)
}

func (c LiteGroup) validate(g *Group) error {
	if c.Topic == "" {
		if c != (LiteGroup{}) {
			return errors.New("lite is set without lite.topic; give the parent of the lite topics")
		}
		return nil
	}
	c = c.WithDefaults()
	var errs []error
	if err := tidegate.ValidateTopic(c.Topic); err != nil {
		errs = append(errs, fmt.Errorf("lite.topic: %w", err))
	}
	if !g.FIFO {
		errs = append(errs, errors.New("lite.topic is set and fifo is false; set fifo"))
	}
	if g.RetryTopic.Enabled {
		errs = append(errs, errors.New("lite.topic and retry_topic.enabled are set; leave out one of them"))
	}
	if c.MaxTopics < 1 || c.MaxTopics > maxLiteTopics {
		errs = append(errs, fmt.Errorf("lite.max_topics is %d; give 1 to %d", c.MaxTopics, maxLiteTopics))
	}
	return errors.Join(errs...)
}
