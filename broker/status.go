package broker

import "github.com/tidegate/tidegate/broker/internal/subscription"

// A Topic is a topic's name and settings, with every default filled in, and
// what it holds at the moment of asking.
type Topic struct {
	Name string `json:"name"`
	TopicConfig

	// AutoCreated tells that it is an automatic dead-letter queue, which is
	// deleted by itself when all of it was consumed; PutTopic makes it stay.
	AutoCreated bool `json:"auto_created,omitempty"`

	// Messages and Bytes are what the topic holds, consumed or not.
	Messages int64 `json:"stored_messages"`
	Bytes    int64 `json:"stored_bytes"`

	// HalfMessages is how many wait for the end of their transaction. They are
	// in none of the other numbers.
	HalfMessages int64 `json:"half_messages,omitempty"`

	// DelayedMessages is how many wait for their delivery time, and DelayedBytes
	// are those of their bodies. They are in none of the other numbers, but a
	// limit of the topic's backlog counts them: they will be in it.
	DelayedMessages int64 `json:"delayed_messages,omitempty"`
	DelayedBytes    int64 `json:"delayed_bytes,omitempty"`

	// Backlog is the slowest group's backlog, or all that it holds without one.
	Backlog Backlog `json:"backlog"`

	// Throttle is why sends are refused now; nil if they are not.
	Throttle *Throttle `json:"throttle,omitempty"`

	// Groups are the consumer groups that have received from it.
	Groups []string `json:"groups,omitempty"`
}

// A Group is a consumer group's name and settings, with every default filled
// in, and its state in each topic at the moment of asking.
type Group struct {
	Name string `json:"name"`

	// AutoCreated tells that it was made by being received from, and that nobody has
	// put it: it counts for Options.MaxAutoGroups.
	AutoCreated bool `json:"auto_created,omitempty"`

	GroupConfig
	Topics []Subscription `json:"topics,omitempty"`

	// DeadLetterTopics are those that there are of the topics to which its
	// messages go when they are given up, as things are set now: %DLQ%group, and others by
	// address settings and retry topics.
	DeadLetterTopics []string `json:"dead_letter_topics,omitempty"`
}

// A Subscription is where a group is in one topic. The counts are messages.
type Subscription struct {
	Topic        string  `json:"topic"`
	Ready        int64   `json:"ready"`         // not delivered yet, or due again
	Inflight     int64   `json:"inflight"`      // delivered, not answered
	WaitingRetry int64   `json:"waiting_retry"` // until their retry interval is over
	Parked       int64   `json:"parked"`        // with their message groups, until these are sent on
	Backlog      Backlog `json:"backlog"`       // all of these, and their bytes

	// ParkedGroups is how many message groups are parked, and BlockedGroups how
	// many wait for a message that is retried for ever after its last attempt.
	ParkedGroups  int64 `json:"parked_groups"`
	BlockedGroups int64 `json:"blocked_groups"`

	Acked       int64 `json:"acked"`        // since the broker was opened
	Redelivered int64 `json:"redelivered"`  // likewise: deliveries with attempt 2 and above
	DeadLetters int64 `json:"dead_letters"` // likewise
	Overtaken   int64 `json:"overtaken"`    // likewise: removed by Retention before they were consumed
	Discarded   int64 `json:"discarded"`    // likewise: given up after the last attempt, with no dead-letter-address to go to
	Expired     int64 `json:"expired"`      // likewise: too old to be delivered, by expiry-delay
}

// A Backlog is what a consumer group has not consumed yet.
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
