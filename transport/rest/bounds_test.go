package rest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
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
