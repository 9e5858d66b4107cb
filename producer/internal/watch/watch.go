// Package watch ends messages with their ctx. Programs often send many messages with one ctx; a
// function of their own at the ctx for each message takes several times as long.
package watch

import (
	"context"
	"sync"

	"github.com/tidegate/tidegate/producer/internal/list"
)

// A Set has the watches of the messages of a topic, each a T: one watch for each ctx. The lock of
// the topic guards it.
//
// Wake-ups: the end of a ctx ends the messages of its watch. A message that joins a watch later has
// a watch of its own. Bound on steps: a watch sets one function at its ctx, and the last of its
// messages removes that function.
type Set[T any] struct {
	lock    sync.Locker
	leave   func([]T) // ends messages, without the lock; some may have left their watch meanwhile
	watches map[<-chan struct{}]*Watch[T]

	after func(context.Context, func()) (stop func() bool) // context.AfterFunc
}

// NewSet returns a set whose lock is lock. leave is called without the lock, with the messages
// whose ctx has ended. They leave their watches by [Member.Leave], which some may have done before.
func NewSet[T any](lock sync.Locker, leave func([]T)) Set[T] {
	return Set[T]{lock: lock, leave: leave, watches: map[<-chan struct{}]*Watch[T]{}, after: context.AfterFunc}
}

// Len returns the number of watches. The lock is held.
func (s *Set[T]) Len() int { return len(s.watches) }

// A Watch ends its messages when its ctx ends.
type Watch[T any] struct {
	set     *Set[T]
	ctx     context.Context //nolint:containedctx // the callers'; a watch lives as long as its messages
	done    <-chan struct{} // of ctx
	members list.List[T]
	stop    func() bool // removes the function at ctx; nil until Start has set it
}

// A Member is the place of a message in a watch. It is a field of the message, so that it needs no
// allocation.
type Member[T any] struct {
	of    *Watch[T] // nil if it is in none
	place list.Link[T]
}

// Join adds a message to the watch of ctx. If it returns a watch, the caller must start it. The
// lock is held.
func (s *Set[T]) Join(ctx context.Context, message T, m *Member[T]) (begun *Watch[T]) {
	done := ctx.Done()
	if done == nil {
		return nil
	}
	w := s.watches[done]
	if w == nil {
		w = &Watch[T]{set: s, ctx: ctx, done: done}
		begun, s.watches[done] = w, w
	}
	m.of, m.place.Value = w, message
	w.members.PushBack(&m.place)
	return begun
}

// Start begins to wait for the end of the ctx. No lock is held, because the ctx can be the user's.
func (w *Watch[T]) Start() {
	stop := w.set.after(w.ctx, w.end)
	w.set.lock.Lock()
	w.stop = stop
	needed := w.members.Len() > 0
	w.set.lock.Unlock()
	if !needed { // the last message has left before it could return stop
		stop()
	}
}

// end ends the messages of the watch. Later messages with the ctx get another watch.
func (w *Watch[T]) end() {
	w.set.lock.Lock()
	w.forget()
	messages := make([]T, 0, w.members.Len())
	for m := range w.members.All {
		messages = append(messages, m)
	}
	w.set.lock.Unlock()
	w.set.leave(messages)
}

// forget removes the watch from its set. The lock is held.
func (w *Watch[T]) forget() {
	if w.set.watches[w.done] == w {
		delete(w.set.watches, w.done)
	}
}

// Leave takes the message out of its watch, if it is in one. If Leave returns stop, the caller must
// call it afterwards, without the lock: the message was the last one, and stop removes the function
// at the ctx. The lock is held.
func (m *Member[T]) Leave() (stop func() bool) {
	w := m.of
	if w == nil {
		return nil
	}
	m.of = nil
	if m.place.Leave(); w.members.Len() > 0 {
		return nil
	}
	w.forget()
	return w.stop
}
