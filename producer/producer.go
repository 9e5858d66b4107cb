package producer

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A Transport is what a producer needs of a transport.
type Transport interface {
	transport.Sender

	// ProducerSettings is that of transport.Configurer.
	ProducerSettings(ctx context.Context, topic string) (transport.ProducerSettings, error)
}

// A Producer sends messages. Goroutines may share it, and one is enough for a
// program. Make one with [New]; the zero value must not be used. It remembers
// a little of every topic that it was used for.
type Producer struct {
	transport Transport
	opts      Options
	log       *slog.Logger
	unasked   Settings //  as long as the server was not asked
	topics    sync.Map // name → *topic

	mu     sync.Mutex                            // guards the next two; never held while waiting
	active map[*underWay]context.CancelCauseFunc // the sends under way, and questions for settings
	closed bool

	sends   sync.WaitGroup
	pending pending
}

// underWay identifies what Close ends and waits for. It is not empty, so that
// each has an address of its own.
type underWay struct{ _ byte }

// New returns a producer that sends through t, which has to be open for as long
// as the producer is. It does not connect and starts no goroutine. The error
// joins all faults of opts and matches tidegate.ErrInvalid.
func New(t Transport, opts Options) (*Producer, error) {
	if t == nil {
		return nil, fmt.Errorf("producer: %w", &tidegate.Error{
			Subject: "transport", Code: tidegate.CodeBadRequest, Message: "it is nil; give the one to send through",
		})
	}
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	if opts.AttemptTimeout == 0 {
		opts.AttemptTimeout = DefaultAttemptTimeout
	}
	if opts.MaxPending == 0 {
		opts.MaxPending = DefaultMaxPending
	}
	p := &Producer{
		transport: t,
		opts:      opts,
		log:       opts.Logger,
		unasked:   merge(opts, transport.ProducerSettings{}),
		active:    make(map[*underWay]context.CancelCauseFunc),
		pending:   pending{last: make(map[turn]chan struct{})},
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	return p, nil
}

// begin registers a send or a question, so that Close finds it. It returns false if the
// producer is closed.
func (p *Producer) begin(cancel context.CancelCauseFunc) (*underWay, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false
	}
	a := new(underWay)
	p.active[a] = cancel
	p.sends.Add(1)
	return a, true
}

func (p *Producer) end(a *underWay) {
	p.mu.Lock()
	delete(p.active, a)
	p.mu.Unlock()
	p.sends.Done()
}

// Close ends the sends under way with tidegate.ErrClosed, waits until they have
// returned, those of SendAsync were told and no goroutine of the producer is
// left, and refuses later ones with the same error. It may be called again and
// by several goroutines, always returns nil, and leaves the transport open.
func (p *Producer) Close() error {
	p.mu.Lock()
	p.closed = true
	cancels := make([]context.CancelCauseFunc, 0, len(p.active))
	for _, cancel := range p.active {
		cancels = append(cancels, cancel)
	}
	p.mu.Unlock()
	for _, cancel := range cancels {
		cancel(tidegate.ErrClosed)
	}
	p.sends.Wait()
	return nil
}
