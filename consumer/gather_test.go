package consumer

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
)

// A batch is handled without the items whose contexts have ended, and the results are those of the
// others.
func TestContextHasEnded(t *testing.T) {
	lost, failed := errors.New("lease lost"), errors.New("failed")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(lost)
	g := newGather(limits{Items: 2, Bytes: 2, Batches: 1}, func(items []string, results []error) {
		assert.Slices(t, "handled", items, []string{"live"})
		results[0] = failed
	})
	gone := &gatherEntry[string]{item: "gone", ctx: ended, done: make(chan struct{})}
	live := &gatherEntry[string]{item: "live", ctx: t.Context(), done: make(chan struct{})}
	g.run(&batch[string]{entries: []*gatherEntry[string]{gone, live}})
	assert.That(t, gone.err == lost && live.err == failed, "the results are %v and %v, want %v and %v", gone.err, live.err, lost, failed)
}

// A gatherItem of the model knows its size and its arrival.
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
	want := 2 * m.events
	assert.That(t, m.calls <= want, "%d calls of next, want at most %d", m.calls, want)
}

func (m *table) arrive(size int) {
	m.events++
	it := &gatherItem{size, m.now}
	m.waiting = append(m.waiting, it)
	m.add(it, size, m.now)
}

func (m *table) leave(i int) {
	m.events++
	it := m.waiting[i]
	assert.That(m.t, m.remove(it) && !m.remove(it), "a waiting item is not removed once")
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
		assert.That(m.t, m.wake.IsZero(), "a timer is set, and no batch can begin")
	case !m.wake.After(m.now) || m.wake.After(m.waiting[0].since.Add(m.limits.Wait)):
		m.t.Errorf("%d items wait, the first one for %v, and the timer is set in %v", len(m.waiting), m.now.Sub(m.waiting[0].since), m.wake.Sub(m.now))
	}
}

// checkBatch compares a batch with the first items that wait, and removes them.
func (m *table) checkBatch(batch []*gatherItem) {
	m.t.Helper()
	assert.MustThat(m.t, len(batch) != 0 && len(batch) <= min(m.limits.Items, len(m.waiting)) && m.running <= m.limits.Batches,
		"a batch of %d items, the %d. at the same time, with the limits %+v", len(batch), m.running, m.limits)
	bytes := 0
	for i, it := range batch {
		assert.That(m.t, it == m.waiting[i], "a batch has an item before an earlier one")
		if bytes += it.size; i > 0 && bytes > m.limits.Bytes {
			m.t.Errorf("a batch of %d bytes, want at most %d", bytes, m.limits.Bytes)
		}
	}
	m.waiting = m.waiting[len(batch):]
}
