package status

import "time"

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
