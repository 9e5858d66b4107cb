package brokertest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/transport"
)

// After a ChangeInvisibleDuration whose response was lost, the repetition succeeds. Ack and
// DeadLetter with the earlier handle succeed too. When the invisible time is over they do not.
func TestSimpleAfterALostChange(t *testing.T) {
	for name, settle := range map[string]func(context.Context, *consumer.Simple, *tidegate.Delivery) error{
		"ack": func(ctx context.Context, s *consumer.Simple, d *tidegate.Delivery) error { return s.Ack(ctx, d) },
		"dead letter": func(ctx context.Context, s *consumer.Simple, d *tidegate.Delivery) error {
			_, err := s.Settle(ctx, d, transport.Verdict{Kind: transport.DeadLetter, Reason: "x"})
			return err
		},
		"change": func(ctx context.Context, s *consumer.Simple, d *tidegate.Delivery) error {
			if err := s.ChangeInvisibleDuration(ctx, d, 2*time.Minute); err != nil {
				return err
			}
			if left := time.Until(d.InvisibleUntil); left < 119*time.Second {
				return errors.New("the repetition did not extend the invisible time")
			}
			return s.Ack(ctx, d)
		},
	} {
		brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
			b.CreateTopic("orders", settings.Topic{})
			b.CreateGroup("billing", settings.Group{})
			b.Send(&tidegate.Message{ID: "m", Topic: "orders", Body: []byte("x")})
			s, err := consumer.NewSimple(b.Client(), consumer.Subscription{Group: "billing", Topic: "orders"}, consumer.SimpleOptions{})
			if err != nil {
				t.Fatal(err)
			}
			ds, err := s.Receive(t.Context(), 1)
			if err != nil || len(ds) != 1 {
				t.Fatal(ds, err)
			}
			late := *ds[0]
			remove := b.Intercept(func(ctx context.Context, _ server.Call, next func(context.Context) error) error {
				return errors.Join(next(ctx), brokertest.ErrConnectionLost)
			})
			if err := s.ChangeInvisibleDuration(t.Context(), ds[0], time.Minute); err == nil || ds[0].Handle != late.Handle {
				t.Fatal("the response was not lost", err)
			}
			remove()
			if err := settle(t.Context(), s, ds[0]); err != nil {
				t.Errorf("%s after a lost change: %v", name, err)
			}
			if n := b.Stats("billing", "orders").Inflight; n != 0 {
				t.Errorf("%s: %d messages in flight", name, n)
			}
			time.Sleep(3 * time.Minute)
			if err := settle(t.Context(), s, &late); name != "dead letter" && !errors.Is(err, tidegate.ErrInvalidHandle) { // that can be repeated
				t.Errorf("%s after the end: %v", name, err)
			}
		})
	}
}
