package broker_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// The leases of all groups together are bounded by the memory. At the bound a receive of new
// messages is rejected with 42900, retries are delivered, and an acknowledgement permits a new
// delivery. A store with twice as many leases is opened and drained. The error of one with more has
// the remedy.
func TestLeasesAreBoundedByTheMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testLeases)
}

func testLeases(t *testing.T) {
	const leases = 20
	options := broker.Options{Memory: broker.NewMemory(), MinInvisibleDuration: 1}.ProcessMemory(leases * 4 * 256)
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
	full := func(b *broker.Broker) {
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
	if _, err := b.Settle(t.Context(), held[0], transport.Verdict{Kind: transport.Retry}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait() // it is ready
	again := receive(t, b, transport.ReceiveRequest{Group: "g0", Topic: "t", Max: 5, InvisibleDuration: time.Hour, Wait: time.Minute})
	if len(again) != 1 || again[0].ID != held[0].ID || again[0].Attempt != 2 {
		t.Fatalf("the retry at the bound: %v", again)
	}
	held[0] = again[0]
	full(b)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}

	options = options.ProcessMemory(leases*2*256 - 4)
	if b, err := broker.Open(options); err == nil {
		t.Error("a store with more leases than half of the memory was opened", b.Close())
	} else {
		for _, w := range []string{"20 messages in flight", "10236 bytes suffices for 18", "at least 10240 bytes (GOMEMLIMIT)", "nothing was changed"} {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("the error does not contain %q: %v", w, err)
			}
		}
	}
	options = options.ProcessMemory(leases * 2 * 256)
	b = open(t, options)
	full(b)
	for i, err := range b.Ack(t.Context(), held[:leases/2+1]) {
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
