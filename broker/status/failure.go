package status

import (
	"time"

	"github.com/tidegate/tidegate/broker/settings"
)

// A Failure is a delivery that failed, with the broker's action on its message.
type Failure struct {
	Time      time.Time `json:"time"`
	Topic     string    `json:"topic"`
	Queue     int       `json:"queue"`
	Offset    int64     `json:"offset"`
	MessageID string    `json:"message_id,omitempty"` // empty if the message does not exist any more
	Attempt   int       `json:"attempt"`
	Client    string    `json:"client,omitempty"` // the client that received the delivery; empty if the broker has restarted since

	// Reason is the reason that the consumer gave, up to 1 KiB. Fingerprint is that of a dead
	// letter of the topic with this reason. Both are empty if there is no reason, as after a
	// timeout.
	Reason      string `json:"reason,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`

	// Cause is one of
	//
	//	"failed"           the consumer reported a failure
	//	"timeout"          the invisible duration ended without a settlement
	//	"negative_ack"     the consumer requested a redelivery
	//	"dead_letter"      the consumer requested a dead letter
	//	"reconsume_later"  the consumer sent the message to the retry topic
	Cause string `json:"cause"`

	// Fate is one of
	//
	//	"retry"        delivered again, after Delay
	//	"blocked"      as "retry", without end; its message group waits
	//	"dead_letter"  became a dead letter
	//	"parked"       its message group is parked
	//	"retry_topic"  stored in the retry topic of the group, to be delivered after Delay
	//	"removed"      removed, because its address has no dead-letter-address
	Fate  string            `json:"fate"`
	Delay settings.Duration `json:"delay,omitempty"`
}

// A FailureQuery selects one page of the latest failures of a group.
type FailureQuery struct {
	Topic string // empty means all topics
	After string // Next of the previous page; empty means the first page
	Limit int    // at most 1000; 0 means 100
}

// A FailurePage is one page of failures, the newest first. The broker keeps failures in memory, at
// most 8 MiB for all groups.
type FailurePage struct {
	Failures []Failure `json:"failures"`
	Dropped  int64     `json:"dropped,omitempty"` // earlier failures of the group that were not kept, since the broker was opened
	Next     string    `json:"next,omitempty"`    // After of the next page; empty on the last page
}
