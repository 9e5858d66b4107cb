package broker

import (
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/settings"
)

// A Topic has the name, the settings with all defaults, and the present contents of a topic.
type Topic struct {
	Name string `json:"name"`
	settings.Topic

	// AutoCreated is true for an automatic dead letter queue of address settings
	// (AutoCreateDeadLetterResources). The broker deletes it when groups have consumed all of it,
	// unless AutoDeleteQueues is false. PutTopic makes it permanent.
	AutoCreated bool `json:"auto_created,omitempty"`

	// Messages and Bytes count all stored messages, consumed or not.
	Messages int64 `json:"stored_messages"`
	Bytes    int64 `json:"stored_bytes"`

	// HalfMessages counts messages of unresolved transactions. No other field counts them.
	HalfMessages int64 `json:"half_messages,omitempty"`

	// DelayedMessages and DelayedBytes count messages before their delivery time. No other field
	// counts them. The limits of the topic's backlog do, because they will be part of it.
	DelayedMessages int64 `json:"delayed_messages,omitempty"`
	DelayedBytes    int64 `json:"delayed_bytes,omitempty"`

	// Backlog is the backlog of the slowest group; without a group, all stored messages.
	Backlog Backlog `json:"backlog"`

	// Throttle is the limit that rejects sends now, and nil if there is none.
	Throttle *Throttle `json:"throttle,omitempty"`

	// Groups are the consumer groups that have received from the topic.
	Groups []string `json:"groups,omitempty"`
}

// A Group has the name, the settings with all defaults, and the present state in each topic of a
// consumer group.
type Group struct {
	Name string `json:"name"`

	// AutoCreated is true if the first receive created the group and PutGroup was not called for
	// it. Such groups count in Options.MaxAutoGroups.
	AutoCreated bool `json:"auto_created,omitempty"`

	settings.Group
	Topics []Subscription `json:"topics,omitempty"`

	// DeadLetterTopics are the existing topics for the dead letters of the group, by the present
	// settings: %DLQ%group, and others by address settings and retry topics.
	DeadLetterTopics []string `json:"dead_letter_topics,omitempty"`
}

// A Subscription is the state of a group in one topic. The counts are messages; ParkedGroups and
// BlockedGroups are message groups.
type Subscription struct {
	Topic        string  `json:"topic"`
	Ready        int64   `json:"ready"`         // undelivered, or due for redelivery
	Inflight     int64   `json:"inflight"`      // delivered and not settled
	WaitingRetry int64   `json:"waiting_retry"` // until their retry interval is over
	Parked       int64   `json:"parked"`        // in parked message groups
	Backlog      Backlog `json:"backlog"`       // all of these, and their bytes

	// ParkedGroups is the number of parked message groups. BlockedGroups is the number of message
	// groups whose oldest message is retried without end after its last attempt (OnExhaustedBlock).
	ParkedGroups  int64 `json:"parked_groups"`
	BlockedGroups int64 `json:"blocked_groups"`

	// The following fields count since Open.

	Acked       int64 `json:"acked"`
	Redelivered int64 `json:"redelivered"` // deliveries with attempt 2 and above
	DeadLetters int64 `json:"dead_letters"`
	Overtaken   int64 `json:"overtaken"` // removed by Retention before they were consumed
	Discarded   int64 `json:"discarded"` // removed after the last attempt, because there is no dead-letter-address
	Expired     int64 `json:"expired"`   // too old to be delivered, by expiry-delay
}

// A Backlog counts messages, and the bytes of their bodies, that a group has not consumed yet.
type Backlog struct {
	Messages int64 `json:"messages"`
	Bytes    int64 `json:"bytes"`
}

func describeSubscription(s *subscription.Subscription, at *subscription.Status) Subscription {
	return Subscription{
		Topic: s.Topic().Name(),
		Ready: at.Ready, Inflight: at.Inflight, WaitingRetry: at.WaitingRetry,
		Parked: at.Parked, ParkedGroups: at.ParkedGroups, BlockedGroups: at.BlockedGroups,
		Backlog: Backlog(s.Backlog()),
		Acked:   at.Acked, Redelivered: at.Redelivered, DeadLetters: at.DeadLetters,
		Overtaken: at.Overtaken, Discarded: at.Discarded, Expired: at.Expired,
	}
}
