package limits

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
)

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

// Units of a status.Throttle.
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

// at returns t with the numbers of a limit.
func at(t status.Throttle, s throttle.State) status.Throttle {
	t.Value, t.Mark, t.Resume, t.Since, t.RetryAfter = s.Value, s.Mark, s.Resume, s.Since, settings.Duration(s.RetryAfter)
	return t
}

// stateOf returns the state of the limit t with its numbers.
func stateOf(t status.Throttle, s throttle.State) status.LimitState {
	return status.LimitState{Throttle: at(t, s), On: s.On}
}

// Rejected returns the error of a send that a limit rejects: 530 TOO_MANY_REQUESTS with the limit,
// its value and the value at which the broker accepts sends again (RocketMQ: sending retry and
// throttling).
func Rejected(t status.Throttle) error {
	return &tidegate.Error{
		Code:       tidegate.CodeTooManyRequests,
		RetryAfter: time.Duration(t.RetryAfter),
		Message:    strconv.Itoa(protocol.ReplyTooManyRequests) + " TOO_MANY_REQUESTS: " + text(t),
	}
}

// text returns the limit, its value and bounds, and the remedy, as a text for people.
func text(t status.Throttle) string {
	var what string
	switch t.Limit {
	case FairShare:
		what = "this client has used its fair share of the drain rate of " + strconv.Quote(t.Subject) + ", " + show(t.Value, t.Unit)
	case DiskFull:
		what = "the disk of the data directory is full; sends are accepted again when " + show(t.Value, unitBytes) + " more bytes are free"
	default:
		what = t.Limit
		if t.Subject != "" {
			what += " of " + strconv.Quote(t.Subject)
		}
		what += " is " + show(t.Value, t.Unit) + ", the limit is " + show(t.Mark, t.Unit) + "; sends are accepted again at " + show(t.Resume, t.Unit)
	}
	return what + "; " + remedies[t.Limit]
}

func show(v int64, unit string) string {
	switch unit {
	case unitMilliseconds:
		return (time.Duration(v) * time.Millisecond).String()
	case unitMessages, unitBytes:
		return strconv.FormatInt(v, 10)
	}
	return strconv.FormatInt(v, 10) + " " + unit
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
	remedySpace   = "purge messages, or free or add space on the disk of the data directory; no restart is needed"
	remedyFree    = remedySpace + "; or lower min_free_disk_bytes"
	remedyDisk    = "the disk is too slow for this load; send more slowly, or use a faster disk"
)

// Counters count the messages that each limit rejected. The zero value is ready for use.
type Counters [len(Names) + 1]atomic.Int64 // in the order of Names; the last one for others

// Add counts a message that a limit rejected.
func (c *Counters) Add(limit string) {
	i := slices.Index(Names[:], limit)
	if i < 0 {
		i = len(Names)
	}
	c[i].Add(1)
}
