package policy_test

import (
	"context"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/transport"
)

// A demo is a server that allows 17 attempts. Programs use transport/rocketmq instead.
type demo struct {
	consumer.Transport // for the methods that the example does not call
}

func (demo) Capabilities(string) transport.Capabilities { return transport.Capabilities{} }

func (demo) ConsumerSettings(context.Context, string, string) (transport.ConsumerSettings, error) {
	return transport.ConsumerSettings{MaxAttempts: 17}, nil
}

func handle(context.Context, *tidegate.Delivery) error { return nil }

// Invoices are tried three times, and those of one customer five times.
func Example() {
	c, err := consumer.NewPush(demo{}, consumer.Subscription{Group: "billing", Topic: "orders.eu"}, handle, consumer.PushOptions{Policies: []policy.Policy{
		{Topic: "orders.#", Retry: backoff.Steps{time.Second, time.Minute}},
		{Tag: "invoice", MaxAttempts: 3},
		{Properties: map[string]string{"tenant": "acme"}, MaxAttempts: 5, Exhausted: policy.Discard},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	e, err := c.EffectivePolicy(ctx, &tidegate.Message{Tag: "invoice"})
	fmt.Println(e, err)
	fmt.Println()
	e, err = c.EffectivePolicy(ctx, &tidegate.Message{Tag: "invoice", Properties: map[string]string{"tenant": "acme"}})
	fmt.Println(e, err)
	fmt.Println(e.Preview())
	// Output:
	// retries: after 1s, 1m0s (PushOptions.Policies[0] (topic "orders.#"))
	// attempts: 3 (PushOptions.Policies[1] (tag "invoice"))
	// exhausted: dead letter (default) <nil>
	//
	// retries: after 1s, 1m0s, 1m0s, 1m0s (PushOptions.Policies[0] (topic "orders.#"))
	// attempts: 5 (PushOptions.Policies[2] (property tenant="acme"))
	// exhausted: discard (PushOptions.Policies[2] (property tenant="acme")) <nil>
	// retry  after  total
	//     1     1s     1s
	//     2     1m   1m1s
	//     3     1m   2m1s
	//     4     1m   3m1s
	// 4 retries in 3m1s
}

// The error names each faulty policy by its place in the list.
func Example_errors() {
	_, err := consumer.NewPush(demo{}, consumer.Subscription{Group: "billing", Topic: "orders.eu"}, handle, consumer.PushOptions{Policies: []policy.Policy{
		{Tag: "invoice", MaxAttempts: -1},
		{Topic: "orders.*"},
	}})
	fmt.Println(err)
	// Output:
	// consumer: "Policies[0].MaxAttempts": 40000 BAD_REQUEST: -1 is negative; give 1 or more, or 0 to inherit
	// "Policies[1]": 40000 BAD_REQUEST: it sets nothing; set Retry, MaxAttempts or Exhausted
}
