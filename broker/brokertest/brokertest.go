// Package brokertest runs a whole broker inside a test: the engine in memory, the real gRPC server,
// and an in-memory network between it and its clients. It needs no port, file or process.
//
//	func TestOrders(t *testing.T) {
//		brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
//			b.CreateTopic("orders", settings.Topic{})
//			b.Consume("billing", "orders", handle) // the handler under test
//			b.Send(&tidegate.Message{Topic: "orders", Body: []byte("3 apples")})
//			b.WaitIdle("billing", "orders")
//			...
//		})
//	}
//
// [Run] runs the test in a bubble of testing/synctest, where time is virtual: the 4 h 46 m of the
// whole retry schedule take milliseconds. Outside of a bubble the broker runs in real time.
// [Broker.Consume] starts a consumer with default options; for other options, create producers and
// consumers on the transport that [Broker.Client] returns.
//
// [Broker.Intercept] injects faults into requests: delays, rejections, throttling, and responses
// that are lost after the request took effect. [Broker.Disconnect] and [Broker.Restart] break
// connections. [Broker.ChaosClient] duplicates, postpones and reorders deliveries.
package brokertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// Options are the settings of a test's broker. New uses the zero value.
type Options struct {
	// Broker are the engine's options. Unlike in production, a MinInvisibleDuration of 0 means no
	// minimum.
	Broker broker.Options

	// MinLongPolling is the shortest wait of a receive. Zero means no minimum.
	MinLongPolling time.Duration

	// Access has the permissions of clients, which then need the Credentials of rocketmq.Options.
	// The zero value allows everything.
	Access server.AccessConfig

	// Logger receives the logs of engine, server and clients. Nil means no log.
	Logger *slog.Logger
}

// A Broker is a broker for one test. Several goroutines can call its methods. Methods without an
// error result fail the test on an error, so call these on the test's goroutine. The embedded
// engine can be used directly.
type Broker struct {
	*broker.Broker

	tb      testing.TB
	address string
	opts    Options
	network *network
	http    *httpNetwork
	server  *server.Server
	served  chan error

	mu          sync.Mutex
	middlewares []*Middleware   // guarded by mu; the first is the innermost
	changed     chan struct{}   // guarded by mu; closed after the next request, nil if no goroutine waits
	letters     map[string]bool // guarded by mu; the dead letters that WaitDeadLetter returned
	requests    int             // guarded by mu; requests under way
	requested   time.Time       // guarded by mu; the end of the last request
	failed      error           // guarded by mu; of the last request with an error
	once        sync.Once
}

// A Middleware is called around a request. It can wait, return an error instead of calling next, or
// return an error after next. [server.Call] describes the effect on the client.
type Middleware func(ctx context.Context, call server.Call, next func(context.Context) error) error

// ErrConnectionLost is an error for a Middleware to return: the request ends like on a broken
// connection. The connection itself stays open for the next request. To test recovery from an
// outage, use [Broker.Disconnect].
var ErrConnectionLost = errors.New("connection lost, by the test")

// Throttled returns the error of a throttled request: reply code 530, with a push-back if
// retryAfter is not 0.
func Throttled(retryAfter time.Duration) error {
	return &tidegate.Error{
		Code: tidegate.CodeTooManyRequests, Message: "530 TOO_MANY_REQUESTS: throttled by the test", RetryAfter: retryAfter,
	}
}

// New starts a broker with default options, which ends with the test.
func New(tb testing.TB) *Broker {
	tb.Helper()
	return NewWith(tb, Options{})
}

// Run runs f in a bubble of testing/synctest, with a broker that has default options. f must use
// its own t, not that of the outer test: the outer test's context is outside of the bubble, and a
// wait for it inside the bubble is a fatal error.
//
// While it runs, a goroutine outside of the bubble reports on standard error if a handler of
// [Broker.Consume] does not return for 30 s of real time: such a handler can stop the time of the
// bubble. It ends with the last Run. Brokers in a bubble of the test's own have no such goroutine.
func Run(t *testing.T, f func(t *testing.T, b *Broker)) {
	t.Helper()
	defer handlers.start()()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		f(t, New(t))
	})
}

// brokers is the number of brokers so far, for their addresses.
var brokers atomic.Int64

