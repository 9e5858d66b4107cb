package consumer_test

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// server is a small server in one piece. Its FIFO groups are RocketMQ's: several messages of a
// message group in one response.
type server struct {
	t        *testing.T
	settings transport.ConsumerSettings
	queues   []int
	caps     transport.Capabilities
	result   transport.RetryResult // of every Retry
	deaf     bool                  // as on RocketMQ: retries do not wake a parked receive, and are late
	ran      time.Duration         // of each invisible time, before the response came
	silent   bool                  // without a response to requests that settle deliveries

	// Called without a lock before the server does anything; an error is the response.
	onReceive        func() error
	onSettings       func(ctx context.Context) error
	onTopic          func(topic string) error // of a receive
	onAck, onRetry   func(d *tidegate.Delivery) error
	onChange, onDead func(d *tidegate.Delivery) error
	onSnooze         func(d *tidegate.Delivery) error
	onHandOut        func(n int)                                                // called with the lock held
	selects          func(r transport.ReceiveRequest, m *tidegate.Message) bool // nil: all; called with the lock held
	afterAck         func() error                                               // called without a lock; an error replaces the response

	mu       sync.Mutex
	entries  []*entry
	wake     chan struct{}
	serial   int
	polls    []time.Time
	retries  []retryCall
	changes  []time.Duration
	released []string
	dead     map[string]string
	handed   int // deliveries not settled
	maxHand  int
	attempts []string // attempt IDs of receives
	requests []transport.ReceiveRequest
	acks     []int               // deliveries in each request
	given    map[string][]*entry // attempt ID → the deliveries of its receive
	snoozes  []retryCall
}

type entry struct {
	msg     *tidegate.Message
	index   int
	givenTo string // the attempt ID of the receive
	queue   int
	attempt int
	due     time.Time
	handle  string
	done    bool
}

type retryCall struct {
	id      string
	attempt int
	delay   time.Duration
}

// ours are the capabilities of a tidegate broker, beside deciding about retries.
var ours = transport.Capabilities{Suspend: true, IdempotentDeadLetter: true, RepeatReceive: true, RepeatChange: true, Verdicts: transport.Snooze}

func newServer(t *testing.T) *server {
	return &server{t: t, queues: []int{transport.AnyQueue}, wake: make(chan struct{}), dead: map[string]string{}, given: map[string][]*entry{}}
}

// withServer runs f in a bubble of package synctest, with a server without capabilities.
func withServer(t *testing.T, f func(t *testing.T, s *server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newServer(t)) })
}

// withBroker runs f in a bubble of package synctest, with a server that has those of a tidegate
// broker.
func withBroker(t *testing.T, f func(t *testing.T, s *server)) {
	t.Helper()
	withServer(t, func(t *testing.T, s *server) {
		s.caps = ours
		f(t, s)
	})
}

// onServer and onBroker return subtests that call withServer and withBroker.
func onServer(f func(t *testing.T, s *server)) func(t *testing.T) {
	return func(t *testing.T) { withServer(t, f) }
}

func onBroker(f func(t *testing.T, s *server)) func(t *testing.T) {
	return func(t *testing.T) { withBroker(t, f) }
}

func (s *server) changed() {
	close(s.wake)
	s.wake = make(chan struct{})
}

func (s *server) add(queue int, msgs ...*tidegate.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range msgs {
		s.entries = append(s.entries, &entry{msg: m, queue: queue, index: len(s.entries)})
	}
	s.changed()
}

// fill adds n messages.
func (s *server) fill(n int) {
	for i := range n {
		s.add(0, &tidegate.Message{ID: fmt.Sprint("m", i), Topic: "orders", Body: []byte("x")})
	}
}

// inHand returns how many deliveries are not settled.
func (s *server) inHand() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handed
}

// spent returns how many attempts of messages were counted that are not consumed.
func (s *server) spent() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		if !e.done {
			n += e.attempt
		}
	}
	return n
}

func (s *server) left() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		if !e.done {
			n++
		}
	}
	return n
}

