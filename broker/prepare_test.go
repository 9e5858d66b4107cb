package broker_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// A prepared collects the arguments of Prepare.
type prepared [][]*tidegate.Delivery

func (p *prepared) Prepare(ds []*tidegate.Delivery) { *p = append(*p, slices.Clone(ds)) }

// Prepare is called once for each receive that returns deliveries, before it
// returns, with these very deliveries; also for those that are repeated.
func TestPrepare(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO})
	if _, err := b.PutGroup(t.Context(), "g", settings.Group{FIFO: true}); err != nil {
		t.Fatal(err)
	}
	poll := func(attempt string) (all prepared, ds []*tidegate.Delivery) {
		t.Helper()
		ds, err := serve(b).Poll(t.Context(), engine.Request{
			ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, Max: 8, InvisibleDuration: time.Minute, AttemptID: attempt},
			Encoder:        &all,
		})
		if err != nil {
			t.Fatal(err)
		}
		return all, ds
	}
	if all, ds := poll("0"); len(all) != 0 || len(ds) != 0 {
		t.Errorf("no message is ready: prepared %v, received %v", all, ds)
	}
	for _, id := range []string{"1", "2"} {
		mustSend(t, b, &tidegate.Message{ID: id, Topic: "t", MessageGroup: id, Body: []byte(id)})
	}
	for _, name := range []string{"first", "repeated"} {
		all, ds := poll("1")
		if len(ds) != 2 || len(all) != 1 || !slices.Equal(all[0], ds) {
			t.Errorf("%s: prepared %v, received %v", name, all, ds)
		}
	}
}
