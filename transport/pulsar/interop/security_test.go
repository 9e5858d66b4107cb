package interop

import (
	"crypto/tls"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/servertest"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/pulsar"
	"github.com/tidegate/tidegate/transport/pulsar/internal/standalone"
)

// A lasting fault ends each call long before the client gives up to connect.
const (
	lastingTimeout = 20 * time.Second // Options.RequestTimeout
	lastingBound   = 10 * time.Second // on a busy machine
)

// faulty checks that each call of a client fails soon with a code that no retry cures.
func faulty(t *testing.T, name string, c *pulsar.Client, code tidegate.Code, words string) {
	t.Helper()
	for call, do := range map[string]func() error{
		"Send":         func() error { return send(t.Context(), c, message("orders", 1)) },
		"waiting Send": func() error { return send(transport.AwaitConnection(t.Context()), c, message("orders", 1)) },
		"Receive":      func() error { return assert.Err(c.Receive(t.Context(), request("orders"))) },
		"Ping":         func() error { return c.Ping(t.Context(), "orders") },
	} {
		begin := time.Now()
		err := do()
		took := time.Since(begin)
		e, ok := errors.AsType[*tidegate.Error](err)
		assert.That(t, ok && e.Code == code && !e.MaybeStored && !e.NotConnected && tidegate.Classify(err) == tidegate.ClassPermanent && strings.Contains(err.Error(), words),
			"%s, %s: %v, want code %d and %q", name, call, err, code, words)
		assert.That(t, took < lastingBound, "%s, %s: it ended after %v", name, call, took)
		t.Logf("%s, %s: %d after %v", name, call, code, took.Round(time.Millisecond))
	}
}

// Tokens and permissions: each fault is a clear error that no retry cures, and nothing is stored.
// The next call of a client uses its new token.
func TestTokensAndPermissions(t *testing.T) {
	t.Parallel()
	s := start(t, standalone.Options{SuperUsers: []string{"admin"}})
	a := s.Admin()
	topic := full("public/default", "orders")
	assert.Must(t, errors.Join(
		a.CreateTopic(t.Context(), topic), a.CreateSubscription(t.Context(), topic, "billing"),
		a.GrantPermission(t.Context(), "public/default", "both", "produce", "consume"),
		a.GrantPermission(t.Context(), "public/default", "consumer", "consume"),
		a.GrantPermission(t.Context(), "public/default", "producer", "produce"),
	))
	with := func(token func() (string, error)) *pulsar.Client {
		return connect(t, s, pulsar.Options{Token: token, RequestTimeout: lastingTimeout})
	}
	as := func(role string, expires time.Time) *pulsar.Client {
		token := assert.Value(s.Token(role, expires))(t)
		return with(func() (string, error) { return token, nil })
	}
	later := time.Now().Add(time.Hour)
	both := as("both", later)
	assert.NoError(t, both.Ping(t.Context(), "orders"))
	assert.NoError(t, send(t.Context(), both, message("orders", 1)))
	d := receive(t, both, request("orders"))
	assert.Must(t, both.Ack(t.Context(), []*tidegate.Delivery{d})[0])

	_, err := pulsar.New(s.URL(), pulsar.Options{Token: func() (string, error) { return "", errors.New("the vault is sealed") }})
	assert.That(t, err != nil && strings.Contains(err.Error(), "the vault is sealed"), "a token that cannot be had: %v", err)
	for name, err := range map[string]error{
		"a send of a role that may only consume":    send(t.Context(), as("consumer", later), message("orders", 1)),
		"a receive of a role that may only produce": assert.Err(as("producer", later).Receive(t.Context(), request("orders"))),
	} {
		e, ok := errors.AsType[*tidegate.Error](err)
		assert.That(t, ok && errors.Is(err, tidegate.ErrForbidden) && !e.MaybeStored && strings.Contains(err.Error(), "orders"), "%s: %v, want ErrForbidden", name, err)
	}
	faulty(t, "a role without permissions", as("stranger", later), tidegate.CodeForbidden, "orders")
	faulty(t, "an expired token", as("both", time.Now().Add(-time.Hour)), tidegate.CodeUnauthorized, "rejected the credentials")
	faulty(t, "no token", with(nil), tidegate.CodeUnauthorized, "rejected the credentials")
	var token atomic.Value
	token.Store("x.y.z")
	rotated := with(func() (string, error) { return token.Load().(string), nil })
	faulty(t, "a token of another key", rotated, tidegate.CodeUnauthorized, "rejected the credentials")
	nothing(t, both, request("orders"))

	token.Store(assert.Value(s.Token("both", later))(t))
	m := message("orders", 1)
	begin := time.Now()
	assert.NoError(t, send(t.Context(), rotated, m), "a send with the new token")
	t.Logf("a send with the new token took %v", time.Since(begin))
	d = receive(t, both, request("orders"))
	assert.Equal(t, "received", d.ID, m.ID)
	assert.Must(t, both.Ack(t.Context(), []*tidegate.Delivery{d})[0])
	nothing(t, both, request("orders"))
}