// again returns the deliveries of an earlier receive with the attempt ID, with new handles.
func (s *server) again(r transport.ReceiveRequest, now time.Time) (ds []*tidegate.Delivery) {
	for _, e := range s.given[r.AttemptID] {
		if !e.done && e.handle != "" && now.Before(e.due) && e.givenTo == r.AttemptID {
			s.serial++
			e.handle = fmt.Sprint(e.index, "/", s.serial)
			ds = append(ds, s.delivery(e, r.Group))
		}
	}
	return ds
}

func (s *server) delivery(e *entry, group string) *tidegate.Delivery {
	return &tidegate.Delivery{
		Message: *e.msg.Clone(), ConsumerGroup: group, Attempt: e.attempt, Handle: e.handle,
		Queue: e.queue, Offset: int64(e.index), InvisibleUntil: e.due,
	}
}

func (s *server) take(r transport.ReceiveRequest, now time.Time) (ds []*tidegate.Delivery, next time.Time) {
	if r.AttemptID != "" && s.caps.RepeatReceive {
		if ds = s.again(r, now); len(ds) > 0 || r.Repeat {
			return ds, time.Time{}
		}
	}
	out := map[string]bool{} // message groups and lite topics with something in flight or waiting for a retry
	for _, e := range s.entries {
		if !e.done && now.Before(e.due) {
			out[e.msg.OrderKey()] = s.settings.FIFO && e.msg.MessageGroup != "" || e.msg.LiteTopic != ""
			if next.IsZero() || e.due.Before(next) {
				next = e.due
			}
		}
	}
	for _, e := range s.entries {
		if e.done || now.Before(e.due) || out[e.msg.OrderKey()] || len(ds) == r.Max || r.Topic != e.msg.Topic ||
			r.Queue != transport.AnyQueue && r.Queue != e.queue || s.selects != nil && !s.selects(r, e.msg) {
			continue
		}
		if e.handle != "" { // timed out
			s.handed--
		}
		s.serial++
		e.attempt++
		e.handle, e.due = fmt.Sprint(e.index, "/", s.serial), now.Add(r.InvisibleDuration-s.ran)
		e.givenTo = r.AttemptID
		s.given[r.AttemptID] = append(s.given[r.AttemptID], e)
		s.handed++
		s.maxHand = max(s.maxHand, s.handed)
		ds = append(ds, s.delivery(e, r.Group))
	}
	if s.onHandOut != nil {
		s.onHandOut(len(ds))
	}
	return ds, next
}

