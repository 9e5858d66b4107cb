package admin_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
)

const problem = `{"type":"about:blank","title":"T","status":%d,"detail":"the text","code":%d,"reply_code":%d}`

// A record has the requests that a fake server has got.
type record struct {
	mu   sync.Mutex
	list []string
}

func (r *record) add(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, text)
}

func (r *record) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

// responses answers the requests one after the other, and the last response repeats. A status of 0
// cuts the connection without a response, -1 never responds, -2 breaks off within the body, -3
// sends a body above the limit of the test.
func responses(seen *record, list ...int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen.add(r.Method + " " + r.URL.Path + " " + string(body))
		status := list[0]
		if len(list) > 1 {
			list = list[1:]
		}
		switch status {
		case 0:
			panic(http.ErrAbortHandler)
		case -1:
			<-r.Context().Done()
		case -2:
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, `{"name":`)
		case -3:
			w.Write(make([]byte, 2000))
		case 200:
			io.WriteString(w, `{"name":"orders"}`)
		case 204:
			w.WriteHeader(204)
		case 599:
			io.WriteString(w, `<html>welcome to the hotel</html>`)
		case 302:
			w.Header().Set("Location", "https://elsewhere.test/")
			w.WriteHeader(302)
		case 502:
			http.Error(w, "bad gateway", http.StatusBadGateway)
		case 530: // the reply code as a status
			w.Header().Set("Retry-After", "7")
			http.Error(w, "TOO_MANY_REQUESTS", status)
		case 429:
			w.Header().Set("Retry-After", "7")
			fallthrough
		default:
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(status)
			fmt.Fprintf(w, problem, status, status*100, status*100)
		}
	}
}

