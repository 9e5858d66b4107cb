package transport_test

import (
	"context"
	"errors"
	"slices"
	"strings"
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
func (minimal) Settle(context.Context, *tidegate.Delivery, transport.Verdict) (transport.RetryResult, error) {
	return transport.RetryResult{}, nil
}
func (minimal) Extend(context.Context, *tidegate.Delivery, time.Duration, bool) (string, error) {
	return "", nil
}
func (minimal) Close() error { return nil }

var _ transport.Transport = minimal{}

// The error names the verdict, and the delivery's topic and endpoint.
func TestUnsupported(t *testing.T) {
	d := &tidegate.Delivery{Message: tidegate.Message{Topic: "orders"}, Endpoint: "broker:8081"}
	for kind, name := range map[transport.VerdictKind]string{
		transport.Release: "Release", transport.Retry: "Retry", transport.DeadLetter: "DeadLetter", transport.Snooze: "Snooze",
		transport.RetryTopic: "RetryTopic", transport.NegativeAck: "NegativeAck",
		transport.Snooze | transport.NegativeAck: "Snooze|NegativeAck", transport.Retry | 1<<9: "Retry|VerdictKind(512)",
	} {
		e, ok := errors.AsType[*tidegate.Error](transport.Verdict{Kind: kind}.Unsupported(d))
		if !ok || e.Code != tidegate.CodeNotImplemented || e.Subject != "orders" || e.Endpoint != "broker:8081" || !strings.Contains(e.Message, " "+name+";") {
			t.Errorf("%s: error %v, want CodeNotImplemented for orders at broker:8081", name, e)
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
