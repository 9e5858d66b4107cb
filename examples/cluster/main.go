// Command cluster sends to and receives from a RocketMQ cluster of two brokers and two proxies,
// while it kills each of them in turn with kill -9 and starts it again. Two of four producers and
// two of four consumers keep messages in order. For each phase the program prints the accepted
// sends, their rate, the longest send, the sends that failed, the deliveries of a message that had
// been received before, and those out of order. In the end every accepted message must have been
// received: otherwise the program exits with 1. It does the same if a server does not start, and
// after an interrupt. It ends its servers in all cases and removes their data.
//
//	go run ./examples/cluster
//	go run ./examples/cluster -phase 1m -version 5.4.0
//
// It needs a Java of version 8 or later, Maven, which downloads RocketMQ once, and 2 GiB of memory.
// If it is killed, "go run ./transport/rocketmq/interop/rocketmq down --port 18081" ends the
// servers. Do not run it on a machine that others can reach: RocketMQ's proxies listen on all
// addresses.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
	"github.com/tidegate/tidegate/transport/rocketmq/interop/runner"
)

// The topics, with a consumer group each. The second one keeps the order of message groups.
const (
	orders, billing   = "orders", "billing"
	accounts, booking = "accounts", "booking"
)

// The limits of a run.
const (
	minPhase, maxPhase = time.Second, 5 * time.Minute
	startLimit         = 10 * time.Minute // Maven may download RocketMQ
	restartLimit       = 5 * time.Minute
	drainLimit         = 5 * time.Minute
	endLimit           = time.Minute
	sendLimit          = 30 * time.Second
	maxSends           = 50_000 // of each sender
)

// An options describes a run.
type options struct {
	phase   time.Duration // of each phase, after the kill or the start of a server
	port    int           // of the first proxy; the second has the next one
	version string        // of RocketMQ
}

func main() {
	newest := runner.Versions[len(runner.Versions)-1]
	var o options
	flag.DurationVar(&o.phase, "phase", 10*time.Second, "the `time` of each phase, from 1s to 5m")
	flag.IntVar(&o.port, "port", 18081, "the gRPC `port` of the first proxy; the second one has the next port")
	flag.StringVar(&o.version, "version", newest, "the `version` of RocketMQ: "+strings.Join(runner.Versions, ", "))
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, o options) (err error) {
	if o.phase < minPhase || o.phase > maxPhase {
		return fmt.Errorf("-phase is %v: it must be %v to %v", o.phase, minPhase, maxPhase)
	}
	began := time.Now()
	servers, remove, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	fmt.Fprintf(out, "RocketMQ %s serves after %.0f s: two brokers, and two proxies at %s\n%s\n",
		o.version, time.Since(began).Seconds(), strings.Join(servers.Endpoints(), ";"), heading)

	l := newLedger()
	l.begin("all run", false, time.Now())
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	load, err := newLoad(ctx, servers.Endpoints(), l, fail)
	if err != nil {
		return err
	}
	defer load.close()
	next := func(name string, drain bool) { fmt.Fprintln(out, l.begin(name, drain, time.Now()).row()) }
	if err := backoff.Sleep(ctx, o.phase); err != nil {
		return context.Cause(ctx)
	}
	for _, name := range []string{"broker-b", "proxy-1", "broker-a", "proxy-2"} {
		for _, step := range []struct {
			name string
			do   func(context.Context, ...string) error
		}{{name + " is killed", servers.Kill}, {name + " starts", servers.Start}} {
			next(step.name, false)
			limited, cancel := context.WithTimeoutCause(ctx, restartLimit, fmt.Errorf("the limit of %v is over", restartLimit))
			err := step.do(limited, name)
			cancel()
			if err != nil {
				return err
			}
			if err := backoff.Sleep(ctx, o.phase); err != nil {
				return context.Cause(ctx)
			}
		}
	}
	load.endSends()
	next("drain", true)
	err = drained(ctx, l)
	next("", false)
	all, stored := l.total()
	fmt.Fprintln(out, all.row())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%d messages were accepted, and all were received; so were %d whose sends failed\n", all.accepted, stored)
	return err
}

