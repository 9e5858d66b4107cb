package rest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rest"
)

// A fake is a server with one response to every request, on an in-memory network.
type fake struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once

	mu       sync.Mutex
	requests int
}

func (f *fake) Accept() (net.Conn, error) {
	select {
	case c := <-f.accept:
		return c, nil
	case <-f.closed:
		return nil, net.ErrClosed
	}
}

func (f *fake) Close() error {
	f.once.Do(func() { close(f.closed) })
	return nil
}

func (f *fake) Addr() net.Addr { return &net.UnixAddr{Name: "fake"} }

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests
}

// answering returns a transport to a fake that responds by h.
func answering(t *testing.T, o rest.Options, h http.HandlerFunc) (*rest.Client, *fake) {
	t.Helper()
	f := &fake{accept: make(chan net.Conn), closed: make(chan struct{})}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.requests++
		f.mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		h(w, r)
	})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Serve(f)
	}()
	o.Dialer = func(ctx context.Context, _ string) (net.Conn, error) {
		c, s := net.Pipe()
		select {
		case f.accept <- s:
			return c, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	c := assert.Value(rest.New("broker.test", o))(t)
	t.Cleanup(func() {
		c.Close()
		s.Close()
		<-ended
	})
	return c, f
}

func message(id string) *tidegate.Message {
	return &tidegate.Message{ID: id, Topic: "orders", Body: []byte("body of " + id)}
}

func problem(w http.ResponseWriter, status, code int) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"status":%d,"code":%d,"detail":"the text","retry_after":"1.5s"}`, status, code)
}

// The errors of failed attempts. Each call makes exactly one request: the transport repeats neither
// a throttled request nor one whose response was lost. A failed receive stores nothing.
func TestOneAttempt(t *testing.T) {
	for name, tt := range map[string]struct {
		respond http.HandlerFunc
		class   tidegate.Class
		code    tidegate.Code
		maybe   bool
		after   time.Duration
		took    time.Duration
	}{
		"throttled": {func(w http.ResponseWriter, _ *http.Request) { problem(w, 429, 42900) }, tidegate.ClassThrottled, 42900, false, 1500 * time.Millisecond, 0},
		"failed":    {func(w http.ResponseWriter, _ *http.Request) { problem(w, 500, 50001) }, tidegate.ClassTransient, 50001, true, 1500 * time.Millisecond, 0},
		"refused":   {func(w http.ResponseWriter, _ *http.Request) { problem(w, 404, 40402) }, tidegate.ClassPermanent, 40402, false, 1500 * time.Millisecond, 0},
		"lost":      {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, tidegate.ClassTransient, 0, true, 0, 0},
		"silent":    {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, tidegate.ClassTransient, 0, true, 0, 3 * time.Second},
		"garbage":   {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }, tidegate.ClassTransient, 50000, true, 0, 0},
		"breaks off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			io.WriteString(w, "{")
		}, tidegate.ClassTransient, 0, true, 0, 0},
		"an empty result": {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"results":[{}]}`) }, tidegate.ClassTransient, 50000, true, 0, 0},
		"too few results": {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"results":[]}`) }, tidegate.ClassTransient, 50000, true, 0, 0},
		"a proxy":         {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no upstream", http.StatusBadGateway) }, tidegate.ClassTransient, 50000, true, 0, 0},
		"another site":    {func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }, tidegate.ClassTransient, 50000, false, 0, 0},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://x.test/", http.StatusMovedPermanently)
		}, tidegate.ClassTransient, 50000, false, 0, 0},
		"an ingress throttles": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "4")
			http.Error(w, "slow down", http.StatusTooManyRequests)
		}, tidegate.ClassThrottled, 42900, false, 4 * time.Second, 0},
		// The reply code of "RocketMQ: sending retry and throttling" as a status.
		"a gateway throttles with status 530": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "4")
			http.Error(w, "TOO_MANY_REQUESTS", 530)
		}, tidegate.ClassThrottled, 42900, false, 4 * time.Second, 0},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			c, f := answering(t, rest.Options{}, tt.respond)
			for _, ctx := range []context.Context{t.Context(), transport.AwaitConnection(t.Context())} {
				start, before := time.Now(), f.count()
				r := c.Send(ctx, []*tidegate.Message{message("a")})[0]
				e, ok := errors.AsType[*tidegate.Error](r.Err)
				if !ok || tidegate.Classify(r.Err) != tt.class || e.Code != tt.code || e.MaybeStored != tt.maybe || e.RetryAfter != tt.after {
					t.Errorf("got %+v, want %v, code %d, maybe stored %v, retry after %v", r.Err, tt.class, tt.code, tt.maybe, tt.after)
				}
				if n, took := f.count()-before, time.Since(start); n != 1 || took != tt.took {
					t.Errorf("%d requests in %v, want 1 in %v", n, took, tt.took)
				}
			}
			_, err := c.Receive(t.Context(), transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, InvisibleDuration: time.Minute})
			e, ok := errors.AsType[*tidegate.Error](err)
			assert.That(t, strings.HasPrefix(name, "an empty") || strings.HasPrefix(name, "too few") || ok && !e.MaybeStored, "a receive: %v, want an error that is not MaybeStored", err)
		})
	}
}

// The address of the gRPC server is a frequent mistake. The error names it instead of the bytes of
// its response.
func TestNotHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := answering(t, rest.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			io.WriteString(conn, "\x00\x00\x18\x04\x00\x00\x00\x00\x00") // the beginning of HTTP/2
			conn.Close()
		})
		err := c.Send(t.Context(), []*tidegate.Message{message("a")})[0].Err
		const want = `SendMessage "orders" at broker.test:80: 40001 ILLEGAL_ACCESS_POINT: the response is not HTTP/1.1; give the address for HTTP, not the one for gRPC`
		assert.That(t, err != nil && err.Error() == want && tidegate.Classify(err) == tidegate.ClassPermanent && f.count() == 1, "%v after %d requests\nwant %s", err, f.count(), want)
	})
}

func TestClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := answering(t, rest.Options{}, func(http.ResponseWriter, *http.Request) {})
		c.Close()
		const want = `SendMessage "orders" at broker.test:80: client closed`
		err := c.Send(t.Context(), []*tidegate.Message{message("a")})[0].Err
		assert.That(t, errors.Is(err, tidegate.ErrClosed) && err.Error() == want && f.count() == 0, "%v after %d requests, want %s", err, f.count(), want)
		if _, err := c.Lane(t.Context(), transport.LaneRequest{Topic: "orders"}); !errors.Is(err, tidegate.ErrClosed) || err.Error() != want {
			t.Errorf("%v of a lane, want %s", err, want)
		}
	})
}

// A response to a receive that cannot be used is ErrUnreadable: the same attempt ID would bring it
// again.
func TestUnreadableReceive(t *testing.T) {
	for name, body := range map[string]string{"garbage": "<html>", "too large": `{"messages":[]}` + strings.Repeat(" ", 1000)} {
		synctest.Test(t, func(t *testing.T) {
			c, f := answering(t, rest.Options{MaxResponse: 1000}, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) })
			_, err := c.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "orders", Queue: transport.AnyQueue})
			assert.That(t, errors.Is(err, transport.ErrUnreadable) && f.count() == 1, "%s: %v after %d requests, want ErrUnreadable after 1", name, err, f.count())
		})
	}
}

// Without a connection a call fails at once and nothing was stored; with AwaitConnection it redials
// once a second until its ctx ends, as Ping does always.
func TestAwaitConnection(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		dials := 0
		c, err := rest.New(b.HTTPAddress(), rest.Options{Dialer: func(ctx context.Context, addr string) (net.Conn, error) {
			dials++
			return b.DialHTTP(ctx, addr)
		}})
		assert.Must(t, err)
		defer c.Close()
		send := func(ctx context.Context) error { return c.Send(ctx, []*tidegate.Message{message("a")})[0].Err }

		b.Disconnect()
		start := time.Now()
		err = send(t.Context())
		if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.MaybeStored || !errors.Is(err, tidegate.ErrUnavailable) || time.Since(start) != 0 || dials != 1 {
			t.Errorf("without a connection: %v after %v and %d dials, want ErrUnavailable at once", err, time.Since(start), dials)
		}

		ctx, cancel := context.WithTimeout(transport.AwaitConnection(t.Context()), 3500*time.Millisecond)
		defer cancel()
		start, dials = time.Now(), 0
		err = send(ctx)
		if e, ok := errors.AsType[*tidegate.Error](err); !ok || e.MaybeStored || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3500*time.Millisecond || dials != 4 {
			t.Errorf("awaited in vain: %v after %v and %d dials, want the deadline after 3.5s and 4 dials", err, time.Since(start), dials)
		}

		time.AfterFunc(2500*time.Millisecond, b.Reconnect)
		start = time.Now()
		if err := send(transport.AwaitConnection(t.Context())); err != nil || time.Since(start) != 3*time.Second {
			t.Errorf("awaited: %v after %v, want a success after 3s", err, time.Since(start))
		}
		b.Disconnect()
		ctx, cancel = context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()
		start = time.Now()
		if err := c.Ping(ctx); err == nil || time.Since(start) != 3500*time.Millisecond {
			t.Errorf("pinged in vain: %v after %v, want an error after 3.5s", err, time.Since(start))
		}
		time.AfterFunc(2500*time.Millisecond, b.Reconnect)
		start = time.Now()
		if err := c.Ping(t.Context()); err != nil || time.Since(start) != 3*time.Second {
			t.Errorf("pinged: %v after %v, want a success after 3s", err, time.Since(start))
		}
		b.Restart() // an idle connection that is gone is no failure
		assert.NoError(t, send(t.Context()), "after a restart")
	})
}

// Many messages take several requests, and keep their results and the order of their message
// groups.
func TestManyRequests(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{Type: settings.TopicFIFO})
		requests, failing := 0, 2
		b.Intercept(func(ctx context.Context, call server.Call, next func(context.Context) error) error {
			if requests++; requests == failing {
				return &tidegate.Error{Code: tidegate.CodeInternalServerError, Message: "by the test"}
			}
			return next(ctx)
		})
		c := over(t, b, rest.Options{})
		var msgs []*tidegate.Message
		for i := range 700 {
			m := message(fmt.Sprint("m", i))
			m.MessageGroup = fmt.Sprint("g", i%2)
			if i >= 512 {
				m.MessageGroup = "other"
			}
			msgs = append(msgs, m)
		}
		results := c.Send(t.Context(), msgs)
		for i, r := range results {
			switch failed := i >= 256 && i < 512; {
			case failed && r.Err == nil, !failed && (r.Err != nil || r.Receipt.MessageID != msgs[i].ID):
				t.Fatalf("message %d: %+v; the second of three requests failed", i, r)
			}
		}
		assert.That(t, requests == 3, "%d requests, want 3", requests)

		// A large body is sent with few others. After a failure the later messages of the message
		// group are not sent.
		requests, failing = 0, 1
		msgs = nil
		for i := range 5 {
			m := message(fmt.Sprint("large", i))
			m.MessageGroup, m.Body = "g0", make([]byte, 3<<20)
			msgs = append(msgs, m)
		}
		for i, r := range c.Send(t.Context(), msgs) {
			assert.That(t, r.Err != nil && tidegate.Classify(r.Err) == tidegate.ClassTransient, "large message %d: %v, want the failure of the first", i, r.Err)
		}
		assert.That(t, requests == 1, "%d requests, want 1: the group's first message failed", requests)
	})
}

// The transport rejects three kinds of calls without a request: texts that JSON cannot carry, names
// that a path cannot carry, and features that HTTP lacks.
func TestRejectedBeforeTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := answering(t, rest.Options{}, func(w http.ResponseWriter, _ *http.Request) { problem(w, 500, 50001) })
		for name, change := range map[string]func(*tidegate.Message){
			"ID":             func(m *tidegate.Message) { m.ID = "\xff" },
			"tag":            func(m *tidegate.Message) { m.Tag = "\xff" },
			"key":            func(m *tidegate.Message) { m.Keys = []string{"\xff"} },
			"property":       func(m *tidegate.Message) { m.Properties = map[string]string{"p": "\xff"} },
			"property name":  func(m *tidegate.Message) { m.Properties = map[string]string{"\xff": "v"} },
			"message group":  func(m *tidegate.Message) { m.MessageGroup = "\xff" },
			"trace context":  func(m *tidegate.Message) { m.TraceContext = "\xff" },
			"topic":          func(m *tidegate.Message) { m.Topic = "a/../b" },
			"topic of dots":  func(m *tidegate.Message) { m.Topic = ".." },
			"topic of none":  func(m *tidegate.Message) { m.Topic = "" },
			"topic of query": func(m *tidegate.Message) { m.Topic = "a?b" },
		} {
			m := message("a")
			change(m)
			r := c.Send(t.Context(), []*tidegate.Message{m})[0]
			assert.That(t, errors.Is(r.Err, tidegate.ErrInvalid), "%s: %v, want ErrInvalid", name, r.Err)
		}
		for name, r := range map[string]transport.ReceiveRequest{
			"group": {Group: "..", Topic: "t", Queue: transport.AnyQueue}, "topic": {Group: "g", Topic: "", Queue: transport.AnyQueue},
			"queue": {Group: "g", Topic: "t", Queue: 1},
		} {
			if _, err := c.Receive(t.Context(), r); tidegate.Classify(err) != tidegate.ClassPermanent {
				t.Errorf("receive with a bad %s: %v, want a permanent error", name, err)
			}
		}
		assert.That(t, f.count() == 0, "%d requests, want none", f.count())
	})
}

func TestNewRejects(t *testing.T) {
	for name, tt := range map[string]struct {
		address string
		o       rest.Options
		says    string
	}{
		"scheme":         {"ftp://x", rest.Options{}, "ftp"},
		"ClientID":       {"x", rest.Options{ClientID: "a b"}, "ClientID"},
		"RequestTimeout": {"x", rest.Options{RequestTimeout: -1}, "RequestTimeout"},
		"MaxResponse":    {"x", rest.Options{MaxResponse: -1}, "MaxResponse"},
		"Credentials":    {"x", rest.Options{Credentials: tidegate.Credentials{SecretKey: "x"}}, "Credentials"},
	} {
		if _, err := rest.New(tt.address, tt.o); !errors.Is(err, tidegate.ErrInvalid) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want ErrInvalid with %q", name, err, tt.says)
		}
	}
}
