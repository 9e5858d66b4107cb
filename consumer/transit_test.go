package consumer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/transport"
)

// A lossy server takes a second for the response of a receive, which is lost if the receive is
// cancelled before.
type lossy struct{ *server }

func (s lossy) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	ds, err := s.server.Receive(ctx, r)
	if err != nil || r.Repeat {
		return ds, err
	}
	select {
	case <-time.After(time.Second):
		return ds, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// A pause and the end of a run cancel receives. The deliveries of a lost response are recalled and
// released, so that other consumers receive them at once.
func TestDeliveriesOfACancelledReceiveAreReleased(t *testing.T) {
	for _, pause := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			s.caps = ours
			p, err := consumer.NewPush(lossy{s}, consumer.Subscription{Group: "billing", Topic: "orders"},
				func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{})
			if err != nil {
				t.Fatal(err)
			}
			stop := runPush(t, p)
			s.fill(1)
			if synctest.Wait(); s.inHand() != 1 {
				t.Fatalf("%d deliveries are in transit, want 1", s.inHand())
			}
			if pause {
				p.Pause()
			} else if err := stop(); err != nil {
				t.Error(err)
			}
			if synctest.Wait(); s.inHand() != 0 || s.left() != 1 {
				t.Errorf("pause %v: %d deliveries are in flight and %d messages left, want 0 and 1", pause, s.inHand(), s.left())
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}
