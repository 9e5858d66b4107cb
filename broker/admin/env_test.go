package admin_test

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/transport"
)

// An env is a broker whose HTTP API is served on a port of this machine.
type env struct {
	t *testing.T
	b *broker.Broker
	c *admin.Client
	*httptest.Server

	mu       sync.Mutex
	patterns map[string]int // of the requests so far, as "GET /v1/topics"
}

// open starts a broker with a client; https selects how HTTP is served.
func open(t *testing.T, so server.Options, co admin.Options, https bool) *env {
	t.Helper()
	b := assert.Value(broker.Open(broker.Options{Memory: broker.NewMemory(), MinInvisibleDuration: 1}))(t)
	t.Cleanup(func() { b.Close() })
	so.Advertise = "127.0.0.1:8081"
	s := assert.Value(server.New(b, so))(t)
	t.Cleanup(func() { s.Close() })
	e := &env{t: t, b: b, patterns: map[string]int{}}
	handler := s.Handler()
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.patterns[r.Pattern]++
	}))
	e.Config.ErrorLog = log.New(io.Discard, "", 0)
	if https {
		e.StartTLS()
	} else {
		e.Start()
	}
	t.Cleanup(e.Server.Close)
	e.c = client(t, e.URL, co)
	return e
}

func client(t *testing.T, address string, o admin.Options) *admin.Client {
	t.Helper()
	if o.Backoff == nil {
		o.Backoff = backoff.Steps{1} // real time: the length of waits is tested in bubbles
	}
	c := assert.Value(admin.New(address, o))(t)
	t.Cleanup(func() {
		assert.NoError(t, c.Close())
	})
	return c
}

// requests returns how many there were since it was last asked, by pattern.
func (e *env) requests() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.patterns
	e.patterns = map[string]int{}
	return p
}

func (e *env) send(msgs ...*tidegate.Message) {
	e.t.Helper()
	for _, r := range e.b.Send(e.t.Context(), msgs) {
		assert.Must(e.t, r.Err)
	}
}

// giveUp makes a dead letter of the next n messages that a group receives from a topic.
func (e *env) giveUp(group, topic, reason string, n int) {
	e.t.Helper()
	for n > 0 {
		ds, err := e.b.Receive(e.t.Context(), transport.ReceiveRequest{Group: group, Topic: topic, Queue: transport.AnyQueue, Max: min(n, 32), InvisibleDuration: 1e12})
		assert.MustThat(e.t, err == nil && len(ds) != 0, "%d left: received %d messages, %v", n, len(ds), err)
		for _, d := range ds {
			assert.Must(e.t, assert.Err(e.b.Settle(e.t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: reason})))
			n--
		}
	}
}

func message(topic, id string) *tidegate.Message {
	return &tidegate.Message{ID: id, Topic: topic, Body: []byte("body of " + id)}
}

// A fake is a server with the behaviour of a test, on an in-memory network.
type fake struct {
	lis *pipes
}

// fakeServer serves a handler until the test ends, also in a bubble.
func fakeServer(t *testing.T, h http.HandlerFunc) *fake {
	t.Helper()
	f := &fake{lis: newPipes()}
	s := &http.Server{Handler: h}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Serve(f.lis)
	}()
	t.Cleanup(func() {
		s.Close()
		<-ended
	})
	return f
}

func (f *fake) client(t *testing.T, o admin.Options) *admin.Client {
	t.Helper()
	o.Dialer = func(ctx context.Context, _ string) (net.Conn, error) {
		return f.lis.dial(ctx)
	}
	c := assert.Value(admin.New("broker.test", o))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// pipes is an in-memory network whose connections keep to deadlines.
type pipes struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{accept: make(chan net.Conn), closed: make(chan struct{})} }

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

func (l *pipes) dial(ctx context.Context) (net.Conn, error) {
	c, s := net.Pipe()
	select {
	case l.accept <- s:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
