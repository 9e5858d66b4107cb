package status

import (
	"time"

	"github.com/tidegate/tidegate/broker/settings"
)

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
