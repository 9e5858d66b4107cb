package engine

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// A HistoryQuery selects what a History has.
type HistoryQuery struct {
	Day            bool     // the last day instead of the last hour
	Topics, Groups []string // empty: the totals
	Observer       Observer
}

// An Observer is the caller of a query.
type Observer interface {
	Broker() bool           // may observe the whole broker
	Topic(name string) bool // may observe a topic
	Group(name string) bool // may observe a group
}

// A HistoryResult has the rates and backlogs of the last hour or day by slots of equal length,
// which are numbered from the start of the broker on. The last slot is in progress: it ends with
// AsOf. All times follow the present wall clock of the broker.
type HistoryResult struct {
	Now     time.Time `json:"now"`
	AsOf    time.Time `json:"as_of"`   // when the counters were read, up to a second ago
	Started time.Time `json:"started"` // of the broker: there is nothing before
	StepMS  int64     `json:"step_ms"` // the length of a slot

	// Total and LeftOut are nil if the query names topics or groups.
	Total   *HistorySeries  `json:"total,omitempty"`
	LeftOut *HistoryLeftOut `json:"left_out,omitempty"`

	// Topics and Groups are those of the query, in its order. Names that do not exist, and names
	// that the caller may not observe, are left out.
	Topics []HistorySeries `json:"topics,omitempty"`
	Groups []HistorySeries `json:"groups,omitempty"`
}

// HistoryLeftOut counts the topics and groups that the totals concern and of which a part of the
// window was not kept. The totals of a caller that may observe the whole broker have them all the
// same; other totals lack the parts that were not kept.
type HistoryLeftOut struct {
	Topics int64 `json:"topics"`
	Groups int64 `json:"groups"`
}

// A HistorySeries has the values of one subject. All lists that it has are of the same length.
type HistorySeries struct {
	Name string    `json:"name,omitempty"` // empty for the totals
	From time.Time `json:"from"`           // the beginning of the first slot

	// LeftOut means that the subject existed before From and its values were not kept.
	LeftOut bool `json:"left_out,omitempty"`

	// Counters has the counters since the start of the broker, as of HistoryResult.AsOf.
	Counters HistoryCounters `json:"counters"`

	// Messages in each slot. A topic has Accepted and Acked, which counts each acknowledgement of
	// each group, a group all except Accepted.
	Accepted    []int64 `json:"accepted,omitempty"`
	Delivered   []int64 `json:"delivered,omitempty"`
	Acked       []int64 `json:"acked,omitempty"`
	Redelivered []int64 `json:"redelivered,omitempty"`
	DeadLetters []int64 `json:"dead_letters,omitempty"`

	// Messages at the end of each slot: of a topic those of its slowest group.
	Backlog      []int64 `json:"backlog,omitempty"`
	WaitingRetry []int64 `json:"waiting_retry,omitempty"`
}

// HistoryCounters are counters of messages.
type HistoryCounters struct {
	Accepted    int64 `json:"accepted,omitempty"`
	Delivered   int64 `json:"delivered,omitempty"`
	Acked       int64 `json:"acked,omitempty"`
	Redelivered int64 `json:"redelivered,omitempty"`
	DeadLetters int64 `json:"dead_letters,omitempty"`
}

const (
	// historyBytes is the memory of the history of rates and backlogs.
	historyBytes = 16_000_000

	// historyAge is the age at which a reader has the history sampled anew.
	historyAge = time.Second
)

// A historySampler records the history of rates and backlogs. It reads the counters that the broker
// has anyway, in rounds.
//
// Liveness: the first change after a round wakes the task for the end of the slot of that change.
// So there is at most one round in 10 s, and none while nothing changes. Besides, a reader has a
// round of its own. All times are since the start of the broker by the monotonic clock: a step of
// the wall clock changes nothing.
type historySampler struct {
	opened    time.Time
	directory *Directory
	activity  *Activity
	task      *Task
	changed   atomic.Int64 // when activity woke the task: a time.Duration since opened

	// Guarded by the token of task.
	history *History
	at      time.Duration // of the last round
	rounds  int64
	acked   []Counts // scratch of a round: by the index of the topic
}

