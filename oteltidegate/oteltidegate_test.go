package oteltidegate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	apitrace "go.opentelemetry.io/otel/trace"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/oteltidegate"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

// An env is a broker with topic orders, and a producer whose telemetry is kept in memory.
type env struct {
	*testing.T
	broker *brokertest.Broker
	spans  *tracetest.SpanRecorder
	reader *metric.ManualReader
	tracer apitrace.Tracer
	i      *oteltidegate.Instrumentation
	p      *oteltidegate.Producer
}

func run(t *testing.T, f func(e *env)) {
	t.Helper()
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		b.CreateTopic("transfers", settings.Topic{Type: settings.TopicTransaction})
		b.CreateGroup("billing", settings.Group{MaxAttempts: 2})
		e := &env{T: t, broker: b, spans: tracetest.NewSpanRecorder(), reader: metric.NewManualReader()}
		tp := trace.NewTracerProvider(trace.WithSpanProcessor(e.spans))
		e.tracer = tp.Tracer("test")
		i := assert.Value(oteltidegate.New(oteltidegate.Options{
			TracerProvider: tp, MeterProvider: metric.NewMeterProvider(metric.WithReader(e.reader)),
		}))(t)
		p := assert.Value(producer.New(b.Client(), i.ProducerOptions(producer.Options{
			Checker: func(context.Context, transport.TransactionCheck) transport.Resolution { return transport.Commit },
		})))(t)
		defer p.Close()
		e.i, e.p = i, i.Producer(p)
		f(e)
	})
}

// consume consumes orders until idle.
func (e *env) consume(handle consumer.Handler) {
	e.Helper()
	c, err := consumer.NewPush(e.broker.Client(), consumer.Subscription{Group: "billing", Topic: "orders"}, handle,
		e.i.PushOptions(consumer.PushOptions{}))
	if err != nil {
		e.Fatal(err)
	}
	e.consumeBy(c)
}

