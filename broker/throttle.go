package broker

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/internal/topic"
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

	// Subject is the topic's name or, for a group's limit, the group's. Empty
	// for limits of the whole broker.
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
	RetryAfter Duration `json:"retry_after,omitempty"`

	detail string // instead of value and mark, for people
}

// Values of Throttle.Limit, and of the counters of refused sends.
const (
	limitTopicMessages     = "topic backlog messages"
	limitTopicBytes        = "topic backlog bytes"
	limitTopicAge          = "topic backlog age"
	limitGroupMessages     = "group backlog messages"
	limitGroupBytes        = "group backlog bytes"
	limitGroupAge          = "group backlog age"
	limitTopicRateMessages = "topic rate messages"
	limitTopicRateBytes    = "topic rate bytes"
	limitFairShare         = "fair share"
	limitColdReads         = "cold reads"
	limitFreeDisk          = "free disk" // too little
	limitDiskFull          = "disk full" // none: the value is the bytes that are missing
	limitWriteStall        = "write stall"
	limitCompactionDebt    = "compaction debt"
	limitClientQuota       = "client quota" // of counters only
)

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
	topicLimits  = [throttle.Measures]string{limitTopicMessages, limitTopicBytes, limitTopicAge}
	groupLimits  = [throttle.Measures]string{limitGroupMessages, limitGroupBytes, limitGroupAge}
	backlogUnits = [throttle.Measures]string{unitMessages, unitBytes, unitMilliseconds}
	rateLimits   = [...]string{limitTopicRateMessages, limitTopicRateBytes}
	rateUnits    = [...]string{unitMessagesPerSecond, unitBytesPerSecond}
)

// at returns the throttle with the numbers of a limit.
func (t Throttle) at(s throttle.State) Throttle {
	t.Value, t.Mark, t.Resume, t.Since, t.RetryAfter = s.Value, s.Mark, s.Resume, s.Since, Duration(s.RetryAfter)
	return t
}

// throttledError is what a refused send gets: 530 TOO_MANY_REQUESTS with the limit, the value and
// the mark at which sends are taken again (RocketMQ: sending retry and throttling).
func throttledError(t Throttle) error {
	return &tidegate.Error{
		Code:       tidegate.CodeTooManyRequests,
		RetryAfter: time.Duration(t.RetryAfter),
		Message:    strconv.Itoa(tidegate.ReplyTooManyRequests) + " TOO_MANY_REQUESTS: " + t.String(),
	}
}

// String tells a person which limit it is, the value and the marks, and what to do.
func (t Throttle) String() string {
	what := t.detail
	if what == "" {
		what = t.Limit
		if t.Subject != "" {
			what += " of " + strconv.Quote(t.Subject)
		}
		what += " is " + t.show(t.Value) + ", the limit is " + t.show(t.Mark) + "; sends are taken again at " + t.show(t.Resume)
	}
	return what + "; " + t.advice()
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

// advice says what ends the throttle for good.
func (t Throttle) advice() string {
	switch t.Limit {
	case limitTopicRateMessages, limitTopicRateBytes:
		return "send more slowly, or raise the topic's max_rate"
	case limitFairShare:
		return "others have theirs; it ends when consumers have caught up"
	case limitColdReads:
		return "it ends when the groups that catch up are near the end"
	case limitFreeDisk, limitDiskFull:
		return "make room on the disk of the data directory, or add some; no restart is needed"
	case limitWriteStall, limitCompactionDebt:
		return "the disk does not keep up: send more slowly, or use a faster one"
	}
	return "consume faster, with more consumers, or raise max_backlog"
}

// A sender is who wants to send a message of that many bytes to a topic.
type sender struct {
	client string
	size   int64
}

// observe looks at what is not known at any moment, before a send and before a topic is told of:
// the state of the storage, and ages that are limited. It may read from the store, and is not
// called under any lock.
func (b *Broker) observe(t *topic.Topic, now time.Time) {
	b.pressure.look(b, now)
	b.lookAtAges(t, now)
}

// throttle returns the limit that refuses sends to a topic now, or nil. by is
// nil if nothing is sent; else limits that are used up by sending are used.
func (b *Broker) throttle(t *topic.Topic, now time.Time, by *sender) *Throttle {
	if th := b.throttleAll(); th != nil {
		return th
	}
	if topic.IsDeadLetter(t.Name()) {
		return nil
	}
	if th := limitsOfTopic(t).check(b.backlogLimit(t), by, now); th != nil {
		return th
	}
	subs := t.Subscriptions()
	for _, s := range subs {
		c := s.Consumed()
		if th := limitsOfGroup(c).check(c.Group().Settings().MaxBacklog, by, now); th != nil {
			th.Topic = t.Name()
			return th
		}
	}
	if th := b.throttleCold(t, subs, now); th != nil {
		return th
	}
	return throttleRate(t, by, now)
}

// diskFullPushBack is what producers are told while the disk is full, since
// nobody knows when there will be room.
const diskFullPushBack = 5 * time.Second

func diskFull(full *store.DiskFull) *Throttle {
	return &Throttle{
		Limit: limitDiskFull, Unit: unitBytes, Value: full.Missing, Mark: 1, Since: full.Since, RetryAfter: Duration(diskFullPushBack),
		detail: fmt.Sprintf("the disk of the data directory is full: sends are taken again when %d more bytes are free", full.Missing),
	}
}

// throttleAll returns the limit that refuses all sends now, or nil.
func (b *Broker) throttleAll() *Throttle {
	if full := b.store.DiskFull(); full != nil {
		return diskFull(full)
	}
	return b.pressure.throttle.Load()
}

// shortOfDisk returns the limit that is reached if the room that is left on the disk is for what
// consumers do, and nil if it is for all. Who writes bodies otherwise, which are in the store
// already, asks before, under no lock, and does it later: the reserve would go to it at once.
func (b *Broker) shortOfDisk() *Throttle {
	b.pressure.look(b, time.Now())
	if th := b.throttleAll(); th != nil && (th.Limit == limitDiskFull || th.Limit == limitFreeDisk) {
		return th
	}
	return nil
}

// room waits until the log has room for so many bytes more; Release gives it back. Who would wait
// is refused if the storage refuses all sends, or comes to that meanwhile; limit is then set.
func (b *Broker) room(ctx context.Context, bytes int64) (limit string, err error) {
	err = b.store.Messages.Room(ctx, bytes, func() error {
		b.pressure.look(b, time.Now())
		th := b.throttleAll()
		if th == nil {
			return nil
		}
		limit = th.Limit
		return throttledError(*th)
	})
	return limit, err
}
