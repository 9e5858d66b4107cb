package producer

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/guard"
	"github.com/tidegate/tidegate/internal/tally"
	"github.com/tidegate/tidegate/producer/internal/ledger"
	"github.com/tidegate/tidegate/producer/internal/retry"
	"github.com/tidegate/tidegate/transport"
)

// A Transport is the part of a transport that a producer uses. If it is also a
// [transport.LaneSender], messages share requests where the server supports that.
type Transport interface {
	transport.Sender

	// ProducerSettings is the method of transport.Configurer.
	ProducerSettings(ctx context.Context, topic string) (transport.ProducerSettings, error)
}

// A Producer sends messages. Several goroutines may share it, and one is enough
// for a program. Create one with [New]; the zero value must not be used.
type Producer struct {
	transport Transport
	lanes     transport.LaneSender
	opts      Options
	log       *slog.Logger
	events    *tally.Log     // bounds the lines about events of sends
	observer  observer       // of Options.Limiter; nil if it has none
	backoff   backoff.Policy // Options.Backoff if it is the program's own type, guarded
	assumed   Settings       // in effect until the server has responded
	bounds    *retry.Bounds  // of all sends

	ledger    *ledger.Ledger[*item]
	functions *ledger.Functions[*item] // of SendAsync
	spooler   *spooler                 // nil without Options.Spool
	calls     atomic.Int64             // of SendLane under way, over all topics
	closed    atomic.Bool
	life      context.Context //nolint:containedctx // for settings requests that no call waits for; Close ends it
	end       context.CancelCauseFunc

	mu     sync.RWMutex
	topics map[string]*topic // guarded by mu
}

// An observer is a limiter that learns from results, as ratelimit.Adaptive does.
type observer interface{ Observe(err error) }

// maxTopics bounds the remembered topics without pending messages.
const maxTopics = 1000

// New returns a producer that sends through t. t must stay open until the producer is closed. New
// does not connect. With Options.Spool it starts a goroutine, which sends the messages of the
// spool, also those of an earlier process, until Shutdown or Close. Without a spool it starts none.
// The error joins all invalid fields of opts and matches tidegate.ErrInvalid.
func New(t Transport, opts Options) (*Producer, error) {
	if t == nil {
		return nil, fmt.Errorf("producer: %w", &tidegate.Error{
			Subject: "transport", Code: tidegate.CodeBadRequest, Message: "it is nil; give the transport to send through",
		})
	}
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	opts = opts.withDefaults()
	p := &Producer{
		transport: t,
		opts:      opts,
		log:       opts.Logger,
		assumed:   merge(opts, transport.ProducerSettings{}),
		bounds:    opts.bounds(),
		topics:    make(map[string]*topic),
	}
	p.life, p.end = context.WithCancelCause(context.Background()) // independent of the calls
	p.lanes, _ = t.(transport.LaneSender)
	if p.lanes == nil {
		p.lanes = single{t}
	}
	p.ledger = ledger.New[*item](opts.MaxPending, opts.MaxPendingBytes)
	p.functions = ledger.NewFunctions(p.ledger, entryOf, p.call)
	p.observer, _ = opts.Limiter.(observer)
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.events = tally.New(p.log)
	p.bounds.Pacing = guard.Policy("Options.Pacing", opts.Pacing, p.reportPanic)
	switch opts.Backoff.(type) {
	case nil, backoff.Exponential, backoff.Steps: // they do not panic
	default:
		p.backoff = guard.Policy("Options.Backoff", opts.Backoff, p.reportPanic)
	}
	if opts.Spool != nil {
		p.spooler = newSpooler(p)
		p.spooler.startDrain()
	}
	return p, nil
}

// limits returns the limits of a send.
func (p *Producer) limits(s Settings) retry.Limits {
	b := s.Backoff
	if p.backoff != nil {
		b = p.backoff
	}
	return retry.Limits{Bounds: p.bounds, MaxAttempts: s.MaxAttempts, Backoff: b}
}

