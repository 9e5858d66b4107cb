package rest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rest"
)

// Settings are those of the group, or of the topic's address settings, where they hold.
func TestConsumerSettings(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		c := over(t, b, rest.Options{})
		b.CreateTopic("orders", settings.Topic{})
		if s, err := c.ConsumerSettings(t.Context(), "later", "orders"); err != nil || s.MaxAttempts != 0 || s.Retry != nil {
			t.Errorf("of a group that does not exist yet: %+v, %v, want none", s, err)
		}
		b.CreateGroup("billing", settings.Group{FIFO: true, MaxAttempts: -1, FIFORetryInterval: settings.Duration(4 * time.Second)})
		if s, err := c.ConsumerSettings(t.Context(), "billing", "orders"); err != nil || !s.FIFO || s.MaxAttempts != -1 || s.Retry.Delay(3) != 4*time.Second {
			t.Errorf("of a FIFO group: %+v, %v", s, err)
		}
		delay, factor, most := settings.Milliseconds(1000), 3.0, settings.Milliseconds(20_000)
		assert.Must(t, assert.Err(b.PutAddressSettings(t.Context(), "orders", settings.Address{RedeliveryDelay: &delay, RedeliveryDelayMultiplier: &factor, MaxRedeliveryDelay: &most})))
		s, err := c.ConsumerSettings(t.Context(), "billing", "orders")
		assert.MustThat(t, err == nil && s.MaxAttempts == 10, "of address settings: %+v, %v, want 10 attempts", s, err)
		for n, want := range []time.Duration{time.Second, 3 * time.Second, 9 * time.Second, 20 * time.Second, 20 * time.Second} {
			got := s.Retry.Delay(n)
			assert.That(t, got == want, "delay %d is %v, want %v", n, got, want)
		}
	})
}

// A key with the permissions to send and to receive is enough; the permission to observe is not
// needed.
func TestRights(t *testing.T) {
	o := brokertest.Options{Access: server.AccessConfig{Keys: []server.Key{{
		Name: "clerk", Secrets: []server.Secret{server.NewSecret("open sesame")},
		Allow: []server.Rule{{Actions: []server.Action{"send", "receive"}, Topics: []string{"orders"}, Groups: []string{"billing"}}},
	}}}}
	b := brokertest.NewWith(t, o)
	b.CreateTopic("orders", settings.Topic{})
	c := over(t, b, rest.Options{Credentials: tidegate.Credentials{AccessKey: "clerk", SecretKey: "open sesame"}})
	ctx := t.Context()
	_, settings := c.ProducerSettings(ctx, "orders")
	_, group := c.ConsumerSettings(ctx, "billing", "orders")
	queues, all := c.Queues(ctx, "billing", "orders")
	err := errors.Join(c.Ping(ctx), c.Ping(ctx, "orders"), settings, group, all, c.Send(ctx, []*tidegate.Message{message("a")})[0].Err)
	assert.That(t, err == nil && len(queues) == 1 && queues[0] == transport.AnyQueue, "%v, queues %v", err, queues)
	ds, err := c.Receive(ctx, transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, InvisibleDuration: time.Minute})
	assert.MustThat(t, err == nil && len(ds) == 1, "received %d, %v", len(ds), err)
	assert.NoError(t, c.Ack(ctx, ds)[0])
	wrong := over(t, b, rest.Options{Credentials: tidegate.Credentials{AccessKey: "clerk", SecretKey: "open barley"}})
	for name, err := range map[string]error{
		"Ping": wrong.Ping(ctx), "Send": wrong.Send(ctx, []*tidegate.Message{message("a")})[0].Err, "Queues": func() error { _, err := wrong.Queues(ctx, "billing", "orders"); return err }(),
	} {
		assert.That(t, errors.Is(err, tidegate.ErrUnauthorized), "%s with a wrong secret: %v, want ErrUnauthorized", name, err)
	}
	r := c.Send(ctx, []*tidegate.Message{{ID: "x", Topic: "bills", Body: []byte("x")}})[0]
	assert.That(t, errors.Is(r.Err, tidegate.ErrForbidden), "another topic: %v, want ErrForbidden", r.Err)
}
