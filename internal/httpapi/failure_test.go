package httpapi

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate"

	"github.com/tidegate/tidegate/internal/assert"
)

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
