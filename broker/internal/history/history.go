// Package history keeps the rates and backlogs of the last hour by 10 s and of the last day by
// 5 min, for topics, groups and the whole broker, in a bounded memory.
//
// A [History] has no clock, no timer and no lock. Its owner samples counters in rounds, when
// something has changed, and passes the time since the start of the broker, which no step of the
// wall clock changes. Slots without a change take no memory: Read derives them.
//
// The total always has a place. If the memory is full, the busiest topics and groups keep theirs:
// those with the most messages, of which the messages of an hour ago count a third. The history of
// the others is lost, and their Track reports it.
package history

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// Step is the resolution of the last hour.
const Step = 10 * time.Second

// A Window is a period up to now.
type Window struct {
	Step  time.Duration // the resolution, a multiple of the constant Step
	Slots int64         // full slots before the one in progress
}

// The windows.
var (
	Hour = Window{Step, 360}
	Day  = Window{30 * Step, 288}
)

// slot returns the number of the slot of a time.
func (w Window) slot(at time.Duration) int64 { return int64(at / w.Step) }

// A History has the series of all subjects. It is for one goroutine at a time.
type History struct {
	limit, used int64 // bytes
	kept        []*series
	total       Track
	rounds      int64

	least     *Track  // see leastBusy
	leastRank float64 // of least, when it was found

	// Of the present round.
	from, to time.Duration
	parts    []part
}

// A part is a share of a round: a slot, and the end of the share as a fraction of the round.
type part struct {
	slot int64 // of Hour
	end  float64
}

// A Track is the place of one topic or group in a History. It belongs to the topic or group, so it
// has to be small. The zero value is the track of a subject that is not recorded yet.
type Track struct {
	series *series // nil while nothing is recorded
	gauges Gauges  // of the last round
	rank   float64 // the logarithm of the messages, where later messages count more
	since  int64   // the first slot of Hour whose values are known
	seen   bool    // a round had the subject
	lost   bool    // changes before since were not recorded
}

// A series has the recorded values of a subject.
type series struct {
	track *Track
	place int   // in History.kept
	round int64 // the last round that had the subject
	hour  ring
	day   ring
}

// seriesSize is the size of a series without the encoded entries, and of its place in kept with the
// spare capacity, in bytes.
const seriesSize = 360

// New returns a History that uses at most limit bytes.
func New(limit int64) *History {
	h := &History{limit: limit}
	h.total.rank = math.Inf(1)
	return h
}

// Used returns the bytes of all series.
func (h *History) Used() int64 { return h.used }

// Total returns the track of the whole broker. The caller records it in each round.
func (h *History) Total() *Track { return &h.total }

// Begin begins a round at the time to. The changes of the round came in the time from the last
// round or changed, which is the later one. The caller then passes each existing subject to Record.
func (h *History) Begin(changed, to time.Duration) {
	h.rounds++
	h.from = min(max(changed, h.to, to-time.Hour), to)
	h.to = to
	h.parts = h.parts[:0]
	length := float64(h.to - h.from)
	for slot := Hour.slot(h.from); ; slot++ {
		end := time.Duration(slot+1) * Step
		if end >= h.to {
			h.parts = append(h.parts, part{slot, 1})
			return
		}
		h.parts = append(h.parts, part{slot, float64(end-h.from) / length})
	}
}

// Record records a subject: the increments of its counters since the last round, and its gauges.
func (h *History) Record(t *Track, c Counts, g Gauges) {
	first := h.parts[0].slot
	changed := c != Counts{}
	switch {
	case !t.seen:
		t.seen = true
		if h.rounds > 1 {
			t.since, changed = first, changed || g != Gauges{}
		} else {
			t.gauges = g // as it was since the start
		}
	case g != t.gauges:
		changed = true
	}
	if t.series != nil {
		t.series.round = h.rounds
		h.forget(t)
	}
	if !changed {
		return
	}
	t.weigh(c, first)
	if !h.record(t, c, g) {
		h.lose(t)
	}
	t.gauges = g
}

// weigh adds the messages of a slot to the rank. In the rank, the messages of a slot weigh more
// than those of an hour before by the factor e, so that ranks of different times compare.
func (t *Track) weigh(c Counts, slot int64) {
	n := int64(1) // a change of the backlog
	for _, v := range c {
		n += v
	}
	if n < 1 { // a counter of messages has gone back, which does not happen
		n = 1
	}
	add := math.Log(float64(n)) + float64(slot)/float64(Hour.Slots)
	high, low := max(t.rank, add), min(t.rank, add)
	t.rank = high + math.Log1p(math.Exp(low-high))
}

// forget removes the entries that are older than the windows, and the series if it is empty: then
// it can be derived.
func (h *History) forget(t *Track) {
	s := t.series
	s.hour.drop(Hour.slot(h.to) - Hour.Slots)
	s.day.drop(Day.slot(h.to) - Day.Slots)
	if s.hour.count+s.day.count == 0 {
		h.release(t)
	}
}

