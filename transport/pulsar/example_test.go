package pulsar_test

import (
	"context"
	"fmt"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/pulsar"
)

// A program that sends a message and consumes it. The server is one that
// "go run github.com/tidegate/tidegate/transport/pulsar/standalone" started. It deletes the messages
// that were sent before the first consumer of the group created its subscription.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client, err := pulsar.New("pulsar://127.0.0.1:6650", pulsar.Options{
		Groups: func(group, topic string) transport.ConsumerSettings {
			return transport.ConsumerSettings{MaxAttempts: 5, FIFO: group == "ledger"}
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	p, err := producer.New(client, producer.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	c, err := consumer.NewPush(client, consumer.Subscription{Group: "billing", Topic: "orders"},
		func(_ context.Context, d *tidegate.Delivery) error {
			fmt.Println(string(d.Body), d.Attempt)
			cancel()
			return nil
		}, consumer.PushOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		if _, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte("3 apples")}); err != nil {
			fmt.Println(err)
		}
	}()
	if err := c.Run(ctx); err != nil {
		fmt.Println(err)
	}
}

// The topics that an operator creates for the group billing of the topic orders, in the three
// versions of TDMQ.
func ExampleNaming_Topics() {
	for _, n := range []pulsar.Naming{pulsar.ByTopic, pulsar.ByGroup, pulsar.ByGroupLowerCase} {
		retry, deadLetters := n.Topics("orders", "billing")
		fmt.Println(retry, deadLetters)
	}
	// Output:
	// orders-billing-RETRY orders-billing-DLQ
	// billing-RETRY billing-DLQ
	// billing-retry billing-dlq
}
