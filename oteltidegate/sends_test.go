package oteltidegate

import (
	"testing"

	"go.opentelemetry.io/otel/sdk/trace"
	apitrace "go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
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
			i := assert.Value(New(Options{TracerProvider: provider}))(t)
			inner := assert.Value(producer.New(&transporttest.Fake{}, i.ProducerOptions(producer.Options{})))(t)
			defer inner.Close()
			p := i.Producer(inner)
			good, bad := &tidegate.Message{Topic: "orders", Body: []byte("x")}, &tidegate.Message{Topic: "orders"}
			assert.NoError(t, assert.Err(p.Send(t.Context(), good)))
			assert.Is(t, "err", assert.Err(p.Send(t.Context(), bad)), tidegate.ErrInvalid)
			p.SendBatch(t.Context(), []*tidegate.Message{good, nil, bad})
			i.sends.Range(func(key, _ any) bool {
				t.Errorf("%+v is kept", key)
				return true
			})
		})
	}
}
