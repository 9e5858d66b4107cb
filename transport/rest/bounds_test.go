package rest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rest"
)

// A receive requests 1 to 32 messages, the bounds of the broker.
func TestReceiveRequestsAtMost32Messages(t *testing.T) {
	for _, tt := range []struct{ max, want int }{{-1, 1}, {0, 1}, {1, 1}, {32, 32}, {33, 32}, {1000, 32}} {
		synctest.Test(t, func(t *testing.T) {
			var got struct {
				Max int `json:"max"`
			}
			c, _ := answering(t, rest.Options{}, func(w http.ResponseWriter, r *http.Request) {
				assert.NoError(t, json.NewDecoder(r.Body).Decode(&got))
				io.WriteString(w, `{"messages":[]}`)
			})
			_, err := c.Receive(t.Context(), transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: tt.max, InvisibleDuration: time.Minute})
			assert.That(t, err == nil && got.Max == tt.want, "a receive of %d requests %d messages, %v; want %d", tt.max, got.Max, err, tt.want)
		})
	}
}

// RequestTimeout bounds a request. A send whose ctx has a deadline has that deadline instead, and a
// receive its wait in addition.
func TestTimeouts(t *testing.T) {
	receive := func(ctx context.Context, c *rest.Client) error {
		_, err := c.Receive(ctx, transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Wait: 20 * time.Second, InvisibleDuration: time.Minute})
		return err
	}
	send := func(ctx context.Context, c *rest.Client) error {
		return c.Send(ctx, []*tidegate.Message{message("1")})[0].Err
	}
	settings := func(ctx context.Context, c *rest.Client) error {
		_, err := c.ProducerSettings(ctx, "orders")
		return err
	}
	for _, tt := range []struct {
		name     string
		call     func(context.Context, *rest.Client) error
		deadline time.Duration // of ctx; 0 for none
		want     time.Duration
	}{
		{"a send", send, 0, 2 * time.Second},
		{"a send with an earlier deadline", send, time.Second, time.Second},
		{"a send with a later deadline", send, 10 * time.Second, 10 * time.Second},
		{"a request with a later deadline", settings, 10 * time.Second, 2 * time.Second},
		{"a receive", receive, 0, 22 * time.Second},
	} {
		assert.Bubble(t, tt.name, func(t *testing.T) {
			c, _ := answering(t, rest.Options{RequestTimeout: 2 * time.Second}, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
			ctx := t.Context()
			if tt.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, tt.deadline)
				defer cancel()
			}
			begin := time.Now()
			if err := tt.call(ctx, c); err == nil || time.Since(begin) != tt.want {
				t.Errorf("error %v after %v, want one after %v", err, time.Since(begin), tt.want)
			}
		})
	}
}

// A request has at most 256 messages and 4 MiB of bodies; a larger message has a request of its
// own.
func TestSendsAreCut(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		name     string
		messages int
		body     int // bytes of each
		want     []int
	}{
		{"small messages", 600, 10, []int{256, 256, 88}},
		{"messages of 1 MiB", 9, mib, []int{4, 4, 1}},
		{"messages of 3 MiB", 2, 3 * mib, []int{1, 1}},
		{"messages of 5 MiB", 2, 5 * mib, []int{1, 1}},
	} {
		assert.Bubble(t, tt.name, func(t *testing.T) {
			var got []int
			c, _ := answering(t, rest.Options{}, func(w http.ResponseWriter, r *http.Request) {
				var body struct {
					Messages []struct {
						ID string `json:"id"`
					} `json:"messages"`
				}
				assert.NoError(t, json.NewDecoder(r.Body).Decode(&body))
				got = append(got, len(body.Messages))
				json.NewEncoder(w).Encode(map[string]any{"results": body.Messages})
			})
			var msgs []*tidegate.Message
			for i := range tt.messages {
				m := message(fmt.Sprint(i))
				m.Body = make([]byte, tt.body)
				msgs = append(msgs, m)
			}
			for i, r := range c.Send(t.Context(), msgs) {
				assert.MustThat(t, r.Err == nil && r.Receipt.MessageID == msgs[i].ID, "message %d: %+v", i, r)
			}
			assert.That(t, slices.Equal(got, tt.want), "requests with %v messages, want %v", got, tt.want)
		})
	}
}

