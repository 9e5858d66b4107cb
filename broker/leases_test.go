package broker

import (
	"fmt"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// The leases of all groups together are bounded by the memory. At the bound a receive of new
// messages is rejected with 42900, retries are delivered, and an acknowledgement makes room. A
// store with more leases than the memory suffices for is opened and drained.
func TestLeasesAreBoundedByTheMemory(t *testing.T) {
	t.Parallel()
	const leases = 20
	options := Options{Memory: NewMemory(), memory: leases * 4 * 256, MinInvisibleDuration: 1}
	b := open(t, options)
	putTopic(t, b, "t", settings.Topic{Queues: 1})
	for i := range 100 {
		send(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte("x")})
	}
	var held []*tidegate.Delivery
	for i := 0; len(held) < leases; i++ {
		group := fmt.Sprint("g", i%2)
		putGroup(t, b, group, settings.Group{Retry: []time.Duration{time.Millisecond}})
		held = append(held, receive(t, b, transport.ReceiveRequest{Group: group, Topic: "t", Max: 5, InvisibleDuration: time.Hour})...)
	}
	full := func(b *Broker) {
		t.Helper()
		for _, group := range []string{"g0", "g1"} {
			ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: group, Topic: "t", Max: 5, InvisibleDuration: time.Hour})
			wantCode(t, "a receive at the bound", err, tidegate.CodeTooManyRequests)
			if len(ds) > 0 {
				t.Errorf("%d messages were delivered at the bound", len(ds))
			}
		}
	}
	full(b)
	if _, err := b.Retry(t.Context(), held[0], 0, ""); err != nil {
		t.Fatal(err)
	}
	again := receive(t, b, transport.ReceiveRequest{Group: "g0", Topic: "t", Max: 5, InvisibleDuration: time.Hour, Wait: time.Minute})
	if len(again) != 1 || again[0].ID != held[0].ID || again[0].Attempt != 2 {
		t.Fatalf("the retry at the bound: %v", again)
	}
	held[0] = again[0]
	full(b)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}

	options.memory /= 4
	b = open(t, options)
	full(b)
	for i, err := range b.Ack(t.Context(), held[:leases*3/4+1]) {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	if ds := receive(t, b, transport.ReceiveRequest{Group: "g1", Topic: "t", Max: 1, InvisibleDuration: time.Hour}); len(ds) != 1 {
		t.Errorf("%d messages were delivered below the bound", len(ds))
	}
	full(b)
	if err := b.DeleteGroup(t.Context(), "g1"); err != nil {
		t.Fatal(err)
	}
	if ds := receive(t, b, transport.ReceiveRequest{Group: "g2", Topic: "t", Max: 1, InvisibleDuration: time.Hour}); len(ds) != 1 {
		t.Errorf("%d messages were delivered after the other group was deleted", len(ds))
	}
}
