package serve

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// Declaring an auto-created group or dead-letter queue in a file makes it permanent, even with
// unchanged settings. It no longer counts in max_auto_groups, and the broker does not delete it.
func TestDeclaredIsNotAutoCreated(t *testing.T) {
	b, err := broker.Open(broker.Options{MinInvisibleDuration: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.PutTopic(t.Context(), "orders", settings.Topic{Queues: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.PutAddressSettings(t.Context(), "orders", settings.Address{
		MaxDeliveryAttempts: new(1), AutoCreateDeadLetterResources: new(true), DeadLetterAddress: new("DLA"),
	}); err != nil {
		t.Fatal(err)
	}
	if r := b.Send(t.Context(), []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte("x")}}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Push: true, Max: 1, InvisibleDuration: time.Minute})
	if err != nil || len(ds) != 1 {
		t.Fatal(ds, err)
	}
	if _, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.Retry}); err != nil {
		t.Fatal(err)
	}
	automatic := func() (both [2]bool) {
		t.Helper()
		topic, err := b.Topic("DLQ.orders")
		if err != nil {
			t.Fatal(err)
		}
		group, err := b.Group("billing")
		if err != nil {
			t.Fatal(err)
		}
		return [2]bool{topic.AutoCreated, group.AutoCreated}
	}
	if got := automatic(); got != [2]bool{true, true} {
		t.Fatalf("auto-created: %t", got)
	}
	queue, err := b.TopicSettings("DLQ.orders") // as it would be declared
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tidegate.yaml")
	write(t, file, "topics:\n  DLQ.orders: {}\ngroups:\n  billing: {}\n")
	c, err := load(file, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.topics["DLQ.orders"] = queue
	for _, want := range [][]string{{"topics.DLQ.orders", "groups.billing"}, nil} { // the second time nothing is left to change
		changed, err := put(t.Context(), c, b)
		if err != nil || !slices.Equal(changed, want) {
			t.Errorf("changed %q, %v; want %q", changed, err, want)
		}
	}
	if got := automatic(); got != [2]bool{false, false} {
		t.Errorf("declared, and still auto-created: %t", got)
	}
}
