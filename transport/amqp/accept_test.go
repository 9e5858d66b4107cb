package amqp

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/amqppeer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// The version of go-amqp in go.mod has the field that deliveryID reads.
func TestDeliveryID(t *testing.T) {
	assert.That(t, deliveryIDs,
		"an amqp.Message has no field deliveryID of type uint32: each acknowledgement gets a frame of its own")
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
	c := clientOf(t, p)
	request := transport.ReceiveRequest{
		Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: 100, InvisibleDuration: time.Minute, Wait: time.Second,
	}
	receive := func() []*tidegate.Delivery {
		return assert.Value(c.Receive(t.Context(), request))(t)
	}
	receive() // creates the queue
	for i := range 50 {
		m := &tidegate.Message{Topic: "orders", ID: fmt.Sprint(i), Body: []byte("x")}
		assert.Must(t, c.Send(t.Context(), []*tidegate.Message{m})[0].Err)
	}
	ds := receive()
	assert.MustEqual(t, "received messages", len(ds), 50)
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
	assert.Equal(t, "frames for the acknowledgements of 0 to 19 and 21 to 49", frames.Load(), want)
	assert.NoError(t, assert.Err(c.Settle(t.Context(), kept, transport.Verdict{Kind: transport.Retry, Reason: "again"})))
	if ds := receive(); len(ds) != 1 || ds[0].ID != kept.ID {
		t.Errorf("received %d messages after the acknowledgements and a retry, want message %s only", len(ds), kept.ID)
	}
}
