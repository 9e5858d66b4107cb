package broker_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// Prepare is called once for each receive that returns deliveries, before it
// returns, with these very deliveries; also for those that are repeated.
func TestPrepare(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO})
	if _, err := b.PutGroup(t.Context(), "g", settings.Group{FIFO: true}); err != nil {
		t.Fatal(err)
	}
	poll := func(attempt string) (prepared [][]*tidegate.Delivery, ds []*tidegate.Delivery) {
		t.Helper()
		ds, err := serve(b).Poll(t.Context(), serving.Poll{
			ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, Max: 8, InvisibleDuration: time.Minute, AttemptID: attempt},
			Prepare:        func(ds []*tidegate.Delivery) { prepared = append(prepared, slices.Clone(ds)) },
		})
		if err != nil {
			t.Fatal(err)
		}
		return prepared, ds
	}
	if prepared, ds := poll("0"); len(prepared) != 0 || len(ds) != 0 {
		t.Errorf("no message is ready: prepared %v, received %v", prepared, ds)
	}
	for _, id := range []string{"1", "2"} {
		mustSend(t, b, &tidegate.Message{ID: id, Topic: "t", MessageGroup: id, Body: []byte(id)})
	}
	for _, name := range []string{"first", "repeated"} {
		prepared, ds := poll("1")
		if len(ds) != 2 || len(prepared) != 1 || !slices.Equal(prepared[0], ds) {
			t.Errorf("%s: prepared %v, received %v", name, prepared, ds)
		}
	}
}
