package status

import (
	"time"

	"github.com/tidegate/tidegate/broker/settings"
)

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