// consumeBy consumes orders by a consumer until idle.
func (e *env) consumeBy(c *consumer.Push) {
	e.Helper()
	ctx, stop := context.WithCancel(e.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	e.broker.WaitIdle("billing", "orders")
	stop()
	if err := <-done; err != nil {
		e.Error(err)
	}
}

func attrs(kvs []attribute.KeyValue) string {
	var words []string
	for _, kv := range kvs {
		words = append(words, fmt.Sprintf("%s=%s", kv.Key, kv.Value.String()))
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

// want checks that each of the words is in got.
func want(t *testing.T, what, got string, words ...string) {
	t.Helper()
	for _, w := range words {
		assert.That(t, slices.Contains(strings.Fields(got), w), "%s is %q, want %q in it", what, got, w)
	}
}

// One trace shows a message from its send over the retry to its dead letter.
func TestOneTraceForTheLifeOfAMessage(t *testing.T) {
	run(t, func(e *env) {
		ctx, parent := e.tracer.Start(e.Context(), "checkout")
		msg := &tidegate.Message{ID: "m1", Topic: "orders", Tag: "fruit", Keys: []string{"k"}, Body: []byte("3 apples")}
		assert.Must(t, assert.Err(e.p.Send(ctx, msg)))
		parent.End()
		assert.That(t, msg.TraceContext == "", "Send changed the caller's message: %q", msg.TraceContext)
		var inner []apitrace.TraceID
		e.consume(func(ctx context.Context, d *tidegate.Delivery) error {
			inner = append(inner, apitrace.SpanContextFromContext(ctx).TraceID())
			if d.Attempt == 2 {
				panic("poison")
			}
			return errors.New("try again")
		})
		spans := e.spans.Ended()
		assert.MustThat(t, len(spans) == 4, "%d spans, want checkout, send and two of process", len(spans))
		send, first, second := spans[0], spans[2], spans[3]
		if send.Name() != "send orders" || send.SpanKind() != apitrace.SpanKindProducer || send.Parent().SpanID() != parent.SpanContext().SpanID() {
			t.Errorf("the span of the send is %q of kind %v", send.Name(), send.SpanKind())
		}
		want(t, "send", attrs(send.Attributes()), "messaging.system=rocketmq", "messaging.operation.name=send", "messaging.operation.type=send",
			"messaging.destination.name=orders", "messaging.message.id=m1", "messaging.message.body.size=8", "messaging.rocketmq.message.tag=fruit",
			`messaging.rocketmq.message.keys=["k"]`, "server.port=8081")
		for n, s := range []trace.ReadOnlySpan{first, second} {
			if s.Name() != "process orders" || s.SpanKind() != apitrace.SpanKindConsumer || s.Parent().SpanID() != send.SpanContext().SpanID() {
				t.Errorf("delivery %d has the span %q of kind %v and parent %v, want the send as parent", n+1, s.Name(), s.SpanKind(), s.Parent())
			}
			if s.SpanContext().TraceID() != parent.SpanContext().TraceID() || inner[n] != parent.SpanContext().TraceID() {
				t.Errorf("delivery %d has trace %v, its handler %v, want %v", n+1, s.SpanContext().TraceID(), inner[n], parent.SpanContext().TraceID())
			}
			assert.That(t, s.Status().Code == codes.Error, "delivery %d has status %+v, want an error", n+1, s.Status())
			want(t, "process", attrs(s.Attributes()), "messaging.operation.type=process", "messaging.consumer.group.name=billing",
				fmt.Sprintf("tidegate.attempt=%d", n+1), "error.type="+[]string{"*errors.errorString", "panic"}[n])
		}
		letter := e.broker.WaitDeadLetter("billing")
		assert.That(t, strings.Contains(letter.TraceContext, parent.SpanContext().TraceID().String()),
			"the dead letter's trace context is %q, want trace %v", letter.TraceContext, parent.SpanContext().TraceID())
	})
}

// A span names the message group or the lite topic of its message.
func TestOrderKeys(t *testing.T) {
	run(t, func(e *env) {
		for attribute, m := range map[string]tidegate.Message{
			"messaging.rocketmq.message.group=account-7": {Topic: "orders", MessageGroup: "account-7"},
			"tidegate.lite_topic=session-7":              {Topic: "orders", LiteTopic: "session-7"},
		} {
			assert.Must(t, e.i.Middleware(func(context.Context, *tidegate.Delivery) error { return nil })(e.Context(), &tidegate.Delivery{Message: m}))
			spans := e.spans.Ended()
			got := attrs(spans[len(spans)-1].Attributes())
			want(t, "process", got, attribute)
			assert.That(t, strings.Count(got, "-7") == 1, "the attributes %q have another key", got)
		}
	})
}

func TestAttemptsAreEvents(t *testing.T) {
	run(t, func(e *env) {
		throttles := 2
		e.broker.Intercept(func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			if call.Op == "SendMessage" && throttles > 0 {
				throttles--
				return brokertest.Throttled(5 * time.Second)
			}
			return next(ctx)
		})
		assert.Must(t, assert.Err(e.p.Send(e.Context(), &tidegate.Message{Topic: "orders", Body: []byte("x")})))
		events := e.spans.Ended()[0].Events()
		assert.MustThat(t, len(events) == 3, "%d events, want 3 attempts", len(events))
		want(t, "attempt 1", attrs(events[0].Attributes), "tidegate.attempt=1", "tidegate.class=throttled", "error.type=42900", "tidegate.delay_seconds=5")
		want(t, "attempt 3", attrs(events[2].Attributes), "tidegate.attempt=3", "tidegate.class=ok", "server.port=8081")
		gap := events[1].Time.Sub(events[0].Time)
		assert.That(t, gap >= 5*time.Second && gap <= 6*time.Second, "attempt 2 came %v after the first, want 5 s", gap)
	})
}

// The span of a transaction has the attempts of its begin and of its end, with their server.
func TestTransactionsHaveTheirAttempts(t *testing.T) {
	run(t, func(e *env) {
		assert.Must(t, assert.Err(e.p.Transact(e.Context(), &tidegate.Message{Topic: "transfers", Body: []byte("x")}, func(context.Context, *tidegate.Message) error { return nil })))
		events := e.spans.Ended()[0].Events()
		assert.MustThat(t, len(events) == 2, "%d events, want 2 attempts", len(events))
		for n, operation := range []string{"begin", "commit"} {
			want(t, operation, attrs(events[n].Attributes), "messaging.operation.name="+operation, "tidegate.class=ok", "server.port=8081")
		}
	})
}

// The buckets of durations are those of the conventions, in seconds. The defaults of the SDK of
// OpenTelemetry are for milliseconds: nearly all durations would be in the first bucket.
func TestBucketsAreInSeconds(t *testing.T) {
	run(t, func(e *env) {
		assert.Must(t, assert.Err(e.p.Send(e.Context(), &tidegate.Message{Topic: "orders", Body: []byte("x")})))
		e.consume(func(context.Context, *tidegate.Delivery) error { return nil })
		var rm metricdata.ResourceMetrics
		assert.Must(t, e.reader.Collect(e.Context(), &rm))
		// OpenTelemetry: semantic conventions for messaging client metrics 1.43.
		buckets := []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}
		seen := 0
		for _, m := range rm.ScopeMetrics[0].Metrics {
			data, ok := m.Data.(metricdata.Histogram[float64])
			if !ok {
				continue
			}
			seen++
			if got := data.DataPoints[0].Bounds; m.Unit != "s" || !slices.Equal(got, buckets) {
				t.Errorf("%s in %s has the buckets %v, want %v", m.Name, m.Unit, got, buckets)
			}
		}
		assert.That(t, seen == 2, "%d histograms, want 2", seen)
	})
}

// Every way to send has a span, whether it succeeds or not.
func TestEverySendHasASpan(t *testing.T) {
	run(t, func(e *env) {
		good, bad := &tidegate.Message{Topic: "orders", Body: []byte("x")}, &tidegate.Message{Topic: "missing", Body: []byte("x")}
		half := &tidegate.Message{Topic: "transfers", Body: []byte("x")}
		for _, c := range []struct {
			name  string
			send  func(ctx context.Context) error
			spans []codes.Code
		}{
			{"Send", func(ctx context.Context) error { _, err := e.p.Send(ctx, bad); return err }, []codes.Code{codes.Error}},
			{"SendAsync", func(ctx context.Context) error {
				done := make(chan error)
				if err := e.p.SendAsync(ctx, good, func(_ tidegate.Receipt, err error) { done <- err }); err != nil {
					return err
				}
				return <-done
			}, []codes.Code{codes.Unset}},
			{"SendAsync refused", func(ctx context.Context) error {
				return e.p.SendAsync(ctx, &tidegate.Message{Topic: "orders"}, func(tidegate.Receipt, error) {})
			}, []codes.Code{codes.Error}},
			{"SendBatch", func(ctx context.Context) error {
				return e.p.SendBatch(ctx, []*tidegate.Message{good, nil, bad})[2].Err
			}, []codes.Code{codes.Unset, codes.Error}},
			{"Begin", func(ctx context.Context) error {
				tx, err := e.p.Begin(ctx, half)
				if err != nil {
					return err
				}
				return tx.Commit(ctx)
			}, []codes.Code{codes.Unset}},
			{"Transact", func(ctx context.Context) error {
				_, err := e.p.Transact(ctx, half, func(_ context.Context, m *tidegate.Message) error {
					if m.TraceContext == "" {
						return errors.New("no trace context")
					}
					return nil
				})
				return err
			}, []codes.Code{codes.Unset}},
			{"nil", func(ctx context.Context) error { _, err := e.p.Send(ctx, nil); return err }, nil},
		} {
			before := len(e.spans.Ended())
			err := c.send(e.Context())
			failed := slices.Contains(c.spans, codes.Error) || c.spans == nil
			assert.That(t, failed == (err != nil), "%s: %v", c.name, err)
			var got []codes.Code
			for _, s := range e.spans.Ended()[before:] {
				got = append(got, s.Status().Code)
			}
			assert.That(t, slices.Equal(got, c.spans), "%s: spans with status %v, want %v", c.name, got, c.spans)
		}
		if started, ended := len(e.spans.Started()), len(e.spans.Ended()); started != ended {
			t.Errorf("%d spans started, %d ended", started, ended)
		}
	})
}

func TestMetrics(t *testing.T) {
	run(t, func(e *env) {
		for n := range 3 {
			assert.Must(t, assert.Err(e.p.Send(e.Context(), &tidegate.Message{ID: fmt.Sprint("m", n), Topic: "orders", Body: []byte("x")})))
		}
		_, err := e.p.Send(e.Context(), &tidegate.Message{Topic: "missing", Body: []byte("x")})
		assert.MustThat(t, err != nil, "a send to a missing topic succeeded")
		if tx, err := e.p.Begin(e.Context(), &tidegate.Message{Topic: "transfers", Body: []byte("x")}); err != nil {
			t.Fatal(err)
		} else if err := tx.Commit(e.Context()); err != nil {
			t.Fatal(err)
		}
		e.consume(func(_ context.Context, d *tidegate.Delivery) error {
			time.Sleep(time.Second)
			if d.ID == "m0" && d.Attempt == 1 {
				return errors.New("once")
			}
			return nil
		})
		got := e.series()
		for series, value := range map[string]string{
			"messaging.client.sent.messages messaging.destination.name=orders messaging.operation.name=send messaging.system=rocketmq":                                                                     "3",
			"messaging.client.sent.messages error.type=40402 messaging.destination.name=missing messaging.operation.name=send messaging.system=rocketmq":                                                   "1",
			"messaging.client.operation.duration messaging.destination.name=orders messaging.operation.name=send messaging.operation.type=send messaging.system=rocketmq":                                  "3 values",
			"messaging.client.consumed.messages messaging.consumer.group.name=billing messaging.destination.name=orders messaging.operation.name=process messaging.system=rocketmq":                        "4",
			"messaging.process.duration messaging.consumer.group.name=billing messaging.destination.name=orders messaging.operation.name=process messaging.system=rocketmq":                                "3 values, sum 3",
			"messaging.process.duration error.type=*errors.errorString messaging.consumer.group.name=billing messaging.destination.name=orders messaging.operation.name=process messaging.system=rocketmq": "1 values, sum 1",
			"tidegate.producer.attempts messaging.destination.name=transfers messaging.operation.name=begin tidegate.class=ok":                                                                             "1",
			"tidegate.producer.attempts messaging.destination.name=transfers messaging.operation.name=commit tidegate.class=ok":                                                                            "1",
			"tidegate.producer.attempts messaging.destination.name=orders messaging.operation.name=send tidegate.class=ok":                                                                                 "3",
			"tidegate.consumer.deliveries messaging.consumer.group.name=billing messaging.destination.name=orders tidegate.disposition=acked":                                                              "3",
			"tidegate.consumer.deliveries messaging.consumer.group.name=billing messaging.destination.name=orders tidegate.disposition=retried":                                                            "1",
		} {
			// The sum counts only where it is given.
			assert.That(t, got[series] == value || strings.HasSuffix(value, " values") && strings.HasPrefix(got[series], value+","), "%s is %q, want %s", series, got[series], value)
		}
		if t.Failed() {
			for s, v := range got {
				t.Log(s, v)
			}
		}
	})
}

// series returns the value of each series by its name and attributes.
func (e *env) series() map[string]string {
	e.Helper()
	var rm metricdata.ResourceMetrics
	if err := e.reader.Collect(e.Context(), &rm); err != nil {
		e.Fatal(err)
	}
	out := map[string]string{}
	for _, m := range rm.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				out[m.Name+" "+attrs(p.Attributes.ToSlice())] = fmt.Sprint(p.Value)
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				out[m.Name+" "+attrs(p.Attributes.ToSlice())] = fmt.Sprintf("%d values, sum %v", p.Count, p.Sum)
			}
		}
	}
	return out
}

