package transport_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// minimal is a transport that embeds Base and has only the methods that Base lacks.
type minimal struct{ transport.Base }

func (minimal) Send(context.Context, []*tidegate.Message) []transport.SendResult { return nil }
func (minimal) Receive(context.Context, transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	return nil, nil
}
func (minimal) Ack(context.Context, []*tidegate.Delivery) []error { return nil }
func (minimal) Retry(context.Context, *tidegate.Delivery, time.Duration, string) (transport.RetryResult, error) {
	return transport.RetryResult{}, nil
}
func (minimal) Release(context.Context, *tidegate.Delivery) error { return nil }
func (minimal) ChangeInvisibleDuration(context.Context, *tidegate.Delivery, time.Duration) (string, error) {
	return "", nil
}
func (minimal) DeadLetter(context.Context, *tidegate.Delivery, string) (transport.RetryResult, error) {
	return transport.RetryResult{}, nil
}
func (minimal) Close() error { return nil }

var _ transport.Transport = minimal{}

// The methods of Base that need a capability fail with CodeNotImplemented, and name the delivery's
// topic and endpoint.
func TestBaseLacksCapabilities(t *testing.T) {
	d := &tidegate.Delivery{Message: tidegate.Message{Topic: "orders"}, Endpoint: "broker:8081"}
	for _, tt := range []struct {
		name string
		call func(transport.Transport) error
	}{
		{"RepeatChange", func(x transport.Transport) error { _, err := x.RepeatChange(t.Context(), d, time.Minute); return err }},
		{"Snooze", func(x transport.Transport) error { return x.Snooze(t.Context(), d, time.Minute) }},
		{"Reconsume", func(x transport.Transport) error {
			_, err := x.Reconsume(t.Context(), d, transport.ReconsumeMode{})
			return err
		}},
	} {
		err := tt.call(minimal{})
		e, ok := errors.AsType[*tidegate.Error](err)
		if !ok || e.Code != tidegate.CodeNotImplemented || e.Op != tt.name || e.Subject != "orders" || e.Endpoint != "broker:8081" {
			t.Errorf("%s: error %v, want CodeNotImplemented for orders at broker:8081", tt.name, err)
		}
	}
}

// The server of a Base has no settings and no capabilities, and one receive is enough for all
// queues of a topic.
func TestBaseHasNoSettings(t *testing.T) {
	var x transport.Transport = minimal{}
	if s, err := x.ProducerSettings(t.Context(), "orders"); err != nil || s != (transport.ProducerSettings{}) {
		t.Errorf("settings of a producer %+v, %v", s, err)
	}
	if s, err := x.ConsumerSettings(t.Context(), "billing", "orders"); err != nil || s != (transport.ConsumerSettings{}) {
		t.Errorf("settings of a consumer %+v, %v", s, err)
	}
	if q, err := x.Queues(t.Context(), "billing", "orders"); err != nil || !slices.Equal(q, []int{transport.AnyQueue}) {
		t.Errorf("queues %v, %v; want AnyQueue", q, err)
	}
	for _, endpoint := range []string{"", "broker:8081"} {
		if c := x.Capabilities(endpoint); c != (transport.Capabilities{}) {
			t.Errorf("capabilities of %q: %+v", endpoint, c)
		}
	}
}