// start starts the servers, with their topics and consumer groups. remove ends them, as after an
// error.
func start(ctx context.Context, o options) (s *runner.Setup, remove func() error, err error) {
	if earlier, err := runner.Open(o.port); err == nil {
		if _, pids := earlier.Processes(); len(pids) > 0 {
			return nil, nil, fmt.Errorf("a RocketMQ runs with the port %d already: end it (go run ./transport/rocketmq/interop/rocketmq down --port %d), or give another -port", o.port, o.port)
		}
		if err := earlier.Wipe(ctx); err != nil { // data of a run that was killed
			return nil, nil, err
		}
	}
	remove = func() error {
		s, err := runner.Open(o.port)
		if err != nil {
			return nil // nothing was started
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
		defer cancel()
		return s.Wipe(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("the servers did not start within %v", startLimit))
	defer cancel()
	s, err = runner.Up(ctx, runner.Options{Port: o.port, Version: o.version, Brokers: 2, Proxies: 2, Heap: "256m"})
	if err == nil {
		err = errors.Join(
			s.Topic(ctx, orders, "NORMAL", 4), s.Group(ctx, billing, runner.Group{MaxRetries: 16}),
			s.Topic(ctx, accounts, "FIFO", 4), s.Group(ctx, booking, runner.Group{MaxRetries: 16, FIFO: true}))
	}
	if err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	return s, remove, nil
}

// drained waits until all accepted messages have been received.
func drained(ctx context.Context, l *ledger) error {
	limit := time.After(drainLimit)
	for {
		n, example := l.lacks()
		if n == 0 {
			return nil
		}
		select {
		case <-l.changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-limit:
			return fmt.Errorf("%d accepted messages are lost: they were not received within %v after the last send, for example %s", n, drainLimit, example)
		}
	}
}

// A load is the producers and consumers of a run, each with a client of its own, as programs on
// different machines have.
type load struct {
	ledger    *ledger
	stop      chan struct{} // closed for the senders
	stopOnce  sync.Once
	senders   sync.WaitGroup
	consumers sync.WaitGroup
	cancel    context.CancelFunc // of the consumers
	closers   []func() error
}

// newLoad starts the producers and consumers. It calls fail with the error of a consumer that ends
// before close.
func newLoad(ctx context.Context, endpoints []string, ledger *ledger, fail func(error)) (*load, error) {
	consuming, cancel := context.WithCancel(ctx)
	l := &load{ledger: ledger, stop: make(chan struct{}), cancel: cancel}
	for i := range 2 {
		err := errors.Join(
			l.consume(consuming, endpoints, consumer.Subscription{Group: billing, Topic: orders}, fail),
			l.consume(consuming, endpoints, consumer.Subscription{Group: booking, Topic: accounts}, fail),
			l.produce(ctx, endpoints, 8, 100*time.Millisecond, func(int, int) *tidegate.Message {
				return &tidegate.Message{Topic: orders, Body: []byte("3 apples")}
			}),
			l.produce(ctx, endpoints, 4, 200*time.Millisecond, func(sender, number int) *tidegate.Message {
				return &tidegate.Message{
					Topic: accounts, MessageGroup: fmt.Sprintf("account-%d-%d", i, sender), Body: []byte(strconv.Itoa(number)),
				}
			}))
		if err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

// connect returns a client that ends with the load.
func (l *load) connect(endpoints []string) (*rocketmq.Client, error) {
	c, err := rocketmq.New(strings.Join(endpoints, ";"), rocketmq.Options{})
	if err == nil {
		l.closers = append(l.closers, c.Close)
	}
	return c, err
}

// consume runs a consumer.
func (l *load) consume(ctx context.Context, endpoints []string, sub consumer.Subscription, fail func(error)) error {
	t, err := l.connect(endpoints)
	if err != nil {
		return err
	}
	c, err := consumer.NewPush(t, sub, func(_ context.Context, d *tidegate.Delivery) error {
		number := 0
		if d.MessageGroup != "" {
			var err error
			if number, err = strconv.Atoi(string(d.Body)); err != nil {
				return err
			}
		}
		l.ledger.arrived(d.ID, d.MessageGroup, number)
		return nil
	}, consumer.PushOptions{
		InvisibleDuration: 10 * time.Second,              // RocketMQ's minimum: redeliveries wait for it
		Logger:            slog.New(slog.DiscardHandler), // the receives from a killed server fail
	})
	if err != nil {
		return err
	}
	l.consumers.Go(func() {
		if err := c.Run(ctx); err != nil {
			fail(fmt.Errorf("the consumer of %s ended: %w", sub.Topic, err))
		}
	})
	return nil
}

// produce runs senders of one producer. Each of them sends its messages one after the other, at
// most one in each interval.
func (l *load) produce(ctx context.Context, endpoints []string, senders int, interval time.Duration, message func(sender, number int) *tidegate.Message) error {
	t, err := l.connect(endpoints)
	if err != nil {
		return err
	}
	p, err := producer.New(t, producer.Options{})
	if err != nil {
		return err
	}
	l.closers = append(l.closers, p.Close)
	for sender := range senders {
		l.senders.Go(func() {
			tick := time.NewTicker(interval)
			defer tick.Stop()
			for number := range maxSends {
				select {
				case <-tick.C:
				case <-l.stop:
					return
				case <-ctx.Done():
					return
				}
				l.send(ctx, p, message(sender, number+1))
			}
		})
	}
	return nil
}

func (l *load) send(ctx context.Context, p *producer.Producer, m *tidegate.Message) {
	ctx, cancel := context.WithTimeout(ctx, sendLimit)
	defer cancel()
	began := time.Now()
	r, err := p.Send(ctx, m)
	l.ledger.sent(r.MessageID, time.Since(began), err)
}

// endSends waits for the ends of the sends under way, and no other begins.
func (l *load) endSends() {
	l.stopOnce.Do(func() { close(l.stop) })
	l.senders.Wait()
}

// close ends the senders and the consumers.
func (l *load) close() {
	l.endSends()
	l.cancel()
	l.consumers.Wait()
	for i := range l.closers { // a producer before its client
		_ = l.closers[len(l.closers)-1-i]() // the servers have acknowledged what they have
	}
}
