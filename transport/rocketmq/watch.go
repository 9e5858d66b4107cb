package rocketmq

import (
	"context"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

const (
	// watchFeature is the feature of a client that reads the reports of watches in its Telemetry
	// stream, and the wish of a receive for a watch. The client announces both in FeaturesKey.
	watchFeature = "watch"

	// watchedKey is the trailer of a receive that has left a watch.
	watchedKey = "x-tidegate-watched"
)

// ReceiveOrWatch implements transport.Watcher.
//
// Liveness: ready is closed when the server reports the queue, when the session's stream ends, and
// when the client is closed. A later call leaves the watch again.
func (c *Client) ReceiveOrWatch(ctx context.Context, r transport.ReceiveRequest) (ds []*tidegate.Delivery, ready <-chan struct{}, err error) {
	r.Wait = 0
	return c.receiveFrom(ctx, r, true)
}

// A watch is what a session's receives of a queue have left on the server.
type watch struct {
	ready chan struct{} // closed under session.mu
	users int           // guarded by session.mu: receives whose ctx has not ended
}

// watch returns the watch of a queue, which a receive is about to leave. The caller's use of it ends
// with ctx, or with unwatch.
func (s *session) watch(ctx context.Context, of protocol.Watched) (w *watch, unwatch func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w = s.watches[of]; w == nil {
		if s.watches == nil {
			s.watches = map[protocol.Watched]*watch{}
		}
		w = &watch{ready: make(chan struct{})}
		s.watches[of] = w
	}
	w.users++
	return w, context.AfterFunc(ctx, func() { s.unwatch(of, w) })
}

// unwatch ends a use of the watch. Without any the session forgets it.
func (s *session) unwatch(of protocol.Watched, w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.users--; w.users == 0 && s.watches[of] == w {
		delete(s.watches, of)
	}
}

// wake ends the watches of queues.
func (s *session) wake(queues []protocol.Watched) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range queues {
		if w := s.watches[of]; w != nil {
			close(w.ready)
			delete(s.watches, of)
		}
	}
}

// wakeAllLocked ends all watches, because the server has lost them. mu is held.
func (s *session) wakeAllLocked() {
	for _, w := range s.watches {
		close(w.ready)
	}
	s.watches = nil
}

func watchHeader(watched bool) string {
	if watched {
		return packed + ", " + watchFeature
	}
	return packed
}
