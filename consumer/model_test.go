package consumer

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/model"
)

// An gatherItem of the model knows its size and its arrival.
type gatherItem struct {
	size  int
	since time.Time
}

// A table of the model has the items that wait, in their order.
type table struct {
	former[*gatherItem]
	t       *testing.T
	now     time.Time
	waiting []*gatherItem
	wake    time.Time
	events  int // arrivals, departures, ends of batches, and timers that fired
	calls   int // of next
}

// While items wait, all batches are running or a timer is set in the future, at most Wait after
// the arrival of the first item. Batches have the items in their order, within the limits. The
// calls of next are bounded by the events, and all items leave after the last event.
func TestModel(t *testing.T) { model.Run(t, 1000, runModel) }

func runModel(t *testing.T, r *rand.Rand) {
	t.Helper()
	l := limits{Items: 1 + r.IntN(10), Bytes: 1 + r.IntN(100), Wait: time.Duration(r.IntN(2000)-200) * time.Millisecond, Batches: 1 + r.IntN(4)}
	m := &table{former: former[*gatherItem]{limits: l}, t: t, now: time.Unix(0, 0)}
	for range 1000 {
		switch n := r.IntN(1000); {
		case n < 500:
			m.arrive(r.IntN(60))
		case n < 600 && len(m.waiting) > 0:
			m.leave(r.IntN(len(m.waiting)))
		case n < 800 && m.running > 0:
			m.end()
		case n == 999:
			m.events++
			m.hurry = true
		default:
			m.now = m.now.Add(time.Duration(r.IntN(1000)) * time.Millisecond)
			if m.wake.IsZero() || m.now.Before(m.wake) {
				continue
			}
			m.events++ // the timer
		}
		if m.begin(); t.Failed() {
			return
		}
	}
	for len(m.waiting) > 0 && !t.Failed() {
		if m.running > 0 {
			m.end()
		} else {
			m.now = m.wake
			m.events++ // the timer
		}
		m.begin()
	}
	if want := 2 * m.events; m.calls > want {
		t.Errorf("%d calls of next, want at most %d", m.calls, want)
	}
}

func (m *table) arrive(size int) {
	m.events++
	it := &gatherItem{size, m.now}
	m.waiting = append(m.waiting, it)
	m.add(it, size, m.now)
}

func (m *table) leave(i int) {
	m.events++
	if it := m.waiting[i]; !m.remove(it) || m.remove(it) {
		m.t.Error("a waiting item is not removed once")
	}
	m.waiting = slices.Delete(m.waiting, i, i+1)
}

func (m *table) end() {
	m.events++
	m.running--
}

// begin plays Gatherer.begin.
func (m *table) begin() {
	for {
		m.calls++
		batch, wake := m.next(m.now)
		if m.wake = wake; batch == nil {
			break
		}
		m.checkBatch(batch)
	}
	switch {
	case len(m.waiting) == 0 || m.running == m.limits.Batches:
		if !m.wake.IsZero() {
			m.t.Error("a timer is set, and no batch can begin")
		}
	case !m.wake.After(m.now) || m.wake.After(m.waiting[0].since.Add(m.limits.Wait)):
		m.t.Errorf("%d items wait, the first one for %v, and the timer is set in %v", len(m.waiting), m.now.Sub(m.waiting[0].since), m.wake.Sub(m.now))
	}
}

// checkBatch compares a batch with the first items that wait, and removes them.
func (m *table) checkBatch(batch []*gatherItem) {
	m.t.Helper()
	if len(batch) == 0 || len(batch) > min(m.limits.Items, len(m.waiting)) || m.running > m.limits.Batches {
		m.t.Fatalf("a batch of %d items, the %d. at the same time, with the limits %+v", len(batch), m.running, m.limits)
	}
	bytes := 0
	for i, it := range batch {
		if it != m.waiting[i] {
			m.t.Error("a batch has an item before an earlier one")
		}
		if bytes += it.size; i > 0 && bytes > m.limits.Bytes {
			m.t.Errorf("a batch of %d bytes, want at most %d", bytes, m.limits.Bytes)
		}
	}
	m.waiting = m.waiting[len(batch):]
}
