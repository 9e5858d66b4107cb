package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

// history is the number of intervals that top keeps of each subject.
const history = 60

// A TopRow is one subject of top: a topic, a group in one topic, or all together.
type TopRow struct {
	Group    string `json:"group,omitempty"`
	Topic    string `json:"topic,omitempty"`
	Ready    int64  `json:"ready"`
	Inflight int64  `json:"inflight"`
	Retry    int64  `json:"waiting_retry"`
	Parked   int64  `json:"parked"`
	Blocked  int64  `json:"blocked"`          // behind the failed messages of blocked message groups
	Backlog  int64  `json:"backlog_messages"` // of a topic: that of its slowest group
	OldestMS int64  `json:"oldest_ms"`        // age of the oldest message that is not consumed

	// Rates are per second since the sample before; -1 means that they are not known yet.
	In      output.Rate `json:"in_rate"` // messages stored in the topic
	Out     output.Rate `json:"out_rate"`
	Retries output.Rate `json:"redelivered_rate"`
	Dead    output.Rate `json:"dead_letter_rate"`

	Throttle string `json:"throttle,omitempty"` // the limit that rejects sends to the topic

	counted counters
	past    []float64 // the last rates: Out of a group, In of others
}

// counters are the values of a subject whose differences are rates.
type counters struct{ in, out, retries, dead int64 }

func (r *TopRow) key() string { return r.Group + "\x00" + r.Topic }

// add adds the messages and counters of a group to those of its topic or of the whole broker.
func (r *TopRow) add(g *TopRow) {
	r.Ready += g.Ready
	r.Inflight += g.Inflight
	r.Retry += g.Retry
	r.Parked += g.Parked
	r.Blocked += g.Blocked
	r.counted.out += g.counted.out
	r.counted.retries += g.counted.retries
	r.counted.dead += g.counted.dead
}

// A TopFrame is the state that top shows.
type TopFrame struct {
	At       time.Time `json:"time"`
	Interval string    `json:"interval"`
	Topics   int       `json:"topics"`
	Groups   int       `json:"groups"`
	Bytes    int64     `json:"stored_bytes"`
	Total    TopRow    `json:"total"`
	Rows     []TopRow  `json:"subjects"`

	wrong []Problem
}

// A Sample is the state of a broker at one moment.
type Sample struct {
	At     time.Time
	Topics []status.Topic
	Groups []status.Group
	Ages   Ages
}

// Ages has the ages of the oldest messages that are not consumed, in milliseconds, as the broker
// counted them within the last second.
type Ages struct {
	Topics map[string]int64
	Groups map[[2]string]int64 // by group and topic
}

// rows returns the topics, the groups in each of their topics, and the sum, without rates.
func (s *Sample) rows() (topics, groups []TopRow, total TopRow) {
	byName := map[string]int{}
	for i := range s.Topics {
		t := &s.Topics[i]
		r := TopRow{Topic: t.Name, Backlog: t.Backlog.Messages, OldestMS: s.Ages.Topics[t.Name], counted: counters{in: t.AcceptedMessages}}
		if t.Throttle != nil {
			r.Throttle = t.Throttle.Limit
		}
		total.counted.in += t.AcceptedMessages
		byName[t.Name] = i
		topics = append(topics, r)
	}
	for i := range s.Groups {
		for _, sub := range s.Groups[i].Topics {
			g := TopRow{
				Group: s.Groups[i].Name, Topic: sub.Topic, Ready: sub.Ready, Inflight: sub.Inflight,
				Retry: sub.WaitingRetry, Parked: sub.Parked, Blocked: sub.Blocked, Backlog: sub.Backlog.Messages,
				OldestMS: s.Ages.Groups[[2]string{s.Groups[i].Name, sub.Topic}],
				counted:  counters{out: sub.Acked, retries: sub.Redelivered, dead: sub.DeadLetters},
			}
			total.add(&g)
			total.Backlog += g.Backlog
			total.OldestMS = max(total.OldestMS, g.OldestMS)
			if at, ok := byName[sub.Topic]; ok {
				topics[at].add(&g)
				g.counted.in = topics[at].counted.in
			}
			groups = append(groups, g)
		}
	}
	return topics, groups, total
}

// wrong lists the problems of a sample.
func (s *Sample) wrong() []Problem {
	stored := map[string]int64{}
	var out []Problem
	for i := range s.Topics {
		stored[s.Topics[i].Name] = s.Topics[i].StoredMessages
		if t := s.Topics[i].Throttle; t != nil {
			out = append(out, Problem{Kind: "throttle", Subject: s.Topics[i].Name, Text: ThrottleText(t)})
		}
	}
	return append(out, Troubled(s.Groups, stored)...)
}

