package rest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rest"
)

// A producer and a push consumer run over HTTP: throttled sends back off and arrive, many messages
// share requests, failures take the group's schedule, and the last one makes a dead letter.
func TestProducerAndConsumer(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		b.CreateGroup("billing", settings.Group{MaxAttempts: 3, Retry: backoff.Steps{time.Minute, 5 * time.Minute}})
		requests, refuse := map[string]int{}, 2
		var mu sync.Mutex
		b.Intercept(func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			mu.Lock()
			requests[call.Op]++
			throttled := call.Op == "SendMessage" && refuse > 0
			if throttled {
				refuse--
			}
			mu.Unlock()
			if throttled {
				return brokertest.Throttled(7 * time.Second)
			}
			return next(ctx)
		})

		p, err := producer.New(over(t, b, rest.Options{}), producer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		start := time.Now()
		receipt, err := p.Send(t.Context(), message("first"))
		if err != nil || receipt.Attempts != 3 || time.Since(start) < 14*time.Second {
			t.Errorf("throttled twice for 7s: %+v, %v after %v", receipt, err, time.Since(start))
		}
		const n = 500
		for i := range n {
			err := p.SendAsync(t.Context(), message(fmt.Sprint("m", i)), func(_ tidegate.Receipt, err error) {
				if err != nil {
					t.Error(err)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		mu.Lock()
		if got := requests["SendMessage"]; got > n/4 {
			t.Errorf("%d requests for %d messages: they do not share requests", got, n+1)
		}
		mu.Unlock()

		attempts := map[string][]time.Duration{}
		ctx, stop := context.WithCancel(t.Context())
		push, err := consumer.NewPush(over(t, b, rest.Options{}), consumer.Subscription{Group: "billing", Topic: "orders"},
			func(_ context.Context, d *tidegate.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				attempts[d.ID] = append(attempts[d.ID], time.Since(start))
				if d.ID == "m7" {
					return errors.New("no such customer")
				}
				return nil
			}, consumer.PushOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ran := make(chan error, 1)
		start = time.Now()
		go func() { ran <- push.Run(ctx) }()
		time.Sleep(10 * time.Minute)
		stop()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
		if len(attempts) != n+1 {
			t.Errorf("%d messages were handled, want %d", len(attempts), n+1)
		}
		for id, at := range attempts {
			if id != "m7" && len(at) != 1 {
				t.Errorf("%s was handled %d times", id, len(at))
			}
		}
		if at := attempts["m7"]; len(at) != 3 || at[1]-at[0] < time.Minute || at[1]-at[0] > 61*time.Second || at[2]-at[1] < 5*time.Minute || at[2]-at[1] > 301*time.Second {
			t.Errorf("m7 was handled at %v, want 1m and 5m in between", at)
		}
		if s := b.Stats("billing", "orders"); s.Acked != n || s.DeadLetters != 1 || s.Backlog.Messages != 0 {
			t.Errorf("%+v, want %d acknowledged, 1 dead letter and none left", s, n)
		}
	})
}

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
		if _, err := b.PutAddressSettings(t.Context(), "orders", settings.Address{RedeliveryDelay: &delay, RedeliveryDelayMultiplier: &factor, MaxRedeliveryDelay: &most}); err != nil {
			t.Fatal(err)
		}
		s, err := c.ConsumerSettings(t.Context(), "billing", "orders")
		if err != nil || s.MaxAttempts != 10 {
			t.Fatalf("of address settings: %+v, %v, want 10 attempts", s, err)
		}
		for n, want := range []time.Duration{time.Second, 3 * time.Second, 9 * time.Second, 20 * time.Second, 20 * time.Second} {
			if got := s.Retry.Delay(n); got != want {
				t.Errorf("delay %d is %v, want %v", n, got, want)
			}
		}
	})
}

// A key with the permissions to send and to receive is enough; the permission to observe is not
// needed.
func TestRights(t *testing.T) {
	o := brokertest.Options{Access: server.AccessConfig{Keys: []server.Key{{
		Name: "clerk", Secrets: []server.Secret{server.NewSecret("open sesame")},
		Allow: []server.Rule{{Actions: []server.Action{server.ActionSend, server.ActionReceive}, Topics: []string{"orders"}, Groups: []string{"billing"}}},
	}}}}
	b := brokertest.NewWith(t, o)
	b.CreateTopic("orders", settings.Topic{})
	c := over(t, b, rest.Options{Credentials: tidegate.Credentials{AccessKey: "clerk", SecretKey: "open sesame"}})
	ctx := t.Context()
	_, settings := c.ProducerSettings(ctx, "orders")
	_, group := c.ConsumerSettings(ctx, "billing", "orders")
	queues, all := c.Queues(ctx, "billing", "orders")
	err := errors.Join(c.Ping(ctx), c.Ping(ctx, "orders"), settings, group, all, c.Send(ctx, []*tidegate.Message{message("a")})[0].Err)
	if err != nil || len(queues) != 1 || queues[0] != transport.AnyQueue {
		t.Errorf("%v, queues %v", err, queues)
	}
	ds, err := c.Receive(ctx, transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, InvisibleDuration: time.Minute})
	if err != nil || len(ds) != 1 {
		t.Fatalf("received %d, %v", len(ds), err)
	}
	if err := c.Ack(ctx, ds)[0]; err != nil {
		t.Error(err)
	}
	wrong := over(t, b, rest.Options{Credentials: tidegate.Credentials{AccessKey: "clerk", SecretKey: "open barley"}})
	for name, err := range map[string]error{
		"Ping": wrong.Ping(ctx), "Send": wrong.Send(ctx, []*tidegate.Message{message("a")})[0].Err, "Queues": func() error { _, err := wrong.Queues(ctx, "billing", "orders"); return err }(),
	} {
		if !errors.Is(err, tidegate.ErrUnauthorized) {
			t.Errorf("%s with a wrong secret: %v, want ErrUnauthorized", name, err)
		}
	}
	if r := c.Send(ctx, []*tidegate.Message{{ID: "x", Topic: "bills", Body: []byte("x")}})[0]; !errors.Is(r.Err, tidegate.ErrForbidden) {
		t.Errorf("another topic: %v, want ErrForbidden", r.Err)
	}
}