// All strings of spans and metrics are UTF-8, whatever messages, errors and servers contain: an
// exporter of OTLP drops a batch with another string (google.golang.org/protobuf: string field
// contains invalid UTF-8).
func TestStringsAreUTF8(t *testing.T) {
	const bad = "caf\xe9"
	run(t, func(e *env) {
		messages := []*tidegate.Message{
			{ID: bad, Topic: "orders", Body: []byte("x")},
			{Topic: bad, Body: []byte("x")},
			{Topic: "orders", Tag: bad, Keys: []string{"k", bad}, Body: []byte("x")},
			{Topic: "orders", MessageGroup: bad, Body: []byte("x")},
			{Topic: "orders", LiteTopic: bad, Body: []byte("x")},
			{Topic: "orders", TraceContext: bad, Body: []byte("x")},
		}
		for _, m := range messages {
			_, _ = e.p.Send(e.Context(), m)
			_, _ = e.p.Begin(e.Context(), m)
			_ = e.p.SendAsync(e.Context(), m, func(tidegate.Receipt, error) {})
		}
		e.p.SendBatch(e.Context(), messages)
		if _, err := e.p.Send(e.Context(), &tidegate.Message{Topic: "orders", Body: []byte("x")}); err != nil {
			e.Fatal(err)
		}
		e.consume(func(context.Context, *tidegate.Delivery) error { return errors.New("no " + bad) })
		// Deliveries and events of other systems can have any names.
		failed := &typedError{"no " + bad}
		d := &tidegate.Delivery{Message: *messages[2], ConsumerGroup: bad}
		d.Topic, d.ID, d.MessageGroup, d.LiteTopic = bad, bad, bad, bad
		_ = e.i.Middleware(func(context.Context, *tidegate.Delivery) error { return failed })(e.Context(), d)
		o := e.i.PushOptions(consumer.PushOptions{})
		o.OnDelivery(consumer.Outcome{Delivery: d})
		o.OnReceiveFailure(consumer.ReceiveFailure{Topic: bad, Group: bad, Err: failed})
		o.OnKillSwitch(consumer.KillSwitchEvent{Group: bad})
		e.i.ProducerOptions(producer.Options{}).OnAttempt(producer.Attempt{Topic: bad, Operation: bad, MessageID: bad, Endpoint: bad, Err: failed})

		seen := 0
		check := func(where string, s string) {
			if seen++; !utf8.ValidString(s) {
				e.Errorf("%s: %q is not UTF-8", where, s)
			}
		}
		all := func(where string, kvs []attribute.KeyValue) {
			for _, kv := range kvs {
				check(where, string(kv.Key))
				if kv.Value.Type() == attribute.STRINGSLICE {
					for _, s := range kv.Value.AsStringSlice() {
						check(where+": "+string(kv.Key), s)
					}
				} else if kv.Value.Type() == attribute.STRING {
					check(where+": "+string(kv.Key), kv.Value.AsString())
				}
			}
		}
		for _, s := range e.spans.Ended() {
			check("the name of a span", s.Name())
			check("the status of a span", s.Status().Description)
			all("a span", s.Attributes())
			for _, ev := range s.Events() {
				check("the name of an event", ev.Name)
				all("an event", ev.Attributes)
			}
		}
		var rm metricdata.ResourceMetrics
		if err := e.reader.Collect(e.Context(), &rm); err != nil {
			e.Fatal(err)
		}
		for _, m := range rm.ScopeMetrics[0].Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					all(m.Name, p.Attributes.ToSlice())
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					all(m.Name, p.Attributes.ToSlice())
				}
			default:
				e.Errorf("%s has the data %T", m.Name, data)
			}
		}
		if seen < 300 {
			e.Errorf("only %d strings were seen", seen)
		}
	})
}