func (s *server) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	s.mu.Lock()
	s.polls = append(s.polls, time.Now())
	s.attempts = append(s.attempts, r.AttemptID)
	s.requests = append(s.requests, r)
	s.mu.Unlock()
	if s.onReceive != nil {
		if err := s.onReceive(); err != nil {
			return nil, err
		}
	}
	if s.onTopic != nil {
		if err := s.onTopic(r.Topic); err != nil {
			return nil, err
		}
	}
	end := time.Now().Add(r.Wait)
	for {
		now := time.Now()
		s.mu.Lock()
		if ctx.Err() != nil {
			s.mu.Unlock()
			return nil, context.Cause(ctx)
		}
		ds, next := s.take(r, now)
		wake := s.wake
		s.mu.Unlock()
		if len(ds) > 0 || !now.Before(end) || r.Repeat {
			return ds, nil
		}
		if next.IsZero() || next.After(end) {
			next = end
		}
		if s.deaf {
			next, wake = end, nil
		}
		timer := time.NewTimer(next.Sub(now))
		select {
		case <-wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

func (s *server) settle(ctx context.Context, d *tidegate.Delivery, hook func(*tidegate.Delivery) error, change func(*entry)) error {
	if hook != nil {
		if err := hook(d); err != nil {
			return err
		}
	}
	if s.silent {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[d.Offset]
	if e.done || e.handle != d.Handle || !time.Now().Before(e.due) {
		return &tidegate.Error{Subject: d.ID, Code: tidegate.CodeInvalidReceiptHandle}
	}
	change(e)
	s.changed()
	return nil
}

func (s *server) end(e *entry, due time.Time) {
	e.handle, e.due = "", due
	s.handed--
}

func (s *server) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	s.mu.Lock()
	s.acks = append(s.acks, len(ds))
	s.mu.Unlock()
	errs := make([]error, len(ds))
	for i, d := range ds {
		errs[i] = s.settle(ctx, d, s.onAck, func(e *entry) { e.done = true; s.end(e, e.due) })
		if s.afterAck != nil {
			errs[i] = cmp.Or(s.afterAck(), errs[i])
		}
	}
	return errs
}

func (s *server) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (res transport.RetryResult, err error) {
	switch v.Kind {
	case transport.Release:
		return res, s.settle(ctx, d, s.onChange, func(e *entry) {
			s.released = append(s.released, d.ID)
			if s.caps.Suspend {
				e.attempt--
			}
			s.end(e, time.Now())
		})
	case transport.Retry:
		return s.result, s.settle(ctx, d, s.onRetry, func(e *entry) {
			s.retries = append(s.retries, retryCall{d.ID, d.Attempt, v.Delay})
			if s.deaf {
				v.Delay += 2200 * time.Millisecond // as seen on RocketMQ 5.2.0
			}
			s.end(e, time.Now().Add(v.Delay))
		})
	case transport.DeadLetter:
		return res, s.settle(ctx, d, s.onDead, func(e *entry) {
			s.dead[d.ID] = v.Reason
			e.done = true
			s.end(e, e.due)
		})
	case transport.Snooze:
		if s.caps.Verdicts.Has(transport.Snooze) {
			return res, s.settle(ctx, d, s.onSnooze, func(e *entry) {
				s.snoozes = append(s.snoozes, retryCall{d.ID, d.Attempt, v.Delay})
				e.attempt--
				s.end(e, time.Now().Add(v.Delay))
			})
		}
	}
	return res, v.Unsupported(d)
}

func (s *server) Extend(ctx context.Context, d *tidegate.Delivery, dur time.Duration, _ bool) (handle string, err error) {
	err = s.settle(ctx, d, s.onChange, func(e *entry) {
		s.changes = append(s.changes, dur)
		s.serial++
		e.handle, e.due = fmt.Sprint(d.Offset, "/", s.serial), time.Now().Add(dur)
		handle = e.handle
	})
	return handle, err
}

func (s *server) ProducerSettings(context.Context, string) (transport.ProducerSettings, error) {
	return transport.ProducerSettings{}, nil
}

func (s *server) ConsumerSettings(ctx context.Context, _, _ string) (transport.ConsumerSettings, error) {
	if s.onSettings != nil {
		if err := s.onSettings(ctx); err != nil {
			return transport.ConsumerSettings{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settings, nil
}

func (s *server) Queues(context.Context, string, string) ([]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queues, nil
}

func (s *server) Capabilities(string) transport.Capabilities { return s.caps }

// start runs a push consumer until stop is called, which returns the result of Run.
func start(t *testing.T, s consumer.Transport, sub consumer.Subscription, h consumer.Handler, o consumer.PushOptions) (stop func() error) {
	t.Helper()
	if sub.Group == "" {
		sub.Group = "billing"
		if len(sub.Topics) == 0 {
			sub.Topic = "orders"
		}
	}
	p := assert.Value(consumer.NewPush(s, sub, h, o))(t)
	return runPush(t, p)
}

// runFor runs a push consumer for a time.
func runFor(t *testing.T, d time.Duration, s consumer.Transport, sub consumer.Subscription, h consumer.Handler, o consumer.PushOptions) {
	t.Helper()
	stop := start(t, s, sub, h, o)
	time.Sleep(d)
	stop()
}

// runPush runs a push consumer until stop is called, which returns the result of Run.
func runPush(t *testing.T, p *consumer.Push) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = func() error {
		cancel()
		err := <-done
		done <- err
		return err
	}
	t.Cleanup(func() { stop() })
	return stop
}

// outcomes collects the outcomes of OnDelivery.
type outcomes struct {
	mu   sync.Mutex
	list []consumer.Outcome
}

func (o *outcomes) add(out consumer.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, out)
}

func (o *outcomes) all() []consumer.Outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]consumer.Outcome(nil), o.list...)
}
