package broker

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/histogram"
	"github.com/tidegate/tidegate/broker/internal/limits"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/transport"
)

// Stats is what a broker holds at the moment of asking, and what it has done
// since it was opened, for metrics. Counts of what was deleted go with it.
type Stats struct {
	Topics        []TopicStats        // by name
	Subscriptions []SubscriptionStats // by topic, then group

	// Refused counts messages that were not stored, by reason; every
	// RefusalReason is a key.
	Refused map[RefusalReason]int64

	// Throttled counts those refused with tidegate.ErrThrottled, by the limit
	// (see Throttle.Limit) or "client quota". Every limit is a key, and
	// "other", so that the number of keys does not depend on what happens.
	Throttled map[string]int64

	// RetryLateness is how long after its due time a message that waited for
	// its retry became ready, in seconds.
	RetryLateness Histogram

	// Damaged counts messages that groups passed over because they could not be
	// read from disk any more, once for each group; a delayed message once; a dead letter
	// each time that it is browsed, redriven or purged too.
	Damaged int64

	Messages StoreStats // the database of messages and settings
	Groups   StoreStats // the database of the groups' progress

	// CacheHits and CacheMisses are those of the block cache that both
	// databases share.
	CacheHits, CacheMisses int64
}

// TopicStats is a topic in Stats.
type TopicStats struct {
	Topic    string
	Stored   Backlog // what it holds, consumed or not
	Delayed  Backlog // what waits for its delivery time, which is not in Stored
	Backlog  Backlog // the slowest group's, or all that it holds without one
	Throttle *Throttle

	// Accepted is what it took since the broker was opened, dead letters included. A message counts
	// when it is written to a queue, just before it is on disk: a delayed one when its time has
	// come, a half message once it is committed, also if they were sent before.
	Accepted Backlog

	// Removed is how many messages were removed since the broker was opened, by
	// cause; every RemovalCause is a key. Those of deleted topics are not in it.
	Removed map[RemovalCause]int64

	// Duplicates is how many sends were answered with the receipt of a message
	// stored before, since the broker was opened.
	Duplicates int64

	// Transactions is what became of half messages; nil unless the topic's
	// type is TRANSACTION.
	Transactions *TransactionStats
}

// TransactionStats are a topic's transactions in Stats. All but HalfMessages
// count since the broker was opened.
type TransactionStats struct {
	HalfMessages int64 // that wait for the end of their transaction

	Committed, RolledBack int64
	Abandoned             int64 // given up after the last check; see AbandonedTransactions

	Checks  int64 // that a producer was asked
	Unheard int64 // checks for which there was no producer to ask
}

// SubscriptionStats is a group's consumption of one topic in Stats.
type SubscriptionStats struct {
	Group string
	Subscription

	// Waiting is how many receives wait for a message.
	Waiting int64

	// Deliveries counts deliveries by attempt: the first, second, third,
	// fourth to eighth, and later ones. One that did not reach its consumer
	// counts too, and its attempt once more when it is delivered again.
	Deliveries [len(AttemptBounds) + 1]int64

	// GivenUp is how many of Subscription.DeadLetters became dead letters
	// because a consumer asked for it, and not after their last attempt.
	GivenUp int64

	// Oldest is how long ago the oldest message that the group is not done with was stored, be it
	// ready, in flight or waiting for a retry, exact to a tenth of a second; Undelivered, the
	// oldest that was never handed out. 0 if there is none.
	Oldest, Undelivered time.Duration
}

// AttemptBounds are the highest attempts of the classes of
// SubscriptionStats.Deliveries; the last class has no bound.
var AttemptBounds = subscription.AttemptBounds

// A RefusalReason is why a message was not stored.
type RefusalReason string

// The reasons.
const (
	RefusedThrottled RefusalReason = "throttled"       // a limit; see Stats.Throttled
	RefusedInvalid   RefusalReason = "invalid"         // what is wrong with it, or a type that its topic does not take
	RefusedNoTopic   RefusalReason = "topic_not_found" // there is no such topic
	RefusedUnknown   RefusalReason = "unknown"         // it may be stored: the store failed, or the sender did not wait
	RefusedOther     RefusalReason = "other"           // the broker closes, or the sender had given up
)

// StoreStats is one of the two databases.
type StoreStats struct {
	Commit        Histogram // seconds that commits took, fsync included where it is waited for
	CommitRecords Histogram // records in a commit: what one fsync serves
	CommitBytes   int64
	Fsync         Histogram // seconds that fsyncs of the write-ahead log took

	Disk              int64 // bytes of all files
	WAL, MemTables    int64 // bytes
	CompactionDebt    int64 // bytes that are to be compacted
	ReadAmplification int64 // tables that a read may have to look at
	L0Files           int64
	Compactions       int64
	Flushes           int64
}

// A Histogram counts observations. Counts[i] is how many were at most
// Bounds[i] and above the bound before; the last one, of which there is no
// bound, is how many were above all. The slices are the caller's.
type Histogram struct {
	Bounds []float64
	Counts []uint64
	Sum    float64
}

