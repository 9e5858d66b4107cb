package endtoend

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
	"github.com/tidegate/tidegate/producer/spool"
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
	"consumer.PushOptions.OnLiteEnd": func(t *panicTest) {
		t.b.CreateTopic("sessions", settings.Topic{Type: settings.TopicLite})
		ctx, cancel := context.WithCancel(t.Context())
		handled := make(chan string, 1)
		c, err := consumer.NewPush(t.b.Client(), consumer.Subscription{Group: "agents", Topic: "sessions", Lite: true},
			func(_ context.Context, d *tidegate.Delivery) error { handled <- d.LiteTopic; return nil },
			consumer.PushOptions{Logger: t.logger(), OnLiteEnd: func(string) { panic("by the test") }})
		assert.Must(t, err)
		for _, name := range []string{"ends", "stays"} {
			assert.Must(t, c.Subscribe(t.Context(), name, transport.LiteStart{}))
		}
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		assert.Must(t, t.b.DeleteLiteTopic(t.Context(), "sessions", "ends"))
		t.b.Send(&tidegate.Message{Topic: "sessions", LiteTopic: "stays", Body: []byte("x")})
		assert.Equal(t, "the lite topic of the message", <-handled, "stays")
		synctest.Wait()
		cancel()
		assert.NoError(t, <-done)
		t.logged()
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

// keys are permissions with one key, shop, which may send to topics; without a topic the key does
// not exist.
func keys(topics ...string) server.AccessConfig {
	c := server.AccessConfig{Keys: []server.Key{{Name: "operator", Secrets: []server.Secret{server.NewSecret("x")}}}}
	if len(topics) > 0 {
		c.Keys = append(c.Keys, server.Key{
			Name: "shop", Secrets: []server.Secret{server.NewSecret("secret")},
			Allow: []server.Rule{{Actions: []server.Action{"send"}, Topics: topics}},
		})
	}
	return c
}

// A shop sends to brokers with access keys.
type shop struct {
	t        *testing.T
	producer *producer.Producer
	spool    *spool.Spool
	log      *lines
}

// lines are the records of a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) has(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), part)
}

// shopAt returns a producer, with or without a spool.
func shopAt(t *testing.T, to producer.Transport, spools bool) *shop {
	t.Helper()
	s := &shop{t: t, log: &lines{}}
	var err error
	if s.spool, err = spool.Open(filepath.Join(t.TempDir(), "spool"), spool.Options{}); err != nil {
		t.Fatal(err)
	}
	o := producer.Options{Logger: slog.New(slog.NewTextHandler(s.log, nil))}
	if spools {
		o.Spool = s.spool
	}
	if s.producer, err = producer.New(to, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { assert.NoError(t, errors.Join(s.producer.Close(), s.spool.Close())) })
	return s
}

func (s *shop) send(topic string) (tidegate.Receipt, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	return s.producer.Send(ctx, &tidegate.Message{Topic: topic, Body: []byte("x"), MessageGroup: "customer-1"})
}

// sends makes one send, and checks whether its message went to the spool.
func (s *shop) sends(topic string, spooled bool) {
	s.t.Helper()
	r, err := s.send(topic)
	assert.That(s.t, err == nil && r.Spooled == spooled, "a send to %s: %+v, %v; spooled: want %v", topic, r, err, spooled)
}

// pending checks the messages in the spool, none of which is rejected.
func (s *shop) pending(n int) {
	s.t.Helper()
	st := s.spool.Stats()
	assert.That(s.t, st.Pending == n && st.Rejected == 0, "the spool has %+v, want %d pending", st, n)
}

// keyed returns a broker with keys and topics, and a client with the key shop.
func keyed(t *testing.T, c server.AccessConfig) (*brokertest.Broker, *rocketmq.Client) {
	t.Helper()
	b := brokertest.NewWith(t, brokertest.Options{Access: c})
	for _, topic := range []string{"orders", "payments", "audit"} {
		b.CreateTopic(topic, settings.Topic{Type: settings.TopicFIFO})
	}
	client := b.ClientWith(rocketmq.Options{Credentials: tidegate.Credentials{AccessKey: "shop", SecretKey: "secret"}})
	return b, client
}

