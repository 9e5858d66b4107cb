package consumer

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
)

// A crowd calls Do for single letters.
type crowd struct {
	t       *testing.T
	g       *gatherer[string]
	hurry   chan struct{}
	mu      sync.Mutex
	batches []string
	results map[string]error
	wg      sync.WaitGroup
}

func newCrowd(t *testing.T, l limits, handle func(items []string, results []error)) *crowd {
	c := &crowd{t: t, hurry: make(chan struct{}), results: map[string]error{}}
	c.g = newGather(l, func(items []string, results []error) {
		c.mu.Lock()
		c.batches = append(c.batches, strings.Join(slices.Sorted(slices.Values(items)), ""))
		c.mu.Unlock()
		if handle != nil {
			handle(items, results)
		}
	})
	return c
}

func (c *crowd) do(ctx context.Context, items string) {
	for item := range strings.SplitSeq(items, "") {
		c.wg.Go(func() {
			err := c.g.Do(ctx, c.hurry, item, 1)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.results[item] = err
		})
		synctest.Wait()
	}
}

// wait waits for all results, and compares the batches.
func (c *crowd) wait(want string) {
	c.t.Helper()
	c.wg.Wait()
	assert.Equal(c.t, "batches", strings.Join(c.batches, " "), want)
}

var three = limits{Items: 3, Bytes: 100, Wait: time.Second, Batches: 1}

// An item whose context ends leaves the batch that it waits for, and one that waits longer is not
// handled if its context ended first.
func TestContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := errors.New("lease lost")
		c := newCrowd(t, three, func([]string, []error) { time.Sleep(time.Minute) })
		ctx, cancel := context.WithCancelCause(t.Context())
		c.do(t.Context(), "a")
		c.do(ctx, "b")
		cancel(lost)
		synctest.Wait()
		c.mu.Lock()
		assert.That(t, c.results["b"] == lost, "result %v of an item whose context has ended", c.results["b"])
		c.mu.Unlock()
		time.Sleep(2 * time.Second) // the batch of a runs
		ctx, cancel = context.WithCancelCause(t.Context())
		c.do(t.Context(), "c")
		c.do(ctx, "d")
		time.Sleep(time.Second)
		cancel(lost)
		c.wait("a c")
		assert.That(t, c.results["c"] == nil && c.results["d"] == lost, "results %v", c.results)
	})
}

// In a batch that has begun, an item waits for the end of the batch although its context has ended.
func TestContextEndsInABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, three, func(_ []string, results []error) {
			time.Sleep(time.Minute)
			results[1] = errors.New("late")
		})
		ctx, cancel := context.WithCancel(t.Context())
		c.do(t.Context(), "a")
		c.do(ctx, "b")
		time.Sleep(2 * time.Second)
		cancel()
		c.wait("ab")
		assert.That(t, c.results["b"] != nil && c.results["b"].Error() == "late", "results %v", c.results)
	})
}

// A batch that is replaced gives its place to one other batch.
func TestReplace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowd(t, three, func([]string, []error) { time.Sleep(time.Minute) })
		begin := time.Now()
		c.do(t.Context(), "abcdefghi")
		for range 2 {
			c.g.Replace(func(item string) bool { return item == "b" })
		}
		c.wait("abc def ghi")
		assert.Equal(t, "three batches of a minute took", time.Since(begin), 2*time.Minute)
		if len(c.g.batches) != 0 || c.g.former.running != 0 {
			t.Errorf("%d batches and %d places are left", len(c.g.batches), c.g.former.running)
		}
	})
}

// A batch is handled without the items whose contexts ended before it began.
func TestContextHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := errors.New("lease lost")
		ended, cancel := context.WithCancelCause(t.Context())
		cancel(lost)
		for _, tt := range []struct{ before, ended, after, want string }{
			{"ab", "c", "", "ab"},
			{"", "abc", "def", "def"},
			{"", "abc", "", ""},
		} {
			c := newCrowd(t, three, nil)
			c.g.former.running++ // a batch before the next one
			c.do(t.Context(), tt.before)
			var done sync.WaitGroup
			for item := range strings.SplitSeq(tt.ended, "") {
				e := &gatherEntry[string]{item: item, ctx: ended, lead: make(chan *batch[string], 1), done: make(chan struct{})}
				c.g.change(func(f *former[*gatherEntry[string]]) { f.add(e, 1, time.Now()) })
				done.Go(func() {
					select {
					case b := <-e.lead:
						c.g.run(b)
					case <-e.done:
					}
					assert.That(t, e.err == lost, "result %v of %s, whose context had ended", e.err, e.item)
				})
			}
			c.do(t.Context(), tt.after)
			c.g.change(func(f *former[*gatherEntry[string]]) { f.running-- })
			done.Wait()
			c.wait(tt.want)
		}
	})
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
