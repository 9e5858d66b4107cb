// Package pulsar is a transport for Apache Pulsar, over Apache's own client. Pulsar 4.0 is tested.
// The package makes one attempt for each call, as package transport demands; the producer and the
// consumer retry. It reconnects automatically.
//
//	client, err := pulsar.New("pulsar://localhost:6650", pulsar.Options{})
//	p, err := producer.New(client, producer.Options{})
//
// # Topics and subscriptions
//
// A topic is the persistent topic of that name in [Options].Namespace, partitioned or not. A
// consumer group is a subscription: Shared, or Key_Shared for a FIFO group, whose message groups
// are the keys. It begins at the oldest message that the topic still has. Pulsar deletes messages
// without a subscription, so create the subscriptions before the first send.
//
// # Retries and dead letters
//
// A failed message becomes a new one of the group's retry topic, with the delay that the consumer
// chose, and is then acknowledged; after the last attempt it becomes one of the dead letter topic.
// Names and properties are those of "TDMQ for Apache Pulsar: message retry and dead letter
// mechanisms", so that other clients of the subscription understand them. The first receive of a
// group creates both topics, and a subscription of the dead letter topic, which keeps its messages
// ([Options].DeadLetterSubscription). Retries of FIFO groups stay in this process. Package
// transport/held has the leases, and states the losses of a crash of this process.
//
// # Throttling
//
// A backlog quota throttles sends ([tidegate.ErrThrottled], reply code 530) with both policies that
// refuse them. The server closes the producers of the topic; the transport then asks for a new one
// at once, and once for each attempt while the quota is reached.
//
// # Producers
//
// The client resends messages by itself for as long as it likes. The transport therefore uses a
// producer of the client only until its first error or lost connection: a generation. It closes the
// producer then, so that each attempt ends, and nothing is stored later.
package pulsar

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"golang.org/x/sync/semaphore"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/held"
)

var (
	_ transport.Transport  = (*Client)(nil)
	_ transport.LaneSender = (*Client)(nil)
	_ transport.Pinger     = (*Client)(nil)
)

// A Client is a transport to one Pulsar cluster. Several goroutines may share it.
type Client struct {
	*held.Table
	options  Options
	endpoint string
	host     string // of this program, for Delivery.BornHost
	native   pulsar.Client
	faults   *faults
	memory   *semaphore.Weighted // of the sends in flight

	ctx  context.Context //nolint:containedctx // ends with Close
	stop context.CancelCauseFunc
	wg   sync.WaitGroup // calls of the client that no caller waits for

	mu      sync.Mutex
	senders map[string]*sender  // by full name of the topic
	letters map[string]*letters // by full name of the dead letter topic
	shared  map[string]string   // topic of each retry topic that topics of a group share
}

// New returns a transport to a cluster: pulsar://host:port or pulsar+ssl://host:port, with several
// hosts separated by commas, or host:port without TLS. New does not connect. The error names all
// invalid options.
func New(address string, o Options) (*Client, error) {
	endpoint, secure, err := parse(address)
	o, invalid := o.withDefaults()
	if !secure && err == nil && o.TLS != nil {
		invalid = errors.Join(invalid, bad("Options.TLS", "the address has no TLS; give pulsar+ssl://%s", endpoint))
	}
	if err = errors.Join(err, invalid); err != nil {
		return nil, err
	}
	faults := newFaults(o.Logger, endpoint)
	native, err := pulsar.NewClient(o.client(endpoint, secure, faults))
	if err != nil {
		return nil, &tidegate.Error{Op: "pulsar.New", Code: tidegate.CodeBadRequest, Message: "the client rejects the options", Err: err}
	}
	return newClient(native, endpoint, o, faults), nil
}

// newClient returns a transport over a client. The options are complete.
func newClient(native pulsar.Client, endpoint string, o Options, f *faults) *Client {
	host, _ := os.Hostname() // without one, deliveries have no BornHost
	c := &Client{
		options: o, endpoint: endpoint, host: host, native: native, faults: f, memory: semaphore.NewWeighted(maxInFlight),
		senders: map[string]*sender{}, letters: map[string]*letters{}, shared: map[string]string{},
	}
	c.ctx, c.stop = context.WithCancelCause(context.Background()) // ends with Close
	c.Table = held.New(system{c}, held.Options{Settings: c.settings, Grace: grace, Linger: linger, NegativeAcks: true})
	return c
}

// grace is longer than a round trip: a receive that does not wait gets the messages that the
// subscription has. linger is the time for the messages that follow the first of a receive.
const (
	grace  = 200 * time.Millisecond
	linger = 10 * time.Millisecond
)

// Close returns unsettled messages to the server, ends the calls under way and closes the
// connections. These calls and later ones fail with tidegate.ErrClosed. Close blocks while the
// server does not respond, for a few times Options.RequestTimeout at most. It may be called several
// times and returns nil.
func (c *Client) Close() error {
	c.mu.Lock()
	c.stop(tidegate.ErrClosed) // background begins nothing from now on
	c.mu.Unlock()
	err := c.Table.Close()
	c.wg.Wait()
	c.native.Close()
	return err
}

