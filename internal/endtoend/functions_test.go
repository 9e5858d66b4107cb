package endtoend

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/oteltidegate"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/failover"
	"github.com/tidegate/tidegate/transport/held"
	"github.com/tidegate/tidegate/transport/rest"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// broken is a limiter, a backoff and a spool whose methods panic.
type broken struct{}

func (broken) WaitN(context.Context, int) error                      { panic("by the test") }
func (broken) Allow() bool                                           { panic("by the test") }
func (broken) Observe(error)                                         { panic("by the test") }
func (broken) Delay(int) time.Duration                               { panic("by the test") }
func (broken) PutBatch(context.Context, []*tidegate.Message) []error { panic("by the test") }
func (broken) Holds(string, string) bool                             { panic("by the test") }
func (broken) Drain(context.Context, func(context.Context, []*tidegate.Message) []error) error {
	panic("by the test")
}

// A panicTest has the functions of a program that panic, and what its log received.
type panicTest struct {
	*testing.T
	b   *brokertest.Broker
	mu  sync.Mutex
	out bytes.Buffer
}

func (t *panicTest) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.out.Write(b)
}

func (t *panicTest) logger() *slog.Logger { return slog.New(slog.NewTextHandler(t, nil)) }

// logged checks that a panic was logged as an error.
func (t *panicTest) logged() {
	t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	if text := t.out.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "panicked") || !strings.Contains(text, "by the test") {
		t.Errorf("the panic is not logged: %s", text)
	}
}

// consume handles three messages with options of the test, and checks that all are handled, the
// last one not before least. The handler fails in the first attempt if fails is set.
func (t *panicTest) consume(o consumer.PushOptions, sub consumer.Subscription, fails bool, least time.Duration) {
	t.Helper()
	t.b.Send(Order(1), Order(2), Order(3))
	sub.Group, sub.Topic, o.Logger = "billing", "orders", t.logger()
	start, handled, all := time.Now(), atomic.Int32{}, make(chan struct{})
	c, err := consumer.NewPush(t.b.Client(), sub, func(_ context.Context, d *tidegate.Delivery) error {
		if fails && d.Attempt == 1 {
			return errors.New("by the test")
		}
		if handled.Add(1) == 3 {
			close(all)
		}
		return nil
	}, o)
	assert.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	select {
	case <-all:
	case <-time.After(time.Hour):
		t.Errorf("%d of 3 messages were handled in an hour", handled.Load())
	}
	if took := time.Since(start); took < least {
		t.Errorf("all were handled after %v, want %v or more", took, least)
	}
	cancel()
	assert.NoError(t, <-done)
	t.logged()
}

// send sends a message, of which the first fail requests fail with err, and checks that it is
// stored, not before least.
func (t *panicTest) send(o producer.Options, fail int, fault error, least time.Duration) {
	t.Helper()
	var calls atomic.Int32
	t.b.Intercept(func(ctx context.Context, call server.Call, next func(context.Context) error) error {
		if call.Op == "SendMessage" && int(calls.Add(1)) <= fail {
			return fault
		}
		return next(ctx)
	})
	o.Logger, o.MaxAttempts = t.logger(), 10
	start := time.Now()
	p := NewProducer(t, t.b, o)
	assert.NoError(t, assert.Err(p.Send(t.Context(), Order(1))))
	if took := time.Since(start); took < least {
		t.Errorf("the send took %v, want %v or more", took, least)
	}
	p.Close() // writes the log
	t.logged()
}

// fails checks the error of a function.
func (t *panicTest) fails(err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "panicked: by the test") {
		t.Errorf("%v, want an error that names the panic", err)
	}
}

func brokenDialer(context.Context, string) (net.Conn, error) { panic("by the test") }

// failReceives makes the next receives fail.
func (t *panicTest) failReceives(n int32) {
	t.b.Intercept(func(ctx context.Context, call server.Call, next func(context.Context) error) error {
		if call.Op == "ReceiveMessage" && atomic.AddInt32(&n, -1) >= 0 {
			return errors.New("by the test")
		}
		return next(ctx)
	})
}

