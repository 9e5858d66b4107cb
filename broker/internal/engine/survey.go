package engine

import (
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
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

// A TopicCount is all that is counted of a topic at one moment: lists and the overview show its
// summary, metrics all of it. Counters count since Open.
type TopicCount struct {
	status.TopicSummary

	// AcceptedBytes are the bytes of Accepted. A message counts when it is written to a queue,
	// shortly before it is on disk: a delayed message at its delivery time, a half message when it
	// is committed.
	AcceptedBytes int64

	// Removed counts removed messages, by retention.Cause.
	Removed [retention.Causes]int64

	// Duplicates counts sends whose message was stored before. Their response has the receipt of
	// the stored message.
	Duplicates int64

	// Transactions is nil unless the type of the topic is TRANSACTION.
	Transactions *TransactionStats
}

// TransactionStats are the ended transactions of a topic and the checks of its half messages.
type TransactionStats struct {
	Committed, RolledBack int64
	Abandoned             int64 // unresolved after the last check; see AbandonedTransactions

	Checks  int64 // checks that were sent to a producer
	Unheard int64 // checks without a connected producer
}

// A GroupCount is all that is counted of a group in a topic at one moment, as a TopicCount.
type GroupCount struct {
	status.GroupSummary
	Overtaken, Discarded, Expired int64 // as in status.Subscription

	// Deliveries counts deliveries by attempt: the first, second, third, fourth to eighth, and
	// later ones. A delivery that did not reach its consumer counts too, and the same attempt
	// counts again when it is repeated.
	Deliveries [len(AttemptBounds) + 1]int64

	// GivenUp counts the dead letters that a consumer requested before the last attempt.
	GivenUp int64
}

// countTopic reads the counters of a topic. Only the age of the oldest message is missing, which
// the groups have. readable means that the store works: reading the age of a backlog can need it.
func (e *Engine) countTopic(t *Topic, readable bool, now time.Time) TopicCount {
	c, stored, accepted, n := t.Settings(), status.Backlog(t.Stored()), t.Accepted(), t.Counters()
	out := TopicCount{
		TopicSummary: status.TopicSummary{
			Name: t.Name(), Type: c.Type, Queues: c.Queues, Stored: stored, Backlog: stored, Accepted: accepted.Messages,
			Groups: int64(len(t.Subscriptions())), Half: n.Half.Load(), InRate: rounded(t.InRate(now)),
		},
		AcceptedBytes: accepted.Bytes, Duplicates: t.Duplicates(),
	}
	if out.Groups > 0 {
		out.Backlog = status.Backlog(t.Backlog())
		messages, _ := t.Drained(now)
		out.OutRate = rounded(messages)
	}
	out.Delayed.Messages, out.Delayed.Bytes = n.Delayed()
	if readable {
		e.limits.Observe(t, now)
	}
	out.Throttle = e.limits.Check(t, now, nil)
	for i := range out.Removed {
		out.Removed[i] = t.Removed(retention.Cause(i))
	}
	if c.Type == settings.TopicTransaction {
		out.Transactions = &TransactionStats{
			Committed: n.Committed.Load(), RolledBack: n.RolledBack.Load(), Abandoned: n.GivenUp.Load(),
			Checks: n.Checks.Load(), Unheard: n.Unheard.Load(),
		}
	}
	return out
}

// countGroup reads the counters of a group in a topic, except for ages and InRate. looks bounds the
// messages that it reads, if the store is readable; throttled means that the broker rejects sends
// to the topic.
func (e *Engine) countGroup(s *Subscription, throttled, readable bool, looks *int64, now time.Time) GroupCount {
	if readable {
		s.LookAhead(looks)
	}
	at := s.Status()
	rate, _ := s.Drained(now)
	out := GroupCount{
		GroupSummary: status.GroupSummary{
			Group: s.Group().Name(), Topic: s.Topic().Name(), Backlog: status.Backlog(s.Backlog()), OutRate: rounded(rate),
			Ready: at.Ready, Inflight: at.Inflight, WaitingRetry: at.WaitingRetry, Waiting: at.Waiting,
			Parked: at.Parked, Blocked: at.Blocked, ParkedGroups: at.ParkedGroups, BlockedGroups: at.BlockedGroups,
			Acked: at.Acked, Redelivered: at.Redelivered, DeadLetters: at.DeadLetters, DeadLettersHour: at.DeadLettersHour,
			Filtered: at.Filtered,
		},
		Overtaken: at.Overtaken, Discarded: at.Discarded, Expired: at.Expired, Deliveries: at.Deliveries, GivenUp: at.GivenUp,
	}
	if h := at.Held; h != nil {
		out.Held = &status.Holding{Client: h.Client, Messages: h.Messages, Since: h.Since, Until: h.Due}
	}
	out.Why = whyOf(&out.GroupSummary, throttled, now)
	return out
}

// counts reads the counters of all topics and groups. visitTopic gets each topic and returns the
// place of its summary, which counts completes by those of its groups. After the topics, visitGroup
// gets each group in each topic, and each group without topics, by the names of group and topic.
// Both keep no pointer. The only I/O is the read of the first undelivered message of each queue and
// subscription that has moved since the last call, and of the message groups of new messages while
// message groups are parked or blocked.
func (e *Engine) counts(all *Sorted, readable bool, now time.Time, visitTopic func(int, *TopicCount) *status.TopicSummary, visitGroup func(*GroupCount)) {
	topics := make([]*status.TopicSummary, len(all.Topics))
	var t TopicCount // one for all, and one c: the visits would have each on the heap
	for i := range all.Topics {
		t = e.countTopic(all.Topics[i], readable, now)
		topics[i] = visitTopic(i, &t)
	}
	next, looks := 0, int64(MaxLook)
	var c GroupCount
	for _, g := range all.Groups {
		first := next
		for ; next < len(all.Subscriptions) && all.Subscriptions[next].Group() == g; next++ {
			of := topics[all.TopicOf[next]]
			sub := all.Subscriptions[next]
			c = e.countGroup(sub, of.Throttle != nil, readable, &looks, now)
			if readable && c.Backlog.Messages > 0 {
				oldest, fresh := sub.Oldest()
				c.OldestMS, c.UndeliveredMS = ageOf(oldest, now), ageOf(fresh, now)
			}
			c.InRate, of.OldestMS, of.Acked = of.InRate, max(of.OldestMS, c.OldestMS), of.Acked+c.Acked
			visitGroup(&c)
		}
		if next == first {
			visitGroup(&GroupCount{GroupSummary: status.GroupSummary{Group: g.Name()}})
		}
	}
}

// Survey returns the state of all topics and groups, with the I/O of counts. A closed or broken
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
	stored := map[deadletter.ClassOrigin]int64{}
	for _, t := range all.Topics {
		t.Classes().AddTo(stored)
	}
	for _, n := range stored {
		s.Totals.DeadLettersStored += n
	}
	var throttled []*Topic
	e.counts(all, readable, now, func(i int, t *TopicCount) *status.TopicSummary {
		s.Topics[i] = t.TopicSummary
		s.addTopic(t)
		if t.Throttle != nil && t.Throttle.Subject != "" {
			throttled = append(throttled, all.Topics[i])
		}
		return &s.Topics[i]
	}, func(g *GroupCount) {
		g.DeadLettersStored = stored[deadletter.ClassOrigin{Group: g.Group, Topic: g.Topic}]
		s.Groups = append(s.Groups, g.GroupSummary)
		s.addGroup(g)
	})
	for _, l := range e.limits.States(throttled, false, now) {
		if !l.On {
			break // those that reject sends are the first
		}
		s.Throttles = append(s.Throttles, l)
	}
	return s
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

// addTopic adds a topic to the totals.
func (s *Survey) addTopic(c *TopicCount) {
	addBacklog(&s.Totals.Stored, c.Stored)
	addBacklog(&s.Totals.Delayed, c.Delayed)
	s.Totals.HalfMessages += c.Half
	s.Totals.InRate = rounded(s.Totals.InRate + c.InRate)
	addBacklog(&s.Counters.Accepted, status.Backlog{Messages: c.Accepted, Bytes: c.AcceptedBytes})
	s.Counters.Duplicates += c.Duplicates
}

// addGroup adds a group in a topic to the totals.
func (s *Survey) addGroup(g *GroupCount) {
	t, c := &s.Totals, &s.Counters
	addBacklog(&t.Backlog, g.Backlog)
	t.Ready += g.Ready
	t.Inflight += g.Inflight
	t.WaitingRetry += g.WaitingRetry
	t.Parked += g.Parked
	t.Blocked += g.Blocked
	t.ParkedGroups += g.ParkedGroups
	t.BlockedGroups += g.BlockedGroups
	t.Waiting += g.Waiting
	t.DeadLettersHour += g.DeadLettersHour
	t.OldestMS, t.UndeliveredMS = max(t.OldestMS, g.OldestMS), max(t.UndeliveredMS, g.UndeliveredMS)
	t.OutRate = rounded(t.OutRate + g.OutRate)
	for _, n := range g.Deliveries {
		c.Delivered += n
	}
	c.Redelivered += g.Redelivered
	c.Acked += g.Acked
	c.DeadLetters += g.DeadLetters
	c.Overtaken += g.Overtaken
	c.Discarded += g.Discarded
	c.Expired += g.Expired
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
	Topics []TopicCount // by name
	Groups []GroupCount // by group, then topic

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

	MessageStore StoreStats // the database of messages and settings
	GroupStore   StoreStats // the database of the groups' progress

	// CacheHits and CacheMisses belong to the block cache, which both databases share.
	CacheHits, CacheMisses int64
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

// Stats returns the contents and counters of the broker, with the I/O of counts. A closed or broken
// broker omits ages and the sizes of the databases. It is cheap enough for a call every few
// seconds.
func (e *Engine) Stats() Stats {
	s := Stats{
		Refused: map[RefusalReason]int64{}, Throttled: map[string]int64{}, Clock: e.clockStatus(),
		RetryLateness: Histogram(e.counters.lateness.Snapshot()), DelayedLateness: Histogram(e.counters.delayed.Snapshot()), Damaged: e.counters.damaged.Load(),
		MessageStore: logStats(e.store.Messages.Stats()), GroupStore: logStats(e.store.Groups.Stats()),
	}
	for i, r := range refusalReasons {
		s.Refused[r] = e.counters.refused[i].Load()
	}
	for i, l := range Names {
		s.Throttled[l] = e.counters.throttled[i].Load()
	}
	s.Throttled["other"] = e.counters.throttled[len(Names)].Load()
	open := e.calls.Begin()
	if open {
		defer e.calls.End()
	}
	readable := open && e.store.Broken() == nil
	all := e.catalog.Sorted()
	s.Topics = make([]TopicCount, len(all.Topics))
	e.counts(all, readable, time.Now(), func(i int, t *TopicCount) *status.TopicSummary {
		s.Topics[i] = *t
		return &s.Topics[i].TopicSummary
	}, func(g *GroupCount) {
		if g.Topic != "" {
			s.Groups = append(s.Groups, *g)
		}
	})
	if readable {
		m, g := e.store.DatabaseStats()
		addSizes(&s.MessageStore, m)
		addSizes(&s.GroupStore, g)
		s.CacheHits, s.CacheMisses = m.CacheHits, m.CacheMisses // the databases share one cache
	}
	return s
}

// addSizes sets the sizes of a database.
func addSizes(s *StoreStats, d store.DatabaseStats) {
	s.Disk, s.WAL, s.MemTables, s.CompactionDebt = int64(d.Disk), int64(d.WAL), int64(d.MemTables), int64(d.CompactionDebt)
	s.ReadAmplification, s.L0Files, s.Compactions, s.Flushes = int64(d.ReadAmplification), d.L0Files, d.Compactions, d.Flushes
}

func logStats(l store.LogStats) StoreStats {
	return StoreStats{Commit: Histogram(l.Commit), CommitRecords: Histogram(l.Records), CommitBytes: l.Bytes, Fsync: Histogram(l.Fsync)}
}

// statusOf returns what operators see of a group in a topic.
func (e *Engine) statusOf(c *GroupCount) status.Subscription {
	return status.Subscription{
		Topic: c.Topic, Ready: c.Ready, Inflight: c.Inflight, WaitingRetry: c.WaitingRetry,
		Parked: c.Parked, Blocked: c.Blocked, ParkedGroups: c.ParkedGroups, BlockedGroups: c.BlockedGroups,
		Backlog: c.Backlog, Held: c.Held, Why: c.Why, CountsSince: e.opened,
		Acked: c.Acked, Redelivered: c.Redelivered, DeadLetters: c.DeadLetters,
		Overtaken: c.Overtaken, Discarded: c.Discarded, Expired: c.Expired, Filtered: c.Filtered,
	}
}

// whyOf returns the value of status.Subscription.Why. throttled means that the broker rejects sends
// to the topic.
func whyOf(at *status.GroupSummary, throttled bool, now time.Time) string {
	backlog := at.Backlog.Messages
	switch {
	case at.ParkedGroups > 0 || at.Parked > 0:
		return "parked"
	case at.BlockedGroups > 0:
		return "blocked"
	case at.Held.Long(now):
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
