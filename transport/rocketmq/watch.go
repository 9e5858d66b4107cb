package rocketmq

import (
	"context"
	"slices"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/readiness"
	"github.com/tidegate/tidegate/transport"
)

const (
	// watchFeature is the feature of a client that reads the reports of watches in its Telemetry
	// stream, and the wish of a receive for a watch. The client announces both in FeaturesKey.
	watchFeature = "watch"

	// watchedKey is the trailer of a receive that has left a watch.
	watchedKey = "x-tidegate-watched"
)

// ReceiveOrWatch implements transport.Watcher. There is no watch if the server cannot leave one or
// has reached its limit of watches, if r.Queue is AnyQueue and the topic has several servers, or if
// the session was lost in the meantime.
//
// Liveness: ready is closed when the server reports the queue, when the session's stream ends, when
// the topic gets other servers, and when the client is closed. A later call leaves the watch again.
func (c *Client) ReceiveOrWatch(ctx context.Context, r transport.ReceiveRequest) (ds []*tidegate.Delivery, ready <-chan struct{}, err error) {
	r.Wait = 0
	return c.receiveFrom(ctx, r, true)
}

// A watch is one that a receive leaves on the server. The server has at most one for each queue and
// stream, which all receives of the queue share.
type watch struct {
	ready chan struct{} // closed under session.mu
	keep  func() bool   // stops the end of the watch with its ctx; guarded by session.mu
}

// watch returns a watch of a queue for a receive that is about to be sent. It ends with ctx, with
// unwatch, or when it is ready. It returns nil without a stream, because nothing could report it.
func (s *session) watch(ctx context.Context, of readiness.Queue) *watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready || s.ctx.Err() != nil {
		return nil
	}
	w := &watch{ready: make(chan struct{})}
	if s.watches == nil {
		s.watches = map[readiness.Queue][]*watch{}
	}
	s.watches[of] = append(s.watches[of], w)
	w.keep = context.AfterFunc(ctx, func() { s.unwatch(of, w) })
	return w
}

// unwatch ends a watch that is not ready.
func (s *session) unwatch(of readiness.Queue, w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.keep()
	s.watches[of] = slices.DeleteFunc(s.watches[of], func(o *watch) bool { return o == w })
	if len(s.watches[of]) == 0 {
		delete(s.watches, of)
	}
}

// wake ends the watches of queues: they are ready.
func (s *session) wake(queues ...readiness.Queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range queues {
		s.wakeLocked(of)
	}
}

// wakeAllLocked ends all watches, because the server has lost them. mu is held.
func (s *session) wakeAllLocked() {
	for of := range s.watches {
		s.wakeLocked(of)
	}
}

func (s *session) wakeLocked(of readiness.Queue) {
	for _, w := range s.watches[of] {
		close(w.ready)
		w.keep()
	}
	delete(s.watches, of)
}

// wakeTopic ends the watches of a topic that has other servers now: another server than that of a
// watch may have messages.
func (c *Client) wakeTopic(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.sessions {
		s.mu.Lock()
		for of := range s.watches {
			if of.Topic == name {
				s.wakeLocked(of)
			}
		}
		s.mu.Unlock()
	}
}

// watchHeader returns the features of a Telemetry stream or a receive, with that of watches or
// without.
func watchHeader(watched bool) string {
	if watched {
		return packed + ", " + watchFeature
	}
	return packed
}
