package serving

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/status"
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

	Clock *status.Clock // nil while the broker trusts its wall clock

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

// A RefusalReason is the reason for which a message was not stored.
type RefusalReason string

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

// AttemptBounds are the upper bounds of the counts in SubscriptionStats.Deliveries: Deliveries[i]
// counts attempts up to AttemptBounds[i] and above the previous bound. The last count has no bound.
var AttemptBounds = engine.AttemptBounds

// The reasons.
const (
	RefusedThrottled RefusalReason = "throttled"       // by a limit; see Stats.Throttled
	RefusedInvalid   RefusalReason = "invalid"         // the message is invalid, or the topic does not accept its type
	RefusedNoTopic   RefusalReason = "topic_not_found" // there is no such topic
	RefusedUnknown   RefusalReason = "unknown"         // the message may be stored: the store failed, or the context ended during the write
	RefusedOther     RefusalReason = "other"           // the broker is closing, or the context had ended before the write
)

// Count returns the number of observations.
func (h Histogram) Count() uint64 {
	var n uint64
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// A RemovalCause is the reason for a removal of messages.
type RemovalCause string

// The causes.
const (
	RemovedTime     RemovalCause = "time"     // Retention.Time
	RemovedBytes    RemovalCause = "bytes"    // Retention.Bytes
	RemovedConsumed RemovalCause = "consumed" // Retention.Consumed, or a removal that a group had delayed
	RemovedPurge    RemovalCause = "purge"    // Broker.PurgeTopic
)
