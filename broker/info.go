package broker

import "time"

// A Topic is a topic's name and settings, with every default filled in, and
// what it holds at the moment of asking.
type Topic struct {
	Name string `json:"name"`
	TopicConfig

	// Messages and Bytes are what the topic holds, consumed or not.
	Messages int64 `json:"stored_messages"`
	Bytes    int64 `json:"stored_bytes"`

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
	GroupConfig
	Topics []Subscription `json:"topics,omitempty"`
}

// A Subscription is where a group is in one topic. The counts are messages.
type Subscription struct {
	Topic        string  `json:"topic"`
	Ready        int64   `json:"ready"`         // not delivered yet, or due again
	Inflight     int64   `json:"inflight"`      // delivered, not answered
	WaitingRetry int64   `json:"waiting_retry"` // until their retry interval is over
	Backlog      Backlog `json:"backlog"`       // all of these, and their bytes
	Acked        int64   `json:"acked"`         // since the broker was opened
	Redelivered  int64   `json:"redelivered"`   // likewise: deliveries with attempt 2 and above
	DeadLetters  int64   `json:"dead_letters"`  // likewise
}

// A Backlog is what a consumer group has not consumed yet.
type Backlog struct {
	Messages int64 `json:"messages"`
	Bytes    int64 `json:"bytes"`
}

// A Throttle tells which limit refuses sends.
type Throttle struct {
	// Limit is "topic backlog messages", "topic backlog bytes",
	// "group backlog messages" or "group backlog bytes".
	Limit string `json:"limit"`

	// Subject is the topic's name or, for a group's limit, the group's.
	Subject string `json:"subject"`

	Value  int64     `json:"value"`  // now
	Mark   int64     `json:"mark"`   // the limit itself
	Resume int64     `json:"resume"` // sends are taken again when the value is at or below
	Since  time.Time `json:"since"`

	// RetryAfter is the estimated time until then, from the measured drain
	// rate. 0 if nothing drains and nothing can be said.
	RetryAfter time.Duration `json:"retry_after_ns,omitempty"`
}
