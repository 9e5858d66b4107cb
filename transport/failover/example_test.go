package failover_test

import (
	"fmt"

	"github.com/tidegate/tidegate/transport/failover"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// A transport for a producer or a consumer, over a primary and a secondary cluster.
func ExampleNew() {
	primary, err := rocketmq.New("mq-1.example:8081", rocketmq.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	secondary, err := rocketmq.New("mq-2.example:8081", rocketmq.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	t, err := failover.New([]failover.Endpoint{{Name: "primary", Transport: primary}, {Name: "secondary", Transport: secondary}}, failover.Options{
		OnSwitch: func(e failover.Event) { fmt.Println("from", e.From, "to", e.To, "because it is", e.Reason) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close() // closes the clients too
	fmt.Println("sends go to the", t.Active())
	// Output: sends go to the primary
}
