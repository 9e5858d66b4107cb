package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
)

var _ transport.Transport = (*Broker)(nil)

// ProducerSettings returns the broker's settings for producers: the defaults of "RocketMQ: sending
// retry and throttling", and the largest body.
func (b *Broker) ProducerSettings(ctx context.Context, _ string) (transport.ProducerSettings, error) {
	end, err := b.calls.beginWith(ctx)
	if err != nil {
		return transport.ProducerSettings{}, err
	}
	defer end()
	return transport.ProducerSettings{MaxAttempts: 3, Backoff: backoff.Default(), MaxBodySize: b.opts.MaxBodySize}, nil
}

// ConsumerSettings returns the settings of a group for a topic, with the address settings of the
// topic. It creates the group if there is none.
func (b *Broker) ConsumerSettings(ctx context.Context, group, topic string) (transport.ConsumerSettings, error) {
	end, err := b.calls.beginWith(ctx)
	if err != nil {
		return transport.ConsumerSettings{}, err
	}
	defer end()
	c, err := serve(b).EnsureGroup(ctx, group)
	if err != nil {
		return transport.ConsumerSettings{}, err
	}
	p := serve(b).RetryPolicy(c, topic)
	return transport.ConsumerSettings{
		FIFO: c.FIFO, MaxAttempts: p.MaxAttempts, Retry: p.Ladder, ReceiveBatchSize: settingReceive, LongPolling: 20 * time.Second,
	}, nil
}

// InvisibleBounds returns the bounds of the invisible duration that a receive can request:
// Options.MinInvisibleDuration and MaxInvisibleDuration.
func (b served) InvisibleBounds() (least, most time.Duration) {
	return b.opts.MinInvisibleDuration, b.opts.MaxInvisibleDuration
}

// Queues returns only transport.AnyQueue, because one receive serves all queues. The error is 40402
// if there is no such topic.
func (b *Broker) Queues(ctx context.Context, _, topic string) ([]int, error) {
	end, err := b.calls.beginWith(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	if _, err := b.catalog.Topic(topic); err != nil {
		return nil, err
	}
	return []int{transport.AnyQueue}, nil
}

// Capabilities returns all capabilities of package transport. It ignores the endpoint.
func (b *Broker) Capabilities(string) transport.Capabilities {
	return transport.Capabilities{
		Batch: true, PushBack: true, Suspend: true, IdempotentDeadLetter: true, RetryResult: true,
		RepeatReceive: true, RepeatChange: true, Verdicts: transport.Snooze | transport.RetryTopic | transport.NegativeAck,
	}
}
