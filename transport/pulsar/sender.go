package pulsar

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

const (
	// responseGrace is the time that a send has after its end for a response that is on its way.
	// Then its generation is closed, so that the client does not store the message later.
	responseGrace = 100 * time.Millisecond

	// reopen is the time between two attempts to create a producer for calls that wait for a
	// connection.
	reopen = time.Second

	// idleTime is the time without a send after which a producer is closed, at most twice as long.
	// Each one of the client has about 100 KiB, four goroutines and a request a minute, and more with
	// each partition.
	idleTime = 5 * time.Minute

	// refusalAge is the time for which the refusal of a producer by a quota counts for other sends
	// to the topic, so that a crowd of them does not ask once each.
	refusalAge = 200 * time.Millisecond

	// maxInFlight bounds the bytes of all sends in flight, overhead included. A send beyond it
	// waits.
	maxInFlight = 64 << 20
	overhead    = 16 << 10 // of a send, in maxInFlight
	maxPending  = maxInFlight / overhead
)

// A sender sends to one topic, with one producer of the client at a time.
//
// Wake-ups: calls wait for an opening, which ends with CreateProducer, and for the callback of
// their message or the end of its generation, which ends with the producer's Close. The client
// bounds both by a few RequestTimeouts. Each call also ends with its ctx. The goroutine of a
// generation waits for retire or the end of the Client. flush waits for messages, which send
// signals, and for the response to the last of them; both waits end before the producer's Close.
type sender struct {
	client *Client
	topic  string // full name

	mu      sync.Mutex
	current *generation
	opening *opening
	refusal *tidegate.Error // by a quota
	refused time.Time       // when
}

// An opening is the creation of a producer.
type opening struct {
	done chan struct{} // closed at its end
	gen  *generation
	err  *tidegate.Error
}

// A generation is the life of one producer of the client: until its first failed send, its lost
// connection, a time without sends or the end of the Client.
type generation struct {
	producer pulsar.Producer
	queued   chan struct{} // of one element, for flush
	end      chan struct{} // closed by retire
	over     chan struct{} // closed once the producer is closed; nothing is stored from then on
	lost     atomic.Bool   // the connection of the producer
	flight   atomic.Int64  // sends without a reply of the client
	used     atomic.Bool   // since the last look for idle producers

	// mu is held for reading during SendAsync, because the client panics if its producer is closed
	// meanwhile. Nothing that holds it blocks.
	mu      sync.RWMutex
	retired bool
}

// retire ends a generation: no further send uses it, and its producer is closed.
func (g *generation) retire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.retired {
		g.retired = true
		close(g.end)
	}
}

// retireIdle ends a generation without sends since the last call.
func (g *generation) retireIdle() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.used.Swap(false) && g.flight.Load() == 0 && !g.retired {
		g.retired = true
		close(g.end)
	}
}

func (g *generation) usable() bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return !g.retired
}

// sender returns the sender of a topic.
func (c *Client) sender(topic string) *sender {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.senders[topic]
	if s == nil {
		s = &sender{client: c, topic: topic}
		c.senders[topic] = s
	}
	return s
}

// generation returns a generation that can send. It creates one if there is none.
func (s *sender) generation(ctx context.Context) (*generation, *tidegate.Error) {
	s.mu.Lock()
	if g := s.current; g != nil && g.usable() {
		s.mu.Unlock()
		return g, nil
	}
	if s.refusal != nil && time.Since(s.refused) < refusalAge {
		e := *s.refusal
		s.mu.Unlock()
		return nil, &e
	}
	hopeless := s.client.faults.waiting()
	o := s.opening
	if o == nil {
		o = &opening{done: make(chan struct{})}
		if !s.client.background(func() { s.live(o) }) {
			s.mu.Unlock()
			return nil, &tidegate.Error{Err: tidegate.ErrClosed}
		}
		s.opening = o
	}
	s.mu.Unlock()
	select {
	case <-o.done:
	case <-hopeless.done:
		return nil, hopeless.reason()
	case <-ctx.Done():
		return nil, s.client.faults.interrupted(context.Cause(ctx)) // the message was not sent
	case <-s.client.ctx.Done():
		return nil, &tidegate.Error{Err: tidegate.ErrClosed}
	}
	if o.err != nil {
		e := *o.err
		return nil, &e
	}
	return o.gen, nil
}

