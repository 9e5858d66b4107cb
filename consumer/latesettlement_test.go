package consumer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/internal/tally"
	"github.com/tidegate/tidegate/transport"
)

// A handler that returns after ShutdownTimeout has one second for the settlement of its message,
// also if the settlements of several messages share a request.
func TestHandlerAfterTheShutdownTimeoutIsSettled(t *testing.T) {
	for _, tt := range []struct {
		name string
		late []time.Duration // of each handler, after the end of ShutdownTimeout
	}{
		{"one handler", []time.Duration{2 * time.Second}},
		{"several handlers", []time.Duration{time.Second, time.Second, 1500 * time.Millisecond, 2 * time.Second, 2 * time.Second}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				s.caps = ours
				s.fill(len(tt.late))
				var seen outcomes
				stop := start(t, s, Subscription{}, func(ctx context.Context, d *tidegate.Delivery) error {
					<-ctx.Done()
					time.Sleep(time.Second/10 + tt.late[d.Offset])
					return nil
				}, PushOptions{Concurrency: len(tt.late), ShutdownTimeout: time.Second, OnDelivery: seen.add})
				synctest.Wait()
				begin := time.Now()
				if err := stop(); err != nil || time.Since(begin) > 4*time.Second {
					t.Errorf("Run: %v after %v, want nil after at most 4s", err, time.Since(begin))
				}
				for _, o := range seen.all() {
					if o.Disposition != Acked {
						t.Errorf("message %s: %v, %v, want it acked", o.Delivery.ID, o.Disposition, o.SettleErr)
					}
				}
				if s.left() != 0 {
					t.Errorf("%d messages are not consumed", s.left())
				}
			})
		})
	}
}

// endingContext ends between the first and the second look at it.
type endingContext struct {
	context.Context
	looks int
}

func (c *endingContext) Err() error {
	if c.looks++; c.looks > 1 {
		return context.Canceled
	}
	return nil
}

// A settlement that is postponed in the moment in which the shutdown time ends is not forgotten:
// its delivery ends as Unsettled, so that Run can return.
func TestSettlementPostponedAtTheEndOfTheShutdown(t *testing.T) {
	var seen outcomes
	p, err := NewPush(newServer(t), Subscription{Group: "billing", Topic: "orders"}, func(context.Context, *tidegate.Delivery) error { return nil },
		PushOptions{OnDelivery: seen.add})
	if err != nil {
		t.Fatal(err)
	}
	r := &run{Push: p, log: p.opts.Logger, events: tally.New(p.opts.Logger), hand: newHand(&p.opts), topics: p.sub.newTopics()}
	r.detached, r.settling = t.Context(), &endingContext{Context: t.Context()}
	r.announcer = newPool(1, r.effects.Go)
	r.topics[0].settings.Store(&transport.ConsumerSettings{})

	now := time.Now()
	r.hand.arrive(arrival{
		list: []*tidegate.Delivery{{Message: tidegate.Message{ID: "1", Topic: "orders"}, Attempt: 1}}, caps: p.transport.Capabilities,
		source: &source{topic: r.topics[0]}, sent: now, invisible: time.Minute,
	}, now)
	it := r.hand.take(func(error) {})
	if carryOut, _ := r.hand.returned(it, handled{decision: verdict.Decision{Act: verdict.Ack}}, now); !carryOut {
		t.Fatal("the acknowledgement is not carried out")
	}
	it.Last = errLost
	r.goOn(it, transport.RetryResult{}, verdict.TryAgain)
	if got := seen.all(); len(got) != 1 || got[0].Disposition != Unsettled || r.hand.credits.Messages() != 0 {
		t.Errorf("outcomes %+v with %d deliveries in hand, want one that is unsettled, and none", got, r.hand.credits.Messages())
	}
}
