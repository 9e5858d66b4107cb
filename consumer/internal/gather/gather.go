package gather

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A Gatherer hands the items of several goroutines to one function in batches. Create one with
// [New].
//
// Wake-ups: an item that waits for a batch is woken by the arrival that completes the batch, by the
// end of a running batch, by Replace, by the hurry of a caller, or by the timer, which is set
// whenever items wait and fewer than Limits.Batches batches are running. An item in a batch is
// woken by the end of the batch, also if the function ends its goroutine.
//
// Bound on steps: each arrival, departure, end of a batch, Replace, hurry and timer looks for
// complete batches once, and once more for each batch that it begins. The timer is always set in
// the future, for the first item that waits, so it fires at most once for each item.
type Gatherer[T any] struct {
	handle func(items []T, results []error)

	mu      sync.Mutex
	former  former[*entry[T]]
	batches map[*batch[T]]struct{} // that are handled
	timer   *time.Timer            // for the next batch that is due
}

// An entry is an item whose goroutine waits for its batch.
type entry[T any] struct {
	item T
	ctx  context.Context //nolint:containedctx // of the item's goroutine, which waits
	lead chan *batch[T]  // of capacity 1: the batch that this goroutine has to handle
	done chan struct{}   // closed when err is the result
	err  error
}

type batch[T any] struct {
	entries  []*entry[T]
	replaced bool // another batch has its place; guarded by Gatherer.mu
}

// New returns a gatherer. handle handles a batch and sets the result of each item. If handle ends
// the goroutine, the results hold that it has set before.
func New[T any](l Limits, handle func(items []T, results []error)) *Gatherer[T] {
	return &Gatherer[T]{handle: handle, former: former[*entry[T]]{limits: l}, batches: map[*batch[T]]struct{}{}}
}

// Do waits until a batch with the item was handled, and returns the item's result. If ctx ends
// before the item is in a batch, Do returns the cause of that at once. When hurry is closed, no
// batch waits for further items any more.
//
// The goroutine of the first item of a batch handles the batch.
func (g *Gatherer[T]) Do(ctx context.Context, hurry <-chan struct{}, item T, size int) error {
	e := &entry[T]{item: item, ctx: ctx, lead: make(chan *batch[T], 1), done: make(chan struct{})}
	g.change(func(f *former[*entry[T]]) { f.add(e, size, time.Now()) })
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
			g.change(func(f *former[*entry[T]]) { removed = f.remove(e) })
			if removed {
				return context.Cause(ctx)
			}
			ended = nil // it is in a batch
		case <-hurry:
			g.change(func(f *former[*entry[T]]) { f.hurry = true })
			hurry = nil
		}
	}
}

// Replace lets another batch begin in the place of the running one that has an item with has.
func (g *Gatherer[T]) Replace(has func(T) bool) {
	g.change(func(f *former[*entry[T]]) {
		for b := range g.batches {
			if !b.replaced && slices.ContainsFunc(b.entries, func(e *entry[T]) bool { return has(e.item) }) {
				b.replaced = true
				f.running--
			}
		}
	})
}

// change changes the former, and begins the batches that may begin then.
func (g *Gatherer[T]) change(f func(*former[*entry[T]])) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(&g.former)
	g.begin()
}

// begin hands the batches that may begin to their first goroutines. Guarded by mu.
func (g *Gatherer[T]) begin() {
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
func (g *Gatherer[T]) wakeAt(now, t time.Time) {
	switch {
	case t.IsZero() && g.timer != nil:
		g.timer.Stop()
	case t.IsZero():
	case g.timer == nil:
		g.timer = time.AfterFunc(t.Sub(now), func() { g.change(func(*former[*entry[T]]) {}) })
	default:
		g.timer.Reset(t.Sub(now))
	}
}

// run handles a batch without the items whose contexts have ended.
func (g *Gatherer[T]) run(b *batch[T]) {
	var live []*entry[T]
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
		g.change(func(f *former[*entry[T]]) {
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