// background runs a call of the client that does not end with a context. It does nothing after
// Close has begun, and returns whether it runs.
func (c *Client) background(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	c.wg.Go(f)
	return true
}

// call makes a request of the client, which does not end with a context. If it succeeds after the
// end of call, undo gets the result.
func call[T any](ctx context.Context, c *Client, request func() (T, error), undo func(T)) (T, *tidegate.Error) {
	type result struct {
		v   T
		err error
	}
	done, gone := make(chan result), make(chan struct{})
	defer close(gone)
	var none T
	hopeless := c.faults.waiting()
	if !c.background(func() {
		v, err := request()
		select {
		case done <- result{v, err}:
		case <-gone:
			if err == nil {
				undo(v)
			}
		}
	}) {
		return none, &tidegate.Error{Err: tidegate.ErrClosed}
	}
	select {
	case r := <-done:
		if r.err != nil {
			return none, c.faults.of(r.err)
		}
		c.faults.connected()
		return r.v, nil
	case <-hopeless.done:
		return none, hopeless.reason()
	case <-ctx.Done():
		return none, c.faults.interrupted(context.Cause(ctx))
	case <-c.ctx.Done():
		return none, &tidegate.Error{Err: tidegate.ErrClosed}
	}
}

// Capabilities returns the same capabilities for every server: Suspend, RepeatReceive and the
// verdicts Snooze, RetryTopic and NegativeAck.
func (c *Client) Capabilities(endpoint string) transport.Capabilities {
	can := c.Table.Capabilities(endpoint)
	can.Verdicts |= transport.RetryTopic
	return can
}

// Settle implements [transport.Settler], with the verdicts RetryTopic, whose levels are those of
// Options.Levels, and NegativeAck.
func (c *Client) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	switch v.Kind {
	case transport.NegativeAck:
		if v.Delay == 0 {
			v.Delay = c.options.NegativeAckDelay
		}
	case transport.RetryTopic:
		delay, err := retryDelay(v, d.Attempt, c.options.Levels)
		if err != nil {
			return transport.RetryResult{}, c.named(err, "RetryTopic", d.Topic)
		}
		v = transport.Verdict{Kind: transport.Retry, Delay: delay, Reason: v.Reason}
	}
	return c.Table.Settle(ctx, d, v)
}

// The bounds of a delay by the verdict RetryTopic are those of the TDMQ document.
const (
	minRetryDelay = time.Second
	maxRetryDelay = 864_000 * time.Second
)

