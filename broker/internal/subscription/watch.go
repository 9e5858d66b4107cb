package subscription

import (
	"slices"
	"sync"
	"time"
)

// A Watch stays behind when a receive has taken all messages that it could take. It reports once
// that another receive may find one. It takes no message, and the wake-ups of waiting receives do
// not count it.
//
// Liveness: the events that wake a waiting receive wake all watches. Each watch is woken once. A
// watch of a receive whose sources have changed is woken when the receive ends.
type Watch struct {
	ready func()

	mu   sync.Mutex      // acquired after Subscription.mu; no lock is acquired under it
	at   []*Subscription // where the last look of the receive has left it; it can be woken since
	left bool            // the last look of the receive left it at all sources, or it was woken
	over bool
}

// NewWatch returns a watch that calls ready once, unless it ends before. ready runs under locks of
// the engine: it must neither block nor call the engine.
func NewWatch(ready func()) *Watch { return &Watch{ready: ready} }

// Left reports, after the receive with this watch, whether the receive has left it: the receive
// found no further message in any of its sources. The watch may already have called ready.
func (w *Watch) Left() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.left
}

// Over reports whether the watch has been woken or has ended. If it has been woken, ready may still
// be about to be called.
func (w *Watch) Over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.over
}

// End ends the watch and removes it from the subscriptions. It is called after the receive with
// this watch has returned. The caller holds no lock of the engine.
func (w *Watch) End() {
	w.mu.Lock()
	at := w.at
	w.at, w.over = nil, true
	w.mu.Unlock()
	for _, s := range at {
		s.mu.Lock()
		s.removeWatch(w)
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
	w.at = append(w.at, s)
}

// lift takes the watch away from the subscription, because its receive looks for messages again.
// s.mu is held.
func (w *Watch) lift(s *Subscription) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(s.watches, w)
	w.at = slices.DeleteFunc(w.at, func(at *Subscription) bool { return at == s })
}

// looked records whether a look of the receive at its sources has left the watch at all of them. A
// watch that was woken counts as left: its report is on the way.
func (w *Watch) looked(sources []source, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	missing := func(src source) bool { return !slices.Contains(w.at, src.sub) }
	w.left = err == nil && (w.over || !slices.ContainsFunc(sources, missing))
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
			s.removeWatch(w)
		}
	}
}

// removeWatch forgets a watch, which counts as a look for messages until now. mu is held.
func (s *Subscription) removeWatch(w *Watch) {
	if _, ok := s.watches[w]; ok {
		delete(s.watches, w)
		s.lastTake = time.Now()
	}
}
