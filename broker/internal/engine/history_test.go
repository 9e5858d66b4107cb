package engine

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/internal/model"
)

// A step is a round of a table: the changes of one subject since changed.
type step struct {
	changed, to time.Duration
	in, backlog int64
}

// TestHistory checks the values of one subject, written by hand: pairs of messages and backlog from
// the slot first on.
func TestHistory(t *testing.T) {
	const s, m = time.Second, time.Minute
	for name, c := range map[string]struct {
		steps  []step
		window Window
		first  int64
		want   [][2]int64
	}{
		"nothing yet":                   {[]step{{0, 0, 0, 7}}, Hour, 0, [][2]int64{{0, 7}}},
		"a slot and the one after it":   {[]step{{3 * s, 10 * s, 5, 2}}, Hour, 0, [][2]int64{{5, 2}, {0, 2}}},
		"a slot in progress":            {[]step{{3 * s, 4 * s, 5, 2}, {6 * s, 7 * s, 1, 3}}, Hour, 0, [][2]int64{{6, 3}}},
		"slots without a change":        {[]step{{1 * s, 10 * s, 5, 5}, {42 * s, 50 * s, 1, 6}}, Hour, 0, [][2]int64{{5, 5}, {0, 5}, {0, 5}, {0, 5}, {1, 6}, {0, 6}}},
		"a late round is divided":       {[]step{{0, 25 * s, 50, 9}}, Hour, 0, [][2]int64{{20, 9}, {20, 9}, {10, 9}}},
		"a round that is late by 1 ms":  {[]step{{0, 10*s + time.Millisecond, 50, 9}}, Hour, 0, [][2]int64{{50, 9}, {0, 9}}},
		"a change before the last":      {[]step{{0, 15 * s, 3, 3}, {2 * s, 16 * s, 4, 7}}, Hour, 0, [][2]int64{{2, 3}, {5, 7}}},
		"only the backlog":              {[]step{{0, 10 * s, 0, 4}, {10 * s, 20 * s, 0, 1}}, Hour, 0, [][2]int64{{0, 4}, {0, 1}, {0, 1}}},
		"five minutes":                  {[]step{{0, 10 * s, 5, 5}, {290 * s, 300 * s, 5, 10}, {300 * s, 310 * s, 1, 11}}, Day, 0, [][2]int64{{10, 10}, {1, 11}}},
		"the first entry is over":       {[]step{{0, 10 * s, 5, 5}, {61 * m, 61*m + 10*s, 1, 6}}, Hour, 7, slices.Concat(slices.Repeat([][2]int64{{0, 5}}, 359), [][2]int64{{1, 6}, {0, 6}})},
		"all is over":                   {[]step{{0, 10 * s, 5, 5}, {0, 48 * time.Hour, 0, 5}}, Day, 288, slices.Repeat([][2]int64{{0, 5}}, 289)},
		"a backlog of before the start": {[]step{{0, 10 * s, 0, 9}, {10 * s, 20 * s, 0, 8}}, Hour, 0, [][2]int64{{0, 9}, {0, 8}, {0, 8}}},
		"a large backlog":               {[]step{{0, 10 * s, math.MaxInt64, math.MaxInt64}, {10 * s, 20 * s, 1, 0}, {20 * s, 30 * s, 1, math.MaxInt64}}, Hour, 0, [][2]int64{{math.MaxInt64, math.MaxInt64}, {1, 0}, {1, math.MaxInt64}, {0, math.MaxInt64}}},
	} {
		h, subject := NewHistory(1<<20), new(Track)
		for _, s := range c.steps {
			h.Begin(s.changed, s.to)
			h.Record(subject, Counts{In: s.in}, Gauges{Backlog: s.backlog})
			h.End()
		}
		p, lost := h.Read(subject, c.window)
		var got [][2]int64
		for i := range p.Counts {
			got = append(got, [2]int64{p.Counts[i][In], p.Gauges[i][Backlog]})
		}
		assert.That(t, p.First == c.first && !lost && reflect.DeepEqual(got, c.want),
			"%s: from slot %d on, lost %v, %v; want from slot %d on %v", name, p.First, lost, got, c.first, c.want)
	}
}

