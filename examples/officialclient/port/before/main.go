// Command before sends five orders and bills them, with Apache RocketMQ's Go client. Its twin in
// the directory after does the same with tidegate; FROM-ROCKETMQ.md compares them step by step.
//
//	go run ./port/before 127.0.0.1:8081
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: before HOST:PORT, of a server with the topic orders")
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
	rmq.EnableSsl = false
	config := &rmq.Config{
		Endpoint:      endpoint,
		ConsumerGroup: "billing",
		Credentials:   &credentials.SessionCredentials{},
	}

	if err := produce(ctx, config); err != nil {
		return err
	}
	return consume(ctx, config)
}

func produce(ctx context.Context, config *rmq.Config) error {
	// Step 2: send.
	p, err := rmq.NewProducer(config, rmq.WithTopics("orders"), rmq.WithMaxAttempts(5))
	if err != nil {
		return err
	}
	if err := p.Start(); err != nil {
		return err
	}
	defer p.GracefulStop()
	for i := range orders {
		m := &rmq.Message{Topic: "orders", Body: fmt.Appendf(nil, "order %d", i+1)}
		m.SetTag("paid")
		m.SetKeys(fmt.Sprint("customer-", i))
		m.AddProperty("currency", "EUR")
		receipts, err := p.Send(ctx, m)
		if err != nil {
			return err
		}
		if receipts[0].MessageID != "" {
			fmt.Println("sent", string(m.Body))
		}
	}
	return nil
}

func consume(ctx context.Context, config *rmq.Config) error {
	// Step 3: handle.
	billed := make(chan string, orders)
	handle := func(mv *rmq.MessageView) rmq.ConsumerResult {
		if string(mv.GetBody()) == "order 3" && mv.GetDeliveryAttempt() == 1 {
			fmt.Println("order 3 fails, attempt 1")
			return rmq.FAILURE
		}
		billed <- fmt.Sprintf("billed %s in %s, attempt %d", mv.GetBody(), mv.GetProperties()["currency"], mv.GetDeliveryAttempt())
		return rmq.SUCCESS
	}

	// Step 4: run and stop.
	c, err := rmq.NewPushConsumer(config,
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{"orders": rmq.NewFilterExpression("paid")}),
		rmq.WithPushConsumptionThreadCount(4),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: handle}))
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	defer c.GracefulStop()
	for range orders {
		select {
		case line := <-billed:
			fmt.Println(line)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
