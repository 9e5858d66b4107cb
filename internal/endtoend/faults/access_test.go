package faults

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// A producer and a push consumer work with access keys for hours, also through a retry and to a
// dead letter, which the consumer's key may read. With a wrong key or without the permission the
// SDK makes one attempt, and the error names the reason.
func TestAccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := func(name string, r server.Rule) server.Key {
			return server.Key{Name: name, Secrets: []server.Secret{server.NewSecret(name + "'s secret")}, Allow: []server.Rule{r}}
		}
		b := brokertest.NewWith(t, brokertest.Options{Access: server.AccessConfig{Keys: []server.Key{
			key("shop", server.Rule{Actions: []server.Action{server.ActionSend}, Topics: []string{"orders"}}),
			key("billing", server.Rule{Actions: []server.Action{server.ActionReceive}, Topics: []string{"orders"}, Groups: []string{"billing*"}}),
		}}})
		b.CreateTopic("orders", settings.Topic{})
		b.CreateTopic("payments", settings.Topic{})
		b.CreateGroup("billing", settings.Group{MaxAttempts: 2})
		as := func(name string) *rocketmq.Client {
			return b.ClientWith(rocketmq.Options{Credentials: tidegate.Credentials{AccessKey: name, SecretKey: name + "'s secret"}})
		}
		send := func(c *rocketmq.Client, topic string) error {
			t.Helper()
			p, err := producer.New(c, producer.Options{})
			if err != nil {
				t.Fatal(err)
			}
			_, err = p.Send(t.Context(), &tidegate.Message{Topic: topic, Body: []byte("x")})
			return err
		}
		for name, c := range map[string]struct {
			client *rocketmq.Client
			topic  string
			want   error
		}{
			"right":         {as("shop"), "orders", nil},
			"another topic": {as("shop"), "payments", tidegate.ErrForbidden},
			"a consumer's":  {as("billing"), "orders", tidegate.ErrForbidden},
			"unknown":       {as("nobody"), "orders", tidegate.ErrUnauthorized},
			"none":          {b.Client(), "orders", tidegate.ErrUnauthorized},
		} {
			began := time.Now()
			if err := send(c.client, c.topic); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
			if d := time.Since(began); d > time.Second {
				t.Errorf("%s: it took %v: a refusal is not retried", name, d)
			}
		}

		var failed atomic.Int64
		push, err := consumer.NewPush(as("billing"), consumer.Subscription{Group: "billing", Topic: "orders"},
			func(context.Context, *tidegate.Delivery) error { failed.Add(1); return errors.New("no") }, consumer.PushOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- push.Run(ctx) }()
		time.Sleep(time.Hour)
		if n := failed.Load(); n != 2 {
			t.Errorf("%d attempts, want 2", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		dead, err := consumer.NewSimple(as("billing"), consumer.Subscription{Group: "billing-dead", Topic: tidegate.DeadLetterTopic("billing")}, consumer.SimpleOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ds, err := dead.Receive(t.Context(), 1)
		if err != nil || len(ds) != 1 {
			t.Fatalf("dead letters: %v, %v", ds, err)
		}
		if err := dead.Ack(t.Context(), ds[0]); err != nil {
			t.Error(err)
		}
	})
}
