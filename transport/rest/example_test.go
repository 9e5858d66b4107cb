package rest_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rest"
)

// exampleBroker serves a broker in memory with the topic orders, in place of one at 127.0.0.1:8082.
func exampleBroker(ctx context.Context) (address string, stop func()) {
	b, err := broker.Open(broker.Options{Memory: broker.NewMemory()})
	if err != nil {
		panic(err)
	}
	if _, err := b.PutTopic(ctx, "orders", settings.Topic{}); err != nil {
		panic(err)
	}
	s, err := server.New(b, server.Options{Advertise: "127.0.0.1:8081"})
	if err != nil {
		panic(err)
	}
	web := httptest.NewServer(s.Handler())
	return web.URL, func() {
		web.Close()
		s.Close()
		b.Close()
	}
}

func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	address, stop := exampleBroker(ctx)
	defer stop()

	c, err := rest.New(address, rest.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	p, err := producer.New(c, producer.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	if _, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte("3 apples")}); err != nil {
		fmt.Println(err)
		return
	}

	ctx, done := context.WithCancel(ctx)
	push, err := consumer.NewPush(c, consumer.Subscription{Group: "billing", Topic: "orders"}, func(_ context.Context, d *tidegate.Delivery) error {
		fmt.Printf("%s, attempt %d\n", d.Body, d.Attempt)
		done()
		return nil
	}, consumer.PushOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := push.Run(ctx); err != nil {
		fmt.Println(err)
	}
	// Output: 3 apples, attempt 1
}
