package admin_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// exampleBroker serves a broker in memory, in place of one at 127.0.0.1:8082.
func exampleBroker() (address string, stop func()) {
	b, err := broker.Open(broker.Options{Memory: broker.NewMemory()})
	if err != nil {
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
	address, stop := exampleBroker()
	defer stop()
	ctx := context.Background()

	c, err := admin.New(address, admin.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	topic, err := c.PutTopic(ctx, "orders", settings.Topic{
		Queues:     4,
		MaxBacklog: settings.Limit{Messages: 100_000},
		Retention:  settings.Retention{Time: settings.Duration(24 * time.Hour)},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(topic.Name, topic.Type, topic.Queues)

	_, err = c.Topic(ctx, "bills")
	fmt.Println("missing:", errors.Is(err, tidegate.ErrTopicNotFound))
	if e, ok := errors.AsType[*admin.Error](err); ok {
		fmt.Println("status", e.Status, "code", int(e.Err.Code))
	}
	// Output:
	// orders NORMAL 4
	// missing: true
	// status 404 code 40402
}

func ExampleClient_AllDeadLetters() {
	address, stop := exampleBroker()
	defer stop()
	ctx := context.Background()

	c, err := admin.New(address, admin.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	if _, err := c.PutGroup(ctx, "billing", settings.Group{MaxAttempts: 3}); err != nil {
		fmt.Println(err)
		return
	}

	n := 0
	for letter, err := range c.AllDeadLetters(ctx, "billing", status.DeadLetterQuery{}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(letter.MessageID, letter.Origin.Topic, letter.Origin.Reason)
		n++
	}
	fmt.Println(n, "dead letters")
	// Output: 0 dead letters
}
