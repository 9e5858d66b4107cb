// Package load has what a benchmark measures: sends, and messages from their send to their handler.
package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/bench"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
)

// Options are the messages of a load.
type Options struct {
	Topic   string
	Callers int // that send at the same time
	Groups  int // message groups; 0 means none
	Bodies  bench.Bodies
	Log     io.Writer // errors of the consumer
}

func (o *Options) message(number int64) *tidegate.Message {
	m := &tidegate.Message{Topic: o.Topic, Body: o.Bodies.Body(number)}
	if o.Groups > 0 {
		m.MessageGroup = fmt.Sprintf("g%d", number%int64(o.Groups))
	}
	return m
}

// A Load is what a benchmark measures.
type Load interface {
	// Operation is one measured operation.
	Operation(ctx context.Context) (failure string)

	// Truth waits for the last messages and returns what was lost; nil if the load does not verify.
	Truth(ctx context.Context) *bench.Truth

	// Close ends the load.
	Close() error
}

// A sending measures sends.
type sending struct {
	Options
	p      *producer.Producer
	number atomic.Int64
}

// Sends returns a load of sends.
func Sends(t producer.Transport, o Options) (Load, error) {
	p, err := producer.New(t, producer.Options{MaxPending: max(o.Callers, 1)})
	if err != nil {
		return nil, err
	}
	return &sending{Options: o, p: p}, nil
}

func (l *sending) Close() error { return l.p.Close() }

func (l *sending) Operation(ctx context.Context) string {
	if _, err := l.p.Send(ctx, l.message(l.number.Add(1)-1)); err != nil {
		return cause(err)
	}
	return ""
}

func (l *sending) Truth(context.Context) *bench.Truth { return nil }

// An endToEnd measures messages from their send to their handler. Its consumer runs in the same
// process, so one clock measures both ends.
type endToEnd struct {
	Options
	p        *producer.Producer
	number   atomic.Int64
	verifier *bench.Verifier
	stop     func()     // the consumer
	ended    chan error // its result

	mu      sync.Mutex
	waiting map[int64]chan struct{} // by number, closed by the delivery
}

// A Transport is a connection of producers and consumers.
type Transport interface {
	producer.Transport
	consumer.Transport
}

// EndToEnd returns a load of messages from their send to the begin of their handler, for a consumer
// group that nobody else uses.
func EndToEnd(ctx context.Context, t Transport, o Options, group string) (Load, error) {
	p, err := producer.New(t, producer.Options{MaxPending: max(o.Callers, 1)})
	if err != nil {
		return nil, err
	}
	l := &endToEnd{Options: o, p: p, verifier: bench.NewVerifier(), waiting: map[int64]chan struct{}{}, ended: make(chan error, 1)}
	c, err := consumer.NewPush(t, consumer.Subscription{Group: group, Topic: o.Topic}, l.handle, consumer.PushOptions{
		Concurrency: 64, Logger: slog.New(slog.NewTextHandler(o.Log, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	go func() { l.ended <- c.Run(running) }()
	return l, nil
}

func (l *endToEnd) Close() error {
	l.stop()
	err := <-l.ended
	if errors.Is(err, context.Canceled) {
		err = nil // the ordered end
	}
	return errors.Join(err, l.p.Close())
}

func (l *endToEnd) Operation(ctx context.Context) string {
	number := l.number.Add(1) - 1
	arrived := make(chan struct{})
	l.mu.Lock()
	l.waiting[number] = arrived
	l.mu.Unlock()
	if _, err := l.p.Send(ctx, l.message(number)); err != nil {
		return cause(err)
	}
	l.verifier.Accept()
	select {
	case <-arrived:
		return ""
	case <-ctx.Done():
		return "not delivered"
	}
}

func (l *endToEnd) handle(_ context.Context, d *tidegate.Delivery) error {
	number, ok := bench.Number(d.Body)
	if !ok {
		return nil // not of this run
	}
	if !l.verifier.Deliver(number, d.MessageGroup) {
		return nil
	}
	l.mu.Lock()
	arrived := l.waiting[number]
	delete(l.waiting, number)
	l.mu.Unlock()
	if arrived != nil {
		close(arrived)
	}
	return nil
}

// patience is the longest wait for the last deliveries.
const patience = 10 * time.Second

func (l *endToEnd) Truth(ctx context.Context) *bench.Truth {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !l.verifier.Complete() {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
			continue
		}
		break
	}
	v := l.verifier.Truth()
	return &v
}

// cause groups failed sends: the name of the code, or the reason of the end.
func cause(err error) string {
	if e, ok := errors.AsType[*tidegate.Error](err); ok && e.Code != 0 {
		return e.Code.String()
	}
	if e, ok := errors.AsType[*producer.SendError](err); ok {
		return e.Reason.String()
	}
	return err.Error()
}
