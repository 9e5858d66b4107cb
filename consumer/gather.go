package consumer

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A gatherer hands the items of several goroutines to one function in batches. Create one with
// [newGather].
//
// Wake-ups: an item that waits for a batch is woken by the arrival that completes the batch, by the
// end of a running batch, by Replace, by the hurry of a caller, or by the timer, which is set
// whenever items wait and fewer than Limits.Batches batches are running. An item in a batch is
// woken by the end of the batch, also if the function ends its goroutine.
//
// Bound on steps: each arrival, departure, end of a batch, Replace, hurry and timer looks for
// complete batches once, and once more for each batch that it begins. The timer is always set in
// the future, for the first item that waits, so it fires at most once for each item.
type gatherer[T any] struct {
	handle func(items []T, results []error)

	mu      sync.Mutex
	former  former[*gatherEntry[T]]
	batches map[*batch[T]]struct{} // that are handled
	timer   *time.Timer            // for the next batch that is due
}

// An gatherEntry is an item whose goroutine waits for its batch.
type gatherEntry[T any] struct {
	item T
	ctx  context.Context //nolint:containedctx // of the item's goroutine, which waits
	lead chan *batch[T]  // of capacity 1: the batch that this goroutine has to handle
	done chan struct{}   // closed when err is the result
	err  error
}

type batch[T any] struct {
	entries  []*gatherEntry[T]
	replaced bool // another batch has its place; guarded by Gatherer.mu
}

// newGather returns a gatherer. handle handles a batch and sets the result of each item. If handle
// ends the goroutine, the results hold that it has set before.
func newGather[T any](l limits, handle func(items []T, results []error)) *gatherer[T] {
	return &gatherer[T]{handle: handle, former: former[*gatherEntry[T]]{limits: l}, batches: map[*batch[T]]struct{}{}}
}

// Do waits until a batch with the item was handled, and returns the item's result. If ctx ends
// before the item is in a batch, Do returns the cause of that at once. When hurry is closed, no
// batch waits for further items any more.
//
// The goroutine of the first item of a batch handles the batch.
func (g *gatherer[T]) Do(ctx context.Context, hurry <-chan struct{}, item T, size int) error {
	e := &gatherEntry[T]{item: item, ctx: ctx, lead: make(chan *batch[T], 1), done: make(chan struct{})}
	g.change(func(f *former[*gatherEntry[T]]) { f.add(e, size, time.Now()) })
	ended := ctx.Done()
	for {
		select {
		case b := <-e.lead:
			g.run(b)
			return e.err
		case <-e.done:
			return e.err
		case <-ended:
			removed := false
			g.change(func(f *former[*gatherEntry[T]]) { removed = f.remove(e) })
			if removed {
				return context.Cause(ctx)
			}
			ended = nil // it is in a batch
		case <-hurry:
			g.change(func(f *former[*gatherEntry[T]]) { f.hurry = true })
			hurry = nil
		}
	}
}

// Replace lets another batch begin in the place of the running one that has an item with has.
func (g *gatherer[T]) Replace(has func(T) bool) {
	g.change(func(f *former[*gatherEntry[T]]) {
		for b := range g.batches {
			if !b.replaced && slices.ContainsFunc(b.entries, func(e *gatherEntry[T]) bool { return has(e.item) }) {
				b.replaced = true
				f.running--
			}
		}
	})
}

// change changes the former, and begins the batches that may begin then.
func (g *gatherer[T]) change(f func(*former[*gatherEntry[T]])) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(&g.former)
	g.begin()
}

// begin hands the batches that may begin to their first goroutines. Guarded by mu.
func (g *gatherer[T]) begin() {
	for {
		now := time.Now()
		entries, wake := g.former.next(now)
		if entries == nil {
			g.wakeAt(now, wake)
			return
		}
		b := &batch[T]{entries: entries}
		g.batches[b] = struct{}{}
		entries[0].lead <- b // does not wait: an entry gets one batch
	}
}

// wakeAt lets begin be called at t, if t is not zero. Guarded by mu.
func (g *gatherer[T]) wakeAt(now, t time.Time) {
	switch {
	case t.IsZero() && g.timer != nil:
		g.timer.Stop()
	case t.IsZero():
	case g.timer == nil:
		g.timer = time.AfterFunc(t.Sub(now), func() { g.change(func(*former[*gatherEntry[T]]) {}) })
	default:
		g.timer.Reset(t.Sub(now))
	}
}

// run handles a batch without the items whose contexts have ended.
func (g *gatherer[T]) run(b *batch[T]) {
	var live []*gatherEntry[T]
	var items []T
	for _, e := range b.entries {
		if e.ctx.Err() != nil {
			e.err = context.Cause(e.ctx)
			continue
		}
		live, items = append(live, e), append(items, e.item)
	}
	results := make([]error, len(items))
	defer func() {
		for i, e := range live {
			e.err = results[i]
		}
		g.change(func(f *former[*gatherEntry[T]]) {
			delete(g.batches, b)
			if !b.replaced {
				f.running--
			}
		})
		for _, e := range b.entries {
			close(e.done)
		}
	}()
	if len(items) > 0 {
		g.handle(items, results)
	}
}

// limits are the limits of batches, all of them positive but Wait.
type limits struct {
	Items   int           // of one batch
	Bytes   int           // of one batch with more than one item
	Wait    time.Duration // for a fuller batch, from its first item; 0 or less means none
	Batches int           // that are handled at the same time
}

// A former decides which items make the next batch. It has no clock, locks or goroutines.
type former[T comparable] struct {
	limits  limits
	waiting []waiting[T] // in the order of their arrival
	running int          // batches
	hurry   bool         // do not wait for fuller batches
}

type waiting[T comparable] struct {
	item  T
	size  int
	since time.Time
}

func (f *former[T]) add(item T, size int, now time.Time) {
	f.waiting = append(f.waiting, waiting[T]{item, size, now})
}

// remove removes an item that is in no batch yet, and reports whether it was there.
func (f *former[T]) remove(item T) bool {
	i := slices.IndexFunc(f.waiting, func(w waiting[T]) bool { return w.item == item })
	if i < 0 {
		return false
	}
	f.waiting = slices.Delete(f.waiting, i, i+1)
	return true
}

// next returns the batch that begins at now, nil for none. Then wake is the time at which the next
// one is due, zero if there is none before another event.
func (f *former[T]) next(now time.Time) (batch []T, wake time.Time) {
	if len(f.waiting) == 0 || f.running >= f.limits.Batches {
		return nil, wake
	}
	n, bytes := 0, 0
	for n < len(f.waiting) && n < f.limits.Items && (n == 0 || f.waiting[n].size <= f.limits.Bytes-bytes) {
		bytes += f.waiting[n].size
		n++
	}
	full := n == f.limits.Items || n < len(f.waiting) || bytes >= f.limits.Bytes
	if due := f.waiting[0].since.Add(f.limits.Wait); !full && !f.hurry && now.Before(due) {
		return nil, due
	}
	for _, w := range f.waiting[:n] {
		batch = append(batch, w.item)
	}
	f.waiting = slices.Delete(f.waiting, 0, n)
	f.running++
	return batch, wake
}
