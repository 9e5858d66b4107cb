// Command switch sends to a primary and a secondary system of different kinds: Apache ActiveMQ
// Artemis over AMQP 1.0, and a tidegate broker over gRPC. Both run as processes with their data on
// the disk. The program kills them with kill -9 under load and starts them again. It prints each
// step and exits with 1 if a send failed, if an accepted message was lost or had its effect twice,
// or if sends did not return to Artemis.
//
// Run it in its directory, with 'go run .'. It needs a JDK of version 17 or later and Maven, which
// downloads Artemis once. It takes about a minute.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/inbox"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/amqp"
	"github.com/tidegate/tidegate/transport/failover"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

const topic, group = "orders", "billing"

func main() {
	data := flag.String("serve", "", "be the tidegate broker with this data `directory`; the program starts itself with it")
	address := flag.String("address", "127.0.0.1:0", "`host:port` of -serve")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	if *data != "" {
		err = serve(ctx, *data, *address)
	} else {
		err = run(ctx, os.Stdout)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "switch:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute) // Maven may download Artemis
	defer cancel()
	dir, err := os.MkdirTemp("", "tidegate-switch-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	begin := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(out, "%6.2f s  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}
	artemis, err := newArtemis(ctx, dir)
	if err != nil {
		return err
	}
	secondary := newTidegate(dir)
	for _, n := range []*node{artemis, secondary} {
		if err := n.start(ctx); err != nil {
			return err
		}
		defer n.kill()
	}
	say("Artemis serves at %s, with journal-datasync; tidegate at %s", artemis.address, secondary.address)

	switches := make(chan failover.Event, 8)
	t, err := connect(ctx, artemis, secondary, func(e failover.Event) { switches <- e })
	if err != nil {
		return err
	}
	defer t.Close()
	await := func(to string) error {
		select {
		case e := <-switches:
			say("sends go from %s to %s: %s", e.From, e.To, e.Reason)
			if e.To != to {
				return fmt.Errorf("sends went to %s, not to %s", e.To, to)
			}
			return nil
		case <-ctx.Done():
			return fmt.Errorf("sends did not go to %s: %w", to, context.Cause(ctx))
		}
	}

	effects := newLedger()
	var deliveries atomic.Int64
	stop, err := consume(ctx, t, effects, &deliveries)
	if err != nil {
		return err
	}
	defer stop()
	l, err := newLoad(ctx, t)
	if err != nil {
		return err
	}
	l.more()
	artemis.kill()
	say("Artemis is killed")
	if err := await("tidegate"); err != nil {
		return err
	}
	l.more()
	if err := artemis.start(ctx); err != nil {
		return err
	}
	say("Artemis is started again, with its data")
	if err := await("artemis"); err != nil {
		return err
	}
	l.more()
	secondary.kill()
	if err := secondary.start(ctx); err != nil {
		return err
	}
	say("tidegate was killed and started again, with its data")
	l.more()
	sent, err := l.end()
	if err != nil {
		return err
	}
	say("%d messages were accepted, none failed; the longest send took %v", len(sent), l.longest.Round(time.Millisecond))
	if err := effects.await(ctx, sent); err != nil {
		return err
	}
	say("each had its effect once; the inbox removed the duplicates among %d deliveries", deliveries.Load())
	return nil
}

// connect returns a transport over both systems.
func connect(ctx context.Context, artemis, secondary *node, onSwitch func(failover.Event)) (*failover.Transport, error) {
	first, err := amqp.New(artemis.address, amqp.Options{
		CopyRetries: true,
		Groups: func(group, topic string) transport.ConsumerSettings { // Artemis announces none
			return transport.ConsumerSettings{MaxAttempts: 17}
		},
	})
	if err != nil {
		return nil, err
	}
	// Artemis discards the messages of an address without queues. This receive creates the group's
	// queue before the first send.
	if _, err := first.Receive(ctx, transport.ReceiveRequest{
		Group: group, Topic: topic, Queue: transport.AnyQueue, InvisibleDuration: time.Minute, Wait: time.Millisecond,
	}); err != nil {
		return nil, err
	}
	second, err := rocketmq.New(secondary.address, rocketmq.Options{})
	if err != nil {
		return nil, err
	}
	return failover.New([]failover.Endpoint{{Name: "artemis", Transport: first}, {Name: "tidegate", Transport: second}}, failover.Options{
		SwitchBack: 3 * time.Second, // the default of 60 s suits production
		OnSwitch:   onSwitch,
	})
}

// consume receives from both systems until stop is called. The inbox calls the handler once for
// each message ID: a send whose response was lost can be stored in both systems.
func consume(ctx context.Context, t *failover.Transport, effects *ledger, deliveries *atomic.Int64) (stop func(), err error) {
	once := inbox.NewMemory(0).Handler(func(_ context.Context, d *tidegate.Delivery) error {
		effects.add(d.ID)
		return nil
	})
	c, err := consumer.NewPush(t, consumer.Subscription{Group: group, Topic: topic},
		func(ctx context.Context, d *tidegate.Delivery) error {
			deliveries.Add(1)
			return once(ctx, d)
		}, consumer.PushOptions{
			ShutdownTimeout: 5 * time.Second,
			Logger:          slog.New(slog.DiscardHandler), // the receives from a killed server fail
		})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx) // the ledger shows whether all messages arrived
	}()
	return func() {
		cancel()
		<-done
	}, nil
}