// record adds the parts of a round to the series. It returns false if there is no memory for it.
func (h *History) record(t *Track, c Counts, g Gauges) bool {
	if t.series == nil {
		// A newcomer has to be twice as busy as the least busy series: two subjects that are about
		// as busy do not replace each other all the time.
		if !h.room(t, seriesSize, math.Ln2) {
			return false
		}
		h.used += seriesSize
		t.series = &series{track: t, round: h.rounds, place: len(h.kept)}
		t.series.hour.begin(t.gauges)
		t.series.day.begin(t.gauges)
		h.kept = append(h.kept, t.series)
		if h.least != nil && t.rank < h.leastRank {
			h.least, h.leastRank = t, t.rank
		}
	}
	grow := func(from, to int) bool {
		if !h.room(t, int64(to-from), 0) {
			return false
		}
		h.used += int64(to - from)
		return true
	}
	before := Counts{}
	for _, p := range h.parts {
		upTo, share := c, c
		for i, n := range c {
			if p.end < 1 {
				upTo[i] = int64(math.Round(float64(n) * p.end))
			}
			share[i] = upTo[i] - before[i]
		}
		before = upTo
		e := entry{level{p.slot, g}, share}
		if !t.series.hour.add(e, grow) {
			return false
		}
		if e.slot /= int64(Day.Step / Step); !t.series.day.add(e, grow) {
			return false
		}
	}
	return true
}

// room makes room for n bytes of a subject: it removes the least busy series until there is room.
// It returns false if the subject itself is the least busy one, or not busier than that one by the
// margin.
func (h *History) room(t *Track, n int64, margin float64) bool {
	for h.used+n > h.limit {
		least := h.leastBusy()
		if least == nil || least == t || t.rank <= least.rank+margin {
			return false
		}
		h.lose(least)
	}
	return true
}

// leastBusy returns the track with the lowest rank of those that have a series, and nil if there is
// none. It keeps the result, because in a full memory each newcomer asks for it.
func (h *History) leastBusy() *Track {
	if h.least == nil || h.least.series == nil || h.least.rank != h.leastRank {
		h.least = nil
		for _, s := range h.kept {
			if h.least == nil || s.track.rank < h.least.rank {
				h.least, h.leastRank = s.track, s.track.rank
			}
		}
	}
	return h.least
}

// lose gives up the values of a subject up to now.
func (h *History) lose(t *Track) {
	t.since, t.lost = h.parts[len(h.parts)-1].slot+1, true
	h.release(t)
}

// release removes a series.
func (h *History) release(t *Track) {
	s := t.series
	if s == nil {
		return
	}
	h.used -= seriesSize + int64(cap(s.hour.encoded)+cap(s.day.encoded))
	last := len(h.kept) - 1
	h.kept[s.place] = h.kept[last]
	h.kept[s.place].place = s.place
	h.kept[last] = nil
	h.kept = h.kept[:last]
	t.series = nil
}

// End ends a round. It removes the series of the subjects that the round did not have: they were
// deleted.
func (h *History) End() {
	for _, s := range slices.Backward(h.kept) {
		if s.round != h.rounds {
			h.release(s.track)
		}
	}
}

// Points are the values of the slots of a window. The last slot is the one in progress.
type Points struct {
	First  int64 // number of the first slot since the start of the broker
	Counts []Counts
	Gauges []Gauges // at the end of each slot
}

// Read returns the values of a subject as of the last round. They begin with the window, or later
// if the subject began later. lost means that earlier values of the window were not kept.
func (h *History) Read(t *Track, w Window) (p Points, lost bool) {
	now, factor := w.slot(h.to), int64(w.Step/Step)
	p.First = max(0, now-w.Slots)
	since := t.since / factor
	if t.lost {
		since = (t.since + factor - 1) / factor
	}
	lost = t.lost && since > p.First
	p.First = max(p.First, since)
	n := max(0, now+1-p.First)
	p.Counts, p.Gauges = make([]Counts, n), make([]Gauges, n)
	switch {
	case t.series == nil:
		for i := range p.Gauges {
			p.Gauges[i] = t.gauges
		}
	case factor == 1:
		t.series.hour.read(p.First, p.Counts, p.Gauges)
	default:
		t.series.day.read(p.First, p.Counts, p.Gauges)
	}
	return p, lost
}

// Add adds the values of another subject of the same window, as of the same round.
func (p *Points) Add(o Points) {
	if o.First < p.First || p.Counts == nil {
		p.First, o.First = o.First, p.First
		p.Counts, o.Counts = o.Counts, p.Counts
		p.Gauges, o.Gauges = o.Gauges, p.Gauges
	}
	behind := len(p.Counts) - len(o.Counts)
	for i := range o.Counts {
		p.Counts[behind+i].Add(o.Counts[i])
		p.Gauges[behind+i].Add(o.Gauges[i])
	}
}

// A Meter returns the increments of counters between rounds. The zero value is at zero.
type Meter struct{ last Counts }

// Read returns the increments since the call before.
func (m *Meter) Read(now Counts) (c Counts) {
	for i, n := range now {
		c[i] = n - m.last[i]
	}
	m.last = now
	return c
}

// Last returns the counters of the last call of Read.
func (m *Meter) Last() Counts { return m.last }

// An Activity wakes the sampler once after changes. The senders and consumers call Note for each
// change, so it costs them one read of a value that rarely changes. Goroutines may share it.
type Activity struct {
	noted   atomic.Bool
	sampler Sampler
}

// A Sampler reads the counters some time after a change.
type Sampler interface {
	// Wake is called after the first change. The caller holds locks of the broker, so Wake must not
	// wait.
	Wake()
}

// NewActivity returns an Activity that wakes a sampler.
func NewActivity(s Sampler) *Activity { return &Activity{sampler: s} }

// Note reports a change of a counter or gauge, after the change. The first call after Clear calls
// Wake. A nil Activity does nothing.
func (a *Activity) Note() {
	if a != nil && !a.noted.Load() && a.noted.CompareAndSwap(false, true) {
		a.sampler.Wake()
	}
}

// Clear is called before the counters are read. It reports whether there was a change.
func (a *Activity) Clear() bool { return a.noted.Swap(false) }
