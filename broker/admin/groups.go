package admin

import (
	"context"
	"strconv"
	"time"

	"github.com/tidegate/tidegate/broker/settings"
)

// A Group is a consumer group with its settings and its state.
type Group struct {
	settings.Group

	Name             string         `json:"name"`
	AutoCreated      bool           `json:"auto_created,omitempty"` // created by a receive; PutGroup makes it permanent
	Topics           []Subscription `json:"topics,omitempty"`
	DeadLetterTopics []string       `json:"dead_letter_topics,omitempty"` // the existing ones
}

// A Subscription is the state of a group in one topic. The counts are messages; ParkedGroups and
// BlockedGroups are message groups.
type Subscription struct {
	Topic         string  `json:"topic"`
	Ready         int64   `json:"ready"`
	Inflight      int64   `json:"inflight"`
	WaitingRetry  int64   `json:"waiting_retry"`
	Parked        int64   `json:"parked"`
	ParkedGroups  int64   `json:"parked_groups"`
	BlockedGroups int64   `json:"blocked_groups"` // message groups whose oldest message is retried without end
	Backlog       Backlog `json:"backlog"`        // Ready, Inflight, WaitingRetry and Parked, and their bytes

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
func (c *Client) PutGroup(ctx context.Context, name string, config settings.Group) (Group, error) {
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

// Rewind moves a group to another position of a topic, backward or forward. The group loses its
// unfinished messages in the moved queues: their receipt handles become invalid, and their attempts
// count from 1 again. Dead letters stay.
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