// TLS: the common name of a client certificate is the role of the client. Each fault is a clear
// error that no retry cures, and nothing is stored.
func TestTLS(t *testing.T) {
	t.Parallel()
	ca, other := servertest.NewAuthority(t), servertest.NewAuthority(t)
	s := start(t, standalone.Options{SuperUsers: []string{"admin"}, Certificate: ca.File("broker"), ClientAuthority: ca.RootFile()})
	a := s.Admin()
	topic := full("public/default", "orders")
	assert.Must(t, errors.Join(
		a.CreateTopic(t.Context(), topic), a.CreateSubscription(t.Context(), topic, "billing"),
		a.GrantPermission(t.Context(), "public/default", "shop", "produce", "consume"),
	))
	as := func(c *tls.Config) *pulsar.Client {
		return connect(t, s, pulsar.Options{TLS: c, RequestTimeout: lastingTimeout})
	}
	shop := as(ca.Config("shop"))
	assert.NoError(t, shop.Ping(t.Context(), "orders"))
	m := message("orders", 1)
	assert.Must(t, send(t.Context(), shop, m))
	d := receive(t, shop, request("orders"))
	assert.Equal(t, "received", d.ID, m.ID)
	assert.Must(t, shop.Ack(t.Context(), []*tidegate.Delivery{d})[0])

	foreign := ca.Config("")
	foreign.Certificates = other.Config("shop").Certificates
	faulty(t, "an unknown authority of the server", as(other.Config("shop")), tidegate.CodeIllegalAccessPoint, "unknown authority")
	faulty(t, "no client certificate", as(ca.Config("")), tidegate.CodeIllegalAccessPoint, "certificate")
	faulty(t, "a client certificate of another authority", as(foreign), tidegate.CodeIllegalAccessPoint, "certificate")
	faulty(t, "a role without permissions", as(ca.Config("stranger")), tidegate.CodeForbidden, "orders")
	nothing(t, shop, request("orders"))
}

// The server asks for a new token when the old one expires, and the client has one: nothing fails.
// Without one the connection ends, and the error is an outage, because the credentials have worked.
func TestTokenExpires(t *testing.T) {
	t.Parallel()
	s := start(t, standalone.Options{SuperUsers: []string{"admin"}, Properties: map[string]string{"authenticationRefreshCheckSeconds": "1"}})
	short := func() (string, error) { return s.Token("admin", time.Now().Add(20*time.Second)) }
	var calls atomic.Int64
	fresh := connect(t, s, pulsar.Options{Token: func() (string, error) {
		calls.Add(1)
		return short()
	}})
	assert.Must(t, send(t.Context(), fresh, message("orders", 1))) // creates the topic, which can take as long as a token is valid
	once := assert.Value(short())(t)
	stale := connect(t, s, pulsar.Options{Token: func() (string, error) { return once, nil }, RequestTimeout: 3 * time.Second})
	assert.Must(t, send(t.Context(), stale, message("orders", 1)))
	lapsed := false
	for begin := time.Now(); !lapsed || calls.Load() < 3; wait(t, 200*time.Millisecond) {
		assert.MustThat(t, time.Since(begin) < soon, "lapsed %v, %d calls of Token", lapsed, calls.Load())
		assert.NoError(t, send(t.Context(), fresh, message("orders", 1)), "with new tokens")
		if err := send(t.Context(), stale, message("orders", 1)); err != nil {
			assert.That(t, tidegate.Classify(err) == tidegate.ClassTransient, "%v, want an outage", err)
			lapsed = lapsed || codeOf(err) == tidegate.CodeUnauthorized
		}
	}
}
