package server_test

import (
	"context"
	"fmt"
	"net"
	"net/http/httptest"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// A server serves RocketMQ's gRPC protocol and the HTTP API for one broker.
func Example() {
	ctx := context.Background()
	b, err := broker.Open(broker.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := server.New(b, server.Options{Advertise: lis.Addr().String()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	go s.Serve(lis)
	web := httptest.NewServer(s.Handler())
	defer web.Close()

	a, err := admin.New(web.URL, admin.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer a.Close()
	topic, err := a.PutTopic(ctx, "orders", settings.Topic{Type: settings.TopicFIFO})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(topic.Name, topic.Type, topic.Queues)

	c, err := rocketmq.New(lis.Addr().String(), rocketmq.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	fmt.Println("reachable over gRPC:", c.Ping(ctx, "orders") == nil)

	// Output:
	// orders FIFO 8
	// reachable over gRPC: true
}
