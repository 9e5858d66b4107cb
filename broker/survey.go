package broker

import (
	"math"
	"time"

	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// Survey returns the state of all topics and groups. Its only I/O is the read of the first
// undelivered message of each queue and subscription that has moved since the last call, and of the
// message groups of new messages while message groups are parked or blocked. A closed or broken
// broker omits ages and the sizes of the databases.
func (b served) Survey() *serving.Survey {
	now := time.Now()
	open := b.calls.Begin()
	if open {
		defer b.calls.End()
	}
	readable := open && b.store.Broken() == nil
	all := b.catalog.Sorted()
	s := &serving.Survey{
		Opened: b.opened, At: now, Topics: make([]status.TopicSummary, len(all.Topics)), Groups: make([]status.GroupSummary, 0, len(all.Subscriptions)),
		Counters: b.countersOf(), Storage: b.storageOf(readable), Clock: b.clockStatus(),
	}
	s.Totals.Topics, s.Totals.Groups, s.Totals.Subscriptions = int64(len(all.Topics)), int64(len(all.Groups)), int64(len(all.Subscriptions))
	var throttled []*engine.Topic
	for i, t := range all.Topics {
		b.summarize(t, &s.Topics[i], readable, now)
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
	next, looks := 0, int64(engine.MaxLook)
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
	for _, l := range b.limits.States(throttled, false, now) {
		if !l.On {
			break // those that reject sends are the first
		}
		s.Throttles = append(s.Throttles, l)
	}
	return s
}

// summarize sets the summary of a topic, except for OldestMS.
func (b served) summarize(t *engine.Topic, row *status.TopicSummary, readable bool, now time.Time) {
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
		b.limits.Observe(t, now)
	}
	row.Throttle = b.limits.Check(t, now, nil)
}

// summarizeGroup returns the summary of a group in a topic.
func summarizeGroup(s *engine.Subscription, at *engine.Status, inRate float64, readable bool, now time.Time) status.GroupSummary {
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

func addTopicTotals(s *serving.Survey, t *engine.Topic, row *status.TopicSummary) {
	addBacklog(&s.Totals.Stored, row.Stored)
	addBacklog(&s.Totals.Delayed, row.Delayed)
	s.Totals.HalfMessages += row.Half
	s.Totals.InRate = rounded(s.Totals.InRate + row.InRate)
	addBacklog(&s.Counters.Accepted, status.Backlog(t.Accepted()))
	s.Counters.Duplicates += t.Duplicates()
}

func addGroupTotals(s *serving.Survey, at *engine.Status, row *status.GroupSummary) {
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
func (b served) countersOf() status.Counters {
	c := status.Counters{Corrupt: b.counters.damaged.Load(), Rejected: map[string]int64{}, Throttled: map[string]int64{}}
	for i, r := range refusalReasons {
		c.Rejected[string(r)] = b.counters.refused[i].Load()
	}
	for i, l := range engine.Names {
		if n := b.counters.throttled[i].Load(); n > 0 {
			c.Throttled[l] = n
		}
	}
	return c
}

// storageOf returns the state of the databases.
func (b served) storageOf(readable bool) status.Storage {
	fsync := serving.Histogram(b.store.Messages.Stats().Fsync)
	at := func(q float64) settings.Duration { return settings.Duration(fsync.Quantile(q) * float64(time.Second)) }
	s := status.Storage{InMemory: b.opts.Dir == ""}
	if !s.InMemory {
		s.Fsyncs, s.FsyncP50, s.FsyncP99 = int64(fsync.Count()), at(.5), at(.99) //nolint:gosec // a count
	}
	if readable {
		m, g := b.store.DatabaseStats()
		s.DiskBytes, s.WALBytes = int64(m.Disk+g.Disk), int64(m.WAL+g.WAL) //nolint:gosec // sizes of files
	}
	return s
}