// NewWith starts a broker, which ends with the test. Invalid options fail it.
func NewWith(tb testing.TB, o Options) *Broker {
	tb.Helper()
	if o.Broker.MinInvisibleDuration == 0 {
		o.Broker.MinInvisibleDuration = 1
	}
	if o.Broker.Logger == nil {
		o.Broker.Logger = o.Logger
	}
	if o.Broker.Dir == "" && o.Broker.Memory == nil {
		o.Broker.Memory = broker.NewMemory()
	}
	n := brokers.Add(1)
	grpc := newNetwork()
	b := &Broker{
		tb: tb, opts: o, network: grpc, letters: map[string]bool{},
		address: fmt.Sprintf("broker-%d.test:8081", n), http: newHTTPNetwork(fmt.Sprintf("broker-%d.test:8082", n), grpc.wires),
	}
	if err := b.start(); err != nil {
		tb.Fatalf("brokertest: %v", err)
	}
	tb.Cleanup(func() {
		if err := b.Close(); err != nil {
			tb.Errorf("brokertest: closing: %v", err)
		}
	})
	return b
}

// start opens the engine and serves it.
func (b *Broker) start() error {
	engine, err := broker.Open(b.opts.Broker)
	if err != nil {
		return err
	}
	s, err := server.New(engine, server.Options{
		Advertise: b.address, Logger: b.opts.Logger, MinLongPolling: max(b.opts.MinLongPolling, 1), MaxLongPolling: quiet,
		Intercept: b.intercept, Access: b.opts.Access,
	})
	if err != nil {
		return errors.Join(err, engine.Close())
	}
	served, lis := make(chan error, 1), b.network.lis.Load()
	b.Broker, b.server, b.served = engine, s, served
	go func() { served <- s.Serve(lis) }()
	return nil
}

// stop undoes start.
func (b *Broker) stop() error {
	err := b.server.Close()
	// Serve returns ErrClosed if Close comes before it.
	if served := <-b.served; !errors.Is(served, tidegate.ErrClosed) {
		err = errors.Join(err, served)
	}
	return errors.Join(err, b.Broker.Close())
}

// Address returns the broker's endpoint in its network. Each broker has its own.
func (b *Broker) Address() string { return b.address }

// Close ends the broker before the end of the test, like a crash: requests in progress get no
// response. A second call has no effect.
func (b *Broker) Close() (err error) {
	b.once.Do(func() { err = errors.Join(b.http.stop(), b.stop()) })
	return err
}

// Client returns a transport to the broker through gRPC. It ends with the test.
func (b *Broker) Client() *rocketmq.Client { return b.ClientWith(rocketmq.Options{}) }

// ClientWith is Client with options. A nil Dialer means [Broker.Dial]; another Dialer can call
// Broker.Dial. A zero HeartbeatInterval or RouteRefresh means 5 min, longer than in production, so
// that hours of virtual time take few requests. For the same reason a push consumer without
// LongPolling waits for up to 5 min in a receive. It repeats a receive without a response
// ([server.ErrNoAnswer]) only after this time. For the 20 s of production, set
// [consumer.PushOptions].LongPolling.
func (b *Broker) ClientWith(o rocketmq.Options) *rocketmq.Client {
	b.tb.Helper()
	if o.Dialer == nil {
		o.Dialer = b.Dial
	}
	if o.Logger == nil {
		o.Logger = b.opts.Logger
	}
	o.HeartbeatInterval = cmp.Or(o.HeartbeatInterval, quiet)
	o.RouteRefresh = cmp.Or(o.RouteRefresh, quiet)
	c, err := rocketmq.New(b.address, o)
	if err != nil {
		b.tb.Fatalf("brokertest: %v", err)
	}
	b.tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			b.tb.Errorf("brokertest: closing a client: %v", err)
		}
	})
	return c
}

// CreateTopic creates a topic, or changes it.
func (b *Broker) CreateTopic(name string, c settings.Topic) {
	b.tb.Helper()
	if _, err := b.PutTopic(b.tb.Context(), name, c); err != nil {
		b.tb.Fatalf("brokertest: %v", err)
	}
}

// CreateGroup creates a consumer group or changes it. For other groups the first receive creates
// the group, with default settings.
func (b *Broker) CreateGroup(name string, c settings.Group) {
	b.tb.Helper()
	if _, err := b.PutGroup(b.tb.Context(), name, c); err != nil {
		b.tb.Fatalf("brokertest: %v", err)
	}
}

