package consumer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
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
				stop := start(t, s, consumer.Subscription{}, func(ctx context.Context, d *tidegate.Delivery) error {
					<-ctx.Done()
					time.Sleep(time.Second/10 + tt.late[d.Offset])
					return nil
				}, consumer.PushOptions{Concurrency: len(tt.late), ShutdownTimeout: time.Second, OnDelivery: seen.add})
				synctest.Wait()
				begin := time.Now()
				if err := stop(); err != nil || time.Since(begin) > 4*time.Second {
					t.Errorf("Run: %v after %v, want nil after at most 4s", err, time.Since(begin))
				}
				for _, o := range seen.all() {
					if o.Disposition != consumer.Acked {
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
