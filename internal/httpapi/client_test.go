package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// A fast broker must not accept a request after Close.
func TestRequestsAfterCloseHaveEnded(t *testing.T) {
	c := assert.Value(New("127.0.0.1:1", Options{Op: "test"}))(t)
	c.Close()
	for range 100 {
		ctx, stop := c.within(context.Background())
		cause := context.Cause(ctx)
		stop()
		if !errors.Is(cause, tidegate.ErrClosed) {
			t.Fatalf("the context of a request after Close: %v, want ErrClosed", cause)
		}
	}
}

// A proxy that requests credentials is a fault of the configuration; a proxy that cannot reach the
// broker is an outage.
func TestNotConnectedThroughAProxy(t *testing.T) {
	for status, want := range map[string]bool{
		"407 Proxy Authentication Required": false,
		"403 Forbidden":                     false,
		"502 Bad Gateway":                   true,
	} {
		c := assert.Value(New("https://broker.test", Options{Op: "test"}))(t)
		c.network.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy.test:3128"})
		c.network.DialContext = func(context.Context, string, string) (net.Conn, error) {
			proxy, conn := net.Pipe()
			go func() {
				defer proxy.Close()
				if _, err := http.ReadRequest(bufio.NewReader(proxy)); err == nil {
					_, _ = fmt.Fprintf(proxy, "HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n", status)
				}
			}()
			return conn, nil
		}
		err := c.Do(t.Context(), &Request{Op: "GetTopic", Method: "GET", Path: "/v1/topics/t"},
			func(Attempt) (time.Duration, bool) { return 0, false })
		if f, ok := errors.AsType[*Failure](err); !ok || f.Err.NotConnected != want {
			t.Errorf("%s: %#v, want NotConnected %t", status, err, want)
		}
		c.Close()
	}
}

// A loop over pages ends with the last page, for any number of pages. If the server repeats its
// cursors it ends with an error, within three rounds of the cycle.
func TestPages(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3, 100, 10_000} {
		pages := 0
		err := Pages("", func(after string) (string, error) {
			if want := fmt.Sprint(pages); after != want && pages > 0 {
				t.Errorf("page %d is after %q", pages, after)
			}
			if pages++; pages == n {
				return "", nil
			}
			return fmt.Sprint(pages), nil
		})
		assert.That(t, err == nil && pages == n, "%d of %d pages, %v", pages, n, err)
	}
	for _, begin := range []int{0, 1, 5, 1000} {
		for _, cycle := range []int{1, 2, 3, 7, 100} {
			pages := 0
			err := Pages("from", func(string) (string, error) {
				n := pages
				if n > begin {
					n = begin + (n-begin)%cycle
				}
				if pages++; pages > 3*(begin+cycle)+3 {
					return "", nil
				}
				return fmt.Sprint(n), nil
			})
			if err == nil || !strings.Contains(err.Error(), "again") {
				t.Errorf("%d pages of a cycle of %d after %d: %v", pages, cycle, begin, err)
			}
		}
	}
	if err := Pages("from", func(string) (string, error) { return "from", nil }); err == nil {
		t.Error("the cursor that the loop began with is accepted")
	}
}

// Every message survives the way to JSON and back.
func FuzzDelivery(f *testing.F) {
	f.Add("id", "tag", "key", "v", []byte("x"), int64(1))
	f.Add("", "", "", "\u2028", []byte{0xff}, int64(-1))
	f.Fuzz(func(t *testing.T, id, tag, key, value string, body []byte, born int64) {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		d := &tidegate.Delivery{
			Message: tidegate.Message{
				ID: valid(id), Topic: "t", Tag: valid(tag), Keys: []string{valid(key)}, Properties: map[string]string{valid(key): valid(value)},
				MessageGroup: valid(key), LiteTopic: valid(tag), Priority: int(born & 7), DeliverAt: time.Unix(0, born).UTC(), TraceContext: valid(tag), Body: body,
			},
			Handle: "h", ConsumerGroup: "g", Attempt: 2, Queue: 3, Offset: born, BornAt: time.Unix(0, born).UTC(), BornHost: "b",
			StoredAt: time.Unix(0, born).UTC(), StoreHost: "s", InvisibleUntil: now.Add(time.Duration(1 + born&0xffff)),
		}
		for _, text := range []bool{true, false} {
			raw := assert.Value(json.Marshal(DeliveryOf(d, text, now)))(t)
			var back Delivery
			if err := json.Unmarshal(raw, &back); err != nil {
				t.Fatalf("%v: %s", err, raw)
			}
			if len(back.Body) > 0 && back.BodyText != "" || text && utf8.Valid(body) != (len(back.Body) == 0) {
				t.Errorf("the body %q became %s", body, raw)
			}
			got := back.Delivery("", now)
			if len(got.Body) == 0 {
				got.Body = body[:0]
			}
			assert.That(t, reflect.DeepEqual(got, d), "%+v became %+v by %s", d, got, raw)
		}
	})
}

