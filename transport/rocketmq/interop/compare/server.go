package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport/rocketmq"
	"github.com/tidegate/tidegate/transport/rocketmq/interop/runner"
)

// A target is the server that both sides use.
type target interface {
	endpoint() string // host:port of each proxy, separated by semicolons
	topic(ctx context.Context, name string, fifo bool) error
	group(ctx context.Context, name string, fifo bool) error
	kill(ctx context.Context, process string) error    // as kill -9 does
	stop(ctx context.Context, process string) error    // as the signal TERM does
	restart(ctx context.Context, process string) error // returns when the process serves
}

// A rocketMQ is a server that the program starts. Its proxies are processes of their own, as in
// production. Only such a proxy can route clients to the addresses that they used: to that of a
// relay, or to those of both proxies of a cluster, which have different ports here.
type rocketMQ struct {
	port    int
	version string        // empty: see start
	proxy   fileSettings  // of all proxies
	setup   *runner.Setup // nil: not started
	on      setting
}

const firstProxy = "proxy-1"

// The limits of the server. A busy machine takes minutes for a start.
const (
	startLimit   = 10 * time.Minute
	restartLimit = 5 * time.Minute // of a process, and of those that a round has left ended
	settleLimit  = 3 * time.Minute
	stopLimit    = time.Minute
)

// endpoint returns the addresses of all proxies; "a:1;b:2" is the form that both clients take.
func (s *rocketMQ) endpoint() string { return strings.Join(s.setup.Endpoints(), ";") }

// first returns the address of the first proxy, which is that of the server in each setting.
func (s *rocketMQ) first() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// start starts the server, unless it runs with this setting. A small server has one thread that
// writes sends, waits for the disk with each, and lets 8 more wait. Without a version a cluster is
// of the newest one. A cluster that runs is whole again when start returns.
func (s *rocketMQ) start(ctx context.Context, on setting) error {
	if s.setup != nil && s.on == on {
		return s.heal(ctx)
	}
	if err := s.end(); err != nil {
		return err
	}
	o := runner.Options{
		Port: s.port, Version: s.version, Cluster: true, Throttle: on == small, Heap: "1g",
		Proxy: s.proxy,
	}
	if on == paired {
		o.Version = cmp.Or(s.version, runner.Versions[len(runner.Versions)-1])
		o.Brokers, o.Proxies, o.Heap = 2, 2, "256m"
	}
	limited, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("the servers did not start within %v", startLimit))
	defer cancel()
	setup, err := runner.Up(limited, o)
	s.setup, s.on = setup, on
	if err != nil {
		return err
	}
	return s.heal(ctx)
}

// heal starts the processes of a cluster that a round has left ended, and waits until each proxy
// accepts sends to a new topic, which has queues on all brokers. The rows of other settings
// end when the server serves.
func (s *rocketMQ) heal(ctx context.Context) error {
	if s.on != paired {
		return nil
	}
	limited, cancel := context.WithTimeoutCause(ctx, restartLimit, fmt.Errorf("the cluster is not whole after %v", restartLimit))
	defer cancel()
	if err := s.setup.Start(limited); err != nil {
		return err
	}
	topic := "compare-settled-" + strconv.FormatInt(time.Now().UnixMilli(), 36)
	if err := s.topic(ctx, topic, false); err != nil {
		return err
	}
	for _, proxy := range s.setup.Endpoints() {
		if err := settle(ctx, proxy, topic); err != nil {
			return err
		}
	}
	return nil
}

// settle waits until sends through a proxy succeed several times in a row.
func settle(ctx context.Context, proxy, topic string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settleLimit, fmt.Errorf("the proxy does not settle within %v", settleLimit))
	defer cancel()
	f, err := newFeeder(proxy)
	if err != nil {
		return err
	}
	defer f.client.Close()
	const inARow = 32 // each queue of two brokers twice
	for good := 0; good < inARow; {
		m := &tidegate.Message{ID: tidegate.NewMessageID(), Topic: topic, Body: body(probe, 0, 0)}
		if err := f.client.Send(ctx, []*tidegate.Message{m})[0].Err; err == nil {
			good++
		} else if good = 0; backoff.Sleep(ctx, time.Second) != nil {
			return fmt.Errorf("%w; its last error: %w", context.Cause(ctx), err)
		}
	}
	return nil
}

// end ends the server and removes its data.
func (s *rocketMQ) end() error {
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

func (s *rocketMQ) kill(ctx context.Context, process string) error {
	return s.setup.Kill(ctx, process)
}

// stop kills a process that does not end within stopLimit, as supervisors do.
func (s *rocketMQ) stop(ctx context.Context, process string) error {
	limited, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	if s.setup.Stop(limited, process) == nil {
		return nil
	}
	return s.kill(ctx, process)
}

func (s *rocketMQ) restart(ctx context.Context, process string) error {
	limited, cancel := context.WithTimeoutCause(ctx, restartLimit, fmt.Errorf("it did not start within %v", restartLimit))
	defer cancel()
	return s.setup.Start(limited, process)
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

// fillLimit bounds the sends of a backlog.
const fillLimit = 5 * time.Minute

// fill sends the backlog of a side.
func (f *feeder) fill(ctx context.Context, s spec) error {
	ctx, cancel := context.WithTimeoutCause(ctx, fillLimit, fmt.Errorf("the server did not accept %d messages within %v", s.Total, fillLimit))
	defer cancel()
	if s.FIFO {
		return f.fillGroups(ctx, s)
	}
	const together = 64
	for sent := 0; sent < s.Total; {
		msgs := make([]*tidegate.Message, 0, together)
		for i := range min(together, s.Total-sent) {
			msgs = append(msgs, &tidegate.Message{ID: tidegate.NewMessageID(), Topic: s.PushTopic, Body: body(0, sent+i, s.Size)})
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

// fillGroups sends the same number of messages of each of the senders' message groups, in order.
func (f *feeder) fillGroups(ctx context.Context, s spec) error {
	var all sync.WaitGroup
	for sender := range s.Senders {
		all.Go(func() {
			for seq := range s.Total / s.Senders {
				m := &tidegate.Message{ID: tidegate.NewMessageID(), Topic: s.PushTopic, MessageGroup: groupOf(s, sender), Body: body(sender, seq, s.Size)}
				for f.client.Send(ctx, []*tidegate.Message{m})[0].Err != nil {
					if backoff.Sleep(ctx, 100*time.Millisecond) != nil {
						return
					}
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}
