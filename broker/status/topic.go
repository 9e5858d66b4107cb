package status

import (
	"time"

	"github.com/tidegate/tidegate/broker/settings"
)

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

	// LiteTopics is the number of lite topics of a topic of type LITE.
	LiteTopics int `json:"lite_topics,omitempty"`

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

// A Throttle is a limit at which the broker rejects sends, with its current value.
type Throttle struct {
	// Limit is one of
	//
	//	"topic backlog messages"  "topic backlog bytes"  "topic backlog age"
	//	"group backlog messages"  "group backlog bytes"  "group backlog age"
	//	"topic rate messages"     "topic rate bytes"     "fair share"
	//	"cold reads"              "free disk"            "write stall"
	//	"compaction debt"         "disk full"
	Limit string `json:"limit"`

	// Subject is the topic's name or, for a limit of a group, the group's name. Empty for limits of
	// the whole broker.
	Subject string `json:"subject,omitempty"`

	// Topic is the topic whose sends a group's limit rejects. Empty for other limits.
	Topic string `json:"topic,omitempty"`

	Unit   string    `json:"unit"`           // of Value, Mark and Resume: "messages", "bytes", "ms", "messages/s" or "bytes/s"
	Value  int64     `json:"value"`          // current value
	Mark   int64     `json:"mark"`           // the limit itself
	Resume int64     `json:"resume"`         // the broker accepts sends again at or below this value; for free disk, at or above
	Since  time.Time `json:"since,omitzero"` // start of the throttle; zero if the limit is not reached

	// RetryAfter is the wait that the broker announces to producers: the time until Resume at the
	// drain rate of the last seconds, at most 2 min. Zero means that there is no estimate.
	RetryAfter settings.Duration `json:"retry_after,omitempty"`

	// ResumesLeast and ResumesMost are an estimate of the time until Resume, without a maximum: at
	// the drain rate of the last seconds, and at that of the whole throttle. They are zero for
	// limits that are no backlogs, in the first 10 s of a throttle, and if one rate is more than
	// four times the other.
	ResumesLeast settings.Duration `json:"resumes_least,omitempty"`
	ResumesMost  settings.Duration `json:"resumes_most,omitempty"`
}

// A LimitState is a limit that is set, with its current value.
type LimitState struct {
	Throttle
	On bool `json:"on"` // the limit rejects sends
}

// Throttles has all limits of a broker, as its HTTP administration shows them.
type Throttles struct {
	Throttles  []LimitState    `json:"throttles"`   // limits that reject sends
	NotReached []LimitState    `json:"not_reached"` // other limits that are set
	Limits     settings.Limits `json:"limits"`      // of the whole broker
	Revision   string          `json:"revision"`    // identifies Limits
}

// A StoredMessage is a message in a queue of a topic. It was not delivered by reading it.
type StoredMessage struct {
	ID           string    `json:"id"`
	Queue        int       `json:"queue"`
	Offset       int64     `json:"offset"`
	StoredAt     time.Time `json:"stored_at"`
	BornAt       time.Time `json:"born_at,omitzero"` // time of the send
	Tag          string    `json:"tag,omitempty"`
	MessageGroup string    `json:"message_group,omitempty"`
	LiteTopic    string    `json:"lite_topic,omitempty"`
	Priority     int       `json:"priority,omitempty"`
	BodySize     int64     `json:"body_size"` // in bytes, also without Body

	// DeliverAt is the delivery time of a delayed message, which is in no queue yet: its Queue and
	// Offset are -1. Zero for other messages.
	DeliverAt time.Time `json:"deliver_at,omitzero"`

	// The following fields are empty unless the query asks for Contents or Text.

	Keys         []string          `json:"keys,omitempty"`
	Properties   map[string]string `json:"properties,omitempty"`
	TraceContext string            `json:"trace_context,omitempty"` // W3C traceparent of the send
	Body         []byte            `json:"body,omitempty"`
	BodyText     string            `json:"body_text,omitempty"` // instead of Body, if the query asks for text
}

// A MessageFilter selects messages that match each field that is not empty.
type MessageFilter struct {
	ID           string
	Tag          string
	MessageGroup string
	LiteTopic    string
	Key          string            // one of the message's keys
	Properties   map[string]string // the message has all of them
	Contains     string            // a part of the body, byte by byte
}

// A MessageQuery selects one page of the stored messages of a topic, consumed or not.
type MessageQuery struct {
	MessageFilter

	// Queue selects one queue. Nil means all. Offset is the first offset of that queue, or with
	// Newest the last one; nil means no bound.
	Queue  *int
	Offset *int64

	// Since and Before bound the time at which messages were stored; Before is exclusive. Zero
	// means no bound.
	Since, Before time.Time

	// Delayed selects the messages that wait for their delivery time instead of those in the
	// queues. It excludes Queue, Offset and Newest.
	Delayed bool

	Newest   bool   // the newest messages first
	Contents bool   // include bodies, keys and properties
	Text     bool   // include them, a body in UTF-8 as BodyText
	Limit    int    // at most 1000; 0 means 100
	After    string // Next of the previous page with the same query; empty means the first page
}

