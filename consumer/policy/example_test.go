package policy_test

import (
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/transport"
)

// Invoices are tried three times, and those of one customer five times.
func Example() {
	set, err := policy.NewSet(
		policy.Policy{Topic: "orders.#", Retry: backoff.Steps{time.Second, time.Minute}},
		policy.Policy{Tag: "invoice", MaxAttempts: 3},
		policy.Policy{Properties: map[string]string{"tenant": "acme"}, MaxAttempts: 5, Exhausted: policy.Discard},
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	server := policy.Base{Server: transport.ConsumerSettings{MaxAttempts: 17}}
	fmt.Println(set.Effective(&tidegate.Message{Topic: "orders.eu", Tag: "invoice"}, server))
	fmt.Println()
	acme := &tidegate.Message{Topic: "orders.eu", Tag: "invoice", Properties: map[string]string{"tenant": "acme"}}
	fmt.Println(set.Effective(acme, server))
	fmt.Println(set.Effective(acme, server).Preview())
	// Output:
	// retries: after 1s, 1m0s (PushOptions.Policies[0] (topic "orders.#"))
	// attempts: 3 (PushOptions.Policies[1] (tag "invoice"))
	// exhausted: dead letter (default)
	//
	// retries: after 1s, 1m0s, 1m0s, 1m0s (PushOptions.Policies[0] (topic "orders.#"))
	// attempts: 5 (PushOptions.Policies[2] (property tenant="acme"))
	// exhausted: discard (PushOptions.Policies[2] (property tenant="acme"))
	// retry  after  total
	//     1     1s     1s
	//     2     1m   1m1s
	//     3     1m   2m1s
	//     4     1m   3m1s
	// 4 retries in 3m1s
	// after attempt 5: discard
}

func ExampleNewSet_errors() {
	_, err := policy.NewSet(
		policy.Policy{Tag: "invoice", MaxAttempts: -1},
		policy.Policy{Topic: "orders.*"},
	)
	fmt.Println(err)
	// Output:
	// "Policies[0].MaxAttempts": 40000 BAD_REQUEST: -1 is negative; give 1 or more, or 0 to inherit
	// "Policies[1]": 40000 BAD_REQUEST: it sets nothing; set Retry, MaxAttempts or Exhausted
}