func newSampler(opened time.Time, bytes int64, loop *maintenance) *historySampler {
	s := &historySampler{opened: opened, history: NewHistory(bytes)}
	s.activity = NewActivity(s)
	s.task = loop.Add(taskConfig{
		Step: func(context.Context, time.Time) (next time.Time, err error) {
			s.round()
			return time.Time{}, nil
		},
		Failed: "history of rates not sampled", Pause: Step, MaxPause: Step,
	})
	return s
}

// Wake implements engine.sampler: the task runs at the end of the present slot.
func (s *historySampler) Wake() {
	now := time.Since(s.opened)
	s.changed.Store(int64(now))
	s.task.Wake(s.opened.Add(now.Truncate(Step) + Step))
}

// round samples all counters.
func (s *historySampler) round() {
	now := time.Since(s.opened)
	changed := now - Step
	if s.activity.Clear() {
		changed = time.Duration(s.changed.Load())
	}
	s.rounds++
	s.at = now
	all := s.directory.Sorted()
	s.acked = slices.Grow(s.acked[:0], len(all.Topics))[:len(all.Topics)]
	clear(s.acked)
	var total Counts
	var gauges Gauges
	s.history.Begin(changed, now)
	next := 0
	for _, g := range all.Groups {
		var counts Counts
		var of Gauges
		for ; next < len(all.Subscriptions) && all.Subscriptions[next].Group() == g; next++ {
			sub := all.Subscriptions[next]
			c, level := sub.Recordable()
			c = sub.Recorded.Read(c)
			s.acked[all.TopicOf[next]][Acked] += c[Acked]
			counts.Add(c)
			of.Add(level)
		}
		s.history.Record(&g.Recorded, counts, of)
		total.Add(counts)
		gauges.Add(of)
	}
	for i, t := range all.Topics {
		c := t.Recorded.Read(Counts{In: t.Accepted().Messages})
		total.Add(c)
		c.Add(s.acked[i])
		s.history.Record(&t.Recorded.Track, c, Gauges{Backlog: t.Backlog().Messages})
	}
	s.history.Record(s.history.Total(), total, gauges)
	s.history.End()
}

// History returns the rates and backlogs of the last hour or day. It reads counters, and waits only
// for a round under way. The error is the cause of ctx if ctx ends first.
func (e *Engine) History(ctx context.Context, q HistoryQuery) (*HistoryResult, error) {
	s := e.history
	release, err := s.task.Hold(ctx)
	if err != nil {
		return nil, fmt.Errorf("history of rates and backlogs: %w", err)
	}
	defer release()
	if s.rounds == 0 || time.Since(s.opened)-s.at >= historyAge {
		s.round()
	}
	now := time.Now()
	start := now.Add(-now.Sub(s.opened)) // by the present wall clock
	w := Hour
	if q.Day {
		w = Day
	}
	r := historyReader{historySampler: s, window: w, start: start}
	out := &HistoryResult{Now: now, AsOf: start.Add(s.at), Started: start, StepMS: w.Step.Milliseconds()}
	if len(q.Topics)+len(q.Groups) == 0 {
		r.total(out, q)
	}
	for _, name := range q.Topics {
		if t := s.directory.FindTopic(name); t != nil && q.Observer.Topic(name) {
			out.Topics = append(out.Topics, r.topic(t))
		}
	}
	for _, name := range q.Groups {
		if g := s.directory.FindGroup(name); g != nil && q.Observer.Group(name) {
			out.Groups = append(out.Groups, r.group(g))
		}
	}
	return out, nil
}

// A historyReader reads a history as of one round. The caller holds the task.
type historyReader struct {
	*historySampler
	window Window
	start  time.Time // of the broker
}

