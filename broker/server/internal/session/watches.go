package session

import (
	"strings"
	"sync/atomic"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/internal/wire"
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

// Count returns the number of watches of all streams.
func (l *Limit) Count() int64 { return l.count.Load() }

// TakeWatches has the stream take watches, within a limit: its client reads their reports. It is
// called before Clients.Attach.
func (t *Stream) TakeWatches(limit *Limit) { t.limit = limit }

// A Watch is a watch for a receive that a client is about to make.
type Watch struct {
	*engine.Watch
	stream *Stream
	of     wire.Queue
	round  int // Stream.round at its beginning
}

// Watch returns a watch for a receive by the client of the stream, or nil if the stream has ended
// or takes no further watches. The caller passes it to Keep, or ends it. The queue is the one that
// the client has named, and that is reported.
func (t *Stream) Watch(topic string, queue int32) *Watch {
	of := wire.Queue{Topic: topic, Queue: queue}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || t.watches[of] == nil && (len(t.watches) >= mostWatches || t.limit.Count() >= t.limit.most) {
		return nil
	}
	of.Topic = strings.Clone(topic) // it may be a part of a request's memory
	w := &Watch{stream: t, of: of, round: t.round}
	w.Watch = engine.NewWatch(func() { t.ready(w) })
	return w
}

// Keep keeps a watch that a receive has left, instead of an earlier one of the same queue, and
// returns true. It ends a watch that was not left, and one beyond the limits. If WakeWatches was
// called since the beginning of the receive, Keep has the queue reported at once.
func (w *Watch) Keep() bool {
	t := w.stream
	if !w.Left() {
		w.End()
		return false
	}
	t.mu.Lock()
	before := t.watches[w.of]
	kept := !t.ended && (before != nil || len(t.watches) < mostWatches && t.limit.take())
	if kept {
		if t.watches == nil {
			t.watches = map[wire.Queue]*Watch{}
		}
		t.watches[w.of] = w
		if w.Over() || w.round != t.round {
			t.reportLocked(w.of)
		}
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

// take counts a watch if there is room for it.
func (l *Limit) take() bool {
	if l.count.Add(1) > l.most {
		l.count.Add(-1)
		return false
	}
	return true
}

// ready has the queue of a watch written to the stream. Keep does it for a watch that is not kept
// yet. It runs under locks of the engine.
func (t *Stream) ready(w *Watch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watches[w.of] == w {
		t.reportLocked(w.of)
	}
}

// Report has the queue of a watch that was kept written to the stream, because another reason than
// a message makes its receive worth a repetition.
func (w *Watch) Report() {
	t := w.stream
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watches[w.of] != nil {
		t.reportLocked(w.of)
	}
}

// WakeWatches is Report for all watches, and for those of receives under way.
func (t *Stream) WakeWatches() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.round++
	for of := range t.watches {
		t.reportLocked(of)
	}
}

// reportLocked has a queue with a watch written to the stream. mu is held.
func (t *Stream) reportLocked(of wire.Queue) {
	if t.due == nil {
		t.due = map[wire.Queue]struct{}{}
	}
	t.due[of] = struct{}{}
	t.signal()
}

// Due returns the queues to report, and ends their watches.
func (t *Stream) Due() (queues []wire.Queue) {
	t.mu.Lock()
	over := make([]*Watch, 0, len(t.due))
	for of := range t.due {
		queues = append(queues, of)
		over = append(over, t.watches[of])
		delete(t.watches, of)
	}
	t.due = nil
	t.mu.Unlock()
	t.finish(over)
	return queues
}

// End ends the watches of a stream that has ended. It takes no further ones.
func (t *Stream) End() {
	t.mu.Lock()
	t.ended = true
	over := make([]*Watch, 0, len(t.watches))
	for _, w := range t.watches {
		over = append(over, w)
	}
	t.watches, t.due = nil, nil
	t.mu.Unlock()
	t.finish(over)
}

// finish ends watches that were taken out of the stream.
func (t *Stream) finish(over []*Watch) {
	if len(over) > 0 {
		t.limit.count.Add(-int64(len(over)))
	}
	for _, w := range over {
		w.End()
	}
}

// Watching returns the latest stream of the client if it takes watches, or nil. An earlier stream
// may have lost its connection, which the server learns late.
func (r *Clients) Watching(c *Client) *Stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	var latest *Stream
	for t := range c.streams {
		if latest == nil || t.number > latest.number {
			latest = t
		}
	}
	if latest == nil || latest.limit == nil {
		return nil
	}
	return latest
}