// functions has a test for each function that a program can hand to the SDK: in place of a panic
// there is the result that the document of package internal/guard names.
var functions = map[string]func(*panicTest){
	"consumer.PushOptions.Limiter": func(t *panicTest) {
		t.consume(consumer.PushOptions{Limiter: broken{}}, consumer.Subscription{}, false, time.Second)
	},
	"consumer.PushOptions.ReceiveBackoff": func(t *panicTest) {
		t.failReceives(3)
		t.consume(consumer.PushOptions{ReceiveBackoff: broken{}}, consumer.Subscription{}, false, time.Second)
	},
	"consumer.Subscription.Retry": func(t *panicTest) {
		t.consume(consumer.PushOptions{}, consumer.Subscription{Retry: broken{}}, true, time.Second)
	},
	"consumer.PushOptions.Policies.Retry": func(t *panicTest) {
		t.consume(consumer.PushOptions{Policies: []policy.Policy{{Retry: broken{}}}}, consumer.Subscription{}, true, time.Second)
	},
	"consumer.PushOptions.OnKillSwitch": func(t *panicTest) {
		t.consume(consumer.PushOptions{OnKillSwitch: func(consumer.KillSwitchEvent) { panic("by the test") },
			KillSwitch: consumer.KillSwitch{FailureRatio: .1, MinMessages: 1}}, consumer.Subscription{Retry: backoff.Steps{time.Second}}, true, 0)
	},
	"consumer.PushOptions.OnStuck": func(t *panicTest) {
		wait := func(next consumer.Handler) consumer.Handler {
			return func(ctx context.Context, d *tidegate.Delivery) error {
				<-time.After(2 * time.Second)
				return next(ctx, d)
			}
		}
		t.consume(consumer.PushOptions{OnStuck: func(consumer.StuckHandler) { panic("by the test") }, StuckAfter: time.Second,
			Middleware: []consumer.Middleware{wait}}, consumer.Subscription{}, false, 0)
	},
	"consumer.PushOptions.Middleware": func(t *panicTest) {
		for _, m := range []consumer.Middleware{nil, func(consumer.Handler) consumer.Handler { panic("by the test") }, func(consumer.Handler) consumer.Handler { return nil }} {
			ok := func(next consumer.Handler) consumer.Handler { return next }
			handler := func(context.Context, *tidegate.Delivery) error { return nil }
			_, err := consumer.NewPush(t.b.Client(), consumer.Subscription{Group: "billing", Topic: "orders"}, handler, consumer.PushOptions{Middleware: []consumer.Middleware{ok, m}})
			if !errors.Is(err, tidegate.ErrInvalid) || !strings.Contains(err.Error(), "Middleware[1]") {
				t.Errorf("%v, want ErrInvalid that names Middleware[1]", err)
			}
		}
		var once atomic.Bool
		t.consume(consumer.PushOptions{Middleware: []consumer.Middleware{func(next consumer.Handler) consumer.Handler {
			return func(ctx context.Context, d *tidegate.Delivery) error {
				if once.CompareAndSwap(false, true) {
					panic("by the test")
				}
				return next(ctx, d)
			}
		}}}, consumer.Subscription{Retry: backoff.Steps{time.Second}}, false, time.Second)
	},
	"consumer.PushOptions.Classify": func(t *panicTest) {
		var once atomic.Bool
		t.consume(consumer.PushOptions{Classify: func(err error) error {
			if once.CompareAndSwap(false, true) {
				panic("by the test")
			}
			return err
		}}, consumer.Subscription{Retry: backoff.Steps{time.Second}}, true, time.Second)
	},
	"consumer.PushOptions.OnDelivery": func(t *panicTest) {
		t.consume(consumer.PushOptions{OnDelivery: func(consumer.Outcome) { panic("by the test") }}, consumer.Subscription{}, false, 0)
	},
	"consumer.PushOptions.OnReceiveFailure": func(t *panicTest) {
		t.failReceives(3)
		t.consume(consumer.PushOptions{OnReceiveFailure: func(consumer.ReceiveFailure) { panic("by the test") }}, consumer.Subscription{}, false, 0)
	},
	"consumer.PushOptions.OnStop": func(t *panicTest) {
		t.consume(consumer.PushOptions{OnStop: func(consumer.StopReport) { panic("by the test") }}, consumer.Subscription{}, false, 0)
	},
	"producer.Options.Limiter": func(t *panicTest) { t.send(producer.Options{Limiter: broken{}}, 0, nil, time.Second) },
	"producer.Options.Backoff": func(t *panicTest) {
		t.send(producer.Options{Backoff: broken{}}, 2, &tidegate.Error{Code: tidegate.CodeTooManyRequests}, 2*time.Second)
	},
	"producer.Options.Pacing": func(t *panicTest) {
		t.send(producer.Options{Pacing: broken{}}, 3, errors.New("by the test"), 2*time.Second)
	},
	"producer.Options.OnAttempt": func(t *panicTest) {
		t.send(producer.Options{OnAttempt: func(producer.Attempt) { panic("by the test") }}, 0, nil, 0)
	},
	"producer.Options.Checker": func(t *panicTest) {
		t.b.CreateTopic("payments", settings.Topic{Type: settings.TopicTransaction})
		var calls atomic.Int32
		p := NewProducer(t, t.b, producer.Options{Logger: t.logger(), Checker: func(context.Context, transport.TransactionCheck) transport.Resolution {
			if calls.Add(1) == 1 {
				panic("by the test")
			}
			return transport.Commit
		}})
		assert.Must(t, assert.Err(p.Begin(t.Context(), &tidegate.Message{Topic: "payments", Body: []byte("x")})))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.ServeChecks(ctx, "payments") }()
		got := make(chan struct{})
		stop := t.b.Consume("billing", "payments", func(context.Context, *tidegate.Delivery) error { close(got); return nil })
		select {
		case <-got:
		case <-time.After(time.Hour):
			t.Error("no check followed the one that panicked")
		}
		stop()
		cancel()
		assert.NoError(t, <-done)
		p.Close()
		t.logged()
	},
	"producer.Options.Spool": func(t *panicTest) {
		p := NewProducer(t, t.b, producer.Options{Logger: t.logger(), Spool: broken{}})
		_, err := p.Send(t.Context(), &tidegate.Message{Topic: "ledger", MessageGroup: "g", Body: []byte("x")})
		t.fails(err)
		p.Close()
		t.logged()
	},
	"rocketmq.Options.Dialer": func(t *panicTest) {
		c := assert.Value(rocketmq.New("127.0.0.1:1", rocketmq.Options{Dialer: brokenDialer, Logger: t.logger()}))(t)
		defer c.Close()
		if r := c.Send(t.Context(), []*tidegate.Message{Order(1)})[0]; r.Err == nil {
			t.Error("the send succeeded")
		}
		t.logged()
	},
	"rest.Options.Dialer": func(t *panicTest) {
		c := assert.Value(rest.New("127.0.0.1:1", rest.Options{Dialer: brokenDialer}))(t)
		defer c.Close()
		t.fails(c.Send(t.Context(), []*tidegate.Message{Order(1)})[0].Err)
	},
	"failover.Options.OnSwitch": func(t *panicTest) {
		away := assert.Value(rocketmq.New("127.0.0.1:1", rocketmq.Options{Dialer: func(context.Context, string) (net.Conn, error) { return nil, io.EOF }}))(t)
		f, err := failover.New([]failover.Endpoint{{Name: "away", Transport: away}, {Name: "here", Transport: t.b.ClientWith(rocketmq.Options{})}},
			failover.Options{OnSwitch: func(failover.Event) { panic("by the test") }, Logger: t.logger()})
		assert.Must(t, err)
		p := assert.Value(producer.New(f, producer.Options{MaxAttempts: 20}))(t)
		assert.NoError(t, assert.Err(p.Send(t.Context(), Order(1))))
		assert.NoError(t, errors.Join(p.Close(), f.Close()))
		t.logged()
	},
	"held.Options.Settings": func(t *panicTest) {
		table := held.New(nil, held.Options{Settings: func(string, string) transport.ConsumerSettings { panic("by the test") }})
		defer table.Close()
		_, err := table.Receive(t.Context(), transport.ReceiveRequest{Group: "billing", Topic: "orders", Max: 1, InvisibleDuration: time.Minute})
		t.fails(err)
	},
}