// One decision for each kind of failure, of a read, of a write that can be repeated, and of one
// that cannot. Delays are those of the policy, 1 s, 2 s, or the one that the broker requests, 7 s.
func TestRetries(t *testing.T) {
	read := func(c *admin.Client, ctx context.Context) error { _, err := c.Topic(ctx, "orders"); return err }
	put := func(c *admin.Client, ctx context.Context) error {
		_, err := c.PutTopic(ctx, "orders", settings.Topic{Queues: 3})
		return err
	}
	remove := func(c *admin.Client, ctx context.Context) error { return c.DeleteTopic(ctx, "orders") }
	post := func(c *admin.Client, ctx context.Context) error { _, err := c.PurgeTopic(ctx, "orders"); return err }
	purge := func(c *admin.Client, ctx context.Context) error {
		_, err := c.PurgeDeadLetters(ctx, "billing", status.DeadLetterSelection{Limit: 10})
		return err
	}
	for name, tt := range map[string]struct {
		call      func(*admin.Client, context.Context) error
		responses []int
		attempts  int
		took      time.Duration
		status    int // of the error; -1: none
		code      tidegate.Code
		maybe     bool
	}{
		"read, lost":                {read, []int{0, 0, 200}, 3, 3 * time.Second, -1, 0, false},
		"read, throttled":           {read, []int{429, 200}, 2, 7 * time.Second, -1, 0, false},
		"read, throttled for ever":  {read, []int{429}, 4, 21 * time.Second, 429, 42900, false},
		"read, failed":              {read, []int{500, 503, 200}, 3, 3 * time.Second, -1, 0, false},
		"read, breaks off":          {read, []int{-2, 200}, 2, time.Second, -1, 0, false},
		"read, breaks off for ever": {read, []int{-2}, 4, 7 * time.Second, 0, 0, false},
		"read, silent":              {read, []int{-1, 200}, 2, 61 * time.Second, -1, 0, false},
		"read, refused":             {read, []int{404, 200}, 1, 0, 404, 40400, false},
		"read, too large":           {read, []int{-3, 200}, 1, 0, 0, protocol.CodePayloadTooLarge, false},
		"read, garbage":             {read, []int{599, 200}, 1, 0, 200, protocol.CodeInternalError, false},
		"read, redirected":          {read, []int{302, 200}, 1, 0, 302, protocol.CodeInternalError, false},
		"read, a proxy":             {read, []int{502, 200}, 2, time.Second, -1, 0, false},
		"read, not implemented":     {read, []int{501, 200}, 1, 0, 501, 50100, false},
		"put, lost":                 {put, []int{0, 200}, 2, time.Second, -1, 0, false},
		"put, failed for ever":      {put, []int{500}, 4, 7 * time.Second, 500, 50000, true},
		"put, refused":              {put, []int{400, 200}, 1, 0, 400, 40000, false},
		"put, unauthorized":         {put, []int{401, 200}, 1, 0, 401, 40100, false},
		"delete, lost and done":     {remove, []int{0, 404}, 2, time.Second, -1, 0, false},
		"delete, not there":         {remove, []int{404}, 1, 0, 404, 40400, false},
		"delete, throttled":         {remove, []int{429, 404}, 2, 7 * time.Second, 404, 40400, false},
		"post, lost":                {post, []int{0, 200}, 1, 0, 0, 0, true},
		"post, breaks off":          {post, []int{-2, 200}, 1, 0, 0, 0, true},
		"post, silent":              {post, []int{-1, 200}, 1, time.Minute, 0, 0, true},
		"post, failed":              {post, []int{500, 200}, 1, 0, 500, 50000, true},
		"post, a proxy":             {post, []int{502, 200}, 1, 0, 502, protocol.CodeInternalError, true},
		"post, throttled":           {post, []int{429, 429, 200}, 3, 14 * time.Second, -1, 0, false},
		"post, throttled with 530":  {post, []int{530, 200}, 2, 7 * time.Second, -1, 0, false},
		"post, 530 for ever":        {post, []int{530}, 4, 21 * time.Second, 530, 42900, false},
		"post, garbage":             {post, []int{599, 200}, 1, 0, 200, protocol.CodeInternalError, true},
		"purge of letters, lost":    {purge, []int{0, 200}, 1, 0, 0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var seen record
				c := fakeServer(t, responses(&seen, tt.responses...)).client(t, admin.Options{
					Backoff: backoff.Exponential{Initial: time.Second, Multiplier: 2, Jitter: backoff.NoJitter}, MaxAttempts: 4, MaxResponse: 1000,
				})
				start := time.Now()
				err := tt.call(c, t.Context())
				assert.Equal(t, "it took", time.Since(start), tt.took)
				requests := seen.all()
				assert.That(t, len(requests) == tt.attempts, "requests %q, want %d", requests, tt.attempts)
				for _, r := range requests {
					assert.Equal(t, "is repeated as", r, requests[0])
				}
				if tt.status == -1 {
					assert.NoError(t, err)
					return
				}
				e, ok := errors.AsType[*admin.Error](err)
				assert.MustThat(t, ok, "error %v, want an *admin.Error", err)
				if e.Status != tt.status || e.Err.Code != tt.code || e.Err.MaybeStored != tt.maybe || e.Attempts != tt.attempts {
					t.Errorf("status %d, code %d, maybe %v, %d attempts; want %d, %d, %v, %d: %v",
						e.Status, e.Err.Code, e.Err.MaybeStored, e.Attempts, tt.status, tt.code, tt.maybe, tt.attempts, err)
				}
			})
		})
	}
}

// Every request that found no connection is repeated.
func TestNoConnection(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		c, err := admin.New(b.HTTPAddress(), admin.Options{Dialer: b.DialHTTP, Backoff: backoff.Steps{time.Second}})
		assert.Must(t, err)
		defer c.Close()
		b.Disconnect()
		time.AfterFunc(2500*time.Millisecond, b.Reconnect)
		start := time.Now()
		assert.NoError(t, assert.Err(c.PurgeTopic(t.Context(), "orders")))
		assert.Equal(t, "it took", time.Since(start), 3*time.Second)
		b.Disconnect()
		_, err = c.PurgeTopic(t.Context(), "orders")
		if e, ok := errors.AsType[*admin.Error](err); !ok || e.Status != 0 || e.Err.MaybeStored || e.Attempts != 5 || !errors.Is(err, tidegate.ErrUnavailable) {
			t.Errorf("without a network: %v, want 5 attempts and nothing done", err)
		}
		b.Reconnect()
		assert.NoError(t, assert.Err(c.Topics(t.Context())))
	})
}

