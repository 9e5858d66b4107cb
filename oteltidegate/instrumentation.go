// Package oteltidegate reports the work of producers and consumers to OpenTelemetry, by the
// semantic conventions for messaging systems, version 1.43.
//
//	i, err := oteltidegate.New(oteltidegate.Options{})
//	p, err := producer.New(t, i.ProducerOptions(producer.Options{}))
//	traced := i.Producer(p) // Send, SendAsync, SendBatch, Begin and Transact have spans
//	c, err := consumer.NewPush(t, sub, handle, i.PushOptions(consumer.PushOptions{}))
//
// # Traces
//
// A send is a span "send TOPIC" of kind producer, with an event for each attempt. Its W3C
// trace context travels in Message.TraceContext. Each delivery is a span "process TOPIC" of
// kind consumer, whose parent is the span of the send. The server keeps the trace context of
// a message over retries, and in its dead letter, so one trace shows the life of
// a message. Spans have the attributes of the conventions, and tidegate.lite_topic for a message of a
// lite topic.
//
// # Metrics
//
// Defined by the conventions: messaging.client.operation.duration and
// messaging.client.sent.messages for sends (operation "send"), messaging.client.consumed.messages
// and messaging.process.duration for deliveries (operation "process"). Defined by tidegate:
//
//   - tidegate.producer.attempts counts attempts, by their operation ("send", "begin", "commit",
//     "rollback", "recall"), their class ("ok", "throttled", "transient", "permanent", "cancelled")
//     and, if the operation ended without success, by the reason (tidegate.stop_reason);
//   - tidegate.consumer.deliveries counts deliveries, by their disposition ("acked", "retried",
//     "dead-lettered", and the others of [consumer.Disposition]);
//   - tidegate.consumer.receive.failures counts failed receives;
//   - tidegate.consumer.kill_switch.events counts the trips of kill switches and their returns, by
//     tidegate.event ("trip", "return").
//
// The topic is the only field of a message in the attributes of metrics, so the number of series
// does not grow with the number of messages.
package oteltidegate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"
	"go.opentelemetry.io/otel/trace"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
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
	keyLiteTopic   = attribute.Key("tidegate.lite_topic")
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
	if m.LiteTopic != "" {
		attrs = append(attrs, keyLiteTopic.String(m.LiteTopic))
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

// ProducerOptions returns o with an OnAttempt that counts attempts and adds each as an
// event to the span of its send. It calls o.OnAttempt too.
func (i *Instrumentation) ProducerOptions(o producer.Options) producer.Options {
	next := o.OnAttempt
	o.OnAttempt = func(a producer.Attempt) {
		i.attempt(a)
		if next != nil {
			next(a)
		}
	}
	return o
}

func (i *Instrumentation) attempt(a producer.Attempt) {
	attrs := []attribute.KeyValue{keyClass.String(a.Class.String()), semconv.MessagingOperationName(a.Operation)}
	if a.Stop != producer.NotStopped {
		attrs = append(attrs, keyStopReason.String(a.Stop.String()))
	}
	i.attempts.Add(context.Background(), 1, // an event has no context
		with(append(attrs, semconv.MessagingDestinationName(a.Topic))...))
	v, ok := i.sends.Load(sendKey{a.Topic, a.MessageID})
	if !ok {
		return
	}
	attrs = append(attrs, keyAttempt.Int(a.Number), keyMaybeStored.Bool(a.MaybeStored))
	if a.Endpoint != "" {
		attrs = append(attrs, server(a.Endpoint)...)
	}
	if a.Err != nil {
		attrs = append(attrs, errorType(a.Err), semconv.ExceptionMessage(a.Err.Error()))
	}
	if a.Class != tidegate.ClassOK && a.Stop == producer.NotStopped {
		attrs = append(attrs, keyDelay.Float64(a.Delay.Seconds()))
	}
	v.(*sending).span.AddEvent("attempt", trace.WithAttributes(validAll(attrs)...))
}

// sendKey identifies a send under way. If two concurrent sends have the same ID, the later one
// receives the events.
type sendKey struct{ topic, id string }

// A Producer is a producer whose sends have spans. It has all methods of the wrapped producer, with
// the same contracts. Several goroutines may share it.
type Producer struct {
	*producer.Producer
	i *Instrumentation
}

// Producer returns p with spans. Create p with [Instrumentation.ProducerOptions], which counts the
// attempts and adds them to the spans as events.
func (i *Instrumentation) Producer(p *producer.Producer) *Producer { return &Producer{p, i} }

// A sending is the span of one message.
type sending struct {
	i     *Instrumentation
	span  trace.Span
	msg   *tidegate.Message // a copy, with an ID and the trace context
	began time.Time
}

// begin starts the span of msg. Its parent is the span in ctx, or otherwise that of
// msg.TraceContext.
func (i *Instrumentation) begin(ctx context.Context, msg *tidegate.Message) (context.Context, *sending) {
	m := *msg
	if m.ID == "" {
		m.ID = tidegate.NewMessageID()
	}
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = extract(ctx, m.TraceContext)
	}
	ctx, span := i.start(ctx, opSend, trace.SpanKindProducer, &m)
	if tc := inject(ctx); tc != "" {
		m.TraceContext = tc
	}
	s := &sending{i, span, &m, time.Now()}
	i.sends.Store(sendKey{m.Topic, m.ID}, s)
	return ctx, s
}