// retryDelay returns the delay of a verdict RetryTopic after so many attempts.
func retryDelay(v transport.Verdict, attempt int, levels []time.Duration) (time.Duration, *tidegate.Error) {
	fault := func(format string, args ...any) (time.Duration, *tidegate.Error) {
		return 0, &tidegate.Error{Code: tidegate.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case v.Level != 0 && v.Delay != 0:
		return fault("it has the level %d and the delay %v; give one of them", v.Level, v.Delay)
	case v.Level < 0 || v.Level > len(levels):
		return fault("the level is %d; give 1 to %d", v.Level, len(levels))
	case v.Level > 0:
		return levels[v.Level-1], nil
	case v.Delay != 0 && (v.Delay < minRetryDelay || v.Delay > maxRetryDelay):
		return fault("the delay is %v; give %v to %v", v.Delay, minRetryDelay, maxRetryDelay)
	case v.Delay != 0:
		return v.Delay, nil
	}
	return levels[min(max(attempt, 1), len(levels))-1], nil
}

// bounded returns ctx with RequestTimeout for a request that began at a time.
func (c *Client) bounded(ctx context.Context, begin time.Time) (context.Context, context.CancelFunc) {
	d := c.options.RequestTimeout
	return context.WithDeadlineCause(ctx, begin.Add(d), fmt.Errorf("%w: no response within %v", tidegate.ErrUnavailable, d))
}

// named completes an error of a call.
func (c *Client) named(e *tidegate.Error, op, subject string) error {
	if e == nil {
		return nil
	}
	e.Op, e.Subject, e.Endpoint = op, subject, c.endpoint
	return e
}

// ProducerSettings returns the transport's own settings: 3 attempts and Options.MaxBodySize. Pulsar
// has none. It does not check the topic.
func (c *Client) ProducerSettings(ctx context.Context, topic string) (transport.ProducerSettings, error) {
	if err := c.usable(ctx); err != nil {
		return transport.ProducerSettings{}, c.named(err, "ProducerSettings", topic)
	}
	return transport.ProducerSettings{MaxAttempts: 3, MaxBodySize: c.options.MaxBodySize}, nil
}

// settings returns the settings of a group. A panic of Options.Groups is passed on.
func (c *Client) settings(group, topic string) transport.ConsumerSettings {
	var s transport.ConsumerSettings
	if c.options.Groups != nil {
		s = c.options.Groups(group, topic)
	}
	if s.MaxAttempts == 0 {
		s.MaxAttempts = defaultAttempts
	}
	if s.ReceiveBatchSize == 0 {
		s.ReceiveBatchSize = defaultBatch
	}
	return s
}

// ConsumerSettings returns the settings of Options.Groups. It checks neither the group nor the
// topic.
func (c *Client) ConsumerSettings(ctx context.Context, group, topic string) (transport.ConsumerSettings, error) {
	if err := c.usable(ctx); err != nil {
		return transport.ConsumerSettings{}, c.named(err, "ConsumerSettings", group)
	}
	var s transport.ConsumerSettings
	if err := guarded("Options.Groups", func() { s = c.settings(group, topic) }); err != nil {
		return s, c.named(&tidegate.Error{Err: err}, "ConsumerSettings", group)
	}
	return s, nil
}

// guarded calls a function of the program. The error describes its panic.
func guarded(function string, f func()) (err error) {
	returned := false
	defer func() {
		if !returned {
			err = fmt.Errorf("%s panicked: %v", function, recover())
		}
	}()
	f()
	returned = true
	return nil
}

// Queues checks that the server has or creates the topic, and returns AnyQueue.
func (c *Client) Queues(ctx context.Context, _, topic string) ([]int, error) {
	if err := c.reach(ctx, "QueryAssignment", topic); err != nil {
		return nil, err
	}
	return []int{transport.AnyQueue}, nil
}

// Ping checks that a server accepts the credentials, and that the cluster has or creates the
// topics.
func (c *Client) Ping(ctx context.Context, topics ...string) error {
	ctx = transport.AwaitConnection(ctx)
	if len(topics) == 0 {
		err := c.reach(ctx, "Ping", pingTopic)
		if e, ok := errors.AsType[*tidegate.Error](err); ok && (e.Code == tidegate.CodeTopicNotFound || e.Code == tidegate.CodeForbidden) {
			return nil // a server has responded
		}
		return err
	}
	for _, topic := range topics {
		if err := c.reach(ctx, "Ping", topic); err != nil {
			return err
		}
	}
	return nil
}

// pingTopic is the topic that Ping asks for if the caller names none. A request for the number of
// its partitions does not create a topic.
const pingTopic = "tidegate-ping"

// reach asks a server for the number of partitions of a topic. With a ctx of AwaitConnection it
// waits for a connection.
func (c *Client) reach(ctx context.Context, op, topic string) error {
	if err := tidegate.ValidateTopic(topic); err != nil {
		return err
	}
	for {
		_, e := c.partitions(ctx, c.place(topic))
		if e == nil || !e.NotConnected || !transport.AwaitsConnection(ctx) {
			return c.named(e, op, topic)
		}
		if e = c.pause(ctx, e); e != nil {
			return c.named(e, op, topic)
		}
	}
}

// partitions asks a server for the number of partitions of a topic, once. It is 1 for a topic
// without partitions.
func (c *Client) partitions(ctx context.Context, p place) (int, *tidegate.Error) {
	if err := c.usable(ctx); err != nil {
		return 0, err
	}
	if p.pattern {
		return 0, nil // the topics of the pattern may all be created later
	}
	if !transport.AwaitsConnection(ctx) {
		var cancel context.CancelFunc
		ctx, cancel = c.bounded(ctx, time.Now())
		defer cancel()
	}
	parts, err := call(ctx, c, func() ([]string, error) { return c.native.TopicPartitions(p.topic) }, func([]string) {})
	return len(parts), err
}

// usable checks that neither the client is closed nor ctx has ended.
func (c *Client) usable(ctx context.Context) *tidegate.Error {
	if ctx.Err() != nil {
		return &tidegate.Error{Err: context.Cause(ctx)}
	}
	if c.closed() {
		return &tidegate.Error{Err: tidegate.ErrClosed}
	}
	return nil
}

func (c *Client) closed() bool { return c.ctx.Err() != nil }

// pause waits before the next attempt to connect after e. It returns the error of a call that ends
// before.
func (c *Client) pause(ctx context.Context, e *tidegate.Error) *tidegate.Error {
	t := time.NewTimer(reopen)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		e.Err = context.Cause(ctx)
		return e
	case <-c.ctx.Done():
		return &tidegate.Error{Err: tidegate.ErrClosed}
	}
}

const deadLetterPrefix = "%DLQ%"

// A place is where the messages of a topic are.
type place struct {
	topic   string // full name, or a pattern of full names
	pattern bool
	group   string // of a topic of dead letters; otherwise empty
}

// place returns where the messages of a topic are. The dead letters of a group can be in several
// topics.
func (c *Client) place(topic string) place {
	group, ok := strings.CutPrefix(topic, deadLetterPrefix)
	if !ok {
		return place{topic: c.options.full(topic)}
	}
	name, pattern := c.options.Naming.deadLettersOf(group)
	return place{topic: c.options.full(name), pattern: pattern, group: group}
}