// stored checks the messages of a topic.
func stored(t *testing.T, b *brokertest.Broker, topic string, n int64) {
	t.Helper()
	s, err := b.Topic(topic)
	assert.That(t, err == nil && s.StoredMessages == n, "topic %s has %d messages, %v; want %d", topic, s.StoredMessages, err, n)
}

// The revocation of a key that has worked is an outage: the messages move to the spool, and reach
// the broker once the key is back, in order and each once. This holds whether or not the broker
// restarts in between.
func TestRevokedKeySpools(t *testing.T) {
	for name, restart := range map[string]bool{"reload": false, "restart": true} {
		t.Run(name, inBubble(func(t *testing.T) {
			b, c := keyed(t, keys("*"))
			s := shopAt(t, c, true)
			s.sends("orders", false)
			b.SetAccess(keys())
			if restart {
				b.Restart()
			}
			for range 5 {
				s.sends("orders", true)
			}
			s.sends("payments", true) // no send to it was accepted, but the key was
			s.pending(6)
			if !s.log.has("rejects credentials that it accepted before") || !s.log.has("UNAUTHORIZED") {
				t.Errorf("no event names the rejected credentials:\n%s", s.log.text.String())
			}
			time.Sleep(30 * time.Minute)
			s.pending(6)
			stored(t, b, "orders", 1)

			b.SetAccess(keys("*"))
			time.Sleep(2 * time.Minute)
			s.pending(0)
			stored(t, b, "orders", 6)
			stored(t, b, "payments", 1)
			s.sends("orders", false)
			stored(t, b, "orders", 7)
		}))
	}
}

// Sends leave an endpoint that revokes a key that has worked, without an error. With a spool they
// wait there until the switch. They stay at an endpoint that forbids one topic, and at one whose
// key has never worked.
func TestFailoverFromARevokedKey(t *testing.T) {
	for name, c := range map[string]struct {
		before, after server.AccessConfig
		active        string
		want          error // of a send to orders
		spool         bool
		pending       int // of 10 sends to orders, in the end
	}{
		"revoked key":                       {keys("*"), keys(), "second", nil, false, 0},
		"revoked key, spool":                {keys("*"), keys(), "second", nil, true, 0},
		"never worked":                      {keys(), keys(), "first", tidegate.ErrUnauthorized, true, 0},
		"revoked permission":                {keys("orders", "payments"), keys("payments"), "first", nil, true, 10},
		"revoked permission, without spool": {keys("orders", "payments"), keys("payments"), "first", tidegate.ErrForbidden, false, 0},
		"never permitted":                   {keys("payments"), keys("payments"), "first", tidegate.ErrForbidden, true, 0},
	} {
		t.Run(name, inBubble(func(t *testing.T) {
			first, a := keyed(t, c.before)
			second, b := keyed(t, keys("*"))
			x := assert.Value(failover.New([]failover.Endpoint{{Name: "first", Transport: a}, {Name: "second", Transport: b}}, failover.Options{}))(t)
			s := shopAt(t, x, c.spool)
			t.Cleanup(func() { _ = x.Close() }) // the clients are closed by the brokers
			accepted := int64(0)
			for range 2 {
				if r, err := s.send("orders"); err == nil && strings.HasPrefix(r.Endpoint, "first") {
					accepted++
				} else if len(c.before.Keys) > 1 && c.before.Keys[1].Allow[0].Topics[0] != "payments" || !errors.Is(err, c.want) {
					t.Fatalf("before: %+v, %v", r, err)
				}
			}
			first.SetAccess(c.after)
			const n = 10
			for range n {
				r, err := s.send("orders")
				assert.That(t, errors.Is(err, c.want) && (!r.Spooled || c.spool) && (r.Spooled || c.pending <= 0), "after: %+v, %v; want %v", r, err, c.want)
				if len(c.after.Keys) > 1 {
					if r, err := s.send("payments"); err != nil || r.Spooled || !strings.HasPrefix(r.Endpoint, "first") {
						t.Errorf("the other topic: %+v, %v", r, err)
					}
				}
			}
			time.Sleep(time.Minute)
			assert.That(t, x.Active() == c.active, "the active endpoint is %s, want %s", x.Active(), c.active)
			stored(t, first, "orders", accepted)
			stored(t, second, "orders", map[string]int64{"second": n}[c.active])
			s.pending(c.pending)
		}))
	}
}