func (r historyReader) topic(t *Topic) HistorySeries {
	p, lost := r.history.Read(&t.Recorded.Track, r.window)
	out := r.series(p, lost, r.topicCounters(t))
	out.Name, out.Delivered, out.Redelivered, out.DeadLetters, out.WaitingRetry = t.Name(), nil, nil, nil, nil
	return out
}

// topicCounters returns the counters of a topic as of the last round.
func (r historyReader) topicCounters(t *Topic) Counts {
	c := t.Recorded.Last()
	for _, sub := range t.Subscriptions() {
		c[Acked] += sub.Consumed().Recorded.Last()[Acked]
	}
	return c
}

func (r historyReader) group(g *Group) HistorySeries {
	p, lost := r.history.Read(&g.Recorded, r.window)
	out := r.series(p, lost, r.groupCounters(g))
	out.Name, out.Accepted = g.Name(), nil
	return out
}

// groupCounters returns the counters of a group as of the last round.
func (r historyReader) groupCounters(g *Group) (c Counts) {
	for _, sub := range r.directory.SubscriptionsOf(g) {
		c.Add(sub.Recorded.Last())
	}
	return c
}

// total sets the sums of what the query permits, and how many topics and groups are left out.
func (r historyReader) total(out *HistoryResult, q HistoryQuery) {
	all := r.directory.Sorted()
	var sum Points
	var counters Counts
	out.LeftOut = &HistoryLeftOut{}
	read := func(track *Track, of ...int) (lost bool) {
		p, lost := r.history.Read(track, r.window)
		for i, c := range p.Counts {
			p.Counts[i] = Counts{}
			for _, n := range of {
				p.Counts[i][n] = c[n]
			}
		}
		if len(of) == 1 { // a topic: the sums have the backlogs of groups
			clear(p.Gauges)
		}
		if !q.Observer.Broker() {
			sum.Add(p)
		}
		return lost
	}
	for _, t := range all.Topics {
		if !q.Observer.Topic(t.Name()) {
			continue
		}
		if read(&t.Recorded.Track, In) {
			out.LeftOut.Topics++
		}
		counters[In] += t.Recorded.Last()[In]
	}
	next := 0
	for _, g := range all.Groups {
		first := next
		for next < len(all.Subscriptions) && all.Subscriptions[next].Group() == g {
			next++
		}
		if !q.Observer.Group(g.Name()) {
			continue
		}
		if read(&g.Recorded, Delivered, Acked, Redelivered, Dead) {
			out.LeftOut.Groups++
		}
		for _, sub := range all.Subscriptions[first:next] {
			counters.Add(sub.Recorded.Last())
		}
	}
	if q.Observer.Broker() {
		sum, _ = r.history.Read(r.history.Total(), r.window)
	}
	total := r.series(sum, false, counters)
	out.Total = &total
}

// series returns the JSON of values.
func (r historyReader) series(p Points, lost bool, counters Counts) HistorySeries {
	first := r.start.Add(time.Duration(p.First) * r.window.Step)
	out := HistorySeries{From: first, LeftOut: lost, Counters: HistoryCounters{
		Accepted: counters[In], Delivered: counters[Delivered], Acked: counters[Acked],
		Redelivered: counters[Redelivered], DeadLetters: counters[Dead],
	}}
	column := func(value func(i int) int64) []int64 {
		values := make([]int64, len(p.Counts))
		for i := range values {
			values[i] = value(i)
		}
		return values
	}
	count := func(kind int) []int64 { return column(func(i int) int64 { return p.Counts[i][kind] }) }
	gauge := func(kind int) []int64 { return column(func(i int) int64 { return p.Gauges[i][kind] }) }
	out.Accepted, out.Delivered, out.Acked = count(In), count(Delivered), count(Acked)
	out.Redelivered, out.DeadLetters = count(Redelivered), count(Dead)
	out.Backlog, out.WaitingRetry = gauge(Backlog), gauge(Retrying)
	return out
}
