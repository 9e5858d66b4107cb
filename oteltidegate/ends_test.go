package oteltidegate_test

import (
	"context"
	"errors"
	"testing"

	"go.opentelemetry.io/otel/codes"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// error.type is the code of the server if there is one. Otherwise the end of a context has a fixed
// word, and every other error has its Go type.
func TestErrorTypes(t *testing.T) {
	run(t, func(e *env) {
		for n, c := range []struct {
			err  error
			want string
		}{
			{context.DeadlineExceeded, "timeout"},
			{context.Canceled, "canceled"},
			{&tidegate.Error{Code: tidegate.CodeTooManyRequests, Err: context.DeadlineExceeded}, "42900"},
			{errors.New("no stock"), "*errors.errorString"},
		} {
			handle := e.i.Middleware(func(context.Context, *tidegate.Delivery) error { return c.err })
			err := handle(e.Context(), &tidegate.Delivery{})
			assert.That(t, errors.Is(err, c.err), "the middleware returned %v, want %v", err, c.err)
			want(t, c.err.Error(), attrs(e.spans.Ended()[n].Attributes()), "error.type="+c.want)
		}
	})
}

// The span of Transact ends also if the local transaction panics. Its status is not Error, because
// the check of the transaction decides.
func TestAPanicEndsTheSpanOfTransact(t *testing.T) {
	run(t, func(e *env) {
		func() {
			defer func() {
				v := recover()
				assert.That(t, v == "local", "recovered %v, want the panic of the local transaction", v)
			}()
			_, _ = e.p.Transact(e.Context(), &tidegate.Message{Topic: "transfers", Body: []byte("x")},
				func(context.Context, *tidegate.Message) error { panic("local") })
		}()
		spans := e.spans.Ended()
		assert.MustThat(t, len(spans) == 1, "%d spans ended, want 1", len(spans))
		events := spans[0].Events()
		if len(events) != 2 || events[1].Name != "the local transaction panicked" || spans[0].Status().Code == codes.Error {
			t.Errorf("the span has the events %+v and the status %+v, want the attempt, the panic, and no error", events, spans[0].Status())
		}
	})
}

// The span of SendAsync ends before done is called.
func TestTheSpanEndsBeforeDone(t *testing.T) {
	run(t, func(e *env) {
		ended := make(chan int, 1)
		assert.Must(t, e.p.SendAsync(e.Context(), &tidegate.Message{Topic: "orders", Body: []byte("x")},
			func(tidegate.Receipt, error) { ended <- len(e.spans.Ended()) }))
		assert.Equal(t, "spans had ended when done was called", <-ended, 1)
	})
}
