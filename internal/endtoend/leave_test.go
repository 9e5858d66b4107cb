package endtoend

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

// A consumer cancels a receive, repeats it and releases the messages of both. No message is lost
// and no attempt counts, at any moment of the cancellation.
func TestCancelledReceiveIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", settings.Topic{})
		p, leaver, other := NewProducer(t, b, producer.Options{}), b.Client(), b.Client()
		r := transport.ReceiveRequest{
			Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Push: true, Max: 32,
			InvisibleDuration: 30 * time.Second, Wait: 20 * time.Second,
		}
		if _, err := leaver.Queues(t.Context(), r.Group, r.Topic); err != nil { // the connection is there
			t.Fatal(err)
		}
		for i := range 300 {
			id := fmt.Sprint(i)
			ctx, cancel := context.WithCancel(t.Context())
			first := r
			first.AttemptID = id
			ended := make(chan []*tidegate.Delivery)
			go func() {
				ds, _ := leaver.Receive(ctx, first)
				ended <- ds
			}()
			synctest.Wait()
			go func() {
				for range rand.IntN(200) {
					runtime.Gosched()
				}
				cancel()
			}()
			MustSend(t, p, &tidegate.Message{ID: id, Topic: "orders", Body: []byte("x")})
			ds := <-ended
			if len(ds) == 0 {
				repeat := first
				repeat.Repeat = true
				var err error
				if ds, err = leaver.Receive(t.Context(), repeat); err != nil {
					t.Fatal(err)
				}
			}
			for _, d := range ds {
				if _, err := leaver.Settle(t.Context(), d, transport.Verdict{Kind: transport.Release}); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			ds, err := other.Receive(t.Context(), r)
			if err != nil || len(ds) != 1 || ds[0].ID != id || ds[0].Attempt != 1 {
				t.Fatalf("message %s: the next client receives %v, %v; want it as attempt 1", id, ds, err)
			}
			if err := other.Ack(t.Context(), ds)[0]; err != nil {
				t.Fatal(err)
			}
		}
	})
}
