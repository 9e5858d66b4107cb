package broker

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// counters are the counters that belong to no topic or subscription. They need no lock and allocate
// nothing.
type counters struct {
	refused   [len(refusalReasons)]atomic.Int64
	throttled engine.Counters
	lateness  store.Histogram // of retries
	delayed   store.Histogram // lateness of delayed messages
	damaged   atomic.Int64
}

var refusalReasons = [...]serving.RefusalReason{serving.RefusedThrottled, serving.RefusedInvalid, serving.RefusedNoTopic, serving.RefusedUnknown, serving.RefusedOther}

// countRefused counts the messages of an Append that were not stored.
func (c *counters) countRefused(results []transport.SendResult) {
	for i := range results {
		if err := results[i].Err; err != nil {
			c.refused[slices.Index(refusalReasons[:], reasonOf(err))].Add(1)
		}
	}
}

// reasonOf returns the reason of a failed send.
func reasonOf(err error) serving.RefusalReason {
	e, ok := errors.AsType[*tidegate.Error](err)
	switch {
	case !ok || errors.Is(err, tidegate.ErrClosed):
		return serving.RefusedOther
	case e.MaybeStored:
		return serving.RefusedUnknown
	case e.Code == tidegate.CodeTooManyRequests:
		return serving.RefusedThrottled
	case e.Code == tidegate.CodeTopicNotFound:
		return serving.RefusedNoTopic
	case e.Code < protocol.CodeInternalError:
		return serving.RefusedInvalid
	}
	return serving.RefusedOther
}

// Stats returns the contents and counters of the broker. Its only I/O is the read of the first
// undelivered message of each queue and subscription, and of the message groups of new messages
// while message groups are parked or blocked. A closed or broken broker omits the sizes of
// the databases. It is cheap enough for a call every few seconds.
func (b served) Stats() serving.Stats {
	s := serving.Stats{
		Refused: map[serving.RefusalReason]int64{}, Throttled: map[string]int64{},
		RetryLateness: serving.Histogram(b.counters.lateness.Snapshot()), DelayedLateness: serving.Histogram(b.counters.delayed.Snapshot()), Damaged: b.counters.damaged.Load(),
		Messages: logStats(b.store.Messages.Stats()), Groups: logStats(b.store.Groups.Stats()),
	}
	for i, r := range refusalReasons {
		s.Refused[r] = b.counters.refused[i].Load()
	}
	for i, l := range engine.Names {
		s.Throttled[l] = b.counters.throttled[i].Load()
	}
	s.Clock = b.clockStatus()
	s.Throttled["other"] = b.counters.throttled[len(engine.Names)].Load()
	topics, subs := b.catalog.All()
	for _, t := range topics {
		s.Topics = append(s.Topics, b.topicStats(t))
	}
	slices.SortFunc(s.Topics, func(x, y serving.TopicStats) int { return strings.Compare(x.Topic, y.Topic) })
	open := b.calls.Begin()
	if open {
		defer b.calls.End()
	}
	readable, looks := open && b.store.Broken() == nil, new(int64(engine.MaxLook))
	for _, sub := range subs {
		s.Subscriptions = append(s.Subscriptions, b.subscriptionStats(sub, readable, looks))
	}
	slices.SortFunc(s.Subscriptions, func(x, y serving.SubscriptionStats) int {
		return 2*strings.Compare(x.Topic, y.Topic) + strings.Compare(x.Group, y.Group)
	})
	if readable {
		m, g := b.store.DatabaseStats()
		addSizes(&s.Messages, m)
		addSizes(&s.Groups, g)
		s.CacheHits, s.CacheMisses = m.CacheHits, m.CacheMisses // the databases share one cache
	}
	return s
}

func (b *Broker) topicStats(t *engine.Topic) serving.TopicStats {
	d := b.describe(t)
	removed := make(map[serving.RemovalCause]int64, len(removalCauses))
	for i, cause := range removalCauses {
		removed[cause] = t.Removed(retention.Cause(i))
	}
	out := serving.TopicStats{
		Removed: removed,
		Topic:   t.Name(), Stored: status.Backlog{Messages: d.StoredMessages, Bytes: d.StoredBytes}, Delayed: status.Backlog{Messages: d.DelayedMessages, Bytes: d.DelayedBytes}, Backlog: d.Backlog, Throttle: d.Throttle,
		Accepted: status.Backlog(t.Accepted()), Duplicates: t.Duplicates(),
	}
	if d.Type == settings.TopicTransaction {
		h := t.Counters()
		out.Transactions = &serving.TransactionStats{
			HalfMessages: d.HalfMessages, Committed: h.Committed.Load(), RolledBack: h.RolledBack.Load(), Abandoned: h.GivenUp.Load(),
			Checks: h.Checks.Load(), Unheard: h.Unheard.Load(),
		}
	}
	return out
}

func (b *Broker) subscriptionStats(s *engine.Subscription, readable bool, looks *int64) serving.SubscriptionStats {
	if readable {
		s.LookAhead(looks)
	}
	at := s.Status()
	d := serving.SubscriptionStats{
		Group: s.Group().Name(), Subscription: b.describeSubscription(s, &at),
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
func addSizes(s *serving.StoreStats, d store.DatabaseStats) {
	s.Disk, s.WAL, s.MemTables, s.CompactionDebt = int64(d.Disk), int64(d.WAL), int64(d.MemTables), int64(d.CompactionDebt)
	s.ReadAmplification, s.L0Files, s.Compactions, s.Flushes = int64(d.ReadAmplification), d.L0Files, d.Compactions, d.Flushes
}

func logStats(l store.LogStats) serving.StoreStats {
	return serving.StoreStats{Commit: serving.Histogram(l.Commit), CommitRecords: serving.Histogram(l.Records), CommitBytes: l.Bytes, Fsync: serving.Histogram(l.Fsync)}
}