func valid(s string) string { return strings.ToValidUTF8(s, "") }

// Failure.Earlier reports that an attempt before the last one may have taken effect, also if many
// harmless attempts follow it.
func TestEarlierAttempts(t *testing.T) {
	const lost, throttled = 0, 429
	for _, tt := range []struct {
		name      string
		responses []int // statuses; lost means that the connection ends without a response
		earlier   bool
	}{
		{"one throttled attempt", []int{throttled}, false},
		{"one lost response", []int{lost}, false},
		{"throttled attempts", []int{throttled, throttled, throttled}, false},
		{"a lost response before the last attempt", []int{lost, throttled}, true},
		{"a lost response before two attempts", []int{lost, throttled, throttled}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			attempt := 0
			dial := func(context.Context, string) (net.Conn, error) {
				status := tt.responses[min(attempt, len(tt.responses)-1)]
				attempt++
				server, client := net.Pipe()
				go func() {
					defer server.Close()
					if _, err := http.ReadRequest(bufio.NewReader(server)); err == nil && status != lost {
						_, _ = fmt.Fprintf(server, "HTTP/1.1 %d Status\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", status)
					}
				}()
				return client, nil
			}
			c, err := New("broker.test", Options{Op: "test", Dialer: dial})
			assert.Must(t, err)
			defer c.Close()
			err = c.Do(t.Context(), &Request{Op: "PutTopic", Method: "POST", Path: "/v1/topics/t", MaxResponse: 1000},
				func(a Attempt) (time.Duration, bool) { return 0, a.Number < len(tt.responses) })
			if f, ok := errors.AsType[*Failure](err); !ok || f.Earlier != tt.earlier || f.Attempts != len(tt.responses) {
				t.Errorf("%#v, want Earlier %t after %d attempts", err, tt.earlier, len(tt.responses))
			}
		})
	}
}

// Retry-After has seconds or a date (RFC 9110). A wait is neither negative nor longer than 24 h, so
// that a broken proxy cannot stop a client permanently.
func TestRetryAfterIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		date := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
		for _, tt := range []struct {
			name, header string
			want         time.Duration
		}{
			{"none", "", 0},
			{"seconds", "120", 2 * time.Minute},
			{"negative seconds", "-5", 0},
			{"a day", "86400", 24 * time.Hour},
			{"more than a day", "86401", 24 * time.Hour},
			{"more than a duration", "9223372036854775807", 24 * time.Hour},
			{"a date", date(time.Hour), time.Hour},
			{"a date in the past", date(-time.Hour), 0},
			{"a date in a year", date(365 * 24 * time.Hour), 24 * time.Hour},
			{"a text", "soon", 0},
		} {
			if got := retryAfter(http.Header{"Retry-After": {tt.header}}); got != tt.want {
				t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
			}
		}
	})
}

// The HTTP API has no temporary keys: New rejects credentials with a session token, and names the
// field.
func TestNewRejectsSessionTokens(t *testing.T) {
	keys := tidegate.Credentials{AccessKey: "clerk", SecretKey: "open sesame"}
	assert.Must(t, assert.Err(New("broker.test", Options{Op: "test", Credentials: keys})))
	keys.SessionToken = "temporary"
	_, err := New("broker.test", Options{Op: "test", Credentials: keys})
	if e, ok := errors.AsType[*tidegate.Error](err); !ok || !errors.Is(err, tidegate.ErrInvalid) || !strings.HasSuffix(e.Subject, "SessionToken") {
		t.Errorf("error %v, want one that matches ErrInvalid and names SessionToken", err)
	}
}

