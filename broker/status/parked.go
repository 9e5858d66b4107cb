package status

import "time"

// A ParkedGroup is a message group whose messages wait in order behind a failed message.
type ParkedGroup struct {
	Topic        string `json:"topic"`
	MessageGroup string `json:"message_group"`

	// State is "parked" if the failed message waits until RedriveParked, and "blocked" if it is
	// retried without end (settings.OnExhaustedBlock).
	State string `json:"state"`

	Since time.Time `json:"since,omitzero"` // parked: since when
	Due   time.Time `json:"due,omitzero"`   // blocked: end of the lease or of the retry interval; zero if the failed message is ready

	// Reason is why the message failed. Of a blocked message group it is that of the last failure,
	// and empty if the message has not failed since the start of the broker, or if the broker has
	// dropped the failure (FailurePage.Dropped).
	Reason string `json:"reason"`

	// MessageID, Queue, Offset and Attempts are those of the failed message. The ID is empty if the
	// message does not exist any more.
	MessageID string `json:"message_id"`
	Queue     int    `json:"queue"`
	Offset    int64  `json:"offset"`
	Attempts  int    `json:"attempts"`

	// Messages is the number of waiting messages, including the failed one. Of the messages that no
	// receive has reached it counts the first 65 536 of a queue, as does Subscription.Parked.
	Messages int64 `json:"messages"`
}

// A ParkedQuery selects one page of parked and blocked message groups.
type ParkedQuery struct {
	Topic string // empty means all topics
	State string // "parked" or "blocked"; empty means both
	After string // Next of the previous page; empty means the first page
	Limit int    // at most 1000; 0 means 100
}

// A ParkedPage is one page of parked and blocked message groups, by topic and name.
type ParkedPage struct {
	Groups []ParkedGroup `json:"groups"`
	Next   string        `json:"next,omitempty"` // After of the next page; empty on the last page
}

// A ParkedSelection selects the message groups of a redrive.
type ParkedSelection struct {
	Topic        string `json:"topic,omitempty"`         // empty means all topics
	MessageGroup string `json:"message_group,omitempty"` // empty means all of the topic; if it is not parked, the error is 40401

	// DeadLetter makes the failed message a dead letter, and the messages after it continue.
	// Default: the failed message is delivered first.
	DeadLetter bool `json:"dead_letter,omitempty"`
}

// A ParkedRedrive is the result of a redrive of parked message groups.
type ParkedRedrive struct {
	MessageGroups int64 `json:"message_groups"`
	Messages      int64 `json:"messages"` // including the failed ones
}
