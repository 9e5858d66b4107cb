// Command failover sends to a primary and a secondary broker while the primary
// one is killed and started again. It prints each step and exits with 1 if an
// accepted message was lost, if a send failed, or if sends did not return to the
// primary broker.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/failover"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

const topic, group = "orders", "billing"

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	primary, secondary := newNode(), newNode()
	for _, n := range []*node{primary, secondary} {
		if err := n.start(ctx); err != nil {
			return err
		}
		defer n.kill()
	}
	switches := make(chan failover.Event, 8)
	first, err := rocketmq.New(primary.address, rocketmq.Options{})
	if err != nil {
		return err
	}
	second, err := rocketmq.New(secondary.address, rocketmq.Options{})
	if err != nil {
		return err
	}
	t, err := failover.New([]failover.Endpoint{{Name: "primary", Transport: first}, {Name: "secondary", Transport: second}}, failover.Options{
		SwitchBack:    2 * time.Second, // the default of 60 s suits production
		ProbeInterval: 200 * time.Millisecond,
		OnSwitch:      func(e failover.Event) { switches <- e },
	})
	if err != nil {
		return err
	}
	defer t.Close()

	start := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(out, "%6.2f s  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	await := func(to string) error {
		select {
		case e := <-switches:
			say("sends go from %s to %s: %s", e.From, e.To, e.Reason)
			if e.To != to {
				return fmt.Errorf("sends went to %s, not to %s", e.To, to)
			}
			return nil
		case <-ctx.Done():
			return fmt.Errorf("sends did not go to %s: %w", to, ctx.Err())
		}
	}

	received := &ids{seen: map[string]int{}}
	stop, err := consume(ctx, t, received)
	if err != nil {
		return err
	}
	defer stop()
	load, err := newLoad(ctx, t)
	if err != nil {
		return err
	}
	say("sending to the primary broker, %s", primary.address)
	load.wait(200)
	primary.kill()
	say("the primary broker is killed")
	if err := await("secondary"); err != nil {
		return err
	}
	load.wait(200)
	if err := primary.start(ctx); err != nil {
		return err
	}
	say("the primary broker is started again, with its data")
	if err := await("primary"); err != nil {
		return err
	}
	load.wait(200)
	sent, err := load.end()
	if err != nil {
		return err
	}
	say("%d messages were accepted, none failed; the longest send took %v", len(sent), load.longest.Round(time.Millisecond))
	duplicates, err := received.await(ctx, sent)
	if err != nil {
		return err
	}
	say("all were consumed, %d more than once", duplicates)
	return nil
}

// consume receives from both brokers until stop is called.
func consume(ctx context.Context, t *failover.Transport, received *ids) (stop func(), err error) {
	c, err := consumer.NewPush(t, consumer.Subscription{Group: group, Topic: topic},
		func(_ context.Context, d *tidegate.Delivery) error {
			received.add(d.ID)
			return nil
		}, consumer.PushOptions{ShutdownTimeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = c.Run(ctx) }) // the program checks that all messages arrived
	return func() {
		cancel()
		running.Wait()
	}, nil
}

// A load sends messages from several goroutines until it is ended.
type load struct {
	producer *producer.Producer
	stop     chan struct{}
	senders  sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	changed *sync.Cond
	sent    []string
	err     error
	longest time.Duration
}

func newLoad(ctx context.Context, t *failover.Transport) (*load, error) {
	p, err := producer.New(t, producer.Options{})
	if err != nil {
		return nil, err
	}
	l := &load{producer: p, stop: make(chan struct{})}
	l.changed = sync.NewCond(&l.mu)
	for range 8 {
		l.senders.Go(func() {
			for {
				select {
				case <-l.stop:
					return
				case <-time.After(5 * time.Millisecond): // about 1 500 messages a second
				}
				l.send(ctx)
			}
		})
	}
	return l, nil
}

func (l *load) send(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	began := time.Now()
	r, err := l.producer.Send(ctx, &tidegate.Message{Topic: topic, Body: []byte("3 apples")})
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.err = err
	} else {
		l.sent = append(l.sent, r.MessageID)
	}
	l.longest = max(l.longest, time.Since(began))
	l.changed.Broadcast()
}

// wait returns after n more messages were accepted, or a send has failed.
func (l *load) wait(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for goal := len(l.sent) + n; len(l.sent) < goal && l.err == nil; {
		l.changed.Wait()
	}
}

// end ends the load and returns the IDs of the accepted messages.
func (l *load) end() ([]string, error) {
	close(l.stop)
	l.senders.Wait()
	return l.sent, errors.Join(l.err, l.producer.Close())
}

// ids counts the messages that arrived.
type ids struct {
	mu   sync.Mutex
	seen map[string]int
}

func (s *ids) add(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[id]++
}

// await returns once all of the messages have arrived, with the number of those
// that arrived more than once.
func (s *ids) await(ctx context.Context, sent []string) (duplicates int, err error) {
	for {
		missing := 0
		duplicates = 0
		s.mu.Lock()
		for _, id := range sent {
			switch n := s.seen[id]; {
			case n == 0:
				missing++
			case n > 1:
				duplicates++
			}
		}
		s.mu.Unlock()
		if missing == 0 {
			return duplicates, nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return 0, fmt.Errorf("%d of %d accepted messages were lost", missing, len(sent))
		}
	}
}

// A node is a broker that can be killed and started again with its data. Outside
// of an example it is a RocketMQ cluster, or a broker on another machine.
type node struct {
	memory  *broker.Memory
	address string // empty before the first start

	engine *broker.Broker
	server *server.Server
}

func newNode() *node { return &node{memory: broker.NewMemory()} }

// start starts the broker, at the same address each time.
func (n *node) start(ctx context.Context) error {
	b, err := broker.Open(broker.Options{Memory: n.memory})
	if err != nil {
		return err
	}
	s, err := n.serve(ctx, b)
	if err != nil {
		return errors.Join(err, b.Close())
	}
	n.engine, n.server = b, s
	return nil
}

func (n *node) serve(ctx context.Context, b *broker.Broker) (*server.Server, error) {
	if _, err := b.PutTopic(ctx, topic, settings.Topic{}); err != nil {
		return nil, err
	}
	address := n.address
	if address == "" {
		address = "127.0.0.1:0"
	}
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	n.address = lis.Addr().String()
	s, err := server.New(b, server.Options{Advertise: n.address})
	if err != nil {
		return nil, errors.Join(err, lis.Close())
	}
	go func() { _ = s.Serve(lis) }() // it ends with kill
	return s, nil
}

// kill ends the broker at once: requests under way get no response.
func (n *node) kill() {
	if n.server != nil {
		_ = errors.Join(n.server.Close(), n.engine.Close())
		n.server = nil
	}
}
