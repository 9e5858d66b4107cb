package session

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

const (
	// maxChecks and maxCheckBytes bound the checks that wait to be written to one stream.
	maxChecks     = 1024
	maxCheckBytes = 8 << 20
)

// A Stream is the queue of one Telemetry stream. The goroutine of its handler takes from it, other
// goroutines add to it.
type Stream struct {
	client Sender

	again chan struct{} // capacity 1: a wish for the settings, once more
	kick  chan struct{} // capacity 1: there are checks or reports to write
	limit *Limit        // of watches; nil if the client does not read them

	shares bool            // see SharesHeartbeats
	beats  *admission.Link // has the heartbeats that the client shares; nil without

	mu     sync.Mutex
	checks []*rmqpb.RecoverOrphanedTransactionCommand // guarded by mu
	bytes  int                                        // guarded by mu: their size

	// Guarded by mu, which is acquired after the engine's locks.
	watches map[wire.Queue]*Watch
	due     map[wire.Queue]struct{} // of watches: to write
	round   int                     // how often WakeWatches was called
	ended   bool

	// Guarded by mu.
	lite      transport.LiteConsumer // whose ended lite topics the stream reports
	serving   transport.LiteConsumer // likewise, since BeginLite; zero if none
	endedLite []string               // lite topics to report

	number uint64 // guarded by Clients.mu: later streams have higher ones
}

// A Sender is the client of a stream.
type Sender interface {
	// MaySend reports whether the client has the permission to send to a topic now. It must not
	// block.
	MaySend(topic string) bool
}

// NewStream returns an empty stream of a client.
func NewStream(client Sender) *Stream {
	return &Stream{client: client, again: make(chan struct{}, 1), kick: make(chan struct{}, 1)}
}

// SharesHeartbeats notes that the client may share the heartbeats of other clients on its
// connection. The client does not learn from heartbeats that the server has lost its settings, so
// the stream has to ask for them. SharesHeartbeats is called before Clients.Attach.
func (t *Stream) SharesHeartbeats(on *admission.Link) { t.shares, t.beats = true, on }

// Offer has a check of that size written to the stream, and returns false if
// too many wait already. It never blocks.
func (t *Stream) Offer(c *rmqpb.RecoverOrphanedTransactionCommand, size int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.checks) >= maxChecks || len(t.checks) > 0 && t.bytes+size > maxCheckBytes {
		return false
	}
	t.checks, t.bytes = append(t.checks, c), t.bytes+size
	t.signal()
	return true
}

// signal has Kick return a value. It never blocks.
func (t *Stream) signal() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// Taken returns the checks that wait, and forgets them.
func (t *Stream) Taken() []*rmqpb.RecoverOrphanedTransactionCommand {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := t.checks
	t.checks, t.bytes = nil, 0
	return out
}

// serveLite has BeginLite return a consumer, unless it did.
func (t *Stream) serveLite(c *transport.LiteConsumer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lite = *c; t.lite != t.serving {
		t.signal()
	}
}

// BeginLite returns the consumer whose ended lite topics the stream is to report from now on, and
// false if it does already. The caller passes the lite topics to LiteEnded, and calls LiteOver when
// there will be no further ones.
func (t *Stream) BeginLite() (c transport.LiteConsumer, begin bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	begin = t.lite != t.serving && t.lite != transport.LiteConsumer{}
	if begin {
		t.serving = t.lite
	}
	return t.lite, begin
}

// LiteOver ends what BeginLite has begun for a consumer.
func (t *Stream) LiteOver(c transport.LiteConsumer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.serving == c {
		t.lite, t.serving = transport.LiteConsumer{}, transport.LiteConsumer{}
	}
}

// LiteEnded has a lite topic reported that the client has no more. It never blocks.
func (t *Stream) LiteEnded(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endedLite = append(t.endedLite, name)
	t.signal()
}

// EndedLite returns the lite topics to report, and forgets them.
func (t *Stream) EndedLite() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := t.endedLite
	t.endedLite = nil
	return out
}

// resend asks the stream for the settings once more. It never blocks: one
// wish at a time is enough.
func (t *Stream) resend() {
	select {
	case t.again <- struct{}{}:
	default:
	}
}

// Again is where a value comes when the settings are to be sent once more.
func (t *Stream) Again() <-chan struct{} { return t.again }

// Kick is where a value comes when there are checks or reports to take.
func (t *Stream) Kick() <-chan struct{} { return t.kick }

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
	latest := c.latestLocked()
	if latest == nil || latest.limit == nil {
		return nil
	}
	return latest
}

// latestLocked returns the latest stream of the client, or nil. Clients.mu is held.
func (c *Client) latestLocked() (latest *Stream) {
	for t := range c.streams {
		if latest == nil || t.number > latest.number {
			latest = t
		}
	}
	return latest
}

const (
	// maxPublished bounds the topics that one client is remembered to publish. Its
	// settings have room for no more: there, a topic takes 5 bytes and its namespace.
	maxPublished = requests.MaxSmallRequest / 5

	// publicationSize is the approximate memory of one publication, in bytes.
	publicationSize = 384

	// maxAsked bounds the streams that one check is offered to.
	maxAsked = 8
)

// A Publisher is a Telemetry stream of a client that publishes a topic.
type Publisher struct {
	Stream *Stream
	Topic  *rmqpb.Resource // as the client names it
}

// publishLocked notes that a client publishes a topic.
func (r *Clients) publishLocked(c *Client, topic *rmqpb.Resource) {
	name := topic.GetName()
	if _, known := r.publishers[name][c]; known || len(c.topics) >= maxPublished || !r.fitsLocked(c, c.settingsBytes+publicationSize) {
		return
	}
	name = strings.Clone(name) // which may be a part of a request's memory
	if r.publishers[name] == nil {
		r.publishers[name] = map[*Client]string{}
	}
	r.publishers[name][c] = strings.Clone(topic.GetResourceNamespace())
	c.topics = append(c.topics, name)
	r.addBytesLocked(c, publicationSize)
}

func (r *Clients) addBytesLocked(c *Client, bytes int) {
	c.settingsBytes, r.settingsBytes = c.settingsBytes+bytes, r.settingsBytes+bytes
	if r.originBytes[c.origin] += bytes; r.originBytes[c.origin] == 0 {
		delete(r.originBytes, c.origin)
	}
}

// retractLocked removes the settings of a client and its publications.
func (r *Clients) retractLocked(c *Client) {
	for _, name := range c.topics {
		if delete(r.publishers[name], c); len(r.publishers[name]) == 0 {
			delete(r.publishers, name)
		}
	}
	c.topics = nil
	r.addBytesLocked(c, -c.settingsBytes)
}

// Publishes notes that a client sends half messages to a topic, which its
// settings need not name.
func (r *Clients) Publishes(id string, topic *rmqpb.Resource) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.byID[id]; c != nil {
		r.publishLocked(c, topic)
	}
}

// Publishing returns Telemetry streams of clients that publish a topic, and
// may, in no order, so that all of them are asked in turn.
func (r *Clients) Publishing(topic string) []Publisher {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Publisher
	for c, namespace := range r.publishers[topic] {
		for t := range c.streams {
			if len(out) == maxAsked {
				return out
			}
			if t.client.MaySend(topic) {
				out = append(out, Publisher{t, &rmqpb.Resource{ResourceNamespace: namespace, Name: topic}})
			}
		}
	}
	return out
}
