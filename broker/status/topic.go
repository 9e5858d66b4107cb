package status

import "github.com/tidegate/tidegate/broker/settings"

// A Topic has the name, the settings with all defaults, and the present contents of a topic.
type Topic struct {
	Name string `json:"name"`
	settings.Topic

	// Revision identifies the settings: it changes when they do. Lists leave it out.
	Revision string `json:"revision,omitempty"`

	// AutoCreated is true for an automatic dead letter queue of address settings
	// (AutoCreateDeadLetterResources). The broker deletes it when groups have consumed all of it,
	// unless AutoDeleteQueues is false. PutTopic makes it permanent.
	AutoCreated bool `json:"auto_created,omitempty"`

	// StoredMessages and StoredBytes count all stored messages, consumed or not.
	StoredMessages int64 `json:"stored_messages"`
	StoredBytes    int64 `json:"stored_bytes"`

	// AcceptedMessages counts the messages that were stored since the broker was opened, dead
	// letters included: a delayed message from its delivery time on, a half message from its commit
	// on.
	AcceptedMessages int64 `json:"accepted_messages"`

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

// A Backlog counts messages and the bytes of their bodies, for example those that a group has not
// consumed yet.
type Backlog struct {
	Messages int64 `json:"messages"`
	Bytes    int64 `json:"bytes"`
}

// An Address has the settings of one address pattern.
type Address struct {
	Match string `json:"match"`
	settings.Address
	Revision string `json:"revision,omitempty"` // identifies the settings; lists leave it out
}

// A TopicAddress has the address settings of a topic, merged from all patterns that match it.
type TopicAddress struct {
	Topic   string   `json:"topic"`
	Matches []string `json:"matches"` // the patterns, by precedence
	settings.Address
}
