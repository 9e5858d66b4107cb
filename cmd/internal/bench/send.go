package bench

import (
	"context"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer"
)

// A sending measures sends.
type sending struct {
	LoadOptions
	transport transport
	p         *producer.Producer
	sequence  sequence
	verifier  *Verifier // nil without Verify
}

// Sends returns a load of sends.
func Sends(t transport, o LoadOptions) (Load, error) {
	p, err := producer.New(t, producer.Options{MaxPending: max(o.Limit*o.Batch, 1)})
	if err != nil {
		return nil, err
	}
	l := &sending{LoadOptions: o, transport: t, p: p}
	if l.unread = !o.Verify; o.Verify {
		l.verifier = NewVerifier()
	}
	return l, nil
}

func (l *sending) Close() error { return l.p.Close() }

func (l *sending) Prepare(context.Context) error { return nil }

func (l *sending) Operation(ctx context.Context, done func(Outcome)) {
	switch {
	case l.Batch > 1:
		done(l.batch(ctx, l.sequence.take(l.Batch)))
	case l.Async:
		ended := func(number int64, err error) { done(l.ended(number, err)) }
		if err := l.sequence.begin(ctx, l.p, &l.LoadOptions, ended); err != nil {
			done(outcome(err))
		}
	default:
		number, err := l.sequence.send(ctx, l.p, &l.LoadOptions)
		done(l.ended(number, err))
	}
}

func (l *sending) ended(number int64, err error) Outcome {
	if err == nil && l.verifier != nil {
		l.verifier.Accept(number)
	}
	return outcome(err)
}

// batch sends messages together.
func (l *sending) batch(ctx context.Context, first int64) (sum Outcome) {
	messages := make([]*tidegate.Message, l.Batch)
	for i := range messages {
		messages[i] = l.message(first + int64(i))
	}
	for i, r := range l.p.SendBatch(ctx, messages) {
		out := l.ended(first+int64(i), r.Err)
		sum.Messages += out.Messages
		sum.Failures = append(sum.Failures, out.Failures...)
	}
	return sum
}

func (l *sending) Truth(ctx context.Context) (*Truth, error) {
	if l.verifier == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	end, err := l.push(ctx, l.transport, func(_ context.Context, d *tidegate.Delivery) error {
		if number, ok := l.Bodies.Number(d.Body); ok {
			l.verifier.Deliver(number, d.MessageGroup)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	truth := complete(ctx, l.verifier)
	return &truth, end()
}
