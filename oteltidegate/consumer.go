package oteltidegate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"
	"go.opentelemetry.io/otel/trace"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
)

// PushOptions returns o with [Instrumentation.Middleware] as the outermost middleware, and with
// functions OnDelivery, OnReceiveFailure and OnKillSwitch that count. They also call the functions
// of o.
func (i *Instrumentation) PushOptions(o consumer.PushOptions) consumer.PushOptions {
	o.Middleware = slices.Insert(slices.Clone(o.Middleware), 0, i.Middleware)
	delivered, failed, switched := o.OnDelivery, o.OnReceiveFailure, o.OnKillSwitch
	o.OnDelivery = func(out consumer.Outcome) {
		i.deliveries.Add(context.Background(), 1, with( // an event has no context
			semconv.MessagingDestinationName(out.Delivery.Topic), semconv.MessagingConsumerGroupName(out.Delivery.ConsumerGroup),
			keyDisposition.String(out.Disposition.String())))
		if delivered != nil {
			delivered(out)
		}
	}
	o.OnReceiveFailure = func(f consumer.ReceiveFailure) {
		i.receiveFailures.Add(context.Background(), 1, with( // likewise
			semconv.MessagingDestinationName(f.Topic), semconv.MessagingConsumerGroupName(f.Group), errorType(f.Err)))
		if failed != nil {
			failed(f)
		}
	}
	o.OnKillSwitch = func(e consumer.KillSwitchEvent) {
		event := "return"
		if e.Tripped {
			event = "trip"
		}
		i.killSwitches.Add(context.Background(), 1, with(semconv.MessagingConsumerGroupName(e.Group), keyEvent.String(event))) // likewise
		if switched != nil {
			switched(e)
		}
	}
	return o
}

// Middleware creates a span for each call of the handler, and records the duration of the call. The
// span's parent is the span of the message's send. The handler's ctx has the span. If the handler
// returns an error or panics, the span has the status Error.
func (i *Instrumentation) Middleware(next consumer.Handler) consumer.Handler {
	return func(ctx context.Context, d *tidegate.Delivery) error {
		ctx, span := i.start(extract(ctx, d.TraceContext), opProcess, trace.SpanKindConsumer, &d.Message,
			semconv.MessagingConsumerGroupName(d.ConsumerGroup), keyAttempt.Int(d.Attempt))
		i.consumed.Add(ctx, 1, opProcess, messagingconv.SystemRocketMQ, validAll([]attribute.KeyValue{
			semconv.MessagingDestinationName(d.Topic), semconv.MessagingConsumerGroupName(d.ConsumerGroup),
		})...)
		p := processing{i: i, span: span, d: d, began: time.Now()}
		defer func() { p.end(ctx) }()
		p.err = next(ctx, d)
		p.returned = true
		return p.err
	}
}

// A processing is one call of a handler.
type processing struct {
	i        *Instrumentation
	span     trace.Span
	d        *tidegate.Delivery
	began    time.Time
	err      error
	returned bool
}

// end ends the span. It runs during a panic of the handler and does not recover it.
func (p *processing) end(ctx context.Context) {
	attrs := []attribute.KeyValue{
		semconv.MessagingDestinationName(p.d.Topic), semconv.MessagingConsumerGroupName(p.d.ConsumerGroup),
	}
	var failed attribute.KeyValue
	switch {
	case !p.returned:
		failed = semconv.ErrorTypeKey.String("panic")
		p.span.SetStatus(codes.Error, "the handler panicked")
	case p.err != nil:
		failed = errorType(p.err)
		p.span.SetStatus(codes.Error, valid(fmt.Sprint(p.err)))
	}
	if failed.Valid() {
		attrs = append(attrs, failed)
		p.span.SetAttributes(validAll([]attribute.KeyValue{failed})...)
	}
	validAll(attrs)
	p.span.End()
	p.i.processing.Record(ctx, time.Since(p.began).Seconds(), opProcess, messagingconv.SystemRocketMQ, attrs...)
}