// ofCallers are the functions that run on the goroutine of the program's own call, and the types
// that are a part of the program: the panics of the first are passed on, those of the others end
// the program.
var ofCallers = map[string]string{
	"deadletter.Options.Filter.Match":     "Redrive passes the panic on",
	"deadletter.Options.Edit":             "Redrive passes the panic on",
	"deadletter.Options.OnEvent":          "Redrive passes the panic on",
	"deadletter.Options.Sender":           "a transport",
	"failover.Endpoint.Transport":         "a transport",
	"oteltidegate.Options.TracerProvider": "of OpenTelemetry",
	"oteltidegate.Options.MeterProvider":  "of OpenTelemetry",
}

// A function that a program hands to the SDK may panic: the process goes on, and a wait that it
// would determine is never none. Each new option needs a test here.
func TestFunctionsOfTheProgramPanic(t *testing.T) {
	var found []string
	for _, o := range []any{
		producer.Options{}, consumer.PushOptions{}, consumer.SimpleOptions{}, consumer.Subscription{}, ratelimit.AdaptiveOptions{}, ratelimit.BudgetOptions{},
		rocketmq.Options{}, rest.Options{}, failover.Options{}, failover.Endpoint{}, held.Options{}, oteltidegate.Options{}, deadletter.Options{},
	} {
		of := reflect.TypeOf(o)
		found = append(found, functionsIn(of, of.String())...)
	}
	for _, name := range found {
		assert.That(t, functions[name] != nil || ofCallers[name] != "", "%s is a function of the program without a test", name)
	}
	for name, test := range functions {
		assert.That(t, slices.Contains(found, name), "there is no option %s", name)
		t.Run(name, onBroker(func(t *testing.T, b *brokertest.Broker) {
			b.CreateTopic("orders", settings.Topic{})
			b.CreateTopic("ledger", settings.Topic{Type: settings.TopicFIFO})
			test(&panicTest{T: t, b: b})
		}))
	}
}

// functionsIn returns the fields of a type that have functions of the program. It skips types of
// the standard library, which have rules of their own.
func functionsIn(of reflect.Type, path string) (found []string) {
	switch of.Kind() {
	case reflect.Func:
		return []string{path}
	case reflect.Interface:
		return []string{path}
	case reflect.Slice, reflect.Array, reflect.Map:
		return functionsIn(of.Elem(), path)
	case reflect.Struct:
		if !strings.HasPrefix(of.PkgPath(), "github.com/tidegate/") {
			return nil
		}
		for f := range of.Fields() {
			if f.IsExported() {
				found = append(found, functionsIn(f.Type, path+"."+f.Name)...)
			}
		}
	}
	return found
}
