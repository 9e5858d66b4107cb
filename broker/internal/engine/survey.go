package engine

import (
	"errors"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// A Survey is the state of all topics and groups at one moment. Goroutines may share a Survey,
// because it never changes.
type Survey struct {
	Opened time.Time // when the broker was opened, from which the counters count
	At     time.Time
	Topics []status.TopicSummary // by name

	// Groups has each group in each of its topics, by the names of group and topic. A group without
	// topics has one entry.
	Groups []status.GroupSummary

	Totals    status.Totals
	Counters  status.Counters
	Storage   status.Storage
	Clock     *status.Clock       // nil while the broker trusts its wall clock
	Throttles []status.LimitState // that reject sends
}

// Survey returns the state of all topics and groups. Its only I/O is the read of the first
// undelivered message of each queue and subscription that has moved since the last call, and of the
// message groups of new messages while message groups are parked or blocked. A closed or broken
// broker omits ages and the sizes of the databases.
func (e *Engine) Survey() *Survey {
	now := time.Now()
	open := e.calls.Begin()
	if open {
		defer e.calls.End()
	}
	readable := open && e.store.Broken() == nil
	all := e.catalog.Sorted()
	s := &Survey{
		Opened: e.opened, At: now, Topics: make([]status.TopicSummary, len(all.Topics)), Groups: make([]status.GroupSummary, 0, len(all.Subscriptions)),
		Counters: e.countersOf(), Storage: e.storageOf(readable), Clock: e.clockStatus(),
	}
	s.Totals.Topics, s.Totals.Groups, s.Totals.Subscriptions = int64(len(all.Topics)), int64(len(all.Groups)), int64(len(all.Subscriptions))
	var throttled []*Topic
	for i, t := range all.Topics {
		e.summarize(t, &s.Topics[i], readable, now)
		addTopicTotals(s, t, &s.Topics[i])
		if th := s.Topics[i].Throttle; th != nil && th.Subject != "" {
			throttled = append(throttled, t)
		}
	}
	stored := map[deadletter.ClassOrigin]int64{}
	for _, t := range all.Topics {
		t.Classes().AddTo(stored)
	}
	for _, n := range stored {
		s.Totals.DeadLettersStored += n
	}
	next, looks := 0, int64(MaxLook)
	for _, g := range all.Groups {
		first := next
		for ; next < len(all.Subscriptions) && all.Subscriptions[next].Group() == g; next++ {
			sub, of := all.Subscriptions[next], &s.Topics[all.TopicOf[next]]
			if readable {
				sub.LookAhead(&looks)
			}
			at := sub.Status()
			s.Groups = append(s.Groups, summarizeGroup(sub, &at, of.InRate, readable, now))
			row := &s.Groups[len(s.Groups)-1]
			row.Why = whyOf(&at, row.Backlog.Messages, of.Throttle != nil, now)
			row.DeadLettersStored = stored[deadletter.ClassOrigin{Group: row.Group, Topic: row.Topic}]
			of.OldestMS = max(of.OldestMS, row.OldestMS)
			of.Acked += row.Acked
			addGroupTotals(s, &at, row)
		}
		if next == first {
			s.Groups = append(s.Groups, status.GroupSummary{Group: g.Name()})
		}
	}
	for _, l := range e.limits.States(throttled, false, now) {
		if !l.On {
			break // those that reject sends are the first
		}
		s.Throttles = append(s.Throttles, l)
	}
	return s
}

// summarize sets the summary of a topic, except for OldestMS.
func (e *Engine) summarize(t *Topic, row *status.TopicSummary, readable bool, now time.Time) {
	c := t.Settings()
	stored := status.Backlog(t.Stored())
	row.Name, row.Type, row.Queues, row.Stored, row.Backlog = t.Name(), c.Type, c.Queues, stored, stored
	row.Accepted = t.Accepted().Messages
	row.Groups = int64(len(t.Subscriptions()))
	if row.Groups > 0 {
		row.Backlog = status.Backlog(t.Backlog())
		messages, _ := t.Drained(now)
		row.OutRate = rounded(messages)
	}
	row.Delayed.Messages, row.Delayed.Bytes = t.Counters().Delayed()
	row.Half, row.InRate = t.Counters().Half.Load(), rounded(t.InRate(now))
	if readable {
		e.limits.Observe(t, now)
	}
	row.Throttle = e.limits.Check(t, now, nil)
}

// summarizeGroup returns the summary of a group in a topic.
func summarizeGroup(s *Subscription, at *Status, inRate float64, readable bool, now time.Time) status.GroupSummary {
	out, _ := s.Drained(now)
	row := status.GroupSummary{
		Group: s.Group().Name(), Topic: s.Topic().Name(),
		Ready: at.Ready, Inflight: at.Inflight, WaitingRetry: at.WaitingRetry, Parked: at.Parked, Blocked: at.Blocked, ParkedGroups: at.ParkedGroups, BlockedGroups: at.BlockedGroups,
		Backlog: status.Backlog(s.Backlog()), InRate: inRate, OutRate: rounded(out), Waiting: at.Waiting,
		Acked: at.Acked, Redelivered: at.Redelivered, DeadLetters: at.DeadLetters, DeadLettersHour: at.DeadLettersHour,
		Filtered: at.Filtered, Held: holdingOf(at.Held),
	}
	if readable && row.Backlog.Messages > 0 {
		all, fresh := s.Oldest()
		row.OldestMS, row.UndeliveredMS = ageOf(all, now), ageOf(fresh, now)
	}
	return row
}

// ageOf returns the age in milliseconds of a message that was stored at a time, and 0 for none. The
// clock may have gone back.
func ageOf(stored int64, now time.Time) int64 {
	if stored == 0 {
		return 0
	}
	return max(0, now.Sub(time.Unix(0, stored)).Milliseconds())
}

// rounded returns a rate with two decimals.
func rounded(rate float64) float64 { return math.Round(rate*100) / 100 }

func addTopicTotals(s *Survey, t *Topic, row *status.TopicSummary) {
	addBacklog(&s.Totals.Stored, row.Stored)
	addBacklog(&s.Totals.Delayed, row.Delayed)
	s.Totals.HalfMessages += row.Half
	s.Totals.InRate = rounded(s.Totals.InRate + row.InRate)
	addBacklog(&s.Counters.Accepted, status.Backlog(t.Accepted()))
	s.Counters.Duplicates += t.Duplicates()
}

func addGroupTotals(s *Survey, at *Status, row *status.GroupSummary) {
	t, c := &s.Totals, &s.Counters
	addBacklog(&t.Backlog, row.Backlog)
	t.Ready += row.Ready
	t.Inflight += row.Inflight
	t.WaitingRetry += row.WaitingRetry
	t.Parked += row.Parked
	t.Blocked += row.Blocked
	t.ParkedGroups += row.ParkedGroups
	t.BlockedGroups += row.BlockedGroups
	t.Waiting += row.Waiting
	t.DeadLettersHour += row.DeadLettersHour
	t.OldestMS, t.UndeliveredMS = max(t.OldestMS, row.OldestMS), max(t.UndeliveredMS, row.UndeliveredMS)
	t.OutRate = rounded(t.OutRate + row.OutRate)
	for _, n := range at.Deliveries {
		c.Delivered += n
	}
	c.Redelivered += at.Redelivered
	c.Acked += at.Acked
	c.DeadLetters += at.DeadLetters
	c.Overtaken += at.Overtaken
	c.Discarded += at.Discarded
	c.Expired += at.Expired
}

func addBacklog(to *status.Backlog, b status.Backlog) {
	to.Messages += b.Messages
	to.Bytes += b.Bytes
}

// countersOf returns the counters that belong to no topic or group.
func (e *Engine) countersOf() status.Counters {
	c := status.Counters{Corrupt: e.counters.damaged.Load(), Rejected: map[string]int64{}, Throttled: map[string]int64{}}
	for i, r := range refusalReasons {
		c.Rejected[string(r)] = e.counters.refused[i].Load()
	}
	for i, l := range Names {
		if n := e.counters.throttled[i].Load(); n > 0 {
			c.Throttled[l] = n
		}
	}
	return c
}

// storageOf returns the state of the databases.
func (e *Engine) storageOf(readable bool) status.Storage {
	fsync := Histogram(e.store.Messages.Stats().Fsync)
	at := func(q float64) settings.Duration { return settings.Duration(fsync.Quantile(q) * float64(time.Second)) }
	s := status.Storage{InMemory: e.opts.Dir == ""}
	if !s.InMemory {
		s.Fsyncs, s.FsyncP50, s.FsyncP99 = int64(fsync.Count()), at(.5), at(.99) //nolint:gosec // a count
	}
	if readable {
		m, g := e.store.DatabaseStats()
		s.DiskBytes, s.WALBytes = int64(m.Disk+g.Disk), int64(m.WAL+g.WAL) //nolint:gosec // sizes of files
	}
	return s
}

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

// Quantile returns an upper bound of a quantile q, from 0 to 1, in the unit of the histogram. It
// returns 0 without observations, and the highest bound for those above it.
func (h Histogram) Quantile(q float64) float64 {
	total, below := float64(h.Count()), uint64(0)
	for i, bound := range h.Bounds {
		if below += h.Counts[i]; total > 0 && float64(below) >= q*total {
			return bound
		}
	}
	if total == 0 || len(h.Bounds) == 0 {
		return 0
	}
	return h.Bounds[len(h.Bounds)-1]
}

// A RemovalCause is the reason for a removal of messages.
type RemovalCause string

// The causes.
const (
	RemovedTime     RemovalCause = "time"     // Retention.Time
	removedBytes    RemovalCause = "bytes"    // Retention.Bytes
	RemovedConsumed RemovalCause = "consumed" // Retention.Consumed, or a removal that a group had delayed
	RemovedPurge    RemovalCause = "purge"    // Broker.PurgeTopic
)

// counters are the counters that belong to no topic or subscription. They need no lock and allocate
// nothing.
type counters struct {
	refused   [len(refusalReasons)]atomic.Int64
	throttled Counters
	lateness  store.Histogram // of retries
	delayed   store.Histogram // lateness of delayed messages
	damaged   atomic.Int64
}

var refusalReasons = [...]RefusalReason{RefusedThrottled, RefusedInvalid, RefusedNoTopic, RefusedUnknown, RefusedOther}

// countRefused counts the messages of an Append that were not stored.
func (c *counters) countRefused(results []transport.SendResult) {
	for i := range results {
		if err := results[i].Err; err != nil {
			c.refused[slices.Index(refusalReasons[:], reasonOf(err))].Add(1)
		}
	}
}

// reasonOf returns the reason of a failed send.
func reasonOf(err error) RefusalReason {
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
// undelivered message of each queue and subscription, and of the message groups of new messages
// while message groups are parked or blocked. A closed or broken broker omits the sizes of
// the databases. It is cheap enough for a call every few seconds.
func (e *Engine) Stats() Stats {
	s := Stats{
		Refused: map[RefusalReason]int64{}, Throttled: map[string]int64{},
		RetryLateness: Histogram(e.counters.lateness.Snapshot()), DelayedLateness: Histogram(e.counters.delayed.Snapshot()), Damaged: e.counters.damaged.Load(),
		Messages: logStats(e.store.Messages.Stats()), Groups: logStats(e.store.Groups.Stats()),
	}
	for i, r := range refusalReasons {
		s.Refused[r] = e.counters.refused[i].Load()
	}
	for i, l := range Names {
		s.Throttled[l] = e.counters.throttled[i].Load()
	}
	s.Clock = e.clockStatus()
	s.Throttled["other"] = e.counters.throttled[len(Names)].Load()
	topics, subs := e.catalog.All()
	for _, t := range topics {
		s.Topics = append(s.Topics, e.topicStats(t))
	}
	slices.SortFunc(s.Topics, func(x, y TopicStats) int { return strings.Compare(x.Topic, y.Topic) })
	open := e.calls.Begin()
	if open {
		defer e.calls.End()
	}
	readable, looks := open && e.store.Broken() == nil, new(int64(MaxLook))
	for _, sub := range subs {
		s.Subscriptions = append(s.Subscriptions, e.subscriptionStats(sub, readable, looks))
	}
	slices.SortFunc(s.Subscriptions, func(x, y SubscriptionStats) int {
		return 2*strings.Compare(x.Topic, y.Topic) + strings.Compare(x.Group, y.Group)
	})
	if readable {
		m, g := e.store.DatabaseStats()
		addSizes(&s.Messages, m)
		addSizes(&s.Groups, g)
		s.CacheHits, s.CacheMisses = m.CacheHits, m.CacheMisses // the databases share one cache
	}
	return s
}

func (e *Engine) topicStats(t *Topic) TopicStats {
	d := e.describe(t)
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

func (e *Engine) subscriptionStats(s *Subscription, readable bool, looks *int64) SubscriptionStats {
	if readable {
		s.LookAhead(looks)
	}
	at := s.Status()
	d := SubscriptionStats{
		Group: s.Group().Name(), Subscription: e.describeSubscription(s, &at),
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

// addSizes sets the sizes of a database.
func addSizes(s *StoreStats, d store.DatabaseStats) {
	s.Disk, s.WAL, s.MemTables, s.CompactionDebt = int64(d.Disk), int64(d.WAL), int64(d.MemTables), int64(d.CompactionDebt)
	s.ReadAmplification, s.L0Files, s.Compactions, s.Flushes = int64(d.ReadAmplification), d.L0Files, d.Compactions, d.Flushes
}

func logStats(l store.LogStats) StoreStats {
	return StoreStats{Commit: Histogram(l.Commit), CommitRecords: Histogram(l.Records), CommitBytes: l.Bytes, Fsync: Histogram(l.Fsync)}
}

// describeSubscription returns the state of a group in a topic, except for Why.
func (e *Engine) describeSubscription(s *Subscription, at *Status) status.Subscription {
	return status.Subscription{
		Held: holdingOf(at.Held), CountsSince: e.opened,
		Topic: s.Topic().Name(),
		Ready: at.Ready, Inflight: at.Inflight, WaitingRetry: at.WaitingRetry,
		Parked: at.Parked, Blocked: at.Blocked, ParkedGroups: at.ParkedGroups, BlockedGroups: at.BlockedGroups,
		Backlog: status.Backlog(s.Backlog()),
		Acked:   at.Acked, Redelivered: at.Redelivered, DeadLetters: at.DeadLetters,
		Overtaken: at.Overtaken, Discarded: at.Discarded, Expired: at.Expired, Filtered: at.Filtered,
	}
}

func holdingOf(h *consume.Holding) *status.Holding {
	if h == nil {
		return nil
	}
	return &status.Holding{Client: h.Client, Messages: h.Messages, Since: h.Since, Until: h.Due}
}

// whyOf returns the value of status.Subscription.Why. throttled means that the broker rejects sends
// to the topic.
func whyOf(at *Status, backlog int64, throttled bool, now time.Time) string {
	switch {
	case at.ParkedGroups > 0 || at.Parked > 0:
		return "parked"
	case at.BlockedGroups > 0:
		return "blocked"
	case holdingOf(at.Held).Long(now):
		return "held"
	case backlog == 0 && at.Filtered > 0 && at.Acked+at.DeadLetters == 0:
		return "filtered"
	case backlog == 0 && throttled:
		return "throttled"
	case backlog == 0:
		return "idle"
	case at.Ready > 0 && at.Inflight+at.Waiting == 0:
		return "no_consumer"
	case at.Ready == 0 && at.Inflight == 0 && at.WaitingRetry > 0:
		return "retrying"
	}
	return "working"
}