// TestSizeOfSeries checks the constant that the memory is computed from.
func TestSizeOfSeries(t *testing.T) {
	const class, place = 32, 2 * 8 // the allocator's rounding; a pointer, and spare capacity for one
	if need := int(reflect.TypeFor[series]().Size()) + class + place; need > seriesSize {
		t.Errorf("a series has up to %d bytes; seriesSize is %d", need, seriesSize)
	}
}

// A naive history has every slot of every subject, without a bound.
type naive struct {
	counts []Counts
	gauges []Gauges
	begin  int64 // the slot of its creation
}

func (n *naive) at(slot int64) (Counts, Gauges) {
	if slot < int64(len(n.counts)) {
		return n.counts[slot], n.gauges[slot]
	}
	return Counts{}, n.gauges[len(n.gauges)-1]
}

// change adds to the values of a slot.
func (n *naive) change(slot int64, c Counts, g Gauges) {
	for int64(len(n.counts)) <= slot {
		n.counts = append(n.counts, Counts{})
		last := g
		if len(n.gauges) > 0 {
			last = n.gauges[len(n.gauges)-1]
		}
		n.gauges = append(n.gauges, last)
	}
	n.counts[slot].Add(c)
	n.gauges[slot] = g
}

// read returns the values of a slot of a window.
func (n *naive) read(slot, factor int64) (c Counts, g Gauges) {
	for s := slot * factor; s < (slot+1)*factor; s++ {
		more, gauges := n.at(s)
		c.Add(more)
		g = gauges
	}
	return c, g
}

// A modelRun drives a History and the naive one by the same random changes in random time.
type modelRun struct {
	t        *testing.T
	r        *rand.Rand
	h        *History
	now      time.Duration
	due      time.Duration // of the timer; 0 for none
	changed  time.Duration
	subjects map[*Track]*naive
	tracks   []*Track // by creation
	pending  map[*Track]Counts
	gauges   map[*Track]Gauges
	total    *naive
	lost     int // subjects without a place, in all checks
}

func (m *modelRun) round() {
	changed := m.now - Step
	if m.due > 0 {
		changed = m.changed
	}
	m.due = 0
	m.h.Begin(changed, m.now)
	var sum Counts
	var level Gauges
	for _, s := range m.tracks {
		sum.Add(m.pending[s])
		level.Add(m.gauges[s])
	}
	m.h.Record(m.h.Total(), sum, level)
	for _, s := range m.tracks {
		m.h.Record(s, m.pending[s], m.gauges[s])
	}
	m.h.End()
	clear(m.pending)
}

// touch is a change at the present time: the timer samples at the end of the slot.
func (m *modelRun) touch() {
	if m.due == 0 {
		m.due, m.changed = m.now.Truncate(Step)+Step, m.now
	}
}

// pass lets time pass; the timer fires when it is due.
func (m *modelRun) pass(d time.Duration) {
	m.now += d
	if m.due > 0 && m.now >= m.due {
		until := m.now
		m.now = m.due
		m.round()
		m.now = until
	}
}

func (m *modelRun) change() {
	if len(m.tracks) == 0 {
		return
	}
	// Earlier subjects are busier.
	s := m.tracks[int(float64(len(m.tracks))*math.Pow(m.r.Float64(), 3))]
	var c Counts
	g := m.gauges[s]
	for i := range c {
		if m.r.IntN(3) == 0 {
			c[i] = 1 << m.r.IntN(40)
		}
	}
	if m.r.IntN(2) == 0 {
		g[m.r.IntN(len(g))] = m.r.Int64N(1 << m.r.IntN(50))
	}
	was := m.gauges[s]
	m.gauges[s] = g
	all := m.pending[s]
	all.Add(c)
	m.pending[s] = all
	slot := int64(m.now / Step)
	m.subjects[s].change(slot, c, g)
	_, level := m.total.at(int64(len(m.total.counts)) + 1)
	for i := range level {
		level[i] += g[i] - was[i]
	}
	m.total.change(slot, c, level)
	m.touch()
}