// A server's text in an error is cut to 512 bytes, between two characters.
func TestTextsOfServersAreCut(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       int // bytes before the ellipsis
		cut        bool
	}{
		{"short", "no such topic", 13, false},
		{"512 bytes", strings.Repeat("a", 512), 512, false},
		{"513 bytes", strings.Repeat("a", 513), 512, true},
		{"a character at the end", strings.Repeat("a", 511) + "€uro", 511, true},
	} {
		got := short(tt.text)
		text, cut := strings.CutSuffix(got, "…")
		if cut != tt.cut || len(text) != tt.want || !utf8.ValidString(got) {
			t.Errorf("%s: %d bytes, cut: %t, valid: %t", tt.name, len(text), cut, utf8.ValidString(got))
		}
	}
}

// The error of a call that stops before its deadline is one line, with the last failure and times
// in milliseconds.
func TestNoTimeForAnotherAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("refused")
		c, err := New("broker.test", Options{Op: "test", Dialer: func(context.Context, string) (net.Conn, error) { return nil, refused }})
		assert.Must(t, err)
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 1234567*time.Microsecond)
		defer cancel()
		err = c.Do(ctx, &Request{Op: "GetTopic", Method: "GET", Path: "/v1/topics/t"}, func(Attempt) (time.Duration, bool) { return 4567899 * time.Microsecond, true })
		const want = "refused; the next attempt in 4.568s would be after the deadline, which is in 1.235s"
		if !errors.Is(err, refused) || !strings.HasSuffix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("the error is %q, want it to end with %q", err, want)
		}
	})
}

// A response of another protocol is permanent at an address that has never worked, and an outage at
// one that has.
func TestOtherProtocol(t *testing.T) {
	for name, tt := range map[string]struct {
		first, second, says string
	}{
		"gRPC":             {"", "\x00\x00\x18\x04\x00\x00\x00\x00\x00", "not the one for gRPC"},
		"TLS":              {"", "\x15\x03\x01\x00\x02\x02\x46", "as an https URL"},
		"TLS of Go":        {"", "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n", "as an https URL"},
		"gRPC over HTTP":   {"", "HTTP/1.1 415 Unsupported\r\nContent-Type: application/grpc\r\nContent-Length: 0\r\n\r\n", "not the one for gRPC"},
		"after a response": {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", "\x00\x00\x18\x04\x00\x00\x00\x00\x00", "counts as an outage"},
	} {
		responses := []string{tt.first, tt.second}
		if tt.first == "" {
			responses = responses[1:]
		}
		attempts := 0
		c, err := New("broker.test", Options{Dialer: func(context.Context, string) (net.Conn, error) {
			near, far := net.Pipe()
			text := responses[min(attempts, len(responses)-1)]
			attempts++
			go func() {
				_, _ = far.Read(make([]byte, 4096))
				_, _ = io.WriteString(far, text)
				_ = far.Close()
			}()
			return near, nil
		}})
		assert.Must(t, err)
		defer c.Close()
		var last error
		for range responses {
			last = c.Do(t.Context(), &Request{Method: "GET", Path: "/v1/topics", MaxResponse: 1 << 10, Reads: true},
				func(a Attempt) (time.Duration, bool) { return 0, a.Curable && a.Number < 3 })
		}
		f, ok := errors.AsType[*Failure](last)
		if !ok || !strings.Contains(last.Error(), tt.says) {
			t.Errorf("%s: %v, want %q", name, last, tt.says)
			continue
		}
		want := 1
		if tt.first != "" {
			want = 3
		}
		if transient := tidegate.Classify(f.Err) == tidegate.ClassTransient; f.Attempts != want || tt.first != "" && !transient {
			t.Errorf("%s: %d attempts, want %d; %v", name, f.Attempts, want, last)
		}
	}
}
