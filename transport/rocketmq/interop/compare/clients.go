package main

// This file has the two clients that are compared.

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	"go.uber.org/zap"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// ours is the client of this repository, with its default options apart from spec.Retries.
type ours struct {
	transport *rocketmq.Client
	producer  *producer.Producer
	push      *consumer.Push
}

func (o *ours) start(_ context.Context, s spec, deliver func([]byte)) error {
	var logger *slog.Logger
	var attempts func(producer.Attempt)
	if s.Logs != "" {
		file, err := os.Create(filepath.Join(s.Logs, "ours.log"))
		if err != nil {
			return err
		}
		logger = slog.New(slog.NewTextHandler(file, &slog.HandlerOptions{Level: slog.LevelDebug}))
		attempts = func(a producer.Attempt) {
			if a.Err != nil || a.Number > 1 {
				logger.Info("attempt", "id", a.MessageID, "number", a.Number, "took", a.Duration, "stop", a.Stop, "delay", a.Delay, "from", a.DelayFrom, "err", a.Err)
			}
		}
	}
	var err error
	if o.transport, err = rocketmq.New(s.Endpoint, rocketmq.Options{Logger: logger}); err != nil {
		return err
	}
	options := producer.Options{Logger: logger, OnAttempt: attempts}
	if s.Retries {
		options.Backoff = backoff.Exponential{Initial: 10 * time.Millisecond, Multiplier: 2, Max: time.Second}
	}
	if o.producer, err = producer.New(o.transport, options); err != nil {
		return err
	}
	if s.PushTopic == "" {
		return nil
	}
	handle := func(_ context.Context, d *tidegate.Delivery) error {
		deliver(d.Body)
		return nil
	}
	o.push, err = consumer.NewPush(o.transport, consumer.Subscription{Group: s.Group, Topic: s.PushTopic}, handle,
		consumer.PushOptions{Concurrency: s.Handlers, Logger: logger})
	return err
}

func (o *ours) consume(ctx context.Context) error {
	go func() { _ = o.push.Run(ctx) }() // a consumer that ends has no deliveries, which the table shows
	return nil
}

func (o *ours) send(ctx context.Context, topic, group string, body []byte) error {
	_, err := o.producer.Send(ctx, &tidegate.Message{Topic: topic, MessageGroup: group, Body: body})
	return err
}

// official is the Go client of Apache RocketMQ, with its default options apart from TLS. The
// environment variable rocketmq.client.logRoot names the directory of its log; it must be set
// before the process begins.
//
// Its Start makes one attempt, which a server that has just started can miss.
type official struct {
	producer rmq.Producer
	push     rmq.PushConsumer
}

// starts is the number of calls of Start of which one must succeed.
const starts = 5

func (o *official) start(_ context.Context, s spec, deliver func([]byte)) error {
	rmq.EnableSsl = false
	dial := rmq.NewRpcClient // without a log of each request, which costs the client CPU time
	rmq.NewRpcClient = func(target string, opts ...rmq.RpcClientOption) (rmq.RpcClient, error) {
		return dial(target, append(opts, rmq.WithRpcClientConnOption(rmq.WithZapLogger(zap.NewNop())))...)
	}
	config := &rmq.Config{Endpoint: s.Endpoint, ConsumerGroup: s.Group, Credentials: &credentials.SessionCredentials{}}
	topics := []string{s.Topic}
	if s.PushTopic != "" && s.PushTopic != s.Topic {
		topics = append(topics, s.PushTopic)
	}
	var err error
	for range starts {
		if o.producer, err = rmq.NewProducer(config, rmq.WithTopics(topics...)); err != nil {
			return err
		}
		if err = o.producer.Start(); err == nil {
			break
		}
	}
	if err != nil || s.PushTopic == "" {
		return err
	}
	handle := func(m *rmq.MessageView) rmq.ConsumerResult {
		deliver(m.GetBody())
		return rmq.SUCCESS
	}
	o.push, err = rmq.NewPushConsumer(config,
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{s.PushTopic: rmq.SUB_ALL}),
		rmq.WithPushConsumptionThreadCount(int32(s.Handlers)),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: handle}))
	return err
}

func (o *official) consume(context.Context) error { return o.push.Start() }

func (o *official) send(ctx context.Context, topic, group string, body []byte) error {
	m := &rmq.Message{Topic: topic, Body: body}
	if group != "" {
		m.SetMessageGroup(group)
	}
	_, err := o.producer.Send(ctx, m)
	return err
}
