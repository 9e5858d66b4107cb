package status

import "time"

// A ParkedGroup is a parked message group: its failed message and the messages after it wait in
// order until RedriveParked.
type ParkedGroup struct {
	Topic        string    `json:"topic"`
	MessageGroup string    `json:"message_group"`
	Since        time.Time `json:"since"`
	Reason       string    `json:"reason"`

	// MessageID, Queue, Offset and Attempts are those of the failed message. The ID is empty if the
	// message does not exist any more.
	MessageID string `json:"message_id"`
	Queue     int    `json:"queue"`
	Offset    int64  `json:"offset"`
	Attempts  int    `json:"attempts"`

	// Messages is the number of waiting messages that receives of the group have reached so far,
	// including the failed one.
	Messages int64 `json:"messages"`
}

// A ParkedQuery selects one page of parked message groups.
type ParkedQuery struct {
	Topic string // empty means all topics
	After string // Next of the previous page; empty means the first page
	Limit int    // at most 1000; 0 means 100
}

// A ParkedPage is one page of parked message groups, by topic and name.
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
