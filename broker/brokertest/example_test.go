package brokertest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
)

var t *testing.T // of the test that runs the example

// A handler that always fails makes its message a dead letter. In the bubble of Run the retries
// take no real time.
func ExampleRun() {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		b.CreateGroup("billing", settings.Group{MaxAttempts: 3})
		b.Consume("billing", "orders", func(context.Context, *tidegate.Delivery) error {
			return errors.New("no such customer")
		})
		b.Send(&tidegate.Message{Topic: "orders", Body: []byte("3 apples")})

		letter := b.WaitDeadLetter("billing")
		if got := fmt.Sprint(letter.Origin.Attempts, " ", letter.Origin.Reason); got != "3 no such customer" {
			t.Errorf("the dead letter has %q", got)
		}
	})
}

func TestExampleRun(tt *testing.T) {
	t = tt
	ExampleRun()
}