// The end of the caller's context ends a call at once, in an attempt and between two; a wait beyond
// its deadline is not begun.
func TestContexts(t *testing.T) {
	enough := errors.New("enough")
	for name, tt := range map[string]struct {
		response int
		timeout  time.Duration // of a deadline; 0: cancelled after 1 s
		took     time.Duration
		requests int
		want     error
	}{
		"cancelled in an attempt":   {-1, 0, time.Second, 1, enough},
		"cancelled in a wait":       {429, 0, time.Second, 1, enough},
		"deadline in an attempt":    {-1, 3 * time.Second, 3 * time.Second, 1, context.DeadlineExceeded},
		"deadline before the wait":  {429, 6 * time.Second, 0, 1, tidegate.ErrThrottled},
		"deadline after a wait":     {429, 8 * time.Second, 7 * time.Second, 2, tidegate.ErrThrottled},
		"cancelled before the call": {200, -1, 0, 0, enough},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var seen record
				c := fakeServer(t, responses(&seen, tt.response)).client(t, admin.Options{Backoff: backoff.Steps{time.Second}})
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				switch {
				case tt.timeout < 0:
					cancel(enough)
				case tt.timeout == 0:
					time.AfterFunc(time.Second, func() { cancel(enough) })
				default:
					var stop context.CancelFunc
					ctx, stop = context.WithTimeout(ctx, tt.timeout)
					defer stop()
				}
				start := time.Now()
				_, err := c.Topics(ctx)
				if got := time.Since(start); got != tt.took || len(seen.all()) != tt.requests {
					t.Errorf("after %v and %d requests, want %v and %d", got, len(seen.all()), tt.took, tt.requests)
				}
				assert.Is(t, "error", err, tt.want)
				_, ok := errors.AsType[*admin.Error](err)
				assert.That(t, ok, "error %T, want an *admin.Error", err)
				assert.That(t, tt.response != 429 || errors.Is(err, tidegate.ErrThrottled), "%v does not have the cause of the wait", err)
			})
		})
	}
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen record
		c := fakeServer(t, responses(&seen, -1)).client(t, admin.Options{})
		time.AfterFunc(time.Second, func() { c.Close() })
		assert.Is(t, "under way", assert.Err(c.Topics(t.Context())), tidegate.ErrClosed)
		for range 2 {
			assert.NoError(t, c.Close())
			if _, err := c.Topics(t.Context()); !errors.Is(err, tidegate.ErrClosed) || len(seen.all()) != 1 {
				t.Errorf("afterwards: %v after %d requests, want ErrClosed and none", err, len(seen.all()))
			}
		}
	})
}

// Keys are shown over plain text, where the secret does not travel, and over TLS.
func TestCredentials(t *testing.T) {
	access := server.AccessConfig{Keys: []server.Key{{
		Name: "clerk", Secrets: []server.Secret{server.NewSecret("open sesame")},
		Allow: []server.Rule{{Actions: []server.Action{"admin"}, Topics: []string{"orders"}}},
	}}}
	for _, https := range []bool{false, true} {
		e := open(t, server.Options{Access: access}, admin.Options{}, https)
		for _, tt := range []struct {
			key, secret, topic string
			want               error
			status             int
		}{
			{"clerk", "open sesame", "orders", nil, 0},
			{"clerk", "open sesame", "bills", tidegate.ErrForbidden, 403},
			{"clerk", "open barley", "orders", tidegate.ErrUnauthorized, 401},
			{"nobody", "open sesame", "orders", tidegate.ErrUnauthorized, 401},
			{"", "", "orders", tidegate.ErrUnauthorized, 401},
		} {
			c := client(t, e.URL, admin.Options{Credentials: tidegate.Credentials{AccessKey: tt.key, SecretKey: tt.secret}, TLS: trust(e)})
			_, err := c.PutTopic(t.Context(), tt.topic, settings.Topic{})
			assert.That(t, errors.Is(err, tt.want),
				"https %v, %q with %q on %q: %v, want %v", https, tt.key, tt.secret, tt.topic, err, tt.want)
			if err == nil {
				continue
			}
			if ae, ok := errors.AsType[*admin.Error](err); !ok || ae.Status != tt.status || ae.Attempts != 1 {
				t.Errorf("https %v, %q with %q: %v, want status %d at once", https, tt.key, tt.secret, err, tt.status)
			}
			assert.That(t, tt.secret == "" || !strings.Contains(err.Error(), tt.secret), "the error has the secret: %v", err)
		}
	}
}

