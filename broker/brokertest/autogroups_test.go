package brokertest_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/brokertest"
)

// A consumer of a group that there is not and that is not made either is told
// at once; it does not take it for a server that comes back.
func TestOneGroupTooManyIsNotFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.NewWith(t, brokertest.Options{Broker: broker.Options{MaxAutoGroups: 1}})
		b.CreateTopic("orders", broker.TopicConfig{})
		c := b.Client()
		if _, err := c.ConsumerSettings(t.Context(), "first", "orders"); err != nil {
			t.Fatal(err)
		}
		_, err := c.ConsumerSettings(t.Context(), "second", "orders")
		if !errors.Is(err, tidegate.ErrNotFound) || errors.Is(err, tidegate.ErrUnavailable) {
			t.Errorf("settings of one group too many: %v; want ErrNotFound", err)
		}
	})
}
