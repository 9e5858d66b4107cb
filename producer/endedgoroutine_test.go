package producer

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A message whose request the transport has ended by runtime.Goexit may have been stored; one
// without a request was not stored. Both fail, and their functions are called.
func TestEndedGoroutinesOfTheTransport(t *testing.T) {
	for _, tt := range []struct {
		name   string
		inLane bool
		maybe  bool
	}{
		{"while it sends", false, true},
		{"while it looks for a lane", true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &laneFake{
					lane: func(context.Context, transport.LaneRequest) (transport.Lane, error) {
						if tt.inLane {
							runtime.Goexit()
						}
						return transport.Lane{Endpoint: "a:1", MaxMessages: 10}, nil
					},
					do: func(context.Context, int, transport.Lane, []*tidegate.Message) []error {
						runtime.Goexit()
						return nil
					},
				}
				p := newProducer(t, f, Options{})
				done := make(chan error, 1)
				if err := p.SendAsync(t.Context(), message(), func(_ tidegate.Receipt, err error) { done <- err }); err != nil {
					t.Fatal(err)
				}
				if e := sendError(t, <-done); e.Reason != StopPermanent || e.MaybeStored != tt.maybe {
					t.Errorf("%v with MaybeStored %t, want a permanent failure with %t", e, e.MaybeStored, tt.maybe)
				}
			})
		})
	}
}

// A receipt has the ID and the topic of the message, also if the transport returns neither.
func TestReceiptNamesTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProducer(t, bare{}, Options{})
		r, err := p.Send(t.Context(), &tidegate.Message{ID: "1", Topic: "orders", Body: []byte("x")})
		if err != nil || r.MessageID != "1" || r.Topic != "orders" || r.Attempts != 1 {
			t.Errorf("receipt %+v, %v; want that of message 1 of orders in one attempt", r, err)
		}
	})
}

// bare is a transport with empty receipts.
type bare struct{}

func (bare) Send(_ context.Context, msgs []*tidegate.Message) []transport.SendResult {
	return make([]transport.SendResult, len(msgs))
}

func (bare) ProducerSettings(context.Context, string) (transport.ProducerSettings, error) {
	return transport.ProducerSettings{}, nil
}
