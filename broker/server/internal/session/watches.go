package session

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/internal/protocol"
)

const (
	// mostWatches bounds the watches of one stream.
	mostWatches = 20_000

	// WatchSize is the approximate memory of a watch in bytes.
	WatchSize = 1 << 10
)

// A Limit bounds the watches of all streams of a server.
type Limit struct {
	most  int64
	count atomic.Int64
}

// NewLimit returns a limit of so many watches.
func NewLimit(most int64) *Limit { return &Limit{most: most} }

// TakeWatches has the stream take watches, within a limit: its client reads their reports. It is called
// before Clients.Attach.
func (t *Stream) TakeWatches(limit *Limit) { t.limit = limit }

// Watch returns a watch for a receive by the client of the stream. The caller passes it to Keep. The
// queue can be transport.AnyQueue.
func (t *Stream) Watch(topic string, queue int) (w *serving.Watch, of protocol.Watched) {
	of = protocol.Watched{Topic: strings.Clone(topic), Queue: int32(queue)} // the name may be a part of a request's memory
	return serving.NewWatch(func() { t.ready(of) }), of
}

// Keep keeps a watch that a receive has left, instead of an earlier one of the same queue, and returns
// true. It ends a watch that was not left, and one beyond the limits.
func (t *Stream) Keep(of protocol.Watched, w *serving.Watch) bool {
	if !w.Left() {
		w.End()
		return false
	}
	t.mu.Lock()
	before, kept := t.watches[of], true
	switch {
	case t.ended:
		kept = false
	case before != nil:
		t.watches[of] = w
	case len(t.watches) >= mostWatches || t.limit.count.Add(1) > t.limit.most:
		if len(t.watches) < mostWatches {
			t.limit.count.Add(-1)
		}
		kept = false
	default:
		if t.watches == nil {
			t.watches = map[protocol.Watched]*serving.Watch{}
		}
		t.watches[of] = w
	}
	t.mu.Unlock()
	if before != nil && kept {
		before.End()
	}
	if !kept {
		w.End()
	}
	return kept
}

// ready has the queue written to the stream. It runs under locks of the engine.
func (t *Stream) ready(of protocol.Watched) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return
	}
	if t.due == nil {
		t.due = map[protocol.Watched]struct{}{}
	}
	t.due[of] = struct{}{}
	t.signal()
}

// Due returns the queues whose watches have reported a message, and forgets their watches.
func (t *Stream) Due() []protocol.Watched {
	t.mu.Lock()
	var queues []protocol.Watched
	var over []*serving.Watch
	for of := range t.due {
		queues = append(queues, of)
		if w := t.watches[of]; w != nil && w.Over() {
			over = append(over, w)
			t.forget(of)
		}
	}
	t.due = nil
	t.mu.Unlock()
	for _, w := range over {
		w.End()
	}
	return queues
}

// WakeWatches has all queues with a watch written to the stream, because another reason than a message
// makes their receives worth a repetition.
func (t *Stream) WakeWatches() {
	t.mu.Lock()
	all := slices.Collect(maps.Values(t.watches))
	if len(all) > 0 && t.due == nil {
		t.due = map[protocol.Watched]struct{}{}
	}
	for of := range t.watches {
		t.due[of] = struct{}{}
		t.forget(of)
	}
	if len(t.due) > 0 {
		t.signal()
	}
	t.mu.Unlock()
	for _, w := range all {
		w.End()
	}
}

// End ends the watches of a stream that has ended.
func (t *Stream) End() {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.WakeWatches()
}

// forget removes the watch of a queue. mu is held.
func (t *Stream) forget(of protocol.Watched) {
	delete(t.watches, of)
	t.limit.count.Add(-1)
}

// Watching returns a stream of the client that takes watches, or nil.
func (r *Clients) Watching(c *Client) *Stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	for t := range c.streams {
		if t.limit != nil {
			return t
		}
	}
	return nil
}
