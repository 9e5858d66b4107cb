package rocketmq_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// exampleBroker serves a broker with topic orders in memory, in place of a RocketMQ cluster.
func exampleBroker() (address string, stop func()) {
	ctx := context.Background()
	b, err := broker.Open(broker.Options{})
	if err != nil {
		panic(err)
	}
	if _, err := b.PutTopic(ctx, "orders", settings.Topic{}); err != nil {
		panic(err)
	}
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	s, err := server.New(b, server.Options{Advertise: lis.Addr().String()})
	if err != nil {
		panic(err)
	}
	go s.Serve(lis)
	return lis.Addr().String(), func() {
		s.Close()
		b.Close()
	}
}

// A producer and a consumer can share one transport. New does not connect, so a program that wants
// to find a wrong address or topic at its start calls Ping.
func Example() {
	address, stop := exampleBroker()
	defer stop()

	t, err := rocketmq.New(address, rocketmq.Options{
		Credentials: tidegate.Credentials{AccessKey: "orders-service", SecretKey: "from a file"}, // ignored by this broker
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close() // after the producer
	p, err := producer.New(t, producer.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	fmt.Println("topic orders:", t.Ping(ctx, "orders"))
	fmt.Println("topic odrers exists:", !errors.Is(t.Ping(ctx, "odrers"), tidegate.ErrTopicNotFound))
	receipt, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte("3 apples")})
	fmt.Println("attempts:", receipt.Attempts, "error:", err)
	// Output:
	// topic orders: <nil>
	// topic odrers exists: false
	// attempts: 1 error: <nil>
}
