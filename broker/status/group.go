package status

import (
	"time"

	"github.com/tidegate/tidegate/broker/settings"
)

// A Group has the name, the settings with all defaults, and the present state in each topic of a
// consumer group.
type Group struct {
	Name string `json:"name"`

	// AutoCreated is true if the first receive created the group and PutGroup was not called for
	// it. The broker has a maximum of such groups (broker.Options.MaxAutoGroups).
	AutoCreated bool `json:"auto_created,omitempty"`

	settings.Group

	// Revision identifies the settings: it changes when they do. Lists leave it out.
	Revision string `json:"revision,omitempty"`

	Topics []Subscription `json:"topics,omitempty"`

	// DeadLetterTopics are the existing topics for the dead letters of the group, by the present
	// settings: %DLQ%group, and others by address settings and retry topics.
	DeadLetterTopics []string `json:"dead_letter_topics,omitempty"`
}

// A Subscription is the state of a group in one topic. The counts are messages; ParkedGroups and
// BlockedGroups are message groups.
type Subscription struct {
	Topic        string  `json:"topic"`
	Ready        int64   `json:"ready"`         // undelivered, or due for redelivery, and neither Parked nor Blocked
	Inflight     int64   `json:"inflight"`      // delivered and not settled
	WaitingRetry int64   `json:"waiting_retry"` // until their retry interval is over
	Parked       int64   `json:"parked"`        // in parked message groups
	Blocked      int64   `json:"blocked"`       // behind the failed messages of blocked message groups
	Backlog      Backlog `json:"backlog"`       // all of these, and their bytes

	// ParkedGroups is the number of parked message groups. BlockedGroups is the number of message
	// groups whose oldest message is retried without end after its last attempt
	// (settings.OnExhaustedBlock). Parked and Blocked include new messages of these message groups
	// among the first 65 536 of a queue that no receive has reached; later ones count as Ready.
	ParkedGroups  int64 `json:"parked_groups"`
	BlockedGroups int64 `json:"blocked_groups"`

	// Held is the client with the delivery in flight that began first. Nil if there is none.
	Held *Holding `json:"held,omitempty"`

	// Why is the first of these that holds. It answers why the group does not consume:
	//
	//	"parked"       message groups are parked
	//	"blocked"      message groups are blocked
	//	"held"         a client has held a message for a minute or longer
	//	"filtered"     no backlog, and the filter has skipped every message since CountsSince
	//	"throttled"    no backlog, and the broker rejects sends to the topic
	//	"idle"         no backlog
	//	"no_consumer"  messages are ready, none is in flight and no receive waits
	//	"retrying"     no message is ready or in flight: all others wait for their retry
	//	"working"      none of these
	Why string `json:"why"`

	// CountsSince is the time when the broker was opened. The following fields count since then.
	CountsSince time.Time `json:"counts_since,omitzero"`

	Acked       int64 `json:"acked"`
	Redelivered int64 `json:"redelivered"` // deliveries with attempt 2 and above
	DeadLetters int64 `json:"dead_letters"`
	Overtaken   int64 `json:"overtaken"` // removed by retention before they were consumed
	Discarded   int64 `json:"discarded"` // removed after the last attempt, because there is no dead-letter-address
	Expired     int64 `json:"expired"`   // too old to be delivered, by expiry-delay
	Filtered    int64 `json:"filtered"`  // skipped, because the filter of the consumer did not match them
}

// A Holding is the client of a group in a topic with the delivery in flight that began first. A
// client that hangs holds its messages until their leases end. With more than 100 000 messages in
// flight or waiting for a retry, the broker searches for this client every few seconds.
type Holding struct {
	Client   string    `json:"client,omitempty"` // empty if the broker has restarted since the delivery
	Messages int64     `json:"messages"`         // that the client holds
	Since    time.Time `json:"since"`            // begin of its first delivery; an extension does not change it
	Until    time.Time `json:"until"`            // end of the lease of that delivery, unless the client extends it
}

// long is the time after which a client that holds a message may hang.
const long = time.Minute

// Long reports whether the client has held its first delivery for a minute or longer, so that its
// handler may hang. It is false for nil.
func (h *Holding) Long(now time.Time) bool { return h != nil && now.Sub(h.Since) >= long }

// A Position is a position in a topic, from which a group continues. Exactly one field is set.
type Position struct {
	Earliest bool // the oldest stored message
	Latest   bool // the next message to be stored

	// Time selects the first message of each queue that was stored at that time or later. The
	// messages of a queue are in the order of these times unless the broker's clock goes back.
	Time time.Time

	// Offsets are the positions by queue number, from the offset of the oldest message to the one
	// after the last. The group's positions in other queues stay.
	Offsets map[int]int64
}

// A QueueRewind is the result of a rewind in one queue.
type QueueRewind struct {
	Queue int   `json:"queue"`
	From  int64 `json:"from"` // next offset before the rewind
	To    int64 `json:"to"`   // next offset after it

	// Dropped is the number of unfinished messages that were taken from the group: those in flight,
	// those that waited for a retry or for their message group, and parked ones. Messages from To
	// on are delivered again.
	Dropped int64 `json:"dropped"`
}