func (m *modelRun) create() {
	s := new(Track)
	m.tracks = append(m.tracks, s)
	m.subjects[s] = &naive{begin: int64(m.now / Step)}
	m.subjects[s].change(m.subjects[s].begin, Counts{}, Gauges{})
	m.touch()
}

func (m *modelRun) remove() {
	if len(m.tracks) < 2 {
		return
	}
	i := m.r.IntN(len(m.tracks))
	s := m.tracks[i]
	m.round() // what it has done counts in the total
	_, level := m.total.at(int64(len(m.total.counts)) + 1)
	for i := range level {
		level[i] -= m.gauges[s][i]
	}
	m.total.change(int64(m.now/Step), Counts{}, level)
	delete(m.subjects, s)
	delete(m.gauges, s)
	m.tracks = slices.Delete(m.tracks, i, i+1)
	m.touch()
}

// check compares values with the naive ones, and the memory with the bound.
func (m *modelRun) check() {
	m.t.Helper()
	if len(m.tracks) == 0 {
		return
	}
	m.round()
	for _, w := range []Window{Hour, Day} {
		m.compare("the total", m.h.Total(), m.total, w, false)
		for range 5 {
			s := m.tracks[m.r.IntN(len(m.tracks))]
			m.compare("a subject", s, m.subjects[s], w, true)
		}
	}
	for _, s := range m.tracks {
		if _, lost := m.h.Read(s, Hour); lost {
			m.lost++
		}
	}
	used := int64(0)
	for _, s := range m.h.kept {
		used += seriesSize + int64(cap(s.hour.encoded)+cap(s.day.encoded))
		assert.That(m.t, s.track == m.h.Total() || m.subjects[s.track] != nil, "a removed subject has a series")
	}
	if used != m.h.Used() || used > m.h.limit {
		m.t.Errorf("the series use %d bytes of %d; the history counts %d", used, m.h.limit, m.h.Used())
	}
}

func (m *modelRun) compare(name string, s *Track, n *naive, w Window, mayLose bool) {
	m.t.Helper()
	p, lost := m.h.Read(s, w)
	factor := int64(w.Step / Step)
	now := int64(m.now / w.Step)
	assert.MustThat(m.t, !lost || mayLose, "%s is lost", name)
	want := max(0, now-w.Slots, n.begin/factor)
	assert.MustThat(m.t, lost || p.First == want, "%s begins with slot %d, want %d", name, p.First, want)
	if n := int64(len(p.Counts)); n != max(0, now+1-p.First) {
		m.t.Fatalf("%s has %d slots from %d to %d", name, n, p.First, now)
	}
	for i := range p.Counts {
		c, g := n.read(p.First+int64(i), factor)
		if c != p.Counts[i] || g != p.Gauges[i] {
			m.t.Fatalf("at %v slot %d of %s by %v is %v %v, want %v %v; it begins with %d",
				m.now, p.First+int64(i), name, w.Step, p.Counts[i], p.Gauges[i], c, g, p.First)
		}
	}
}

// TestModel compares a history with a naive one, which has no bound, after random changes with
// pauses of seconds to hours between them.
func TestModel(t *testing.T) {
	t.Parallel()
	lost := 0
	model.Run(t, 10, func(t *testing.T, r *rand.Rand) {
		m := &modelRun{
			t: t, r: r, h: NewHistory(32 << (10 + 3*r.IntN(2))), subjects: map[*Track]*naive{}, pending: map[*Track]Counts{}, gauges: map[*Track]Gauges{}, total: &naive{},
		}
		m.total.change(0, Counts{}, Gauges{})
		m.round()
		for range 3000 {
			switch n := r.IntN(1000); {
			case n < 700:
				m.change()
			case n < 730:
				m.create()
			case n < 735:
				m.remove()
			case n < 740:
				m.round() // a reader
			case n < 742:
				m.check()
			case n < 743:
				m.pass(time.Duration(r.Int64N(int64(30 * time.Hour))))
			default:
				m.pass(time.Duration(r.Int64N(int64(20 * time.Second))))
			}
		}
		m.check()
		lost += m.lost
	})
	t.Logf("%d times a subject had no place", lost)
}

