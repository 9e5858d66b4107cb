package broker_test

import (
	"context"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

// A broker is a transport for producers and consumers in the same process.
func Example() {
	ctx := context.Background()
	b, err := broker.Open(broker.Options{}) // in memory; Dir keeps the data on disk
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	if _, err := b.PutTopic(ctx, "orders", settings.Topic{Queues: 1}); err != nil {
		fmt.Println(err)
		return
	}

	p, err := producer.New(b, producer.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	if _, err := p.Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte("3 apples")}); err != nil {
		fmt.Println(err)
		return
	}

	ds, err := b.Receive(ctx, transport.ReceiveRequest{
		Group: "billing", Topic: "orders", Queue: transport.AnyQueue, InvisibleDuration: time.Minute,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("attempt %d: %s\n", ds[0].Attempt, ds[0].Body)
	fmt.Println("acknowledged:", b.Ack(ctx, ds)[0] == nil)

	// Output:
	// attempt 1: 3 apples
	// acknowledged: true
}

// A topic with a backlog limit rejects sends above the limit.
func ExampleBroker_Topic() {
	ctx := context.Background()
	b, err := broker.Open(broker.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	if _, err := b.PutTopic(ctx, "orders", settings.Topic{MaxBacklog: settings.Limit{Messages: 2}}); err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		b.Send(ctx, []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte("x")}})
	}
	t, err := b.Topic("orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d messages, %s: %d of %d\n", t.StoredMessages, t.Throttle.Limit, t.Throttle.Value, t.Throttle.Mark)

	// Output:
	// 2 messages, topic backlog messages: 2 of 2
}