// use returns the state of a topic. The producer keeps it until release.
func (p *Producer) use(name string) *topic {
	p.mu.RLock()
	t := p.topics[name]
	if t != nil {
		t.users.Add(1)
	}
	p.mu.RUnlock()
	if t != nil {
		return t
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t = p.topics[name]; t == nil {
		if len(p.topics) >= maxTopics {
			for other, idle := range p.topics { // the first idle ones, in random order
				if idle.users.Load() == 0 {
					delete(p.topics, other)
					break
				}
			}
		}
		t = &topic{p: p, name: name, requesting: make(chan struct{}, 1)}
		t.watches = newSet(&t.mu, func(items []*item) { leaveAll(items, false) })
		p.topics[name] = t
	}
	t.users.Add(1)
	return t
}

func (t *topic) release() { t.users.Add(-1) }

// prepare validates a message and returns an item of it with an ID.
func (p *Producer) prepare(ctx context.Context, msg *tidegate.Message, done func(tidegate.Receipt, error)) (*item, *SendError) {
	if msg == nil {
		return nil, errNilMessage
	}
	it := newItem(ctx, msg)
	it.done = done
	if p.closed.Load() {
		return nil, it.fail(StopClosed, errProducerClosed)
	}
	if err := tidegate.ValidateTopic(msg.Topic); err != nil {
		return nil, it.fail(StopInvalid, err) // before the topic is remembered
	}
	it.topic = p.use(msg.Topic)
	settings := p.settings(it.topic)
	largest := settings.MaxBodySize
	if len(msg.Body) > largest && settings.MaxBodySizeFrom != fromClient {
		// The server may accept a larger body than the known limit.
		var err error
		settings, err = p.awaitedSettings(ctx, it.topic)
		if largest = settings.MaxBodySize; err != nil {
			largest = math.MaxInt // the server decides at the attempt, if ctx has not ended
		}
	}
	it.limits = p.limits(settings)
	if err := msg.Validate(largest); err != nil {
		it.topic.release()
		return nil, it.fail(StopInvalid, err)
	}
	it.SetMessage(msg)
	return it, nil
}

var errNilMessage = &SendError{Reason: StopInvalid, Cause: &tidegate.Error{
	Subject: "message", Code: tidegate.CodeBadRequest, Message: "it is nil; give a message",
}}

// admit lets a message in, and waits for a place if the producer is full. The producer owns the
// message until its end. A message without a message group may go to the spool if the producer is
// full. One with a group may not, because older messages of the group may be in the producer.
func (p *Producer) admit(it *item, blocked func()) (err *SendError) {
	when := ledger.Wait
	switch {
	case p.opts.WhenFull == RejectWhenFull:
		when = ledger.Reject
	case p.opts.WhenFull == SpoolWhenFull && it.Message.MessageGroup == "":
		when = ledger.Spool
		it.wake = make(chan struct{}) // before Enter, because Close can end the message from then on
	}
	var place *ledger.Entrant[*item]
	admission, full := ledger.Ended, error(nil)
	if it.ctx.Err() == nil {
		place, admission, full = p.ledger.Enter(it.ctx, it, &it.entry, it.Size, when)
	}
	if place != nil {
		if blocked != nil {
			blocked()
		}
		admission = p.ledger.Await(it.ctx, place)
	}
	switch admission {
	case ledger.Admitted, ledger.Forced:
		it.full = admission == ledger.Forced
		if p.opts.Budget != nil {
			p.opts.Budget.Earn(1)
		}
		return nil
	case ledger.Closed:
		err = it.fail(StopClosed, errProducerClosed)
	case ledger.Full:
		err = it.fail(StopFull, fmt.Errorf("%w: %w", ErrFull, full))
	case ledger.Ended:
		err = it.contextEnded()
	}
	it.topic.release()
	return err
}

// resultOf returns the ledger's class of an item with a result. It also reports whether the item
// has a function of SendAsync.
func resultOf(it *item) (e *ledger.Entry[*item], r ledger.Result, called bool) {
	results := [...]ledger.Result{delivered: ledger.Delivered, spooled: ledger.Spooled, failed: ledger.Failed, aborted: ledger.Aborted}
	switch r = results[it.state]; {
	case it.origin == fromSpool && it.state == delivered:
		r = ledger.Drained
	case it.origin == fromSpool:
		r = ledger.LeftInSpool
	}
	return &it.entry, r, it.done != nil
}

// complete finishes messages that have ended. No lock is held.
func (p *Producer) complete(items []*item) {
	p.conclude(items)
	p.wakeCallers(items)
}

// conclude counts the results of messages and queues the functions of SendAsync. The lock of their
// topic may be held. Calling it before the next message of a group can be sent keeps the functions
// of stored messages in order.
func (p *Producer) conclude(items []*item) {
	if len(items) == 0 {
		return
	}
	p.ledger.Leave(items, resultOf)
	for _, it := range items {
		if it.done != nil {
			p.functions.Add(it)
		}
	}
}

// wakeCallers frees the resources of finished messages and wakes their callers. No lock is held.
func (p *Producer) wakeCallers(items []*item) {
	for _, it := range items {
		it.topic.release()
		if it.unwatch != nil {
			it.unwatch()
		}
		if it.wake != nil {
			close(it.wake)
		}
	}
}
