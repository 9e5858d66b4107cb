package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// A target is the server that both sides use.
type target interface {
	endpoint() string // host:port of the proxy
	topic(ctx context.Context, name string, fifo bool) error
	group(ctx context.Context, name string, fifo bool) error
	kill(ctx context.Context) error    // the proxy
	restart(ctx context.Context) error // the proxy; it returns when the proxy serves
}

// A rocketMQ is a server that the program starts with the tool. Its proxy is a process of its own,
// as in production. Only such a proxy can route clients to the address that they used, which is
// that of the relay.
type rocketMQ struct {
	tool    string
	port    int
	started bool
	small   bool
}

func (s *rocketMQ) endpoint() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// start starts the server, unless it runs with this setting. A small server has one thread that
// writes sends, waits for the disk with each, and lets 8 more wait. A failure of the first start
// means that no server is available here.
func (s *rocketMQ) start(ctx context.Context, small bool) error {
	if s.started && s.small == small {
		return nil
	}
	if s.started {
		if err := s.stop(); err != nil {
			return err
		}
	}
	if _, err := os.Stat(s.tool); err != nil {
		return fmt.Errorf("there is no program %s: %w", s.tool, err)
	}
	for _, program := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s needs %s, which is not installed", s.tool, program)
		}
	}
	args := []string{"up", "--cluster", "--proxy", "useEndpointPortFromRequest=true", "--timeout", "180"}
	if small {
		args = append(args, "--throttle")
	}
	s.started, s.small = true, small
	return s.command(ctx, args...)
}

// stop ends the server and removes its data.
func (s *rocketMQ) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s.started = false
	return s.command(ctx, "down", "--kill", "--wipe")
}

func (s *rocketMQ) command(ctx context.Context, args ...string) error {
	args = append(args, "--port", strconv.Itoa(s.port))
	if out, err := exec.CommandContext(ctx, s.tool, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", s.tool, strings.Join(args, " "), err, out)
	}
	return nil
}

func (s *rocketMQ) topic(ctx context.Context, name string, fifo bool) error {
	if fifo {
		return s.command(ctx, "topic", name, "fifo")
	}
	return s.command(ctx, "topic", name, "normal")
}

func (s *rocketMQ) group(ctx context.Context, name string, fifo bool) error {
	args := []string{"group", name}
	if fifo {
		args = append(args, "--fifo")
	}
	return s.command(ctx, args...)
}

func (s *rocketMQ) kill(ctx context.Context) error { return s.command(ctx, "down", "--kill", "proxy") }

func (s *rocketMQ) restart(ctx context.Context) error { return s.command(ctx, "up") }

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
			for seq := 0; wait(ctx, pause) == nil; seq++ {
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
