package consumer

import (
	"maps"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/stack"
)

// A StuckHandler describes a call of the handler that takes longer than PushOptions.StuckAfter.
type StuckHandler struct {
	Delivery tidegate.Delivery // as it was received
	Took     time.Duration     // since the handler was called
	Stack    string            // of the handler's goroutine; empty if it could not be found
}

// watchStuck reports the delivery after StuckAfter, until stop is called. The handler's goroutine
// calls both; stop waits for a report that has begun.
func (r *run) watchStuck(it *item, of *tidegate.Delivery) (stop func()) {
	if r.opts.StuckAfter <= 0 {
		return func() {}
	}
	number, start, d := stack.Goroutine(), time.Now(), *of
	d.Properties = maps.Clone(d.Properties) // the handler owns the map
	reported := make(chan struct{})
	timer := time.AfterFunc(r.opts.StuckAfter, func() {
		defer close(reported)
		c, stuck := r.hand.replaceStuck(it)
		if !stuck {
			return
		}
		r.follow(c)
		if r.hand.wasReplaced(it) {
			r.gatherer.Replace(func(b batched) bool { return b.it == it })
		}
		s := StuckHandler{Delivery: d, Took: time.Since(start), Stack: stack.Of(number)}
		r.log.Warn("handler stuck; starting another one", "topic", d.Topic, "group", r.sub.Group,
			"message_id", d.ID, "attempt", d.Attempt, "duration", s.Took, "stack", s.Stack)
		if r.opts.OnStuck != nil {
			r.guard("OnStuck panicked", d.ID, func() { r.opts.OnStuck(s) })
		}
	})
	return func() {
		if !timer.Stop() {
			<-reported
		}
	}
}

// replaceStuck lets another worker replace the one that handles the delivery, and reports whether a
// handler still works on it. At most Concurrency workers are replaced at the same time.
func (h *hand) replaceStuck(it *item) (c change, stuck bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if it.phase != running {
		return c, false
	}
	if h.stuck < h.opts.Concurrency {
		it.stuck = true
		h.stuck++
		h.running--
		h.workers--
		h.offer()
		h.work.Signal() // while the kill switch limits the handlers, idle workers wait for this place
		c.hire = h.hire()
	}
	return c, true
}

// wasReplaced reports whether another worker replaced the one that handled the delivery.
func (h *hand) wasReplaced(it *item) bool {
	if h.opts.StuckAfter <= 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return it.stuck
}
