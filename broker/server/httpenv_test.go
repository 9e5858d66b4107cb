package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// A webEnv is an env with a client over HTTP, on an in-memory network.
type webEnv struct {
	*env
	client *http.Client
	server *http.Server
}

// startWeb makes a webEnv, which has the topic "delay" (DELAY) besides, and closes it with the
// test.
func startWeb(t testing.TB, o server.Options, faults ...*faulty) *webEnv {
	t.Helper()
	return startWebWith(t, broker.Options{MinInvisibleDuration: 1}, o, faults...)
}

// startWebWith is startWeb with an engine that has these options.
func startWebWith(t testing.TB, bo broker.Options, o server.Options, faults ...*faulty) *webEnv {
	t.Helper()
	e := startWith(t, bo, o, faults...)
	if _, err := e.b.PutTopic(t.Context(), "delay", settings.Topic{Type: settings.TopicDelay, Queues: 1}); err != nil {
		t.Fatal(err)
	}
	lis := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
	x := &webEnv{
		env: e,
		client: &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return lis.dial(ctx) },
		}},
		// As in the binary: handlers that last longer have to move their deadlines.
		server: &http.Server{Handler: e.s.Handler(), ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute},
	}
	var conns sync.WaitGroup // whose handlers have not returned
	x.server.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			conns.Add(1)
		case http.StateClosed, http.StateHijacked:
			conns.Done()
		}
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		x.server.Serve(lis)
	}()
	t.Cleanup(func() {
		x.client.CloseIdleConnections()
		x.server.Close()
		<-served
		conns.Wait() // net/http does not wait for handlers
	})
	return x
}

// pipes is an in-memory network, as bufconn's, whose connections keep to the
// deadlines that net/http sets all the time.
type pipes struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

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
	client, server := net.Pipe()
	select {
	case l.accept <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// request makes a request; header is names and values in turn.
func (x *webEnv) request(ctx context.Context, method, path string, body io.Reader, header ...string) *http.Request {
	x.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "http://broker.test"+path, body)
	if err != nil {
		x.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// do sends a JSON request and reads the response into out, if out is not nil.
func (x *webEnv) do(path, body string, out any, header ...string) *http.Response {
	x.t.Helper()
	resp, err := x.client.Do(x.request(x.t.Context(), "POST", path, strings.NewReader(body), append([]string{"Content-Type", server.TypeJSON}, header...)...))
	if err != nil {
		x.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		x.t.Fatal(err)
	}
	if out != nil {
		if err := json.Unmarshal(text, out); err != nil {
			x.t.Fatalf("POST %s: %d, %v: %s", path, resp.StatusCode, err, text)
		}
	}
	resp.Body = io.NopCloser(bytes.NewReader(text))
	return resp
}

// ok is do for a request that has to succeed.
func (x *webEnv) ok(path, body string, out any, header ...string) {
	x.t.Helper()
	resp := x.do(path, body, out, header...)
	if resp.StatusCode >= 300 {
		text, _ := io.ReadAll(resp.Body)
		x.t.Fatalf("POST %s: %d %s", path, resp.StatusCode, text)
	}
}

// failed is do for a request that has to fail, and checks status, code and words of the text.
func (x *webEnv) failed(path, body string, status, code int, words ...string) server.Problem {
	x.t.Helper()
	var p server.Problem
	resp := x.do(path, body, &p)
	x.problem("POST "+path+" "+body, resp.StatusCode, p, status, code, words...)
	return p
}

func (x *webEnv) problem(what string, got int, p server.Problem, status, code int, words ...string) {
	x.t.Helper()
	what = what[:min(len(what), 150)]
	if got != status || p.Code != code {
		x.t.Errorf("%s: %d %+v; want %d, code %d", what, got, p, status, code)
	}
	for _, w := range words {
		if !strings.Contains(p.Detail, w) {
			x.t.Errorf("%s: %q does not contain %q", what, p.Detail, w)
		}
	}
}

type received struct {
	Messages []httpapi.Delivery `json:"messages"`
}

// take receives with the group "g" and fails the test unless there are n messages.
func (x *webEnv) take(topic, body string, n int) []httpapi.Delivery {
	x.t.Helper()
	got := x.takeSome(topic, body)
	if len(got) != n {
		x.t.Fatalf("received %d messages, want %d: %+v", len(got), n, got)
	}
	return got
}

// takeSome receives with the group "g".
func (x *webEnv) takeSome(topic, body string) []httpapi.Delivery {
	x.t.Helper()
	var got received
	x.ok("/v1/groups/g/topics/"+topic+"/receive", body, &got)
	return got.Messages
}

func decode(t testing.TB, text []byte, out any) {
	t.Helper()
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}
