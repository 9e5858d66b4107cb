package client

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/bench"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// A sendLoad measures sends.
type sendLoad struct {
	*benchCommand
	p      *producer.Producer
	topic  string
	number atomic.Int64
}

func (l *sendLoad) open(_ context.Context, t *rocketmq.Client, topic string) (func() error, error) {
	p, err := producer.New(t, producer.Options{MaxPending: max(l.Callers, 1)})
	if err != nil {
		return nil, err
	}
	l.p, l.topic = p, topic
	return p.Close, nil
}

func (l *sendLoad) operation(ctx context.Context) string {
	if _, err := l.p.Send(ctx, l.message(l.topic, l.number.Add(1)-1)); err != nil {
		return cause(err)
	}
	return ""
}

func (l *sendLoad) truth(context.Context) *bench.Truth { return nil }

// An endToEnd measures messages from their send to their handler. Its consumer runs in the same
// process, so one clock measures both ends.
type endToEnd struct {
	*benchCommand
	p        *producer.Producer
	topic    string
	number   atomic.Int64
	verifier *bench.Verifier

	mu      sync.Mutex
	waiting map[int64]chan struct{} // by number, closed by the delivery
}

func newEndToEnd(b *benchCommand) *endToEnd {
	return &endToEnd{benchCommand: b, verifier: bench.NewVerifier(), waiting: map[int64]chan struct{}{}}
}

func (l *endToEnd) open(ctx context.Context, t *rocketmq.Client, topic string) (func() error, error) {
	p, err := producer.New(t, producer.Options{MaxPending: max(l.Callers, 1)})
	if err != nil {
		return nil, err
	}
	l.p, l.topic = p, topic
	sub := consumer.Subscription{Group: "bench-" + tidegate.NewMessageID(), Topic: topic}
	if l.intoExisting {
		sub.Group = "bench"
	}
	c, err := consumer.NewPush(t, sub, l.handle, consumer.PushOptions{
		Concurrency: 64, Logger: slog.New(slog.NewTextHandler(l.Err, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(running) }()
	return func() error {
		stop()
		err := <-ended
		if errors.Is(err, context.Canceled) {
			err = nil // the ordered end
		}
		return errors.Join(err, p.Close(), l.removeGroup(ctx, sub.Group))
	}, nil
}

// removeGroup deletes the consumer group of a topic of its own.
func (l *endToEnd) removeGroup(ctx context.Context, group string) error {
	if l.intoExisting {
		return nil
	}
	client, err := l.admin(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := l.bounded(context.WithoutCancel(ctx))
	defer cancel()
	if err := client.DeleteGroup(ctx, group); !errors.Is(err, tidegate.ErrNotFound) {
		return err
	}
	return nil
}

func (l *endToEnd) operation(ctx context.Context) string {
	number := l.number.Add(1) - 1
	arrived := make(chan struct{})
	l.mu.Lock()
	l.waiting[number] = arrived
	l.mu.Unlock()
	if _, err := l.p.Send(ctx, l.message(l.topic, number)); err != nil {
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

func (l *endToEnd) truth(ctx context.Context) *bench.Truth {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !l.verifier.Complete() {
		if sleep(ctx, 10*time.Millisecond) != nil {
			break
		}
	}
	v := l.verifier.Truth()
	return &v
}
