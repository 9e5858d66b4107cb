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
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// Stats has the present contents of a broker and its counters since Open, for metrics. The counters
// of a deleted topic or group are removed with it.
type Stats struct {
	Topics        []TopicStats        // by name
	Subscriptions []SubscriptionStats // by topic, then group

	// Refused counts messages that were not stored, by reason. Every RefusalReason is a key.
	Refused map[RefusalReason]int64

	// Throttled counts messages that were rejected with tidegate.ErrThrottled, by Throttle.Limit or
	// "client quota". Every limit and "other" are keys, also with a count of 0.
	Throttled map[string]int64

	// RetryLateness has the times from the end of a retry interval to the moment at which the
	// message was ready, in seconds.
	RetryLateness Histogram

	// DelayedLateness has the times from the delivery time of a delayed message to the moment at
	// which it was in its queue, in seconds.
	DelayedLateness Histogram

	// Damaged counts messages that were skipped because they cannot be read from disk: once for
	// each group, once for a delayed message, and each time that a dead letter is listed, redriven
	// or purged.
	Damaged int64

	Messages StoreStats // the database of messages and settings
	Groups   StoreStats // the database of the groups' progress

	// CacheHits and CacheMisses belong to the block cache, which both databases share.
	CacheHits, CacheMisses int64
}

// TopicStats is a topic in Stats.
type TopicStats struct {
	Topic    string
	Stored   status.Backlog // all stored messages, consumed or not
	Delayed  status.Backlog // messages before their delivery time; they are not in Stored
	Backlog  status.Backlog // of the slowest group; without a group, all stored messages
	Throttle *status.Throttle

	// Accepted counts messages since Open, including dead letters. A message counts when it is
	// written to a queue, shortly before it is on disk: a delayed message at its delivery time, a
	// half message when it is committed.
	Accepted status.Backlog

	// Removed counts removed messages since Open, by cause. Every RemovalCause is a key.
	Removed map[RemovalCause]int64

	// Duplicates counts sends since Open whose message was stored before. Their response has the
	// receipt of the stored message.
	Duplicates int64

	// Transactions is nil unless the type of the topic is TRANSACTION.
	Transactions *TransactionStats
}

// TransactionStats are the transactions of a topic in Stats. All fields except HalfMessages count
// since Open.
type TransactionStats struct {
	HalfMessages int64 // messages of unresolved transactions

	Committed, RolledBack int64
	Abandoned             int64 // unresolved after the last check; see AbandonedTransactions

	Checks  int64 // checks that were sent to a producer
	Unheard int64 // checks without a connected producer
}

// SubscriptionStats is a group's consumption of one topic in Stats.
type SubscriptionStats struct {
	Group string
	status.Subscription

	// Waiting is the number of receives that wait for a message.
	Waiting int64

	// Deliveries counts deliveries by attempt: the first, second, third, fourth to eighth, and
	// later ones. A delivery that did not reach its consumer counts too, and the same attempt
	// counts again when it is repeated.
	Deliveries [len(AttemptBounds) + 1]int64

	// GivenUp counts the dead letters that a consumer requested before the last attempt.
	GivenUp int64

	// Oldest is the time since the oldest unconsumed message was stored: ready, in flight or
	// waiting for a retry. It is exact to a tenth of a second. Undelivered is the same for messages
	// that were never delivered. Zero means that there is no such message.
	Oldest, Undelivered time.Duration
}

// AttemptBounds are the upper bounds of the counts in SubscriptionStats.Deliveries: Deliveries[i]
// counts attempts up to AttemptBounds[i] and above the previous bound. The last count has no bound.
var AttemptBounds = subscription.AttemptBounds

// A RefusalReason is the reason for which a message was not stored.
type RefusalReason string

// The reasons.
const (
	RefusedThrottled RefusalReason = "throttled"       // by a limit; see Stats.Throttled
	RefusedInvalid   RefusalReason = "invalid"         // the message is invalid, or the topic does not accept its type
	RefusedNoTopic   RefusalReason = "topic_not_found" // there is no such topic
	RefusedUnknown   RefusalReason = "unknown"         // the message may be stored: the store failed, or the context ended during the write
	RefusedOther     RefusalReason = "other"           // the broker is closing, or the context had ended before the write
)

// StoreStats has the statistics of one of the two databases.
type StoreStats struct {
	Commit        Histogram // duration of commits in seconds, with the fsync if they wait for it
	CommitRecords Histogram // records of a commit, which share an fsync
	CommitBytes   int64
	Fsync         Histogram // duration of fsyncs of the write-ahead log, in seconds

	Disk              int64 // bytes of all files
	WAL, MemTables    int64 // bytes
	CompactionDebt    int64 // bytes that wait for a compaction
	ReadAmplification int64 // highest number of tables that a read searches
	L0Files           int64
	Compactions       int64
	Flushes           int64
}

// A Histogram counts observations. Counts[i] is the number of observations up to Bounds[i] and
// above the previous bound. The last count has no bound. The caller owns the slices.
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

// counters are the counters that belong to no topic or subscription. They need no lock and allocate
// nothing.
type counters struct {
	refused   [len(refusalReasons)]atomic.Int64
	throttled limits.Counters
	lateness  histogram.Histogram // of retries
	delayed   histogram.Histogram // lateness of delayed messages
	damaged   atomic.Int64
}

var refusalReasons = [...]RefusalReason{RefusedThrottled, RefusedInvalid, RefusedNoTopic, RefusedUnknown, RefusedOther}

// countRefused counts the messages of an Append that were not stored.
func (c *counters) countRefused(results []transport.SendResult) {
	for i := range results {
		if err := results[i].Err; err != nil {
			c.refused[slices.Index(refusalReasons[:], refusal(err))].Add(1)
		}
	}
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
	case e.Code < protocol.CodeInternalError:
		return RefusedInvalid
	}
	return RefusedOther
}

// Stats returns the contents and counters of the broker. Its only I/O is the read of the first
// undelivered message of each queue and subscription. A closed or broken broker omits the sizes of
// the databases. It is cheap enough for a call every few seconds.
func (b *Broker) Stats() Stats {
	s := Stats{
		Refused: map[RefusalReason]int64{}, Throttled: map[string]int64{},
		RetryLateness: Histogram(b.counters.lateness.Snapshot()), DelayedLateness: Histogram(b.counters.delayed.Snapshot()), Damaged: b.counters.damaged.Load(),
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
	open := b.calls.Begin()
	if open {
		defer b.calls.End()
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
		s.CacheHits, s.CacheMisses = m.CacheHits, m.CacheMisses // the databases share one cache
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
		Topic:   t.Name(), Stored: status.Backlog{Messages: d.StoredMessages, Bytes: d.StoredBytes}, Delayed: status.Backlog{Messages: d.DelayedMessages, Bytes: d.DelayedBytes}, Backlog: d.Backlog, Throttle: d.Throttle,
		Accepted: status.Backlog(t.Accepted()), Duplicates: t.Duplicates(),
	}
	if d.Type == settings.TopicTransaction {
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
