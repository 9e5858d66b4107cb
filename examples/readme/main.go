// Command readme is the code of the README as a program: it sends one message
// to the broker whose address it is given, consumes it, and ends.
//
//	go run ./examples/readme 127.0.0.1:8081
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: readme HOST:PORT, of a broker that has a topic orders")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "readme:", err)
		os.Exit(1)
	}
}

func run(endpoint string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := produce(ctx, endpoint); err != nil {
		return err
	}
	return consume(ctx, endpoint)
}

func produce(ctx context.Context, endpoint string) error {
	t, err := rocketmq.New(endpoint, rocketmq.Options{})
	if err != nil {
		return err
	}
	defer t.Close()
	p, err := producer.New(t, producer.Options{})
	if err != nil {
		return err
	}
	defer p.Close()
	receipt, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte("3 apples")})
	if err != nil {
		return err // a *producer.SendError: attempts, reason, and whether the message may be stored
	}
	fmt.Println("stored after", receipt.Attempts, "attempt")
	return nil
}

func consume(ctx context.Context, endpoint string) error {
	t, err := rocketmq.New(endpoint, rocketmq.Options{})
	if err != nil {
		return err
	}
	defer t.Close()
	handle := func(ctx context.Context, d *tidegate.Delivery) error {
		fmt.Printf("attempt %d: %s\n", d.Attempt, d.Body)
		return nil // an error schedules a retry
	}
	c, err := consumer.NewPush(t, consumer.Subscription{Group: "billing", Topic: "orders"}, handle, consumer.PushOptions{})
	if err != nil {
		return err
	}
	return c.Run(ctx) // until ctx ends and every handler has returned
}