func trust(e *env) *tls.Config {
	if e.Certificate() == nil {
		return nil
	}
	pool := x509.NewCertPool()
	pool.AddCert(e.Certificate())
	return &tls.Config{RootCAs: pool}
}

// Faults of encryption are reported at once, with the remedy.
func TestTLS(t *testing.T) {
	secure, plain := open(t, server.Options{}, admin.Options{}, true), open(t, server.Options{}, admin.Options{}, false)
	for name, tt := range map[string]struct {
		address string
		tls     *tls.Config
		good    bool
	}{
		"trusted":             {secure.URL, trust(secure), true},
		"unknown authority":   {secure.URL, nil, false},
		"TLS to a plain port": {"https://" + strings.TrimPrefix(plain.URL, "http://"), nil, false},
		"plain text to TLS":   {"http://" + strings.TrimPrefix(secure.URL, "https://"), nil, false},
		"another name":        {secure.URL, &tls.Config{ServerName: "elsewhere.test", RootCAs: trust(secure).RootCAs}, false},
	} {
		_, err := client(t, tt.address, admin.Options{TLS: tt.tls}).Topics(t.Context())
		if tt.good {
			assert.NoError(t, err, "%s", name)
			continue
		}
		ae, ok := errors.AsType[*admin.Error](err)
		assert.That(t, ok && ae.Attempts == 1, "%s: %v, want an error after 1 attempt", name, err)
	}
}

func TestNewRejects(t *testing.T) {
	for name, tt := range map[string]struct {
		address string
		o       admin.Options
		says    string
	}{
		"nothing":        {"", admin.Options{}, "scheme"},
		"scheme":         {"ftp://x", admin.Options{}, `"ftp"`},
		"no host":        {"http://", admin.Options{}, "no host"},
		"a password":     {"http://a:sesame@x", admin.Options{}, "Options.Credentials"},
		"a query":        {"http://x?y", admin.Options{}, "query"},
		"no URL":         {"http://x:y", admin.Options{}, "port"},
		"half of a key":  {"x", admin.Options{Credentials: tidegate.Credentials{AccessKey: "a"}}, "SecretKey"},
		"key":            {"x", admin.Options{Credentials: tidegate.Credentials{AccessKey: "a b", SecretKey: "c"}}, "AccessKey"},
		"colon":          {"x", admin.Options{Credentials: tidegate.Credentials{AccessKey: "a:b", SecretKey: "c"}}, "colon"},
		"MaxAttempts":    {"x", admin.Options{MaxAttempts: -1}, "MaxAttempts"},
		"AttemptTimeout": {"x", admin.Options{AttemptTimeout: -1}, "AttemptTimeout"},
		"MaxResponse":    {"x", admin.Options{MaxResponse: -1}, "MaxResponse"},
		"Backoff":        {"x", admin.Options{Backoff: backoff.Exponential{Initial: -1}}, "Backoff"},
	} {
		_, err := admin.New(tt.address, tt.o)
		if !errors.Is(err, tidegate.ErrInvalid) || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v, want ErrInvalid with %q", name, err, tt.says)
		}
	}
}
