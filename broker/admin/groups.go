package admin

import (
	"context"
	"strconv"
	"time"

	"github.com/tidegate/tidegate/backoff"
)

// A GroupConfig has the settings of a consumer group. A PUT replaces all of them: a zero field has
// its default, also when the group exists.
type GroupConfig struct {
	// FIFO delivers the messages of each message group one at a time, in order. Default: false.
	FIFO bool `json:"fifo,omitempty"`

	// MaxAttempts is the number of deliveries of a message, including the first; -1 means no
	// maximum. Default: 17.
	MaxAttempts int `json:"max_attempts,omitempty"`

	// Retry has the delays before the second delivery, the third, and so on; the last one repeats.
	// Default: backoff.RetryLadder().
	Retry backoff.Steps `json:"retry,omitempty"`

	// Start is the first position of the group in a topic: "earliest" or "latest". Default:
	// "earliest".
	Start string `json:"start,omitempty"`

	// OnExhausted is the behaviour of a FIFO group after the last attempt: "dead-letter", "block"
	// or "park". Other groups support only "dead-letter". Default: "dead-letter".
	OnExhausted string `json:"on_exhausted,omitempty"`

	// FIFORetryInterval is the fixed delay of retries in a FIFO group. Default: 3 s.
	FIFORetryInterval Duration `json:"fifo_retry_interval,omitempty"`

	// MaxBacklog is the backlog of the group at which the broker throttles sends to its topics.
	// Zero means no limit.
	MaxBacklog Limit `json:"max_backlog,omitzero"`

	// RetryTopic has the settings of retries through retry topics. Zero means none.
	RetryTopic RetryTopicConfig `json:"retry_topic,omitzero"`

	// NegativeAck has the settings of negative acknowledgements. Zero means the defaults.
	NegativeAck NegativeAckConfig `json:"negative_ack,omitzero"`
}

// A RetryTopicConfig has the settings of retries through retry topics.
type RetryTopicConfig struct {
	// Enabled permits such retries. Default: false.
	Enabled bool `json:"enabled,omitempty"`

	// Naming is "2.9.2" (topic-group-RETRY), "2.7.2" (group-RETRY) or "2.6.1" (group-retry).
	// Zero means the broker's default.
	Naming string `json:"naming,omitempty"`

	// Topic and DeadLetterTopic replace the names by Naming. Zero means none.
	Topic           string `json:"topic,omitempty"`
	DeadLetterTopic string `json:"dead_letter_topic,omitempty"`

	// MaxRetries is the number of retries before the dead letter topic. Default: 16.
	MaxRetries int `json:"max_retries,omitempty"`

	// Levels are the delays of the delay levels. Zero means the broker's default.
	Levels backoff.Steps `json:"levels,omitempty"`

	// SubscriptionType is "shared", "key_shared", "exclusive" or "failover"; with the last two
	// retries are immediate. Default: "shared".
	SubscriptionType string `json:"subscription_type,omitempty"`
}

// A NegativeAckConfig has the settings of negative acknowledgements.
type NegativeAckConfig struct {
	// Delay is the time until the next delivery. Default: 1 minute.
	Delay Duration `json:"delay,omitempty"`

	// MaxRedeliveries is the number of redeliveries before the message becomes a dead letter. Zero
	// means no maximum.
	MaxRedeliveries int `json:"max_redeliveries,omitempty"`
}

// A Group is a consumer group with its settings and its state.
type Group struct {
	GroupConfig

	Name             string         `json:"name"`
	AutoCreated      bool           `json:"auto_created,omitempty"` // created by a receive; PutGroup makes it permanent
	Topics           []Subscription `json:"topics,omitempty"`
	DeadLetterTopics []string       `json:"dead_letter_topics,omitempty"` // the existing ones
}

// A Subscription is the position of a group in a topic, in messages.
type Subscription struct {
	Topic         string  `json:"topic"`
	Ready         int64   `json:"ready"`
	Inflight      int64   `json:"inflight"`
	WaitingRetry  int64   `json:"waiting_retry"`
	Parked        int64   `json:"parked"`
	ParkedGroups  int64   `json:"parked_groups"`
	BlockedGroups int64   `json:"blocked_groups"` // message groups behind a message with unlimited retries
	Backlog       Backlog `json:"backlog"`        // sum of the above

	// The following fields count since the broker was opened.

	Acked       int64 `json:"acked"`
	Redelivered int64 `json:"redelivered"`
	DeadLetters int64 `json:"dead_letters"`
	Overtaken   int64 `json:"overtaken"` // removed by retention before they were consumed
	Discarded   int64 `json:"discarded"` // removed after their last attempt, where dead letters are not kept
	Expired     int64 `json:"expired"`
}

// Groups returns all consumer groups, by name.
func (c *Client) Groups(ctx context.Context) ([]Group, error) {
	out, err := get[struct {
		Groups []Group `json:"groups"`
	}](ctx, c, "Groups", "", "/v1/groups", nil)
	return out.Groups, err
}

// Group returns one consumer group. The error matches tidegate.ErrNotFound if there is none.
func (c *Client) Group(ctx context.Context, name string) (Group, error) {
	return get[Group](ctx, c, "Group", name, escaped("groups", name), nil)
}

// PutGroup creates a consumer group, or replaces the settings of an existing one.
func (c *Client) PutGroup(ctx context.Context, name string, config GroupConfig) (Group, error) {
	return put[Group](ctx, c, "PutGroup", name, escaped("groups", name), config)
}

// DeleteGroup deletes a consumer group; its dead letters stay. The error matches
// tidegate.ErrNotFound if there is none.
func (c *Client) DeleteGroup(ctx context.Context, name string) error {
	return c.remove(ctx, "DeleteGroup", name, escaped("groups", name))
}

// A Position is a position in a topic. Exactly one of its fields is set.
type Position struct {
	Earliest, Latest bool
	Time             time.Time     // the first message stored at this time or later
	Offsets          map[int]int64 // by queue number; other queues do not change
}

// A QueueRewind is the result of a rewind in one queue.
type QueueRewind struct {
	Queue   int   `json:"queue"`
	From    int64 `json:"from"`    // next offset before the rewind
	To      int64 `json:"to"`      // next offset after the rewind
	Dropped int64 `json:"dropped"` // unfinished messages removed from the group
}

type rewindRequest struct {
	Topic   string           `json:"topic"`
	To      string           `json:"to,omitempty"`
	Offsets map[string]int64 `json:"offsets,omitempty"`
}

// Rewind moves a group to another position of a topic. Unfinished messages of the group are dropped
// there: their receipt handles become invalid, and their attempts count from 1 again. Dead letters
// stay.
func (c *Client) Rewind(ctx context.Context, group, topic string, to Position) ([]QueueRewind, error) {
	r := rewindRequest{Topic: topic}
	switch {
	case to.Earliest:
		r.To = "earliest"
	case to.Latest:
		r.To = "latest"
	case !to.Time.IsZero():
		r.To = to.Time.Format(time.RFC3339Nano)
	}
	for queue, offset := range to.Offsets {
		if r.Offsets == nil {
			r.Offsets = map[string]int64{}
		}
		r.Offsets[strconv.Itoa(queue)] = offset
	}
	out, err := post[struct {
		Queues []QueueRewind `json:"queues"`
	}](ctx, c, "Rewind", group, escaped("groups", group, "rewind"), r)
	return out.Queues, err
}
