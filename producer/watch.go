package producer

import (
	"context"

	"github.com/tidegate/tidegate/producer/internal/list"
)

// A watch ends the messages of SendAsync with one ctx when that ctx ends. Programs often send many
// messages with one ctx; a function of their own at the ctx for each takes several times as long.
// The lock of the topic guards all fields.
//
// Who wakes what waits: the end of the ctx ends the messages of the watch. What bounds the steps: a
// watch has one function at its ctx, and the last of its messages removes that function.
type watch struct {
	topic *topic
	ctx   context.Context //nolint:containedctx // the callers'; a watch lives as long as its messages
	ended <-chan struct{} // of ctx
	items list.List[*item]
	stop  func() bool // nil until start has set it
}

// watch has the message end with its ctx. It returns a new watch, which the caller has to start, or
// nil. The lock is held.
func (t *topic) watch(it *item) (begun *watch) {
	ended := it.ctx.Done()
	w := t.watches[ended]
	if ended == nil {
		return nil
	} else if w == nil {
		w = &watch{topic: t, ctx: it.ctx, ended: ended}
		begun, t.watches[ended] = w, w
	}
	it.watch, it.watched.Value = w, it
	w.items.PushBack(&it.watched)
	return begun
}

// start waits for the end of the ctx in the background. No lock is held: the ctx can be the user's.
func (w *watch) start() {
	stop := context.AfterFunc(w.ctx, w.end)
	t := w.topic
	t.mu.Lock()
	w.stop = stop
	needed := w.items.Len() > 0
	t.mu.Unlock()
	if !needed { // the last message has left before it could stop the watch
		stop()
	}
}

// end ends the messages of the watch. Later messages with the ctx get another watch.
func (w *watch) end() {
	t := w.topic
	t.mu.Lock()
	w.forget()
	items := make([]*item, 0, w.items.Len())
	for it := range w.items.All {
		items = append(items, it)
	}
	t.mu.Unlock()
	for _, it := range items {
		t.leave(it, false)
	}
}

// forget removes the watch from its topic. The lock is held.
func (w *watch) forget() {
	if w.topic.watches[w.ended] == w {
		delete(w.topic.watches, w.ended)
	}
}

// leaveWatch notes that the message has ended. The last message of a watch stops it afterwards,
// without the lock. The lock is held.
func (it *item) leaveWatch() {
	w := it.watch
	if w == nil {
		return
	}
	it.watch = nil
	if it.watched.Leave(); w.items.Len() == 0 {
		w.forget()
		it.unwatch = w.stop
	}
}
