package interop

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport/pulsar"
	"github.com/tidegate/tidegate/transport/pulsar/internal/standalone"
)

// Tokens and permissions: each fault is a clear error that no retry cures, and nothing is stored.
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
	as := func(role string, expires time.Time) *pulsar.Client {
		token := assert.Value(s.Token(role, expires))(t)
		return connect(t, s, pulsar.Options{Token: func() (string, error) { return token, nil }})
	}
	later := time.Now().Add(time.Hour)
	both := as("both", later)
	assert.NoError(t, both.Ping(t.Context(), "orders"))
	assert.NoError(t, send(t.Context(), both, message("orders", 1)))
	d := receive(t, both, request("orders"))
	assert.Must(t, both.Ack(t.Context(), []*tidegate.Delivery{d})[0])

	_, err := pulsar.New(s.URL(), pulsar.Options{Token: func() (string, error) { return "", errors.New("the vault is sealed") }})
	assert.That(t, err != nil && strings.Contains(err.Error(), "the vault is sealed"), "a token that cannot be had: %v", err)
	for _, c := range []struct {
		name  string
		err   error
		code  tidegate.Code
		words string
	}{
		{"a role that may only consume", send(t.Context(), as("consumer", later), message("orders", 1)), tidegate.CodeForbidden, "orders"},
		{"a role without permissions", send(t.Context(), as("stranger", later), message("orders", 1)), tidegate.CodeForbidden, "orders"},
		{"a role that may only produce", assert.Err(as("producer", later).Receive(t.Context(), request("orders"))), tidegate.CodeForbidden, "orders"},
		{"an expired token", send(t.Context(), as("both", time.Now().Add(-time.Hour)), message("orders", 1)), tidegate.CodeUnauthorized, "rejected the credentials"},
		{"no token", send(t.Context(), connect(t, s, pulsar.Options{}), message("orders", 1)), tidegate.CodeUnauthorized, "rejected the credentials"},
		{"a token of another key", send(t.Context(), connect(t, s, pulsar.Options{Token: func() (string, error) { return "x.y.z", nil }}), message("orders", 1)), tidegate.CodeUnauthorized, "rejected the credentials"},
	} {
		e, ok := errors.AsType[*tidegate.Error](c.err)
		assert.That(t, ok && e.Code == c.code && !e.MaybeStored && tidegate.Classify(c.err) == tidegate.ClassPermanent && strings.Contains(c.err.Error(), c.words),
			"%s: %v, want code %d and %q", c.name, c.err, c.code, c.words)
	}
	nothing(t, both, request("orders"))
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
	once := assert.Value(short())(t)
	stale := connect(t, s, pulsar.Options{Token: func() (string, error) { return once, nil }, RequestTimeout: 3 * time.Second})
	assert.Must(t, errors.Join(send(t.Context(), fresh, message("orders", 1)), send(t.Context(), stale, message("orders", 1))))
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
