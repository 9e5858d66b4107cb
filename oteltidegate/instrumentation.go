package oteltidegate

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"
	"go.opentelemetry.io/otel/trace"

	"github.com/tidegate/tidegate"
)

// scope names this library in traces and metrics.
const scope = "github.com/tidegate/tidegate/oteltidegate"

// The names of the operations. The conventions leave them to each system.
const (
	opSend    = "send"
	opProcess = "process"
)

// durationBuckets are the boundaries that the conventions require for durations, in seconds.
// Package messagingconv does not set them.
var durationBuckets = []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}

// Attributes that the conventions do not define.
const (
	keyAttempt     = attribute.Key("tidegate.attempt")
	keyClass       = attribute.Key("tidegate.class")
	keyStopReason  = attribute.Key("tidegate.stop_reason")
	keyDelay       = attribute.Key("tidegate.delay_seconds")
	keyMaybeStored = attribute.Key("tidegate.maybe_stored")
	keyDisposition = attribute.Key("tidegate.disposition")
	keyEvent       = attribute.Key("tidegate.event")
)

// Options select the providers. The zero value means the global ones.
type Options struct {
	// TracerProvider creates the spans. Nil means otel.GetTracerProvider().
	TracerProvider trace.TracerProvider

	// MeterProvider creates the metrics. Nil means otel.GetMeterProvider().
	MeterProvider metric.MeterProvider
}

// An Instrumentation creates spans and metrics of producers and consumers. Several producers,
// consumers and goroutines may share one.
type Instrumentation struct {
	tracer trace.Tracer

	operations      messagingconv.ClientOperationDuration
	sent            messagingconv.ClientSentMessages
	consumed        messagingconv.ClientConsumedMessages
	processing      messagingconv.ProcessDuration
	attempts        metric.Int64Counter
	deliveries      metric.Int64Counter
	receiveFailures metric.Int64Counter
	killSwitches    metric.Int64Counter

	sends sync.Map // the sends under way: from sendKey to *sending
}

// New returns an instrumentation. It fails if the meter provider cannot create an instrument.
func New(o Options) (*Instrumentation, error) {
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	m := o.MeterProvider.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL))
	i := &Instrumentation{tracer: o.TracerProvider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL))}
	errs := make([]error, 8)
	buckets := metric.WithExplicitBucketBoundaries(durationBuckets...)
	i.operations, errs[0] = messagingconv.NewClientOperationDuration(m, buckets)
	i.sent, errs[1] = messagingconv.NewClientSentMessages(m)
	i.consumed, errs[2] = messagingconv.NewClientConsumedMessages(m)
	i.processing, errs[3] = messagingconv.NewProcessDuration(m, buckets)
	i.attempts, errs[4] = m.Int64Counter("tidegate.producer.attempts",
		metric.WithUnit("{attempt}"), metric.WithDescription("Attempts to send a message, by class."))
	i.deliveries, errs[5] = m.Int64Counter("tidegate.consumer.deliveries",
		metric.WithUnit("{delivery}"), metric.WithDescription("Ended deliveries, by disposition."))
	i.receiveFailures, errs[6] = m.Int64Counter("tidegate.consumer.receive.failures",
		metric.WithUnit("{receive}"), metric.WithDescription("Failed receives."))
	i.killSwitches, errs[7] = m.Int64Counter("tidegate.consumer.kill_switch.events",
		metric.WithUnit("{event}"), metric.WithDescription("Trips of kill switches, and their returns."))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return i, nil
}

// start begins a span with the attributes that it shares with the metrics, and those of the
// message.
func (i *Instrumentation) start(ctx context.Context, op string, kind trace.SpanKind, m *tidegate.Message, more ...attribute.KeyValue) (context.Context, trace.Span) {
	attrs := append(slices.Clone(more), semconv.MessagingSystemRocketMQ, semconv.MessagingOperationName(op), operationType(op),
		semconv.MessagingDestinationName(m.Topic), semconv.MessagingMessageBodySize(len(m.Body)))
	if m.ID != "" {
		attrs = append(attrs, semconv.MessagingMessageID(m.ID))
	}
	if m.MessageGroup != "" {
		attrs = append(attrs, semconv.MessagingRocketMQMessageGroup(m.MessageGroup))
	}
	if m.Tag != "" {
		attrs = append(attrs, semconv.MessagingRocketMQMessageTag(m.Tag))
	}
	if len(m.Keys) > 0 {
		attrs = append(attrs, semconv.MessagingRocketMQMessageKeys(m.Keys...))
	}
	if !m.DeliverAt.IsZero() {
		attrs = append(attrs, semconv.MessagingRocketMQMessageDeliveryTimestamp(int(m.DeliverAt.UnixMilli())))
	}
	return i.tracer.Start(ctx, valid(op+" "+m.Topic), trace.WithSpanKind(kind), trace.WithAttributes(validAll(attrs)...))
}

func operationType(op string) attribute.KeyValue {
	if op == opProcess {
		return semconv.MessagingOperationTypeProcess
	}
	return semconv.MessagingOperationTypeSend
}

// errorType returns the attribute error.type: the server's code if there is one, a fixed word for
// the end of a context, and otherwise the type of err.
func errorType(err error) attribute.KeyValue {
	var e *tidegate.Error
	switch {
	case errors.As(err, &e) && e.Code != 0:
		return semconv.ErrorTypeKey.String(strconv.Itoa(int(e.Code)))
	case errors.Is(err, context.DeadlineExceeded):
		return semconv.ErrorTypeKey.String("timeout")
	case errors.Is(err, context.Canceled):
		return semconv.ErrorTypeKey.String("canceled")
	}
	return semconv.ErrorType(err)
}

// server returns the attributes of the server at endpoint.
func server(endpoint string) []attribute.KeyValue {
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil {
		return []attribute.KeyValue{semconv.ServerAddress(endpoint)}
	}
	attrs := []attribute.KeyValue{semconv.ServerAddress(host)}
	if n, err := strconv.Atoi(port); err == nil {
		attrs = append(attrs, semconv.ServerPort(n))
	}
	return attrs
}

// valid returns s with U+FFFD in place of bytes that are not UTF-8. OTLP has only strings of UTF-8:
// for one other string an exporter drops the whole batch. All strings of spans and metrics that are
// not constants go through valid or validAll: messages can have names that a producer rejects
// later, and errors can have any text.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// validAll applies valid to the strings of attributes, in place.
func validAll(attrs []attribute.KeyValue) []attribute.KeyValue {
	for n, a := range attrs {
		switch a.Value.Type() { //nolint:exhaustive // the other types have no strings
		case attribute.STRING:
			attrs[n].Value = attribute.StringValue(valid(a.Value.AsString()))
		case attribute.STRINGSLICE:
			all := a.Value.AsStringSlice()
			for i := range all {
				all[i] = valid(all[i])
			}
			attrs[n].Value = attribute.StringSliceValue(all)
		}
	}
	return attrs
}

// with returns the option of a metric's attributes.
func with(attrs ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributes(validAll(attrs)...)
}

// traceParent is the header, and so the form of Message.TraceContext, by W3C Trace Context.
const traceParent = "traceparent"

// inject returns the trace context of the span in ctx, or an empty string if there is none.
func inject(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[traceParent]
}

// extract returns ctx with the span in traceContext, if there is one.
func extract(ctx context.Context, traceContext string) context.Context {
	if traceContext == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceParent: traceContext})
}
