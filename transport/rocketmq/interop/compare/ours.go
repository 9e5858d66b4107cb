package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

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
