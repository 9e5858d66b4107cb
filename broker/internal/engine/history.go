package engine

import (
	"encoding/binary"
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

// NewHistory returns a History that uses at most limit bytes.
func NewHistory(limit int64) *History {
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

// A meter returns the increments of counters between rounds. The zero value is at zero.
type meter struct{ last Counts }

// Read returns the increments since the call before.
func (m *meter) Read(now Counts) (c Counts) {
	for i, n := range now {
		c[i] = n - m.last[i]
	}
	m.last = now
	return c
}

// Last returns the counters of the last call of Read.
func (m *meter) Last() Counts { return m.last }

// An Activity wakes the sampler once after changes. The senders and consumers call Note for each
// change, so it costs them one read of a value that rarely changes. Goroutines may share it.
type Activity struct {
	noted   atomic.Bool
	sampler sampler
}

// A sampler reads the counters some time after a change.
type sampler interface {
	// Wake is called after the first change. The caller holds locks of the broker, so Wake must not
	// wait.
	Wake()
}

// NewActivity returns an Activity that wakes a sampler.
func NewActivity(s sampler) *Activity { return &Activity{sampler: s} }

// Note reports a change of a counter or gauge, after the change. The first call after Clear calls
// Wake. A nil Activity does nothing.
func (a *Activity) Note() {
	if a != nil && !a.noted.Load() && a.noted.CompareAndSwap(false, true) {
		a.sampler.Wake()
	}
}

// Clear is called before the counters are read. It reports whether there was a change.
func (a *Activity) Clear() bool { return a.noted.Swap(false) }

// Counts are increments of counters, by the constants In to Dead.
type Counts [5]int64

// The counters.
const (
	In          = iota // messages that were stored
	Delivered          // deliveries
	Acked              // acknowledged messages
	Redelivered        // deliveries with attempt 2 and above
	Dead               // dead letters
)

// Gauges are amounts at one moment, by the constants Backlog and Retrying.
type Gauges [2]int64

// The gauges.
const (
	Backlog  = iota // messages that are not consumed
	Retrying        // messages that wait for a retry
)

// Add adds the increments of others.
func (c *Counts) Add(o Counts) {
	for i, n := range o {
		c[i] += n
	}
}

// Add adds the amounts of others.
func (g *Gauges) Add(o Gauges) {
	for i, n := range o {
		g[i] += n
	}
}

// An entry is a slot in which something changed.
type entry struct {
	level
	counts Counts
}

// A level has the gauges at the end of a slot.
type level struct {
	slot   int64 // number of the slot since the start of the broker
	gauges Gauges
}

// A ring has the entries of a window of slots: the entries of slots without a change are missing.
// All entries except the newest are encoded, each relative to the one before, in 3 to 20 bytes. The
// zero value is empty.
type ring struct {
	newest  entry  // used if count > 0
	last    level  // of the last encoded entry, or before
	before  level  // before the first encoded entry
	encoded []byte // the oldest first
	count   int    // entries, with the newest
}

// add adds the changes of a slot, which is that of the newest entry or a later one. If encoded
// needs a larger capacity, add calls grow with the present and the new one, and fails if grow
// returns false.
func (r *ring) add(e entry, grow func(from, to int) bool) bool {
	if r.count > 0 && e.slot <= r.newest.slot {
		r.newest.counts.Add(e.counts)
		r.newest.gauges = e.gauges
		return true
	}
	if r.count > 0 {
		var buffer [maxEntry]byte
		b := r.newest.encode(buffer[:0], &r.last)
		if n := len(r.encoded) + len(b); n > cap(r.encoded) {
			grown := slices.Grow([]byte(nil), n+n/4+16)
			if !grow(cap(r.encoded), cap(grown)) {
				return false
			}
			r.encoded = append(grown, r.encoded...)
		}
		r.encoded = append(r.encoded, b...)
		r.last = r.newest.level
	}
	r.newest = e
	r.count++
	return true
}

// begin sets the gauges before the first entry.
func (r *ring) begin(g Gauges) { r.before.gauges, r.last.gauges = g, g }

// drop removes the entries of slots before first.
func (r *ring) drop(first int64) {
	n, e := 0, r.before
	for n < len(r.encoded) {
		next, size := decode(r.encoded[n:], &e)
		if next.slot >= first {
			break
		}
		n, e = n+size, next.level
		r.count--
	}
	if n > 0 {
		r.before = e
		r.encoded = r.encoded[:copy(r.encoded, r.encoded[n:])]
	}
	if r.count == 1 && r.newest.slot < first {
		r.before, r.last, r.count = r.newest.level, r.newest.level, 0
	}
}

// read adds the values of all slots from first on to counts and gauges, which have an element for
// each slot.
func (r *ring) read(first int64, counts []Counts, gauges []Gauges) {
	at, e := 0, r.before
	put := func(next entry) {
		for ; at < len(gauges) && first+int64(at) < next.slot; at++ {
			gauges[at].Add(e.gauges)
		}
		if i := next.slot - first; i >= 0 && i < int64(len(counts)) {
			counts[i].Add(next.counts)
		}
		e = next.level
	}
	for b := r.encoded; len(b) > 0; {
		next, size := decode(b, &e)
		put(next)
		b = b[size:]
	}
	if r.count > 0 {
		put(r.newest)
	}
	for ; at < len(gauges); at++ {
		gauges[at].Add(e.gauges)
	}
}

// maxEntry is the maximum size of an encoded entry: the slot, the mask, and seven values.
const maxEntry = (2 + len(Counts{}) + len(Gauges{})) * binary.MaxVarintLen64

// encode appends the slot relative to the entry before, a mask of the values that are not zero, and
// these values. A gauge is relative to the entry before.
func (e *entry) encode(b []byte, before *level) []byte {
	b = binary.AppendUvarint(b, uint64(e.slot-before.slot)) //nolint:gosec // slots grow
	mask := len(b)
	b = append(b, 0)
	bit := byte(1)
	put := func(v int64) {
		if v != 0 {
			b[mask] |= bit
			b = binary.AppendVarint(b, v)
		}
		bit <<= 1
	}
	for _, n := range e.counts {
		put(n)
	}
	for i, n := range e.gauges {
		put(n - before.gauges[i])
	}
	return b
}

// decode reads what encode has appended.
func decode(b []byte, before *level) (e entry, size int) {
	gap, n := binary.Uvarint(b)
	e.slot, e.gauges = before.slot+int64(gap), before.gauges //nolint:gosec // it was positive
	mask := b[n]
	n++
	get := func() (v int64) {
		if mask&1 != 0 {
			var size int
			v, size = binary.Varint(b[n:])
			n += size
		}
		mask >>= 1
		return v
	}
	for i := range e.counts {
		e.counts[i] = get()
	}
	for i := range e.gauges {
		e.gauges[i] += get()
	}
	return e, n
}
