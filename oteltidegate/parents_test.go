package oteltidegate_test

import (
	"context"
	"slices"
	"testing"

	apitrace "go.opentelemetry.io/otel/trace"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
)

// The span in ctx is the parent of a send, also if the message has the trace context of an earlier
// one, as a message has that a program forwards.
func TestTheSpanOfTheContextIsTheParent(t *testing.T) {
	run(t, func(e *env) {
		ctx, parent := e.tracer.Start(e.Context(), "forward")
		msg := &tidegate.Message{Topic: "orders", Body: []byte("x"), TraceContext: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
		assert.Must(t, assert.Err(e.p.Send(ctx, msg)))
		if got := e.spans.Ended()[0].Parent().SpanID(); got != parent.SpanContext().SpanID() {
			t.Errorf("the parent of the send is %v, want %v, the span of ctx", got, parent.SpanContext().SpanID())
		}
		assert.Must(t, assert.Err(e.p.Send(e.Context(), msg)))
		got := e.spans.Ended()[1].Parent().SpanID().String()
		assert.That(t, got == "b7ad6b7169203331", "the parent of a send without a span in ctx is %v, want that of the message", got)
		parent.End()
	})
}

// The middleware is the outermost one: those of the program run in the span of the delivery.
func TestTheMiddlewareIsTheOutermost(t *testing.T) {
	run(t, func(e *env) {
		assert.Must(t, assert.Err(e.p.Send(e.Context(), &tidegate.Message{Topic: "orders", Body: []byte("x")})))
		seen := make(chan bool, 1)
		own := func(next consumer.Handler) consumer.Handler {
			return func(ctx context.Context, d *tidegate.Delivery) error {
				seen <- apitrace.SpanContextFromContext(ctx).IsValid()
				return next(ctx, d)
			}
		}
		o := e.i.PushOptions(consumer.PushOptions{Middleware: []consumer.Middleware{own}})
		handle := consumer.Handler(func(context.Context, *tidegate.Delivery) error { return nil })
		for _, m := range slices.Backward(o.Middleware) { // the first one is the outermost
			handle = m(handle)
		}
		assert.NoError(t, handle(e.Context(), &tidegate.Delivery{Message: tidegate.Message{ID: "m", Topic: "orders"}}))
		assert.That(t, <-seen, "the program's middleware runs outside the span")
	})
}