// end ends the span with the result of the send.
func (s *sending) end(r tidegate.Receipt, err error) {
	s.i.sends.CompareAndDelete(sendKey{s.msg.Topic, s.msg.ID}, s)
	attrs := []attribute.KeyValue{semconv.MessagingDestinationName(s.msg.Topic)}
	if err != nil {
		attrs = append(attrs, errorType(err))
		s.span.SetAttributes(validAll([]attribute.KeyValue{errorType(err)})...)
		s.span.SetStatus(codes.Error, valid(err.Error()))
	} else if r.Endpoint != "" {
		s.span.SetAttributes(validAll(server(r.Endpoint))...)
	}
	s.span.End()
	validAll(attrs)
	ctx := trace.ContextWithSpan(context.Background(), s.span) // for exemplars; the caller's may have ended
	s.i.operations.Record(ctx, time.Since(s.began).Seconds(), opSend, messagingconv.SystemRocketMQ,
		append(attrs, semconv.MessagingOperationTypeSend)...)
	s.i.sent.Add(ctx, 1, opSend, messagingconv.SystemRocketMQ, attrs...)
}

// Send is [producer.Producer.Send] with a span.
func (p *Producer) Send(ctx context.Context, msg *tidegate.Message) (tidegate.Receipt, error) {
	if msg == nil {
		return p.Producer.Send(ctx, msg)
	}
	ctx, s := p.i.begin(ctx, msg)
	r, err := p.Producer.Send(ctx, s.msg)
	s.end(r, err)
	return r, err
}

// SendAsync is [producer.Producer.SendAsync] with a span, which ends before done is called.
func (p *Producer) SendAsync(ctx context.Context, msg *tidegate.Message, done func(tidegate.Receipt, error)) error {
	if msg == nil || done == nil {
		return p.Producer.SendAsync(ctx, msg, done)
	}
	ctx, s := p.i.begin(ctx, msg)
	err := p.Producer.SendAsync(ctx, s.msg, func(r tidegate.Receipt, err error) {
		s.end(r, err)
		done(r, err)
	})
	if err != nil {
		s.end(tidegate.Receipt{}, err)
	}
	return err
}

// SendBatch is [producer.Producer.SendBatch] with a span for each message.
func (p *Producer) SendBatch(ctx context.Context, msgs []*tidegate.Message) []transport.SendResult {
	copies := make([]*tidegate.Message, len(msgs))
	sends := make([]*sending, len(msgs))
	for n, m := range msgs {
		if m != nil {
			_, sends[n] = p.i.begin(ctx, m)
			copies[n] = sends[n].msg
		}
	}
	results := p.Producer.SendBatch(ctx, copies)
	for n, r := range results {
		if msgs[n] != nil {
			sends[n].end(r.Receipt, r.Err)
		}
	}
	return results
}

// Begin is [producer.Producer.Begin] with a span for the half message.
func (p *Producer) Begin(ctx context.Context, msg *tidegate.Message) (*producer.Transaction, error) {
	if msg == nil {
		return p.Producer.Begin(ctx, msg)
	}
	ctx, s := p.i.begin(ctx, msg)
	t, err := p.Producer.Begin(ctx, s.msg)
	s.end(tidegate.Receipt{}, err)
	return t, err
}

// Transact is [producer.Producer.Transact] with a span, which includes the local transaction.
func (p *Producer) Transact(ctx context.Context, msg *tidegate.Message, local func(ctx context.Context, msg *tidegate.Message) error) (tidegate.Receipt, error) {
	if msg == nil {
		return p.Producer.Transact(ctx, msg, local)
	}
	ctx, s := p.i.begin(ctx, msg)
	done := false
	defer func() {
		if !done {
			s.span.AddEvent("the local transaction panicked")
			s.end(tidegate.Receipt{}, nil)
		}
	}()
	r, err := p.Producer.Transact(ctx, s.msg, local)
	done = true
	s.end(r, err)
	return r, err
}

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
