package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"go.uber.org/zap"
)

// logged runs f while the client logs to a directory that is removed unless f
// fails. By default it would log to $HOME/logs, and each request to a file in /tmp.
func logged(f func() error) error {
	const logRoot = "rocketmq.client.logRoot"
	dir, own := os.Getenv(logRoot), false
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "officialclient-log-"); err != nil {
			return err
		}
		if err := os.Setenv(logRoot, dir); err != nil {
			return err
		}
		own = true
		rmq.ResetLogger()
	}
	dial := rmq.NewRpcClient
	rmq.NewRpcClient = func(target string, opts ...rmq.RpcClientOption) (rmq.RpcClient, error) {
		return dial(target, append(opts, rmq.WithRpcClientConnOption(rmq.WithZapLogger(zap.NewNop())))...)
	}
	err := f()
	if err != nil {
		return fmt.Errorf("%w\nthe client's log is in %s", err, dir)
	}
	if own {
		return os.RemoveAll(dir)
	}
	return nil
}

func (s scene) config(group string) *rmq.Config {
	return &rmq.Config{Endpoint: s.endpoint, ConsumerGroup: group, Credentials: &keys}
}

// starting starts a client. Start takes at least a second, and never returns if the server is
// silent. So the end of ctx leaves it behind.
func starting(ctx context.Context, who string, start func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- start() }()
	select {
	case err := <-ended:
		if err != nil {
			return fmt.Errorf("starting the %s: %w", who, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("starting the %s: %w", who, context.Cause(ctx))
	}
}

// producer returns a producer of the topic. The client needs to know a topic
// at its start: without one it hangs there.
func (s scene) producer(ctx context.Context, topic string) (rmq.Producer, error) {
	p, err := rmq.NewProducer(s.config(""), rmq.WithTopics(topic))
	if err != nil {
		return nil, err
	}
	return p, starting(ctx, "producer of "+topic, p.Start)
}

// simpleConsumer returns a simple consumer. Its await duration is 5 s because
// that is the least that a broker with default settings takes.
func (s scene) simpleConsumer(ctx context.Context, group, topic string) (rmq.SimpleConsumer, error) {
	c, err := rmq.NewSimpleConsumer(s.config(group),
		rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}))
	if err != nil {
		return nil, err
	}
	return c, starting(ctx, "simple consumer of "+topic, c.Start)
}

// receive returns n messages, which may take several receives.
func receive(ctx context.Context, c rmq.SimpleConsumer, n int) ([]*rmq.MessageView, error) {
	var all []*rmq.MessageView
	for len(all) < n {
		mvs, err := c.Receive(ctx, int32(n-len(all)), invisible)
		switch {
		case ctx.Err() != nil:
			return all, context.Cause(ctx)
		case err != nil && codeOf(err) != codeMessageNotFound:
			return all, err
		}
		all = append(all, mvs...)
	}
	return all, nil
}

// Codes of the protocol.
const (
	codeMessageNotFound = 40401 // the client's error for a receive without messages
	codeInvalidHandle   = 40013
	codeNoTransaction   = 50001
)

func codeOf(err error) int32 {
	if e, ok := errors.AsType[*rmq.ErrRpcStatus](err); ok {
		return e.GetCode()
	}
	return 0
}

// wakeUp is the body of messages that are not part of the story.
const wakeUp = "wake up"

// pushConsumer starts a push consumer. Its handler returns a failure if fails returns true for the
// delivery. The channel gets all deliveries.
func (s scene) pushConsumer(ctx context.Context, group, topic string, fails func(delivery) bool) (rmq.PushConsumer, <-chan delivery, error) {
	deliveries := make(chan delivery, 1000)
	handler := func(mv *rmq.MessageView) rmq.ConsumerResult {
		d := deliveryOf(mv)
		if d.body == wakeUp {
			return rmq.SUCCESS
		}
		deliveries <- d
		if fails(d) {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}
	c, err := rmq.NewPushConsumer(s.config(group),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: handler}))
	if err != nil {
		return nil, nil, err
	}
	return c, deliveries, starting(ctx, "push consumer of "+topic, c.Start)
}

// stop stops a push consumer. The client's GracefulStop waits up to 23 s for the receives that wait
// at the server. stop sends a message in each of the message groups, which together should reach
// every queue, to end these receives early.
func (s scene) stop(ctx context.Context, c rmq.PushConsumer, p rmq.Producer, topic string, groups ...string) error {
	began := time.Now()
	stopped := make(chan error, 1)
	go func() { stopped <- c.GracefulStop() }()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-stopped:
			s.say("the push consumer stopped in %.1fs", time.Since(began).Seconds())
			return err
		case <-ctx.Done():
			return fmt.Errorf("stopping the push consumer: %w", context.Cause(ctx))
		case <-tick.C:
			for _, g := range groups {
				if _, err := send(ctx, p, message{topic: topic, body: wakeUp, group: g}); err != nil {
					return err
				}
			}
		}
	}
}
