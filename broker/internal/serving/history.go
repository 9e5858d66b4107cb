package serving

import "time"

// A HistoryQuery selects what a History has.
type HistoryQuery struct {
	Day            bool     // the last day instead of the last hour
	Topics, Groups []string // empty: the totals
	Observer       Observer
}

// An Observer is the caller of a query.
type Observer interface {
	Broker() bool           // may observe the whole broker
	Topic(name string) bool // may observe a topic
	Group(name string) bool // may observe a group
}

// A History has the rates and backlogs of the last hour or day by slots of equal length, which are
// numbered from the start of the broker on. The last slot is in progress: it ends with AsOf. All
// times follow the present wall clock of the broker.
type History struct {
	Now     time.Time `json:"now"`
	AsOf    time.Time `json:"as_of"`   // when the counters were read, up to a second ago
	Started time.Time `json:"started"` // of the broker: there is nothing before
	StepMS  int64     `json:"step_ms"` // the length of a slot

	// Total and LeftOut are nil if the query names topics or groups.
	Total   *HistorySeries  `json:"total,omitempty"`
	LeftOut *HistoryLeftOut `json:"left_out,omitempty"`

	// Topics and Groups are those of the query, in its order. Names that do not exist, and names
	// that the caller may not observe, are left out.
	Topics []HistorySeries `json:"topics,omitempty"`
	Groups []HistorySeries `json:"groups,omitempty"`
}

// HistoryLeftOut counts the topics and groups that the totals concern and of which a part of the
// window was not kept. The totals of a caller that may observe the whole broker have them all the
// same; other totals lack the parts that were not kept.
type HistoryLeftOut struct {
	Topics int64 `json:"topics"`
	Groups int64 `json:"groups"`
}

// A HistorySeries has the values of one subject. All lists that it has are of the same length.
type HistorySeries struct {
	Name string    `json:"name,omitempty"` // empty for the totals
	From time.Time `json:"from"`           // the beginning of the first slot

	// LeftOut means that the subject existed before From and its values were not kept.
	LeftOut bool `json:"left_out,omitempty"`

	// Counters has the counters since the start of the broker, as of History.AsOf.
	Counters HistoryCounters `json:"counters"`

	// Messages in each slot. A topic has Accepted and Acked, which counts each acknowledgement of
	// each group, a group all except Accepted.
	Accepted    []int64 `json:"accepted,omitempty"`
	Delivered   []int64 `json:"delivered,omitempty"`
	Acked       []int64 `json:"acked,omitempty"`
	Redelivered []int64 `json:"redelivered,omitempty"`
	DeadLetters []int64 `json:"dead_letters,omitempty"`

	// Messages at the end of each slot: of a topic those of its slowest group.
	Backlog      []int64 `json:"backlog,omitempty"`
	WaitingRetry []int64 `json:"waiting_retry,omitempty"`
}

// HistoryCounters are counters of messages.
type HistoryCounters struct {
	Accepted    int64 `json:"accepted,omitempty"`
	Delivered   int64 `json:"delivered,omitempty"`
	Acked       int64 `json:"acked,omitempty"`
	Redelivered int64 `json:"redelivered,omitempty"`
	DeadLetters int64 `json:"dead_letters,omitempty"`
}
