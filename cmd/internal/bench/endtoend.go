package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer"
)

// An endToEnd measures messages from their send to their handler. Its consumer runs in the same
// process, so one clock measures both ends.
type endToEnd struct {
	LoadOptions
	p        *producer.Producer
	sequence sequence
	verifier *Verifier
	end      func() error // of the consumer

	mu      sync.Mutex
	waiting map[int64]chan struct{} // by number, closed by the delivery
	last    time.Time               // of the deliveries
}

// EndToEnd returns a load of messages from their send to the begin of their handler, for a consumer
// group without other consumers.
func EndToEnd(ctx context.Context, t transport, o LoadOptions) (Load, error) {
	p, err := producer.New(t, producer.Options{MaxPending: max(o.Limit, 1)})
	if err != nil {
		return nil, err
	}
	l := &endToEnd{LoadOptions: o, p: p, verifier: NewVerifier(), waiting: map[int64]chan struct{}{}}
	if l.end, err = o.push(ctx, t, l.handle); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return l, nil
}

func (l *endToEnd) Close() error { return errors.Join(l.end(), l.p.Close()) }

func (l *endToEnd) Prepare(context.Context) error { return nil }

func (l *endToEnd) Operation(ctx context.Context, done func(Outcome)) {
	number, err := l.sequence.send(ctx, l.p, &l.LoadOptions)
	if err != nil {
		done(outcome(err))
		return
	}
	l.verifier.Accept(number)
	done(l.await(ctx, number))
}

// await waits for the delivery of a message. It gives the message up when no message at all was
// delivered for some time: a slow consumer is not a loss.
func (l *endToEnd) await(ctx context.Context, number int64) Outcome {
	arrived, since := l.arrival(number), time.Now()
	quiet := time.NewTimer(patience)
	defer quiet.Stop()
	for {
		select {
		case <-arrived:
			return Outcome{Messages: 1}
		case <-ctx.Done():
			return Outcome{Failures: []string{"not delivered"}}
		case <-quiet.C:
			if left := l.patience(since); left > 0 {
				quiet.Reset(left)
				continue
			}
			return Outcome{Failures: []string{fmt.Sprintf("not delivered within %v after the last delivery", patience)}}
		}
	}
}

// patience returns for how long to wait for a message that was sent at a time.
func (l *endToEnd) patience(sent time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last.After(sent) {
		sent = l.last
	}
	return patience - time.Since(sent)
}

// arrival returns the channel of a message, which its delivery closes: before the receipt of the
// send, or after it. The second caller removes it.
func (l *endToEnd) arrival(number int64) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	arrived, ok := l.waiting[number]
	if ok {
		delete(l.waiting, number)
		return arrived
	}
	arrived = make(chan struct{})
	l.waiting[number] = arrived
	return arrived
}

func (l *endToEnd) handle(_ context.Context, d *tidegate.Delivery) error {
	number, ok := l.Bodies.Number(d.Body)
	if !ok {
		return nil // not of this run
	}
	if !l.verifier.Deliver(number, d.MessageGroup) {
		return nil
	}
	l.mu.Lock()
	l.last = time.Now()
	l.mu.Unlock()
	close(l.arrival(number))
	return nil
}

func (l *endToEnd) Truth(ctx context.Context) (*Truth, error) {
	truth := complete(ctx, l.verifier)
	return &truth, nil
}
