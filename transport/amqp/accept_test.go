package amqp

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/amqppeer"
	"github.com/tidegate/tidegate/transport"
)

// The version of go-amqp in go.mod has the field that deliveryID reads.
func TestDeliveryID(t *testing.T) {
	if !deliveryIDs {
		t.Error("an amqp.Message has no field deliveryID of type uint32: each acknowledgement gets a frame of its own")
	}
}

// Acknowledgements of adjacent messages share a frame, and end these messages only. Without the IDs
// of the deliveries each has a frame of its own.
func TestAcknowledgementsShareFrames(t *testing.T) {
	for _, ids := range []bool{true, false} {
		t.Run(fmt.Sprint("ids=", ids), func(t *testing.T) {
			defer func(was bool) { deliveryIDs = was }(deliveryIDs)
			deliveryIDs = ids
			synctest.Test(t, func(t *testing.T) { acknowledge(t, ids) })
		})
	}
}

func acknowledge(t *testing.T, ids bool) {
	t.Helper()
	var frames atomic.Int64
	p := &amqppeer.Peer{Script: func(_ int, frame byte) amqppeer.Reaction {
		if frame == amqppeer.Disposition {
			frames.Add(1)
		}
		return amqppeer.Responds
	}}
	c, err := New("orders.example:5672", Options{Dialer: p.Dial})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	request := transport.ReceiveRequest{
		Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: 100, InvisibleDuration: time.Minute, Wait: time.Second,
	}
	receive := func() []*tidegate.Delivery {
		ds, err := c.Receive(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		return ds
	}
	receive() // creates the queue
	for i := range 50 {
		m := &tidegate.Message{Topic: "orders", ID: fmt.Sprint(i), Body: []byte("x")}
		if err := c.Send(t.Context(), []*tidegate.Message{m})[0].Err; err != nil {
			t.Fatal(err)
		}
	}
	ds := receive()
	if len(ds) != 50 {
		t.Fatalf("received %d messages, want 50", len(ds))
	}
	kept := ds[20]
	rest := append(append([]*tidegate.Delivery{}, ds[:20]...), ds[21:]...)
	for i, err := range c.Ack(t.Context(), rest) {
		if err != nil {
			t.Errorf("the acknowledgement of %s: %v", rest[i].ID, err)
		}
	}
	synctest.Wait()
	want := int64(2)
	if !ids {
		want = 49
	}
	if n := frames.Load(); n != want {
		t.Errorf("%d frames for the acknowledgements of 0 to 19 and 21 to 49, want %d", n, want)
	}
	if _, err := c.Settle(t.Context(), kept, transport.Verdict{Kind: transport.Retry, Reason: "again"}); err != nil {
		t.Error(err)
	}
	if ds := receive(); len(ds) != 1 || ds[0].ID != kept.ID {
		t.Errorf("received %d messages after the acknowledgements and a retry, want message %s only", len(ds), kept.ID)
	}
}
