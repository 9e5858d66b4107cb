package main

import (
	"context"
	"errors"
	"sync"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// messages are the IDs of the messages that were consumed.
type messages struct {
	mu   sync.Mutex
	seen map[string]bool
	stop func()
}

// consume receives the messages of the topic until stop is called.
func consume(ctx context.Context, address string) (*messages, error) {
	t, err := rocketmq.New(address, rocketmq.Options{})
	if err != nil {
		return nil, err
	}
	m := &messages{seen: map[string]bool{}}
	c, err := consumer.NewPush(t, consumer.Subscription{Group: group, Topic: topic}, func(_ context.Context, d *tidegate.Delivery) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.seen[d.ID] = true
		return nil
	}, consumer.PushOptions{})
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = c.Run(ctx) }) // the messages that arrived are compared
	m.stop = func() {
		cancel()
		running.Wait()
		_ = t.Close()
	}
	return m, nil
}

func (m *messages) len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.seen)
}

func (m *messages) has(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen[id]
}
