package main

import (
	"context"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport/rocketmq"
	"github.com/tidegate/tidegate/transport/rocketmq/interop/runner"
)

// A target is the server that both sides use.
type target interface {
	endpoint() string // host:port of the proxy
	topic(ctx context.Context, name string, fifo bool) error
	group(ctx context.Context, name string, fifo bool) error
	kill(ctx context.Context) error    // the proxy
	restart(ctx context.Context) error // the proxy; it returns when the proxy serves
}

// A rocketMQ is a server that the program starts. Its proxy is a process of its own, as in
// production. Only such a proxy can route clients to the address that they used, which is that of
// the relay.
type rocketMQ struct {
	port    int
	version string
	setup   *runner.Setup // nil: not started
	small   bool
}

const (
	proxy        = "proxy-1"
	startTimeout = 10 * time.Minute // a busy machine takes minutes
)

func (s *rocketMQ) endpoint() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// start starts the server, unless it runs with this setting. A small server has one thread that
// writes sends, waits for the disk with each, and lets 8 more wait.
func (s *rocketMQ) start(ctx context.Context, small bool) error {
	if s.setup != nil && s.small == small {
		return nil
	}
	if err := s.stop(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	setup, err := runner.Up(ctx, runner.Options{
		Port: s.port, Version: s.version, Cluster: true, Throttle: small, Heap: "1g",
		Proxy: map[string]string{"useEndpointPortFromRequest": "true"},
	})
	s.setup, s.small = setup, small
	return err
}

// stop ends the server and removes its data.
func (s *rocketMQ) stop() error {
	if s.setup == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := s.setup.Wipe(ctx)
	s.setup = nil
	return err
}

func (s *rocketMQ) topic(ctx context.Context, name string, fifo bool) error {
	kind := "NORMAL"
	if fifo {
		kind = "FIFO"
	}
	return s.setup.Topic(ctx, name, kind, 0)
}

func (s *rocketMQ) group(ctx context.Context, name string, fifo bool) error {
	return s.setup.Group(ctx, name, runner.Group{FIFO: fifo, MaxRetries: 16})
}

func (s *rocketMQ) kill(ctx context.Context) error { return s.setup.Kill(ctx, proxy) }

func (s *rocketMQ) restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return s.setup.Start(ctx, proxy)
}

// A feeder sends messages to the server without a relay and without retries.
type feeder struct {
	client *rocketmq.Client
}

func newFeeder(endpoint string) (*feeder, error) {
	c, err := rocketmq.New(endpoint, rocketmq.Options{})
	return &feeder{c}, err
}

// feedInterval is the time between two messages of feed to a topic.
const feedInterval = 50 * time.Millisecond

// feed sends a message to each topic every feedInterval until ctx ends. A failed send is not
// repeated.
func (f *feeder) feed(ctx context.Context, topics []string, size int) {
	tick := time.NewTicker(feedInterval)
	defer tick.Stop()
	for seq := 0; ; seq++ {
		for _, topic := range topics {
			f.client.Send(ctx, []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: topic, Body: body(0, seq, size)}})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// flood keeps 24 sends to a topic under way until ctx ends, and returns then.
func (f *feeder) flood(ctx context.Context, topic string, size int) {
	const senders, pause = 24, 5 * time.Millisecond
	var all sync.WaitGroup
	for i := range senders {
		all.Go(func() {
			for seq := 0; backoff.Sleep(ctx, pause) == nil; seq++ {
				f.client.Send(ctx, []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: topic, Body: body(i, seq, size)}})
			}
		})
	}
	all.Wait()
}

// fill sends n messages to a topic.
func (f *feeder) fill(ctx context.Context, topic string, n, size int) error {
	const together = 64
	for sent := 0; sent < n; {
		msgs := make([]*tidegate.Message, 0, together)
		for i := range min(together, n-sent) {
			msgs = append(msgs, &tidegate.Message{ID: tidegate.NewMessageID(), Topic: topic, Body: body(0, sent+i, size)})
		}
		for _, r := range f.client.Send(ctx, msgs) {
			if r.Err == nil {
				sent++
			} else if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}
