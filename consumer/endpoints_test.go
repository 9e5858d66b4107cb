package consumer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/transport"
)

// A switched server delivers all messages as those of another system, whose settings differ from
// the result of ConsumerSettings.
type switched struct {
	*server
	other transport.ConsumerSettings
}

func (s switched) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	ds, err := s.server.Receive(ctx, r)
	for _, d := range ds {
		d.Endpoint = "other"
	}
	return ds, err
}

func (s switched) EndpointSettings(endpoint, _, _ string) (transport.ConsumerSettings, bool) {
	return s.other, endpoint == "other"
}

// The maximum of attempts, the retry schedule and the order are those of the server that delivered
// the message.
func TestSettingsOfTheDeliveringServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := switched{newServer(t), transport.ConsumerSettings{MaxAttempts: 2, Retry: backoff.Steps{7 * time.Second}, FIFO: true}}
		s.caps = ours
		s.settings = transport.ConsumerSettings{MaxAttempts: 9, Retry: backoff.Steps{time.Minute}}
		s.add(0, &tidegate.Message{ID: "first", Topic: "orders", MessageGroup: "g"}, &tidegate.Message{ID: "second", Topic: "orders", MessageGroup: "g"})
		var running atomic.Int32
		p, err := consumer.NewPush(s, consumer.Subscription{Group: "billing", Topic: "orders"}, func(ctx context.Context, d *tidegate.Delivery) error {
			if running.Add(1) > 1 {
				t.Error("two messages of a message group are handled at the same time")
			}
			time.Sleep(time.Second)
			running.Add(-1)
			if final, known := consumer.FinalAttempt(ctx); !known || final != (d.Attempt == 2) {
				t.Errorf("attempt %d: final %v, known %v", d.Attempt, final, known)
			}
			if d.ID == "first" {
				return errors.New("no such customer")
			}
			return nil
		}, consumer.PushOptions{Concurrency: 2})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		for s.left() > 0 && ctx.Err() == nil {
			time.Sleep(time.Second)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if len(s.retries) != 1 || s.retries[0].delay != 7*time.Second {
			t.Errorf("retries %+v, want one after 7 s", s.retries)
		}
		if len(s.dead) != 1 || s.dead["first"] == "" {
			t.Errorf("dead letters %v, want the first message after two attempts", s.dead)
		}
	})
}
