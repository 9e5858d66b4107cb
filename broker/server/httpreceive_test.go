package server_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
)

// A reader is a client's end of a connection: it gets each flush as one part, and may leave.
type reader struct {
	*httptest.ResponseRecorder
	got func()
}

func (r *reader) Flush() {
	r.ResponseRecorder.Flush()
	r.got()
}

// A client that closes its connection when it has read the response got its messages: each curl
// does this. net/http ends the context of the request at that moment.
func TestHTTPReceiveThenClose(t *testing.T) {
	for name, accept := range map[string]string{"once": server.TypeJSON, "stream": server.TypeNDJSON} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := startWeb(t, server.Options{})
				x.send(msg("normal", "1"))
				ctx, leave := context.WithCancel(t.Context())
				r := x.request(ctx, "POST", "/v1/groups/g/topics/normal/receive", strings.NewReader(`{}`), "Content-Type", server.TypeJSON, "Accept", accept)
				w := &reader{ResponseRecorder: httptest.NewRecorder()}
				w.got = func() {
					if strings.Contains(w.Body.String(), "handle") {
						leave()
					}
				}
				func() {
					defer func() { _ = recover() }() // http.ErrAbortHandler ends a stream
					x.s.Handler().ServeHTTP(w, r)
				}()
				if ctx.Err() == nil {
					t.Fatalf("%d %s: no message was written", w.Code, w.Body)
				}
				time.Sleep(time.Second)
				if ds := x.takeSome("normal", `{}`); len(ds) != 0 {
					t.Errorf("a second receive brings %+v, which the first client has", ds)
				}
			})
		})
	}
}

// A client that is gone before the response is written did not get its messages: the next receive
// brings them at once, as their first delivery.
func TestHTTPReceiveGoneBeforeResponse(t *testing.T) {
	for name, accept := range map[string]string{"once": server.TypeJSON, "stream": server.TypeNDJSON} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &faulty{}
				x := startWeb(t, server.Options{}, f)
				x.send(msg("normal", "1"))
				ctx, leave := context.WithCancel(t.Context())
				f.after = func(ds []*tidegate.Delivery) {
					if len(ds) > 0 {
						leave()
					}
				}
				r := x.request(ctx, "POST", "/v1/groups/g/topics/normal/receive", strings.NewReader(`{}`), "Content-Type", server.TypeJSON, "Accept", accept)
				w := &reader{httptest.NewRecorder(), func() {}}
				func() {
					defer func() {
						if v := recover(); v != nil && v != http.ErrAbortHandler {
							panic(v)
						}
					}()
					x.s.Handler().ServeHTTP(w, r)
				}()
				if strings.Contains(w.Body.String(), "handle") {
					t.Fatalf("written to a client that is gone: %s", w.Body)
				}
				f.after = nil
				if d := x.take("normal", `{}`, 1)[0]; d.Attempt != 1 {
					t.Errorf("attempt %d; want 1", d.Attempt)
				}
			})
		})
	}
}

// A receive that waits for less than it requested returns the longest wait.
func TestHTTPReceiveReturnsItsLongestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := startWeb(t, server.Options{})
		for wait, longest := range map[string]string{"40s": "20s", "20s": "", "1s": ""} {
			var got struct {
				LongestWait string `json:"longest_wait"`
			}
			began := time.Now()
			x.ok("/v1/groups/g/topics/normal/receive", `{"wait":"`+wait+`"}`, &got)
			want, _ := time.ParseDuration(wait)
			if want = min(want, 20*time.Second); time.Since(began) != want || got.LongestWait != longest {
				t.Errorf("wait %s: %q after %v, want %q after %v", wait, got.LongestWait, time.Since(began), longest, want)
			}
		}
	})
}
