package server_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/status"
)

// redrive is a redrive that takes a while.
type redrive struct {
	takes time.Duration
	begun chan struct{}
}

func (e redrive) serve(r *http.Request) (any, error) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return nil, err
	}
	e.begun <- struct{}{}
	select {
	case <-time.After(e.takes):
		return status.DeadLetterRedrive{Redriven: 7, Next: "0-7"}, nil
	case <-r.Context().Done():
		return status.DeadLetterRedrive{Redriven: 3}, context.Cause(r.Context())
	}
}

// A request may run for longer than its client may take to send it, or to read the response.
func TestHTTPWorksAsLongAsItTakes(t *testing.T) {
	for name, configure := range map[string]func(*http.Protocols){
		"HTTP/1": func(p *http.Protocols) { p.SetHTTP1(true) },
		"HTTP/2": func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		for _, takes := range []time.Duration{40 * time.Second, 100 * time.Second} {
			t.Run(name+" "+takes.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := start(t, server.Options{})
					slow := redrive{takes, make(chan struct{}, 3)}
					e.s.WrapHTTP(func(h http.Handler) http.Handler {
						mux := http.NewServeMux()
						mux.Handle("/", checkHTTP(t, h))
						mux.Handle("POST /v1/groups/{group}/dead-letters/redrive", checkHTTP(t, e.s.Doing(slow.serve)))
						return mux
					})
					lis, protocols := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}, new(http.Protocols)
					configure(protocols)
					srv := &http.Server{Handler: e.s.Handler(), ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, Protocols: protocols}
					go srv.Serve(lis)
					defer srv.Close()
					transport := &http.Transport{
						DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return lis.dial(ctx) }, Protocols: protocols,
					}
					defer transport.CloseIdleConnections()
					ask := func(ctx context.Context, body string) (string, error) {
						r, err := http.NewRequestWithContext(ctx, "POST", "http://broker.test/v1/groups/g/dead-letters/redrive", strings.NewReader(body))
						if err != nil {
							t.Fatal(err)
						}
						r.Header.Set("Content-Type", server.TypeJSON)
						resp, err := transport.RoundTrip(r)
						if err != nil {
							return "", err
						}
						defer resp.Body.Close()
						text, err := io.ReadAll(resp.Body)
						return string(text), err
					}
					for _, body := range []string{`{"limit":100000}`, ""} { // on one connection
						if text, err := ask(t.Context(), body); err != nil || !strings.Contains(text, `"next": "0-7"`) {
							t.Errorf("%q: %q, %v", body, text, err)
						}
						<-slow.begun
					}
					// It ends when the client goes.
					ctx, cancel := context.WithCancel(t.Context())
					began := time.Now()
					go func() {
						<-slow.begun
						time.Sleep(35 * time.Second)
						cancel()
					}()
					if _, err := ask(ctx, "{}"); err == nil {
						t.Error("a response to a client that is gone")
					}
					synctest.Wait()
					if _, text := scrapedBy(t, e.s); time.Since(began) != 35*time.Second || !strings.Contains(text, `{operation="redriveDeadLetters",status="cut"} 1`) {
						t.Errorf("it went on for %v", time.Since(began))
					}
				})
			})
		}
	}
}

// A client that does not read has a minute from when the response is there.
func TestHTTPResponseIsReadInTime(t *testing.T) {
	for request, prefix := range map[string]string{
		"GET /v1/topics HTTP/1.1\r\nHost: broker.test\r\n\r\n":                                                                                   "HTTP/1.1 200 OK\r\n",
		"GET /v1/topics/missing HTTP/1.1\r\nHost: broker.test\r\n\r\n":                                                                           "HTTP/1.1 404 Not Found\r\n",
		"POST /v1/groups/g/topics/normal/receive HTTP/1.1\r\nHost: broker.test\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}": "HTTP/1.1 200 OK\r\n",
	} {
		for after, want := range map[time.Duration]string{59 * time.Second: prefix, 61 * time.Second: ""} {
			synctest.Test(t, func(t *testing.T) {
				e := start(t, server.Options{})
				lis := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
				server := &http.Server{Handler: e.s.Handler()}
				served := make(chan struct{})
				go func() {
					defer close(served)
					server.Serve(lis)
				}()
				c, err := lis.dial(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.WriteString(c, request); err != nil {
					t.Fatal(err)
				}
				time.Sleep(after)
				_ = c.SetReadDeadline(time.Now().Add(time.Second)) // fails if the server has closed it
				got, _ := io.ReadAll(c)
				if text := string(got[:min(len(got), len(prefix))]); text != want {
					t.Errorf("%q after %v: the response begins with %q, want %q", request, after, text, want)
				}
				c.Close()
				server.Close()
				<-served
			})
		}
	}
}
