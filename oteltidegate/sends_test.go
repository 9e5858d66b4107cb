package oteltidegate

import (
	"errors"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace"
	apitrace "go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// An instrumentation forgets a send that ended, also if its span is not recorded. Such spans are
// not comparable: comparing two of them panics.
func TestEndedSendsAreForgotten(t *testing.T) {
	for name, provider := range map[string]apitrace.TracerProvider{
		"recorded":    trace.NewTracerProvider(),
		"not sampled": trace.NewTracerProvider(trace.WithSampler(trace.NeverSample())),
		"noop":        noop.NewTracerProvider(),
		"no provider": nil,
	} {
		t.Run(name, func(t *testing.T) {
			i, err := New(Options{TracerProvider: provider})
			if err != nil {
				t.Fatal(err)
			}
			inner, err := producer.New(&transporttest.Fake{}, i.ProducerOptions(producer.Options{}))
			if err != nil {
				t.Fatal(err)
			}
			defer inner.Close()
			p := i.Producer(inner)
			good, bad := &tidegate.Message{Topic: "orders", Body: []byte("x")}, &tidegate.Message{Topic: "orders"}
			if _, err := p.Send(t.Context(), good); err != nil {
				t.Error(err)
			}
			if _, err := p.Send(t.Context(), bad); !errors.Is(err, tidegate.ErrInvalid) {
				t.Errorf("%v, want the rejection", err)
			}
			p.SendBatch(t.Context(), []*tidegate.Message{good, nil, bad})
			i.sends.Range(func(key, _ any) bool {
				t.Errorf("%+v is kept", key)
				return true
			})
		})
	}
}