// Stats returns the state of a group in a topic. The zero value means that the group has not
// received from it.
func (b *Broker) Stats(group, topic string) status.Subscription {
	g, err := b.Group(group)
	if err != nil {
		return status.Subscription{}
	}
	for _, s := range g.Topics {
		if s.Topic == topic {
			return s
		}
	}
	return status.Subscription{}
}

// Intercept calls m around every gRPC request, until remove is called. m is called before earlier
// middlewares. It runs on the goroutines of the server, on several at a time. remove can be called
// twice; requests that are inside m continue. m gets the receives that begin after Intercept; a
// receive that waits at that moment returns its next messages without it.
func (b *Broker) Intercept(m Middleware) (remove func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &m
	b.middlewares = append(slices.Clone(b.middlewares), p)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.middlewares = slices.DeleteFunc(slices.Clone(b.middlewares), func(o *Middleware) bool { return o == p })
	}
}

// withoutMiddleware reports whether Intercept has no effect now.
func (b *Broker) withoutMiddleware() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.middlewares) == 0
}

func (b *Broker) intercept(ctx context.Context, call server.Call, next func(context.Context) error) (err error) {
	b.mu.Lock()
	ms := b.middlewares
	b.mu.Unlock()
	b.requestBegun()
	defer func() { b.requestServed(err) }()
	if len(ms) == 0 {
		ctx = engine.LeaveResponse(ctx, b.withoutMiddleware)
	}
	for _, m := range ms {
		inner := next
		next = func(ctx context.Context) error { return (*m)(ctx, call, inner) }
	}
	return next(ctx)
}

// HTTPAddress returns the URL of the broker's HTTP API in its network. Clients need
// [Broker.DialHTTP] as their dialer.
func (b *Broker) HTTPAddress() string { return "http://" + b.http.Addr().String() }

// DialHTTP connects to the broker's HTTP API. It has the form of the Dialer options of
// transport/rest and broker/admin, and ignores addr: each network has one broker.
// [Broker.Disconnect] cuts these connections too. Middlewares of [Broker.Intercept] are called
// around HTTP requests about messages, but not around administrative requests.
func (b *Broker) DialHTTP(ctx context.Context, _ string) (net.Conn, error) {
	b.http.once.Do(func() { b.http.serve(b) })
	return b.http.dial(ctx)
}

// A httpNetwork connects clients with the broker's HTTP API, in memory. Its connections
// keep to deadlines, which net/http sets all the time.
type httpNetwork struct {
	name   string
	once   sync.Once
	server *http.Server
	served chan struct{} // closed when server has ended; nil if it was never started

	accept chan net.Conn
	closed chan struct{}

	wires *wires

	end sync.Once
}

func newHTTPNetwork(name string, w *wires) *httpNetwork {
	return &httpNetwork{name: name, accept: make(chan net.Conn), closed: make(chan struct{}), wires: w}
}

// serve starts the HTTP server. A restarted broker has another handler.
func (n *httpNetwork) serve(b *Broker) {
	n.served = make(chan struct{})
	n.server = &http.Server{ // as the binary has it
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b.requestBegun()
			defer b.requestServed(nil)
			b.server.Handler().ServeHTTP(w, r)
		}),
		ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
	}
	go func() {
		defer close(n.served)
		if err := n.server.Serve(n); !errors.Is(err, http.ErrServerClosed) {
			b.tb.Errorf("brokertest: HTTP: %v", err)
		}
	}()
}

// Accept implements net.Listener.
func (n *httpNetwork) Accept() (net.Conn, error) {
	select {
	case c := <-n.accept:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (n *httpNetwork) Close() error {
	n.end.Do(func() { close(n.closed) })
	return nil
}

// Addr implements net.Listener.
func (n *httpNetwork) Addr() net.Addr { return httpAddr(n.name) }

type httpAddr string

func (httpAddr) Network() string  { return "pipe" }
func (a httpAddr) String() string { return string(a) }

func (n *httpNetwork) dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	c, err := n.wires.add(client)
	if err != nil {
		return nil, err
	}
	select {
	case n.accept <- server:
		return c, nil
	case <-n.closed:
		err = net.ErrClosed
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return nil, errors.Join(err, c.Close())
}

// stop ends the HTTP server and waits for it.
func (n *httpNetwork) stop() error {
	var err error
	n.once.Do(func() { err = n.Close() }) // never started, and now it cannot be
	if n.served == nil {
		return err
	}
	err = n.server.Close()
	<-n.served
	return err
}