// A Sampler makes frames of samples. It remembers the sample before and the rates of the last
// intervals. It is for one goroutine.
type Sampler struct {
	at    time.Time
	last  map[string]counters
	pasts map[string][]float64
}

// Frame returns the frame of the next sample, with all topics or all groups in no order.
func (s *Sampler) Frame(now *Sample, ofTopics bool) TopFrame {
	topics, groups, total := now.rows()
	f := TopFrame{At: now.At, Topics: len(now.Topics), Groups: len(now.Groups), Rows: groups, wrong: now.wrong()}
	if ofTopics {
		f.Rows = topics
	}
	for i := range now.Topics {
		f.Bytes += now.Topics[i].StoredBytes
	}
	before := *s
	s.at, s.last, s.pasts = now.At, map[string]counters{}, map[string][]float64{}
	for i := range topics {
		s.rate(&before, &topics[i])
	}
	for i := range groups {
		s.rate(&before, &groups[i])
	}
	s.rate(&before, &total)
	f.Total = total
	return f
}

// rate sets the rates of a row.
func (s *Sampler) rate(before *Sampler, r *TopRow) {
	last, known := before.last[r.key()]
	seconds := s.at.Sub(before.at).Seconds()
	of := func(now, last int64) output.Rate {
		if !known || seconds <= 0 {
			return -1
		}
		return output.Rate(float64(max(now-last, 0)) / seconds) // after a restart the counters begin at 0
	}
	c := r.counted
	r.In, r.Out, r.Retries, r.Dead = of(c.in, last.in), of(c.out, last.out), of(c.retries, last.retries), of(c.dead, last.dead)
	shown := r.In
	if r.Group != "" {
		shown = r.Out
	}
	past := slices.Clone(before.pasts[r.key()])
	if shown >= 0 {
		past = append(past, float64(shown))
	}
	r.past = past[max(0, len(past)-history):]
	s.last[r.key()], s.pasts[r.key()] = c, r.past
}

// A TopView selects and orders the rows of top.
type TopView struct {
	Topics  bool   // else groups
	By      string // a name of topOrders
	Reverse bool   // the smallest first
	Match   string // a pattern of names; empty means all
}

// A topOrder is a value of --by.
type topOrder struct {
	name string
	of   func(*TopRow) float64
}

var topOrders = []topOrder{
	{"backlog", func(r *TopRow) float64 { return float64(r.Backlog) }},
	{"age", func(r *TopRow) float64 { return float64(r.OldestMS) }},
	{"in", func(r *TopRow) float64 { return float64(r.In) }},
	{"out", func(r *TopRow) float64 { return float64(r.Out) }},
	{"retry", func(r *TopRow) float64 { return float64(r.Retry) }},
	{"dead", func(r *TopRow) float64 { return float64(r.Dead) }},
}

// order returns the place of the view's order in topOrders.
func (v *TopView) order() (int, error) {
	var names []string
	for i, o := range topOrders {
		if o.name == v.By {
			return i, nil
		}
		names = append(names, o.name)
	}
	return 0, fmt.Errorf("--by is %q; it is one of %s", v.By, strings.Join(names, ", "))
}

// NextOrder orders by the next value of --by.
func (v *TopView) NextOrder() {
	if at, err := v.order(); err == nil {
		v.By = topOrders[(at+1)%len(topOrders)].name
	}
}

// Rows returns the rows of the view in its order.
func (v *TopView) Rows(all []TopRow) ([]TopRow, error) {
	at, err := v.order()
	if err != nil {
		return nil, err
	}
	match, err := output.Glob(v.Match)
	if err != nil {
		return nil, err
	}
	rows := slices.Clone(all)
	rows = slices.DeleteFunc(rows, func(r TopRow) bool { return !match(r.Group) && !match(r.Topic) })
	of := topOrders[at].of
	slices.SortStableFunc(rows, func(a, b TopRow) int {
		n := cmp.Compare(of(&b), of(&a))
		if v.Reverse {
			n = -n
		}
		return cmp.Or(n, cmp.Compare(a.Group, b.Group), cmp.Compare(a.Topic, b.Topic))
	})
	return rows, nil
}

// kinds counts problems by kind: "2 parked, 1 throttle".
func kinds(list []Problem) string {
	n := map[string]int{}
	for _, p := range list {
		n[p.Kind]++
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(n)) {
		parts = append(parts, fmt.Sprintf("%d %s", n[k], k))
	}
	return cmp.Or(strings.Join(parts, ", "), "nothing")
}