// A typedError names its own type for telemetry.
type typedError struct{ text string }

func (e *typedError) Error() string     { return e.text }
func (e *typedError) ErrorType() string { return e.text }

// Metrics and spans of a batch consumer are those of its messages. The handler finds the span of a
// message in its context.
func TestBatchesCountAsMessages(t *testing.T) {
	run(t, func(e *env) {
		const n = 4
		for i := range n {
			assert.Must(t, assert.Err(e.p.Send(e.Context(), &tidegate.Message{ID: fmt.Sprint("m", i), Topic: "orders", Body: []byte("x")})))
		}
		batches, spans := 0, map[apitrace.SpanID]bool{}
		c := assert.Value(consumer.NewBatch(e.broker.Client(), consumer.Subscription{Group: "billing", Topic: "orders"},
			func(ctx context.Context, ds []*tidegate.Delivery) error {
				batches++
				for i := range ds {
					spans[apitrace.SpanContextFromContext(consumer.BatchContext(ctx, i)).SpanID()] = true
				}
				return nil
			}, e.i.PushOptions(consumer.PushOptions{Concurrency: 1, Batch: consumer.BatchOptions{MaxMessages: n}})))(t)
		e.consumeBy(c)
		assert.That(t, batches == 1 && len(spans) == n, "%d batches with %d spans, want one batch of %d messages", batches, len(spans), n)
		got := e.series()
		for series, value := range map[string]string{
			"messaging.client.consumed.messages messaging.consumer.group.name=billing messaging.destination.name=orders messaging.operation.name=process messaging.system=rocketmq": "4",
			"messaging.process.duration messaging.consumer.group.name=billing messaging.destination.name=orders messaging.operation.name=process messaging.system=rocketmq":         "4 values",
			"tidegate.consumer.deliveries messaging.consumer.group.name=billing messaging.destination.name=orders tidegate.disposition=acked":                                       "4",
		} {
			assert.That(t, strings.HasPrefix(got[series], value) && got[series] != "", "%s is %q, want %s", series, got[series], value)
		}
	})
}

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

