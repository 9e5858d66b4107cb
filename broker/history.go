package broker

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/maintain"
	"github.com/tidegate/tidegate/broker/internal/serving"
)

const (
	// historyBytes is the memory of the history of rates and backlogs.
	historyBytes = 16_000_000

	// historyAge is the age at which a reader has the history sampled anew.
	historyAge = time.Second
)

// A sampler records the history of rates and backlogs. It reads the counters that the broker has
// anyway, in rounds.
//
// Liveness: the first change after a round wakes the task for the end of the slot of that change.
// So there is at most one round in 10 s, and none while nothing changes. Besides, a reader has a
// round of its own. All times are since the start of the broker by the monotonic clock: a step of
// the wall clock changes nothing.
type sampler struct {
	opened    time.Time
	directory *engine.Directory
	activity  *engine.Activity
	task      *maintain.Task
	changed   atomic.Int64 // when activity woke the task: a time.Duration since opened

	// Guarded by the token of task.
	history *engine.History
	at      time.Duration // of the last round
	rounds  int64
	acked   []engine.Counts // scratch of a round: by the index of the topic
}

func newSampler(opened time.Time, bytes int64, loop *maintain.Loop) *sampler {
	s := &sampler{opened: opened, history: engine.NewHistory(bytes)}
	s.activity = engine.NewActivity(s)
	s.task = loop.Add(maintain.TaskConfig{
		Step: func(context.Context, time.Time) (next time.Time, err error) {
			s.round()
			return time.Time{}, nil
		},
		Failed: "history of rates not sampled", Pause: engine.Step, MaxPause: engine.Step,
	})
	return s
}

// Wake implements engine.sampler: the task runs at the end of the present slot.
func (s *sampler) Wake() {
	now := time.Since(s.opened)
	s.changed.Store(int64(now))
	s.task.Wake(s.opened.Add(now.Truncate(engine.Step) + engine.Step))
}

// round samples all counters.
func (s *sampler) round() {
	now := time.Since(s.opened)
	changed := now - engine.Step
	if s.activity.Clear() {
		changed = time.Duration(s.changed.Load())
	}
	s.rounds++
	s.at = now
	all := s.directory.Sorted()
	s.acked = slices.Grow(s.acked[:0], len(all.Topics))[:len(all.Topics)]
	clear(s.acked)
	var total engine.Counts
	var gauges engine.Gauges
	s.history.Begin(changed, now)
	next := 0
	for _, g := range all.Groups {
		var counts engine.Counts
		var of engine.Gauges
		for ; next < len(all.Subscriptions) && all.Subscriptions[next].Group() == g; next++ {
			sub := all.Subscriptions[next]
			c, level := sub.Recordable()
			c = sub.Recorded.Read(c)
			s.acked[all.TopicOf[next]][engine.Acked] += c[engine.Acked]
			counts.Add(c)
			of.Add(level)
		}
		s.history.Record(&g.Recorded, counts, of)
		total.Add(counts)
		gauges.Add(of)
	}
	for i, t := range all.Topics {
		c := t.Recorded.Read(engine.Counts{engine.In: t.Accepted().Messages})
		total.Add(c)
		c.Add(s.acked[i])
		s.history.Record(&t.Recorded.Track, c, engine.Gauges{engine.Backlog: t.Backlog().Messages})
	}
	s.history.Record(s.history.Total(), total, gauges)
	s.history.End()
}

// History returns the rates and backlogs of the last hour or day. It reads counters, and waits only
// for a round under way. The error is the cause of ctx if ctx ends first.
func (b served) History(ctx context.Context, q serving.HistoryQuery) (*serving.History, error) {
	s := b.history
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
	w := engine.Hour
	if q.Day {
		w = engine.Day
	}
	r := historyReader{sampler: s, window: w, start: start}
	out := &serving.History{Now: now, AsOf: start.Add(s.at), Started: start, StepMS: w.Step.Milliseconds()}
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
	*sampler
	window engine.Window
	start  time.Time // of the broker
}

func (r historyReader) topic(t *engine.Topic) serving.HistorySeries {
	p, lost := r.history.Read(&t.Recorded.Track, r.window)
	out := r.series(p, lost, r.topicCounters(t))
	out.Name, out.Delivered, out.Redelivered, out.DeadLetters, out.WaitingRetry = t.Name(), nil, nil, nil, nil
	return out
}

// topicCounters returns the counters of a topic as of the last round.
func (r historyReader) topicCounters(t *engine.Topic) engine.Counts {
	c := t.Recorded.Last()
	for _, sub := range t.Subscriptions() {
		c[engine.Acked] += sub.Consumed().Recorded.Last()[engine.Acked]
	}
	return c
}

func (r historyReader) group(g *engine.Group) serving.HistorySeries {
	p, lost := r.history.Read(&g.Recorded, r.window)
	out := r.series(p, lost, r.groupCounters(g))
	out.Name, out.Accepted = g.Name(), nil
	return out
}

// groupCounters returns the counters of a group as of the last round.
func (r historyReader) groupCounters(g *engine.Group) (c engine.Counts) {
	for _, sub := range r.directory.SubscriptionsOf(g) {
		c.Add(sub.Recorded.Last())
	}
	return c
}

// total sets the sums of what the query permits, and how many topics and groups are left out.
func (r historyReader) total(out *serving.History, q serving.HistoryQuery) {
	all := r.directory.Sorted()
	var sum engine.Points
	var counters engine.Counts
	out.LeftOut = &serving.HistoryLeftOut{}
	read := func(track *engine.Track, of ...int) (lost bool) {
		p, lost := r.history.Read(track, r.window)
		for i, c := range p.Counts {
			p.Counts[i] = engine.Counts{}
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
		if read(&t.Recorded.Track, engine.In) {
			out.LeftOut.Topics++
		}
		counters[engine.In] += t.Recorded.Last()[engine.In]
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
		if read(&g.Recorded, engine.Delivered, engine.Acked, engine.Redelivered, engine.Dead) {
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
func (r historyReader) series(p engine.Points, lost bool, counters engine.Counts) serving.HistorySeries {
	first := r.start.Add(time.Duration(p.First) * r.window.Step)
	out := serving.HistorySeries{From: first, LeftOut: lost, Counters: serving.HistoryCounters{
		Accepted: counters[engine.In], Delivered: counters[engine.Delivered], Acked: counters[engine.Acked],
		Redelivered: counters[engine.Redelivered], DeadLetters: counters[engine.Dead],
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
	out.Accepted, out.Delivered, out.Acked = count(engine.In), count(engine.Delivered), count(engine.Acked)
	out.Redelivered, out.DeadLetters = count(engine.Redelivered), count(engine.Dead)
	out.Backlog, out.WaitingRetry = gauge(engine.Backlog), gauge(engine.Retrying)
	return out
}