// live creates a producer and closes it at the end of its generation.
func (s *sender) live(o *opening) {
	c := s.client
	g := &generation{queued: make(chan struct{}, 1), end: make(chan struct{}), over: make(chan struct{})}
	producer, err := c.native.CreateProducer(pulsar.ProducerOptions{
		Topic: s.topic, DisableBlockIfQueueFull: true, MaxPendingMessages: maxPending,
		// A batch of several keys would go to the consumer of its first key alone.
		DisableBatching: !c.options.Batching, BatcherBuilderType: pulsar.KeyBasedBatchBuilder,
		SendTimeout: -1, // each send has an end of its own; the client would keep a goroutine
		// The client asks for a policy when the producer has lost its connection or the server has
		// closed it. It then connects again so many times.
		BackOffPolicyFunc: func() backoff.Policy {
			g.lost.Store(true)
			g.retire()
			return backoff.NewDefaultBackoff()
		},
		MaxReconnectToBroker: new(uint),
	})
	s.mu.Lock()
	s.opening = nil
	if err == nil {
		g.producer, o.gen, s.current, s.refusal = producer, g, g, nil
	} else if o.err = c.faults.of(err); tidegate.Classify(o.err) == tidegate.ClassThrottled {
		s.refusal, s.refused = o.err, time.Now()
	}
	s.mu.Unlock()
	close(o.done)
	if err != nil {
		return
	}
	c.faults.connected()
	ctx, cancel := context.WithCancel(c.ctx) // of flush, which ends before Close
	var flusher sync.WaitGroup
	if c.options.Batching {
		flusher.Go(func() { g.flush(ctx) })
	}
	idle := time.NewTicker(idleTime)
	defer idle.Stop()
	for g.usable() {
		select {
		case <-g.end:
		case <-idle.C:
			g.retireIdle()
		case <-c.ctx.Done():
			g.retire()
		}
	}
	cancel()
	flusher.Wait()
	s.mu.Lock()
	if s.current == g {
		s.current = nil
	}
	s.mu.Unlock()
	if g.lost.Load() {
		g.drain()
	}
	producer.Close()
	close(g.over)
}

// drain waits while the client passes on the responses that it had read before it lost the
// connection. It panics if its producer is closed meanwhile.
func (g *generation) drain() {
	for before := g.flight.Load(); before > 0; {
		<-time.After(responseGrace)
		now := g.flight.Load()
		if now == before {
			return
		}
		before = now
	}
}

// flush writes the messages that the client gathers in an entry as soon as no earlier one is on its
// way. The client alone would write them after 10 ms.
func (g *generation) flush(ctx context.Context) {
	for {
		select {
		case <-g.queued:
			_ = g.producer.FlushWithCtx(ctx) // each message has an error of its own
		case <-ctx.Done():
			return
		}
	}
}

// A pending is a message on its way.
type pending struct {
	gen   *generation
	begun time.Time
	reply chan error // of one element: the client's callback
}

// errRetired is the reply to a message that was not sent, because its generation has ended.
var errRetired = errors.New("the producer has just lost its connection")

// send gives a message to the client.
func (g *generation) send(m *pulsar.ProducerMessage) pending {
	p := pending{g, time.Now(), make(chan error, 1)}
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.retired {
		p.reply <- errRetired
		return p
	}
	g.used.Store(true)
	g.flight.Add(1)
	var answered atomic.Bool // the client calls it again at an error of a batch
	// The ctx of a call does not end a message that the client has already queued.
	g.producer.SendAsync(context.Background(), m, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		if !answered.Swap(true) {
			g.flight.Add(-1)
			p.reply <- err
		}
	})
	select {
	case g.queued <- struct{}{}:
	default:
	}
	return p
}

// errUnsent is the reply to a message that the client has not written before its producer was
// closed, and of which it does not report anything.
var errUnsent = errors.New("the producer was closed before it sent the message")

// wait waits for the response to the message; nil means stored. If there is none in time, no later
// attempt of the client stores the message: the generation ends.
func (p pending) wait(ctx context.Context, f *faults) *tidegate.Error {
	var err error
	select {
	case err = <-p.reply:
		return p.result(err, f)
	case <-p.gen.over:
		return p.ended(f)
	case <-ctx.Done():
	}
	t := time.NewTimer(responseGrace)
	defer t.Stop()
	select {
	case err = <-p.reply:
		return p.result(err, f)
	case <-p.gen.over:
		return p.ended(f)
	case <-t.C:
	}
	p.gen.retire()
	message := "the server did not respond in time"
	if text := f.rejection(p.begun); text != "" {
		message += "; meanwhile it rejected a message: " + text
	}
	return &tidegate.Error{Err: context.Cause(ctx), MaybeStored: true, Message: message}
}

// ended returns the result after the end of the generation.
func (p pending) ended(f *faults) *tidegate.Error {
	select {
	case err := <-p.reply:
		return p.result(err, f)
	default:
		return p.result(errUnsent, f)
	}
}

// result returns the error of a message and ends the generation after most of them.
func (p pending) result(err error, f *faults) *tidegate.Error {
	switch err {
	case nil:
		return nil
	case errRetired, errUnsent: //nolint:errorlint // they come from here as they are
		return &tidegate.Error{Err: unavailable{err}, NotConnected: true}
	}
	e := f.of(err)
	switch tidegate.Classify(e) {
	case tidegate.ClassPermanent: // a fault of this message, which was not written
	case tidegate.ClassThrottled:
		if errors.Is(err, pulsar.ErrSendQueueIsFull) {
			break // nor was this one
		}
		// The client reports the quota for messages that it has written too.
		e = &tidegate.Error{Err: unavailable{plain{err}}, MaybeStored: true, Message: e.Message}
		p.gen.retire()
	default:
		e.MaybeStored, e.NotConnected = true, false
		p.gen.retire()
	}
	return e
}

// begin gives a message to the client for a topic. With a ctx of AwaitConnection it waits for a
// connection.
func (c *Client) begin(ctx context.Context, topic string, m *pulsar.ProducerMessage) (pending, *tidegate.Error) {
	s := c.sender(topic)
	for {
		g, e := s.generation(ctx)
		if e == nil {
			return g.send(m), nil
		}
		if !e.NotConnected || !transport.AwaitsConnection(ctx) {
			return pending{}, e
		}
		if e = c.pause(ctx, e); e != nil {
			return pending{}, e
		}
	}
}