// Trips and returns of a kill switch are counted, and the program's function is called too.
func TestKillSwitchEvents(t *testing.T) {
	run(t, func(e *env) {
		called := 0
		o := e.i.PushOptions(consumer.PushOptions{OnKillSwitch: func(consumer.KillSwitchEvent) { called++ }})
		o.OnKillSwitch(consumer.KillSwitchEvent{Group: "billing", Tripped: true})
		o.OnKillSwitch(consumer.KillSwitchEvent{Group: "billing"})
		o.OnKillSwitch(consumer.KillSwitchEvent{Group: "billing", Tripped: true})
		e.i.PushOptions(consumer.PushOptions{}).OnKillSwitch(consumer.KillSwitchEvent{Group: "shipping"})
		got := e.series()
		for series, want := range map[string]string{
			"tidegate.consumer.kill_switch.events messaging.consumer.group.name=billing tidegate.event=trip":    "2",
			"tidegate.consumer.kill_switch.events messaging.consumer.group.name=billing tidegate.event=return":  "1",
			"tidegate.consumer.kill_switch.events messaging.consumer.group.name=shipping tidegate.event=return": "1",
		} {
			assert.That(t, got[series] == want, "%s is %q, want %s", series, got[series], want)
		}
		assert.That(t, called == 3, "the program's function was called %d times, want 3", called)
	})
}

