// Command quickstart shows tidegate in a few seconds, with a real
// producer and real consumers over gRPC on this machine:
//
// A backlog grows to its limit, and the broker rejects the next send with 530 TOO_MANY_REQUESTS.
// The producer backs off as gRPC connections do. A consumer drains the backlog, and the send
// succeeds. Another handler fails on one message again and again: after the last step of the retry
// schedule the message becomes a dead letter.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	b, err := broker.Open(broker.Options{MinInvisibleDuration: time.Millisecond})
	if err != nil {
		return err
	}
	defer b.Close()
	s, err := server.New(b, server.Options{MinLongPolling: time.Millisecond})
	if err != nil {
		return err
	}
	defer s.Close()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()

	t, err := rocketmq.New(lis.Addr().String(), rocketmq.Options{})
	if err != nil {
		return err
	}
	defer t.Close()
	story := &story{out: out, broker: b, transport: t, start: time.Now()}
	story.say("a broker with a backlog limit of %d messages is on %s", limit, lis.Addr())
	if err := story.throttle(ctx); err != nil {
		return err
	}
	if err := story.retry(ctx); err != nil {
		return err
	}
	return errors.Join(story.end(), t.Close(), s.Close(), <-served)
}

const limit = 200 // messages of backlog

// A story runs the steps of the example, prints their results, and collects failed assertions.
type story struct {
	out       io.Writer
	broker    *broker.Broker
	transport *rocketmq.Client
	start     time.Time

	mu     sync.Mutex
	faults []error // guarded by mu
}

func (s *story) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%6.2fs  %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}

// assert records a failed assertion unless ok is true.
func (s *story) assert(ok bool, format string, args ...any) {
	if !ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.faults = append(s.faults, fmt.Errorf("expected, but it did not happen: "+format, args...))
	}
}

func (s *story) end() error {
	if err := errors.Join(s.faults...); err != nil {
		return err
	}
	s.say("all expected steps happened")
	return nil
}

// throttle fills the backlog, is throttled, backs off, and succeeds when a consumer drains it.
func (s *story) throttle(ctx context.Context) error {
	if _, err := s.broker.PutTopic(ctx, "orders", settings.Topic{MaxBacklog: settings.Limit{Messages: limit}}); err != nil {
		return err
	}
	refusals := make(chan struct{}, 100)
	var attempts []producer.Attempt
	p, err := producer.New(s.transport, producer.Options{
		MaxAttempts: 10,
		OnAttempt: func(a producer.Attempt) {
			if a.Class != tidegate.ClassThrottled {
				return
			}
			attempts = append(attempts, a)
			lo, hi := backoff.Default().Range(len(attempts) - 1)
			s.say("attempt %d rejected: %v", a.Number, a.Err)
			s.say("          waits %v (%s; the policy allows %v to %v)", a.Delay.Round(time.Millisecond), a.DelayFrom, lo, hi)
			s.assert(errors.Is(a.Err, tidegate.ErrThrottled), "rejected with 530: %v", a.Err)
			s.assert(a.Delay >= lo && (a.Delay <= hi || a.DelayFrom == "push-back"), "a wait within %v to %v: %v", lo, hi, a.Delay)
			refusals <- struct{}{}
		},
	})
	if err != nil {
		return err
	}
	defer p.Close()
	for i := range limit {
		if _, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: fmt.Appendf(nil, "order %d", i)}); err != nil {
			return err
		}
	}
	s.say("sent %d messages; no consumer runs; the backlog is %d", limit, s.backlog("orders"))
	s.assert(s.backlog("orders") == limit, "a backlog of %d", limit)

	var consumed atomic.Int64
	var draining sync.WaitGroup
	drainCtx, stop := context.WithCancel(ctx)
	draining.Go(func() {
		for range 2 { // the second rejection
			select {
			case <-refusals:
			case <-drainCtx.Done():
				return
			}
		}
		s.say("          a consumer starts")
		s.consume(drainCtx, "billing", "orders", consumer.PushOptions{Concurrency: 20}, func(context.Context, *tidegate.Delivery) error {
			consumed.Add(1)
			return nil
		})
	})
	defer draining.Wait()
	defer stop()

	receipt, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte("one more")})
	if err != nil {
		return err
	}
	s.say("attempt %d accepted: message %s is stored", receipt.Attempts, receipt.MessageID)
	s.assert(receipt.Attempts == len(attempts)+1 && len(attempts) >= 2, "two or more rejections, then success: %d attempts", receipt.Attempts)
	if err := wait(ctx, func() bool { return s.backlog("orders") == 0 }); err != nil {
		return fmt.Errorf("waiting for the backlog to be drained: %w", err)
	}
	s.say("the backlog is 0; %d messages were consumed", consumed.Load())
	s.assert(consumed.Load() == limit+1, "%d consumed: %d", limit+1, consumed.Load())
	return nil
}

