package limits

import (
	"strconv"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
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

	// RetryAfter is the estimated time until Resume, from the measured drain rate. Zero means that
	// there is no estimate.
	RetryAfter settings.Duration `json:"retry_after,omitempty"`

	detail string // replaces value and mark in the text
}

// A State is a limit that is set, with its current value.
type State struct {
	Throttle
	On bool `json:"on"` // the limit rejects sends
}

// Values of Throttle.Limit.
const (
	TopicMessages     = "topic backlog messages"
	TopicBytes        = "topic backlog bytes"
	TopicAge          = "topic backlog age"
	GroupMessages     = "group backlog messages"
	GroupBytes        = "group backlog bytes"
	GroupAge          = "group backlog age"
	TopicRateMessages = "topic rate messages"
	TopicRateBytes    = "topic rate bytes"
	FairShare         = "fair share"
	ColdReads         = "cold reads"
	FreeDisk          = "free disk" // too little
	DiskFull          = "disk full" // nothing is free; the value is the number of missing bytes
	WriteStall        = "write stall"
	CompactionDebt    = "compaction debt"
)

// ClientQuota is the limit of WithinQuota. It counts rejected sends and is no value of
// Throttle.Limit.
const ClientQuota = "client quota"

// Names are the values of Throttle.Limit, and ClientQuota.
var Names = [...]string{
	TopicMessages, TopicBytes, TopicAge, GroupMessages, GroupBytes, GroupAge, TopicRateMessages, TopicRateBytes,
	FairShare, ColdReads, FreeDisk, WriteStall, CompactionDebt, DiskFull, ClientQuota,
}

// Units of a Throttle.
const (
	unitMessages          = "messages"
	unitBytes             = "bytes"
	unitMilliseconds      = "ms"
	unitMessagesPerSecond = "messages/s"
	unitBytesPerSecond    = "bytes/s"
)

// Limits and units by measure.
var (
	topicLimits  = [throttle.Measures]string{TopicMessages, TopicBytes, TopicAge}
	groupLimits  = [throttle.Measures]string{GroupMessages, GroupBytes, GroupAge}
	backlogUnits = [throttle.Measures]string{unitMessages, unitBytes, unitMilliseconds}
	rateLimits   = [...]string{TopicRateMessages, TopicRateBytes}
	rateUnits    = [...]string{unitMessagesPerSecond, unitBytesPerSecond}
)

// at returns the throttle with the numbers of a limit.
func (t Throttle) at(s throttle.State) Throttle {
	t.Value, t.Mark, t.Resume, t.Since, t.RetryAfter = s.Value, s.Mark, s.Resume, s.Since, settings.Duration(s.RetryAfter)
	return t
}

// state returns the state of the limit with its numbers.
func (t Throttle) state(s throttle.State) State { return State{t.at(s), s.On} }

// Rejected returns the error of a send that a limit rejects: 530 TOO_MANY_REQUESTS with the limit,
// its value and the value at which the broker accepts sends again (RocketMQ: sending retry and
// throttling).
func Rejected(t Throttle) error {
	return &tidegate.Error{
		Code:       tidegate.CodeTooManyRequests,
		RetryAfter: time.Duration(t.RetryAfter),
		Message:    strconv.Itoa(protocol.ReplyTooManyRequests) + " TOO_MANY_REQUESTS: " + t.String(),
	}
}

// String returns the limit, its value and bounds, and the remedy, as a text for people.
func (t Throttle) String() string {
	text := t.detail
	if text == "" {
		text = t.Limit
		if t.Subject != "" {
			text += " of " + strconv.Quote(t.Subject)
		}
		text += " is " + t.show(t.Value) + ", the limit is " + t.show(t.Mark) + "; sends are accepted again at " + t.show(t.Resume)
	}
	return text + "; " + remedies[t.Limit]
}

func (t Throttle) show(v int64) string {
	switch t.Unit {
	case unitMilliseconds:
		return (time.Duration(v) * time.Millisecond).String()
	case unitMessages, unitBytes:
		return strconv.FormatInt(v, 10)
	}
	return strconv.FormatInt(v, 10) + " " + t.Unit
}

// remedies has the advice to the client or the operator, by Limit.
var remedies = map[string]string{
	TopicMessages: remedyBacklog, TopicBytes: remedyBacklog, TopicAge: remedyBacklog,
	GroupMessages: remedyBacklog, GroupBytes: remedyBacklog, GroupAge: remedyBacklog,
	TopicRateMessages: remedyRate, TopicRateBytes: remedyRate,
	FairShare: "retry when the consumers have caught up",
	ColdReads: "retry when the lagging groups have caught up",
	FreeDisk:  remedyFree, DiskFull: remedySpace,
	WriteStall: remedyDisk, CompactionDebt: remedyDisk,
}

const (
	remedyBacklog = "add consumers or make them faster, or raise max_backlog"
	remedyRate    = "send more slowly, or raise the topic's max_rate"
	remedySpace   = "free or add space on the disk of the data directory; no restart is needed"
	remedyFree    = remedySpace + "; or lower min_free_disk_bytes"
	remedyDisk    = "the disk is too slow for this load; send more slowly, or use a faster disk"
)
