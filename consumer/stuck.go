package consumer

import (
	"bytes"
	"maps"
	"runtime"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
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
	number, start, d := goroutine(), time.Now(), *of
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
		s := StuckHandler{Delivery: d, Took: time.Since(start), Stack: stackOf(number)}
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

// maxStack bounds the stacks of all goroutines that are searched for that of a handler, in bytes.
const maxStack = 16 << 20

// goroutine returns the number of the goroutine that calls it, as stacks have it: "goroutine 12 ".
func goroutine() string {
	var buf [64]byte
	line := buf[:runtime.Stack(buf[:], false)]
	if i := bytes.IndexByte(line, '['); i > 0 {
		return string(line[:i])
	}
	return ""
}

// stackOf returns the stack of a goroutine, by its number from Goroutine.
func stackOf(number string) string {
	if number == "" {
		return ""
	}
	buf := make([]byte, 64<<10)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) || len(buf) >= maxStack {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 4*len(buf))
	}
	for stack := range bytes.SplitSeq(buf, []byte("\n\n")) {
		if bytes.HasPrefix(stack, []byte(number)) {
			return string(stack)
		}
	}
	return ""
}

// A pool runs jobs in goroutines, at most limit at the same time, which end when there is
// nothing to do.
type pool struct {
	limit int
	start func(func())

	mu      sync.Mutex
	running int
	jobs    []func()
}

// newPool returns a pool whose goroutines begin by start.
func newPool(limit int, start func(func())) *pool { return &pool{limit: limit, start: start} }

// Do runs a job, soon.
func (p *pool) Do(job func()) {
	p.mu.Lock()
	if p.running == p.limit {
		p.jobs = append(p.jobs, job)
		p.mu.Unlock()
		return
	}
	p.running++
	p.mu.Unlock()
	p.start(func() {
		for job != nil {
			job()
			job = p.next()
		}
	})
}

func (p *pool) next() (job func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.jobs) == 0 {
		p.running--
		return nil
	}
	job = p.jobs[0]
	p.jobs[0] = nil
	p.jobs = p.jobs[1:]
	return job
}