// Count returns the number of observations.
func (h Histogram) Count() uint64 {
	var n uint64
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// counters are what a broker counts beside what its topics and subscriptions
// do. Nothing here takes a lock or allocates.
type counters struct {
	refused   [len(refusalReasons)]atomic.Int64
	throttled [len(limits.Names) + 1]atomic.Int64 // by limit; the last one for others
	lateness  histogram.Histogram
	damaged   atomic.Int64
}

var refusalReasons = [...]RefusalReason{RefusedThrottled, RefusedInvalid, RefusedNoTopic, RefusedUnknown, RefusedOther}

// countRefused counts the messages of an Append that were refused.
func (c *counters) countRefused(results []transport.SendResult) {
	for i := range results {
		if err := results[i].Err; err != nil {
			c.refused[slices.Index(refusalReasons[:], refusal(err))].Add(1)
		}
	}
}

// countThrottled counts a message that a limit refused.
func (c *counters) countThrottled(limit string) {
	i := slices.Index(limits.Names[:], limit)
	if i < 0 {
		i = len(limits.Names)
	}
	c.throttled[i].Add(1)
}

// refusal returns the reason of a failed send.
func refusal(err error) RefusalReason {
	e, ok := errors.AsType[*tidegate.Error](err)
	switch {
	case !ok || errors.Is(err, tidegate.ErrClosed):
		return RefusedOther
	case e.MaybeStored:
		return RefusedUnknown
	case e.Code == tidegate.CodeTooManyRequests:
		return RefusedThrottled
	case e.Code == tidegate.CodeTopicNotFound:
		return RefusedNoTopic
	case e.Code < tidegate.CodeInternalError:
		return RefusedInvalid
	}
	return RefusedOther
}

// Stats returns what the broker holds and has done. It waits for no I/O but
// reads of the oldest messages that were never handed out, one for each queue of each
// subscription that has any. A closed or broken broker tells all but the
// databases' sizes. Calling it every few seconds costs little.
func (b *Broker) Stats() Stats {
	s := Stats{
		Refused: map[RefusalReason]int64{}, Throttled: map[string]int64{},
		RetryLateness: Histogram(b.counters.lateness.Snapshot()), Damaged: b.counters.damaged.Load(),
		Messages: logStats(b.store.Messages.Stats()), Groups: logStats(b.store.Groups.Stats()),
	}
	for i, r := range refusalReasons {
		s.Refused[r] = b.counters.refused[i].Load()
	}
	for i, l := range limits.Names {
		s.Throttled[l] = b.counters.throttled[i].Load()
	}
	s.Throttled["other"] = b.counters.throttled[len(limits.Names)].Load()
	topics, subs := b.catalog.All()
	for _, t := range topics {
		s.Topics = append(s.Topics, b.topicStats(t))
	}
	slices.SortFunc(s.Topics, func(x, y TopicStats) int { return strings.Compare(x.Topic, y.Topic) })
	open := b.begin()
	if open {
		defer b.end()
	}
	readable := open && b.store.Broken() == nil
	for _, sub := range subs {
		s.Subscriptions = append(s.Subscriptions, subscriptionStats(sub, readable))
	}
	slices.SortFunc(s.Subscriptions, func(x, y SubscriptionStats) int {
		return 2*strings.Compare(x.Topic, y.Topic) + strings.Compare(x.Group, y.Group)
	})
	if readable {
		m, g := b.store.DatabaseStats()
		s.Messages.add(m)
		s.Groups.add(g)
		s.CacheHits, s.CacheMisses = m.CacheHits, m.CacheMisses // the other one tells the same
	}
	return s
}

func (b *Broker) topicStats(t *topic.Topic) TopicStats {
	d := b.describe(t)
	removed := make(map[RemovalCause]int64, len(removalCauses))
	for i, cause := range removalCauses {
		removed[cause] = t.Removed(retention.Cause(i))
	}
	out := TopicStats{
		Removed: removed,
		Topic:   t.Name(), Stored: Backlog{Messages: d.Messages, Bytes: d.Bytes}, Delayed: Backlog{d.DelayedMessages, d.DelayedBytes}, Backlog: d.Backlog, Throttle: d.Throttle,
		Accepted: Backlog(t.Accepted()), Duplicates: t.Duplicates(),
	}
	if d.Type == TopicTransaction {
		h := t.Counters()
		out.Transactions = &TransactionStats{
			HalfMessages: d.HalfMessages, Committed: h.Committed.Load(), RolledBack: h.RolledBack.Load(), Abandoned: h.GivenUp.Load(),
			Checks: h.Checks.Load(), Unheard: h.Unheard.Load(),
		}
	}
	return out
}

func subscriptionStats(s *subscription.Subscription, readable bool) SubscriptionStats {
	at := s.Status()
	d := SubscriptionStats{
		Group: s.Group().Name(), Subscription: describeSubscription(s, &at),
		Waiting: at.Waiting, Deliveries: at.Deliveries, GivenUp: at.GivenUp,
	}
	if !readable {
		return d
	}
	now := time.Now()
	since := func(stored int64) time.Duration {
		if stored == 0 {
			return 0
		}
		return max(0, now.Sub(time.Unix(0, stored)))
	}
	all, fresh := s.Oldest()
	d.Oldest, d.Undelivered = since(all), since(fresh)
	return d
}

func (s *StoreStats) add(d store.DatabaseStats) {
	s.Disk, s.WAL, s.MemTables, s.CompactionDebt = int64(d.Disk), int64(d.WAL), int64(d.MemTables), int64(d.CompactionDebt)
	s.ReadAmplification, s.L0Files, s.Compactions, s.Flushes = int64(d.ReadAmplification), d.L0Files, d.Compactions, d.Flushes
}

func logStats(l store.LogStats) StoreStats {
	return StoreStats{Commit: Histogram(l.Commit), CommitRecords: Histogram(l.Records), CommitBytes: l.Bytes, Fsync: Histogram(l.Fsync)}
}