// retry has a handler fail on one message until it is a dead letter.
func (s *story) retry(ctx context.Context) error {
	ladder := backoff.Steps{200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond}
	if _, err := s.broker.PutTopic(ctx, "payments", settings.Topic{}); err != nil {
		return err
	}
	if _, err := s.broker.PutGroup(ctx, "ledger", settings.Group{MaxAttempts: 4, Retry: ladder}); err != nil {
		return err
	}
	s.say("group ledger retries by the schedule %v, 4 deliveries in all", ladder)
	p, err := producer.New(s.transport, producer.Options{})
	if err != nil {
		return err
	}
	defer p.Close()
	var sent tidegate.Receipt
	for _, body := range []string{"10 EUR", "poison", "20 EUR"} {
		r, err := p.Send(ctx, &tidegate.Message{Topic: "payments", Body: []byte(body)})
		if err != nil {
			return err
		}
		if body == "poison" {
			sent = r
		}
	}

	var mu sync.Mutex
	var last time.Time
	deliveries := 0
	consumerCtx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		s.consume(consumerCtx, "ledger", "payments", consumer.PushOptions{}, func(_ context.Context, d *tidegate.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			if string(d.Body) != "poison" {
				s.say("payment %q is booked, attempt %d", d.Body, d.Attempt)
				return nil
			}
			deliveries++
			if deliveries > 1 {
				gap, due := time.Since(last), ladder.Delay(deliveries-2)
				s.say("payment %q fails, attempt %d, %v after the last failure (due after %v)", d.Body, d.Attempt, gap.Round(time.Millisecond), due)
				s.assert(gap >= due && gap < due+500*time.Millisecond, "a retry %v after the failure: %v", due, gap)
			} else {
				s.say("payment %q fails, attempt %d", d.Body, d.Attempt)
			}
			s.assert(d.Attempt == deliveries, "attempt %d: %d", deliveries, d.Attempt)
			last = time.Now()
			return errors.New("no such account")
		})
	})
	defer running.Wait()
	defer stop()

	c, err := consumer.NewSimple(s.transport, consumer.Subscription{Group: "operators", Topic: tidegate.DeadLetterTopic("ledger")}, consumer.SimpleOptions{})
	if err != nil {
		return err
	}
	var ds []*tidegate.Delivery
	if err := wait(ctx, func() bool { _, err := s.broker.Topic(tidegate.DeadLetterTopic("ledger")); return err == nil }); err != nil {
		return fmt.Errorf("waiting for a dead letter: %w", err)
	}
	if ds, err = c.Receive(ctx, 1); err != nil {
		return err
	}
	if len(ds) != 1 {
		return errors.New("there is no dead letter")
	}
	o, ok := ds[0].DeadLetter()
	s.say("dead letter in %s: %q, from %s queue %d offset %d, after %d attempts, because: %s",
		ds[0].Topic, ds[0].Body, o.Topic, o.Queue, o.Offset, o.Attempts, o.Reason)
	s.assert(ok && ds[0].ID == sent.MessageID && o.Attempts == 4 && deliveries == 4 && o.Topic == "payments" && o.Offset == sent.Offset,
		"the poison message among the dead letters: %+v", o)
	s.assert(s.backlog("payments") == 0, "nothing left in payments: %d", s.backlog("payments"))
	return c.Ack(ctx, ds[0])
}

// consume runs a push consumer until ctx ends.
func (s *story) consume(ctx context.Context, group, topic string, o consumer.PushOptions, h consumer.Handler) {
	c, err := consumer.NewPush(s.transport, consumer.Subscription{Group: group, Topic: topic}, h, o)
	if err == nil {
		err = c.Run(ctx)
	}
	s.assert(err == nil, "a consumer of %s that runs: %v", topic, err)
}

func (s *story) backlog(topic string) int64 {
	t, err := s.broker.Topic(topic)
	s.assert(err == nil, "a topic %s: %v", topic, err)
	return t.Backlog.Messages
}

// wait polls ok until it returns true, or returns the cause of ctx.
func wait(ctx context.Context, ok func() bool) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
