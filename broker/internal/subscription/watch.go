package subscription

import (
	"slices"
	"sync"
)

// A Watch stays behind when a receive has taken all messages that it could take. It reports once
// that another receive may find one. It takes no message, and the wake-ups of waiting receives do
// not count it.
//
// Liveness: the events that wake a waiting receive wake all watches. Each watch is woken once.
type Watch struct {
	ready func()

	mu   sync.Mutex      // acquired after Subscription.mu
	at   []*Subscription // with the watch in watches
	left bool            // at all sources of the receive
	over bool
}

// NewWatch returns a watch that calls ready once, unless it ends before. ready runs under locks of the
// engine: it must neither block nor call the engine.
func NewWatch(ready func()) *Watch { return &Watch{ready: ready} }

// Left reports whether the receive with this watch has left it: it found no further message in any of
// its sources. The watch may already have called ready.
func (w *Watch) Left() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.left
}

// Over reports whether the watch has called ready or has ended.
func (w *Watch) Over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.over
}

// End ends the watch and removes it from the subscriptions. The caller holds no lock of the engine.
func (w *Watch) End() {
	w.mu.Lock()
	at := w.at
	w.at, w.over = nil, true
	w.mu.Unlock()
	for _, s := range at {
		s.mu.Lock()
		delete(s.watches, w)
		s.mu.Unlock()
	}
}

// leave leaves the watch at a queue of the subscription, or at all with transport.AnyQueue. s.mu is
// held.
func (w *Watch) leave(s *Subscription, queue int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	if s.watches == nil {
		s.watches = map[*Watch]int{}
	}
	s.watches[w] = queue
	if !slices.Contains(w.at, s) {
		w.at = append(w.at, s)
	}
}

// lift takes the watch away from the subscription. s.mu is held.
func (w *Watch) lift(s *Subscription) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(s.watches, w)
	w.at = slices.DeleteFunc(w.at, func(at *Subscription) bool { return at == s })
}

// isAt reports whether the watch was left at all sources. It may have been woken since.
func (w *Watch) isAt(sources []source) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(sources, func(src source) bool { return !slices.Contains(w.at, src.sub) })
}

// setLeft records that the watch is at all sources of its receive.
func (w *Watch) setLeft() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = true
}

// wake calls ready, unless the watch is over.
func (w *Watch) wake() {
	w.mu.Lock()
	over := w.over
	w.over = true
	w.mu.Unlock()
	if !over {
		w.ready()
	}
}

// wakeWatches wakes the watches of a queue and forgets them. mu is held.
func (s *Subscription) wakeWatches(queue uint16) {
	for w, of := range s.watches {
		if of < 0 || of == int(queue) {
			w.wake()
			delete(s.watches, w)
		}
	}
}