// TestBusiestAreKept runs more steady subjects than the memory has room for: the busiest ones keep
// their history, also those that begin last, and the total is whole.
func TestBusiestAreKept(t *testing.T) {
	const subjects, limit = 1000, 1 << 20
	h := NewHistory(limit)
	tracks := make([]Track, subjects)
	rate := func(i int) int64 { return int64(1 + (i*379)%subjects) } // a permutation
	for round := range 3 * Hour.Slots {
		h.Begin(0, time.Duration(round+1)*Step)
		h.Record(h.Total(), Counts{In: 1}, Gauges{})
		for i := range tracks {
			if i%2 == 0 || round > Hour.Slots { // half of them begin later
				h.Record(&tracks[i], Counts{In: rate(i), Acked: rate(i)}, Gauges{Backlog: round * rate(i)})
			}
		}
		h.End()
		if h.Used() > limit {
			t.Fatalf("%d bytes in round %d", h.Used(), round)
		}
	}
	if h.Used() < limit*9/10 {
		t.Errorf("%d bytes of %d are used while subjects are left out", h.Used(), limit)
	}
	kept, least := 0, int64(math.MaxInt64)
	for i := range tracks {
		if _, lost := h.Read(&tracks[i], Hour); !lost {
			kept++
			least = min(least, rate(i))
		}
	}
	assert.That(t, kept >= 100 && int(least) >= subjects-2*kept,
		"%d of %d subjects are kept, the least busy one with %d messages a round", kept, subjects, least)
	p, lost := h.Read(h.Total(), Hour)
	assert.That(t, !lost && len(p.Counts) == 361, "the total has %d slots", len(p.Counts))

	h.Begin(0, 4*time.Hour) // all are deleted
	h.Record(h.Total(), Counts{}, Gauges{})
	h.End()
	assert.Equal(t, "series after all subjects are gone", len(h.kept), 1)
}

// TestPointsAdd adds subjects that begin at different times.
func TestPointsAdd(t *testing.T) {
	h, early, late := NewHistory(1<<20), new(Track), new(Track)
	h.Begin(0, Step)
	h.Record(early, Counts{In: 1}, Gauges{Backlog: 1})
	h.End()
	h.Begin(Step, 2*Step)
	h.Record(early, Counts{}, Gauges{Backlog: 1})
	h.Record(late, Counts{In: 5}, Gauges{Backlog: 5})
	h.End()
	a, _ := h.Read(early, Hour)
	b, _ := h.Read(late, Hour)
	want := Points{First: 0, Counts: []Counts{{1}, {5}, {}}, Gauges: []Gauges{{1}, {6}, {6}}}
	for _, order := range [][]Points{{a, b}, {b, a}} {
		var sum Points
		for _, p := range order {
			sum.Add(Points{p.First, slices.Clone(p.Counts), slices.Clone(p.Gauges)})
		}
		assert.That(t, reflect.DeepEqual(sum, want), "%+v, want %+v", sum, want)
	}
}

type wakeCount int

func (w *wakeCount) Wake() { *w++ }

// TestActivity checks that Wake is called once between two calls of Clear.
func TestActivity(t *testing.T) {
	wakes := wakeCount(0)
	a := NewActivity(&wakes)
	a.Note()
	a.Note()
	assert.That(t, a.Clear() && !a.Clear() && wakes == 1, "%d wakes, want 1", wakes)
	if a.Note(); wakes != 2 {
		t.Errorf("%d wakes, want 2", wakes)
	}
	(*Activity)(nil).Note()
}
