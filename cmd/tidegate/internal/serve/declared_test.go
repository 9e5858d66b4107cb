package serve

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// Declaring an auto-created group or dead-letter queue in a file makes it permanent, even with
// unchanged settings. It no longer counts in max_auto_groups, and the broker does not delete it.
func TestDeclaredIsNotAutoCreated(t *testing.T) {
	b, err := broker.Open(broker.Options{MinInvisibleDuration: 1})
	assert.Must(t, err)
	defer b.Close()
	assert.Must(t, assert.Err(b.PutTopic(t.Context(), "orders", settings.Topic{Queues: 1})))
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
	assert.Must(t, assert.Err(b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.Retry})))
	automatic := func() (both [2]bool) {
		t.Helper()
		topic := assert.Value(b.Topic("DLQ.orders"))(t)
		group := assert.Value(b.Group("billing"))(t)
		return [2]bool{topic.AutoCreated, group.AutoCreated}
	}
	assert.MustEqual(t, "auto-created", automatic(), [2]bool{true, true})
	queue, err := b.TopicSettings("DLQ.orders") // as it would be declared
	assert.Must(t, err)
	file := filepath.Join(t.TempDir(), "tidegate.yaml")
	write(t, file, "topics:\n  DLQ.orders: {}\ngroups:\n  billing: {}\n")
	c := assert.Value(load(file, nil, nil))(t)
	c.topics["DLQ.orders"] = queue
	for _, want := range [][]string{{"topics.DLQ.orders", "groups.billing"}, nil} { // the second time nothing is left to change
		changed, err := put(t.Context(), c, b)
		assert.That(t, err == nil && slices.Equal(changed, want), "changed %q, %v; want %q", changed, err, want)
	}
	assert.Equal(t, "declared, and still auto-created", automatic(), [2]bool{false, false})
}
