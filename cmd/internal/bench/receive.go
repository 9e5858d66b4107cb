package bench

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
)

// A receiving measures receives with their acknowledgements.
type receiving struct {
	LoadOptions
	transport transport
	p         *producer.Producer
	s         *consumer.Simple
	verifier  *Verifier
	number    int64
}

// Receives returns a load of receives with acknowledgements, of messages that it sends before each
// round.
func Receives(t transport, o LoadOptions) (Load, error) {
	p, err := producer.New(t, producer.Options{})
	if err != nil {
		return nil, err
	}
	s, err := consumer.NewSimple(t, consumer.Subscription{Group: o.Group, Topic: o.Topic}, consumer.SimpleOptions{InvisibleDuration: time.Minute, LongPolling: time.Second})
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return &receiving{LoadOptions: o, transport: t, p: p, s: s, verifier: NewVerifier()}, nil
}

func (l *receiving) Close() error { return l.p.Close() }

// Prepare sends the messages of a round.
func (l *receiving) Prepare(ctx context.Context) error {
	var mu sync.Mutex
	var first error
	ended := func(number int64) func(tidegate.Receipt, error) {
		return func(_ tidegate.Receipt, err error) {
			if err == nil {
				l.verifier.Accept(number)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			first = cmp.Or(first, err)
		}
	}
	for range l.Messages {
		if err := l.p.SendAsync(ctx, l.message(l.number), ended(l.number)); err != nil {
			return err
		}
		l.number++
	}
	if err := l.p.Flush(ctx); err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	return first
}

func (l *receiving) Operation(ctx context.Context, done func(Outcome)) {
	ds, err := l.s.Receive(ctx, l.Batch)
	if err != nil {
		done(outcome(err))
		return
	}
	var out Outcome
	if len(ds) > 0 {
		for i, err := range l.transport.Ack(ctx, ds) {
			if err != nil {
				out.Failures = append(out.Failures, cause(err))
				continue
			}
			out.Messages++
			if number, ok := l.Bodies.Number(ds[i].Body); ok {
				l.verifier.Deliver(number, ds[i].MessageGroup)
			}
		}
	}
	out.Last = l.verifier.Complete()
	done(out)
}

// Truth receives the remaining messages of the last round.
func (l *receiving) Truth(ctx context.Context) (*Truth, error) {
	for since := time.Now(); !l.verifier.Complete() && time.Since(since) < patience && ctx.Err() == nil; {
		l.Operation(ctx, func(out Outcome) {
			if out.Messages > 0 {
				since = time.Now()
			}
		})
	}
	truth := l.verifier.Truth()
	return &truth, nil
}