// Ack acknowledges in requests of at most 1000 deliveries. If a response has a different number of
// results, each of its deliveries may be acknowledged.
func TestAcksAreCut(t *testing.T) {
	for _, tt := range []struct {
		name  string
		short int // the response lacks so many results
		maybe bool
	}{
		{"all results", 0, false},
		{"too few results", 1, true},
	} {
		assert.Bubble(t, tt.name, func(t *testing.T) {
			var got []int
			c, _ := answering(t, rest.Options{}, func(w http.ResponseWriter, r *http.Request) {
				var body struct {
					Handles []string `json:"handles"`
				}
				assert.NoError(t, json.NewDecoder(r.Body).Decode(&body))
				got = append(got, len(body.Handles))
				list := make([]map[string]string, len(body.Handles)-tt.short)
				json.NewEncoder(w).Encode(map[string]any{"results": list})
			})
			ds := make([]*tidegate.Delivery, 2500)
			for i := range ds {
				ds[i] = &tidegate.Delivery{Handle: fmt.Sprint(i), ConsumerGroup: "billing"}
			}
			for i, err := range c.Ack(t.Context(), ds) {
				e, ok := errors.AsType[*tidegate.Error](err)
				assert.MustThat(t, (!tt.maybe || ok && e.Code == protocol.CodeInternalError && e.MaybeStored) && (tt.maybe || err == nil), "delivery %d: %v", i, err)
			}
			want := []int{1000, 1000, 500}
			assert.That(t, slices.Equal(got, want), "requests with %v deliveries, want %v", got, want)
		})
	}
}

// ReceiveBatchSize is always 32, also for a group that does not exist yet.
func TestReceiveBatchSizeOfANewGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := answering(t, rest.Options{}, func(w http.ResponseWriter, _ *http.Request) { problem(w, 404, 40400) })
		s, err := c.ConsumerSettings(t.Context(), "billing", "orders")
		assert.That(t, err == nil && s.ReceiveBatchSize == 32 && s.MaxAttempts == 0 && s.Retry == nil && !s.FIFO, "settings %+v, %v; want a batch size of 32 alone", s, err)
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

// An ended is a context that ends without a signal, as one does that ends just after the response
// was read.
type ended struct {
	context.Context
	since atomic.Bool
}

func (e *ended) Err() error {
	if e.since.Load() {
		return context.Canceled
	}
	return e.Context.Err()
}

// A receive whose ctx ends when the response is there releases the messages: another receive gets
// them at once.
func TestCancelledReceiveReleasesItsMessages(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		ctx := &ended{Context: t.Context()}
		b.Intercept(func(c context.Context, call server.Call, next func(context.Context) error) error {
			err := next(c)
			if call.Op == "ReceiveMessage" {
				ctx.since.Store(true)
			}
			return err
		})
		c := over(t, b, rest.Options{})
		if r := c.Send(t.Context(), []*tidegate.Message{message("1"), message("2"), message("3")}); r[2].Err != nil {
			t.Fatal(r[2].Err)
		}
		req := transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: 32, Push: true, InvisibleDuration: time.Hour}
		if ds, err := c.Receive(ctx, req); len(ds) != 0 || !errors.Is(err, context.Canceled) {
			t.Fatalf("%d deliveries, %v", len(ds), err)
		}
		ds, err := c.Receive(t.Context(), req)
		assert.MustThat(t, err == nil && len(ds) == 3, "%d deliveries after the cancelled receive, %v; want 3", len(ds), err)
		for _, d := range ds {
			assert.That(t, d.Attempt == 1, "attempt %d, want 1: the release does not count", d.Attempt)
		}
	})
}