// A MessagePage is one page of messages, in the order in which they were stored; in a topic with
// more than 64 queues, queue by queue. A call reads a bounded number of messages, so a page can
// have fewer messages than the limit, or none, before the last page.
type MessagePage struct {
	Messages []StoredMessage `json:"messages"`

	Scanned  int64     `json:"scanned"`           // messages that this call looked at
	Left     int64     `json:"left"`              // messages from here to the end of the query, about
	Reached  time.Time `json:"reached,omitzero"`  // when the last of the scanned messages was stored
	Complete bool      `json:"complete"`          // nothing is left
	Next     string    `json:"next,omitempty"`    // After of the next page; empty if Complete
	Corrupt  int64     `json:"corrupt,omitempty"` // messages that cannot be read
}

// A Fate is where one message is in the consumption of one group.
type Fate struct {
	Group string `json:"group"`

	// Topic is the topic for the group alone that the message was redriven to; the other fields
	// are about the message there. Empty means the topic of the trace.
	Topic string `json:"topic,omitempty"`

	// State is one of
	//
	//	"new"            the group has not received it yet
	//	"ready"          due for redelivery
	//	"held"           an earlier message of its message group is not done
	//	"inflight"       delivered and not settled
	//	"waiting_retry"  until Due
	//	"parked"         its message group is parked
	//	"leaving"        it is being written to its dead letters
	//	"dead_letter"    it became a dead letter, or was sent again through a retry topic
	//	"done"           acknowledged, skipped by a filter, a start or a rewind, or removed after
	//	                 its last attempt
	State string `json:"state"`

	Attempt     int       `json:"attempt,omitempty"`      // deliveries
	MaxAttempts int       `json:"max_attempts,omitempty"` // of the group now; 0 means no maximum
	Due         time.Time `json:"due,omitzero"`           // end of the lease or of the retry interval; parked: since when
	Owner       string    `json:"owner,omitempty"`        // the client whose heartbeats keep the lease
	Blocked     bool      `json:"blocked,omitempty"`      // it is retried without end and blocks its message group
	Reason      string    `json:"reason,omitempty"`       // of a parked message group or a dead letter

	// Failures are the latest failures of the message in the group, the oldest first, as far as the
	// broker has them in memory. They have no message ID.
	Failures []Failure `json:"failures,omitempty"`

	Ahead   int64 `json:"ahead,omitempty"`   // new: messages of the queue before it that the group has not received
	Waiting int64 `json:"waiting,omitempty"` // receives of the group that wait for a message

	// Behind is the first unfinished message of the message group, if the message waits for it.
	Behind *StoredMessage `json:"behind,omitempty"`

	// DeadLetter is the dead letter, if it was found: a dead letter that was redriven or purged is
	// gone.
	DeadLetter *DeadLetter `json:"dead_letter,omitempty"`

	// RedrivenAs is the ID that the dead letter has since it was edited and sent back, if a message
	// with it was found: in the topic of the message, or in Topic if it was sent to the group
	// alone.
	RedrivenAs string `json:"redriven_as,omitempty"`
}

// A TracedMessage is a stored message with its fate in each group that receives from the topic.
type TracedMessage struct {
	StoredMessage
	Groups []Fate `json:"groups"`
}

// A Trace is the result of a search for a message by its ID. A topic can have several messages of
// one ID, for example after a redrive. The last fields are those of [MessagePage].
type Trace struct {
	Messages []TracedMessage `json:"messages"`

	// DeliverAt is the delivery time of a delayed message, which is in no queue yet. Half is true
	// for a message of an unresolved transaction.
	DeliverAt time.Time `json:"deliver_at,omitzero"`
	Half      bool      `json:"half,omitempty"`

	Scanned  int64     `json:"scanned"`
	Left     int64     `json:"left"`
	Reached  time.Time `json:"reached,omitzero"`
	Complete bool      `json:"complete"`
	Next     string    `json:"next,omitempty"`
}

// A LiteTopic is a lite topic.
type LiteTopic struct {
	Name  string `json:"name"`
	Queue int    `json:"queue"` // of the parent: each lite topic has one

	// Messages are the stored messages, consumed or not.
	Messages int64 `json:"messages"`

	// UsedAt is when the last message was sent, or the last subscription ended. A restart of the
	// broker counts as one.
	UsedAt time.Time `json:"used_at"`

	// Groups are the groups of the parent, by name.
	Groups []LiteTopicGroup `json:"groups,omitempty"`
}

// A LiteTopicGroup is the consumption of a lite topic by a group.
type LiteTopicGroup struct {
	Group     string   `json:"group"`
	Backlog   int64    `json:"backlog"`             // messages that are not consumed
	Consumers []string `json:"consumers,omitempty"` // the IDs of those that have subscribed
}

// A LiteTopicQuery selects lite topics of a parent.
type LiteTopicQuery struct {
	After string // the last name of the page before; empty means the first page
	Limit int    // at most 1 000; 0 means 100
}

// A LiteTopicPage has lite topics by name.
type LiteTopicPage struct {
	Total      int         `json:"total"` // of the parent
	LiteTopics []LiteTopic `json:"lite_topics"`
	More       bool        `json:"more,omitempty"` // there are later ones
}
