package failover_test

import (
	"fmt"

	"github.com/tidegate/tidegate/transport/failover"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// A transport for a producer or a consumer, over a primary and a secondary cluster.
func ExampleDial() {
	t, err := failover.Dial([]string{"mq-1.example:8081", "mq-2.example:8081"}, rocketmq.Options{}, failover.Options{
		OnSwitch: func(e failover.Event) { fmt.Println("from", e.From, "to", e.To, "because it is", e.Reason) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer t.Close()
	fmt.Println("sends go to the", t.Active())
	// Output: sends go to the primary
}
