package endtoend

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
)

// NewProducer returns a producer with a client of its own. It ends with the test.
func NewProducer(t testing.TB, b *brokertest.Broker, o producer.Options) *producer.Producer {
	t.Helper()
	p, err := producer.New(b.Client(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("closing a producer: %v", err)
		}
	})
	return p
}

// MustSend sends the messages one after another and fails the test at the first error.
func MustSend(t testing.TB, p *producer.Producer, msgs ...*tidegate.Message) {
	t.Helper()
	for _, m := range msgs {
		if _, err := p.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
}

// Order returns a message of the topic orders. Its body is the number n.
func Order(n int) *tidegate.Message {
	return &tidegate.Message{Topic: "orders", Body: fmt.Append(nil, n)}
}

// Consume runs a push consumer with default options until stop is called, which waits for the
// consumer. An error of the consumer fails the test.
func Consume(t testing.TB, b *brokertest.Broker, sub consumer.Subscription, h consumer.Handler) (stop func()) {
	t.Helper()
	return run(t, b.Client(), sub, h, consumer.PushOptions{})
}

// runPush runs a push consumer of the group billing and the topic orders until stop is called,
// which waits for the consumer. An error of the consumer fails the test.
func runPush(t testing.TB, tr consumer.Transport, h consumer.Handler, o consumer.PushOptions) (stop func()) {
	t.Helper()
	return run(t, tr, consumer.Subscription{Group: "billing", Topic: "orders"}, h, o)
}

func run(t testing.TB, tr consumer.Transport, sub consumer.Subscription, h consumer.Handler, o consumer.PushOptions) (stop func()) {
	t.Helper()
	c, err := consumer.NewPush(tr, sub, h, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the consumer ended with %v", err)
		}
	})
}
