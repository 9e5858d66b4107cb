package oteltidegate

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"
	"go.opentelemetry.io/otel/trace"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

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