// ProducerOptions and PushOptions call the program's functions too.
func TestTheFunctionsOfTheProgramAreCalled(t *testing.T) {
	run(t, func(e *env) {
		calls := map[string]int{}
		send := e.i.ProducerOptions(producer.Options{OnAttempt: func(producer.Attempt) { calls["OnAttempt"]++ }})
		send.OnAttempt(producer.Attempt{})
		push := e.i.PushOptions(consumer.PushOptions{
			OnDelivery:       func(consumer.Outcome) { calls["OnDelivery"]++ },
			OnReceiveFailure: func(consumer.ReceiveFailure) { calls["OnReceiveFailure"]++ },
		})
		push.OnDelivery(consumer.Outcome{Delivery: &tidegate.Delivery{}})
		push.OnReceiveFailure(consumer.ReceiveFailure{Err: tidegate.ErrUnavailable})
		for _, name := range []string{"OnAttempt", "OnDelivery", "OnReceiveFailure"} {
			assert.That(t, calls[name] == 1, "the program's %s was called %d times, want once", name, calls[name])
		}
	})
}

// PushOptions does not change the middleware of its argument, also if the slice has capacity for
// another one.
func TestPushOptionsCopiesTheMiddleware(t *testing.T) {
	run(t, func(e *env) {
		called := false
		own := make([]consumer.Middleware, 1, 2)
		own[0] = func(next consumer.Handler) consumer.Handler { called = true; return next }
		assert.Equal(t, "middlewares", len(e.i.PushOptions(consumer.PushOptions{Middleware: own}).Middleware), 2)
		if own[0](nil); !called {
			t.Error("the program's middleware was replaced")
		}
	})
}

// An attempt that ends an operation without success counts with the reason, every other attempt
// without one.
func TestTheLastAttemptHasTheStopReason(t *testing.T) {
	run(t, func(e *env) {
		attempt := e.i.ProducerOptions(producer.Options{}).OnAttempt
		attempt(producer.Attempt{Operation: "send", Topic: "orders", Class: tidegate.ClassTransient})
		attempt(producer.Attempt{Operation: "send", Topic: "orders", Class: tidegate.ClassPermanent, Stop: producer.StopPermanent})
		got := e.series()
		for _, attributes := range []string{
			"tidegate.class=transient",
			"tidegate.class=permanent tidegate.stop_reason=permanent failure",
		} {
			name := "tidegate.producer.attempts messaging.destination.name=orders messaging.operation.name=send " + attributes
			assert.That(t, got[name] == "1", "%s is %q, want 1; all: %v", name, got[name], got)
		}
	})
}

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
