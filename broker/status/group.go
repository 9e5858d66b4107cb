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

// A Lease is a message that a group has received, or skipped because of its message group, and not
// finished.
type Lease struct {
	Queue        int       `json:"queue"`
	Offset       int64     `json:"offset"`
	MessageID    string    `json:"message_id,omitempty"` // empty if the message cannot be read
	MessageGroup string    `json:"message_group,omitempty"`
	State        string    `json:"state"` // ready, held, inflight, waiting_retry, parked or leaving, see Fate
	Attempt      int       `json:"attempt"`
	Due          time.Time `json:"due,omitzero"`    // end of the invisible duration or of the retry interval
	Since        time.Time `json:"since,omitzero"`  // inflight: begin of the delivery; an extension does not change it
	Owner        string    `json:"owner,omitempty"` // the client whose heartbeats keep the lease

	// Holder is the client that has the delivery, in state inflight. It is empty if the broker does
	// not know the client, because the broker has restarted since.
	Holder string `json:"holder,omitempty"`

	BodySize int64 `json:"body_size"`
}

// A LeaseQuery selects one page of the leases of a group in a topic.
type LeaseQuery struct {
	State string // a state of Lease; empty means all
	ByDue bool   // in the order of their due times, those without one last; otherwise by queue and offset
	After string // Next of the previous page with the same order; empty means the first page
	Limit int    // at most 1000; 0 means 100
}

// A LeasePage is one page of leases. Messages that wait on disk behind a parked or blocked message
// of their message group are not included.
type LeasePage struct {
	Leases []Lease `json:"leases"`
	Next   string  `json:"next,omitempty"` // After of the next page; empty on the last page
}

// A Schedule counts the messages of a group in a topic that are in flight or wait for a retry, by
// the time until they are due.
type Schedule struct {
	Now          time.Time   `json:"now"`
	NextRetry    time.Time   `json:"next_retry,omitzero"`     // due time of the first retry
	NextLeaseEnd time.Time   `json:"next_lease_end,omitzero"` // end of the first invisible duration
	Buckets      []DueBucket `json:"buckets"`
}

// A DueBucket counts the messages that are due after the bucket before and within Until. Until is
// missing in the last bucket, which has no end.
type DueBucket struct {
	Until        *settings.Duration `json:"until,omitempty"`
	WaitingRetry int64              `json:"waiting_retry"` // messages whose retry interval ends
	Inflight     int64              `json:"inflight"`      // messages whose invisible duration ends
}

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

// A Queue is the contents of one queue of a topic.
type Queue struct {
	Queue    int       `json:"queue"`
	Begin    int64     `json:"begin"`           // offset of the first message that groups can receive
	End      int64     `json:"end"`             // offset after the last message
	Messages int64     `json:"messages"`        // stored messages from Begin on; removed ones leave gaps
	Oldest   time.Time `json:"oldest,omitzero"` // when the first of them was stored
	Newest   time.Time `json:"newest,omitzero"` // when the last of them was stored
}

// A QueuePage is one page of the queues of a topic, by number.
type QueuePage struct {
	Queues []Queue `json:"queues"`
	Next   string  `json:"next,omitempty"` // After of the next page; empty on the last page
}

// A GroupQueue is the progress of a group in one queue of a topic.
type GroupQueue struct {
	Queue       int       `json:"queue"`
	Begin       int64     `json:"begin"`           // as in Queue
	End         int64     `json:"end"`             // as in Queue
	Cursor      int64     `json:"cursor"`          // next offset to be delivered for the first time
	Undelivered int64     `json:"undelivered"`     // offsets from Cursor to End
	Unfinished  int64     `json:"unfinished"`      // messages before Cursor that are not finished
	Oldest      time.Time `json:"oldest,omitzero"` // when the first message from Cursor on was stored
}

// A GroupQueuePage is one page of the progress of a group in a topic, by queue number.
type GroupQueuePage struct {
	Queues []GroupQueue `json:"queues"`
	Next   string       `json:"next,omitempty"` // After of the next page; empty on the last page
}
