package endtoend

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// A consumer of a group beyond the limit of auto-created groups gets ErrNotFound from its settings
// and its receives, not ErrUnavailable. Settings create no group; the first receive does.
func TestOneGroupTooManyIsNotFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.NewWith(t, brokertest.Options{Broker: broker.Options{MaxAutoGroups: 1}})
		b.CreateTopic("orders", settings.Topic{})
		c := b.Client()
		for _, group := range []string{"first", "second"} {
			if _, err := c.ConsumerSettings(t.Context(), group, "orders"); err != nil {
				t.Fatalf("settings of %s: %v", group, err)
			}
		}
		receive := func(group string) error {
			_, err := c.Receive(t.Context(), transport.ReceiveRequest{
				Group: group, Topic: "orders", Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Minute,
			})
			return err
		}
		if err := receive("first"); err != nil {
			t.Fatal(err)
		}
		_, settings := c.ConsumerSettings(t.Context(), "third", "orders")
		for what, err := range map[string]error{"a receive": receive("second"), "settings": settings} {
			if !errors.Is(err, tidegate.ErrNotFound) || errors.Is(err, tidegate.ErrUnavailable) {
				t.Errorf("%s of one group too many: %v; want ErrNotFound", what, err)
			}
		}
	})
}
