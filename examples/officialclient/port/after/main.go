// Command after sends five orders and bills them, with tidegate. Its twin in the directory before
// does the same with Apache RocketMQ's Go client; FROM-ROCKETMQ.md compares them step by step.
//
//	go run ./port/after 127.0.0.1:8081
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: after HOST:PORT, of a server with the topic orders")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	err := run(ctx, os.Args[1])
	cancel()
	if err != nil {
		log.Fatal(err)
	}
}

const orders = 5

func run(ctx context.Context, endpoint string) error {
	// Step 1: connect.
	t, err := rocketmq.New(endpoint, rocketmq.Options{})
	if err != nil {
		return err
	}
	defer t.Close()

	if err := produce(ctx, t); err != nil {
		return err
	}
	return consume(ctx, t)
}

func produce(ctx context.Context, t *rocketmq.Client) error {
	// Step 2: send.
	p, err := producer.New(t, producer.Options{MaxAttempts: 5})
	if err != nil {
		return err
	}
	defer p.Close()
	for i := range orders {
		m := &tidegate.Message{
			Topic:      "orders",
			Tag:        "paid",
			Keys:       []string{fmt.Sprint("customer-", i)},
			Properties: map[string]string{"currency": "EUR"},
			Body:       fmt.Appendf(nil, "order %d", i+1),
		}
		receipt, err := p.Send(ctx, m)
		if err != nil {
			return err
		}
		if receipt.MessageID != "" {
			fmt.Println("sent", string(m.Body))
		}
	}
	return nil
}

func consume(ctx context.Context, t *rocketmq.Client) error {
	// Step 3: handle.
	billed := make(chan string, orders)
	handle := func(ctx context.Context, d *tidegate.Delivery) error {
		if string(d.Body) == "order 3" && d.Attempt == 1 {
			fmt.Println("order 3 fails, attempt 1")
			return errors.New("no such account") // the reason, if the message becomes a dead letter
		}
		billed <- fmt.Sprintf("billed %s in %s, attempt %d", d.Body, d.Properties["currency"], d.Attempt)
		return nil
	}

	// Step 4: run and stop.
	c, err := consumer.NewPush(t,
		consumer.Subscription{Group: "billing", Topic: "orders", Filter: consumer.Tags("paid")},
		handle,
		consumer.PushOptions{Concurrency: 4})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for range orders {
			fmt.Println(<-billed)
		}
		stop()
	}()
	return c.Run(running) // until running ends and every handler has returned
}
