package bench

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
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
)

// LoadOptions are the messages of a load.
type LoadOptions struct {
	Topic  string
	Group  string // the consumer group, of receives and of a verification
	Limit  int    // operations at the same time, at most
	Groups int    // message groups; 0 means none
	Bodies Bodies
	Log    io.Writer // errors of a consumer

	Async  bool // send with SendAsync
	Batch  int  // messages of an operation, at least 1
	Verify bool // receive the sent messages after the last round

	Messages int // received in a round, at most

	unread bool // the load does not receive its messages
}

func (o *LoadOptions) message(number int64) *tidegate.Message {
	m := &tidegate.Message{Topic: o.Topic}
	if o.unread {
		m.Body = o.Bodies.Plain(number)
	} else {
		m.Body = o.Bodies.Body(number)
	}
	if o.Groups > 0 {
		m.MessageGroup = fmt.Sprintf("g%d", number%int64(o.Groups))
	}
	return m
}

// A sequence sends messages with numbers. Messages of message groups get their numbers in the order
// in which the producer gets the messages.
type sequence struct {
	next atomic.Int64
	mu   sync.Mutex // orders the begins
}

// take returns the first of n numbers.
func (s *sequence) take(n int) int64 { return s.next.Add(int64(n)) - int64(n) }

// begin begins the send of the next message. done is called at its end, unless begin fails.
func (s *sequence) begin(ctx context.Context, p *producer.Producer, o *LoadOptions, done func(number int64, err error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	number := s.take(1)
	return p.SendAsync(ctx, o.message(number), func(_ tidegate.Receipt, err error) { done(number, err) })
}

// send sends the next message and returns its number.
func (s *sequence) send(ctx context.Context, p *producer.Producer, o *LoadOptions) (int64, error) {
	if o.Groups == 0 {
		number := s.take(1)
		_, err := p.Send(ctx, o.message(number))
		return number, err
	}
	type result struct {
		number int64
		err    error
	}
	ended := make(chan result, 1)
	if err := s.begin(ctx, p, o, func(number int64, err error) { ended <- result{number, err} }); err != nil {
		return 0, err
	}
	r := <-ended
	return r.number, r.err
}

// push starts a push consumer. The function ends it and returns its error.
func (o *LoadOptions) push(ctx context.Context, t transport, handle consumer.Handler) (end func() error, err error) {
	c, err := consumer.NewPush(t, consumer.Subscription{Group: o.Group, Topic: o.Topic}, handle, consumer.PushOptions{
		Concurrency: 64, Logger: slog.New(slog.NewTextHandler(o.Log, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(running) }()
	return func() error {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return err
		}
		return nil // the ordered end
	}, nil
}

// A transport is a connection of producers and consumers.
type transport interface {
	producer.Transport
	consumer.Transport
}

// A Load makes the operations that a benchmark measures.
type Load interface {
	// Prepare gets ready for a round. Its time is not measured.
	Prepare(ctx context.Context) error

	// Operation is one measured operation.
	Operation(ctx context.Context, done func(Outcome))

	// Truth waits for the last messages and returns the lost ones; nil if the load does not verify.
	Truth(ctx context.Context) (*Truth, error)

	// Close ends the load.
	Close() error
}

// patience is the longest wait for the last deliveries.
const patience = 10 * time.Second

// complete waits until each accepted message was delivered, or until nothing has been delivered
// for some time.
func complete(ctx context.Context, v *Verifier) Truth {
	last, since := int64(-1), time.Now()
	for !v.Complete() && time.Since(since) < patience && ctx.Err() == nil {
		if n := v.Truth().Delivered; n != last {
			last, since = n, time.Now()
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	return v.Truth()
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

// outcome is the end of an operation of one message.
func outcome(err error) Outcome {
	if err != nil {
		return Outcome{Failures: []string{cause(err)}}
	}
	return Outcome{Messages: 1}
}
