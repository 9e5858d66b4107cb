package pulsar

import (
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// Invalid options are refused, and the error names each with the remedy.
func TestInvalidOptions(t *testing.T) {
	for _, c := range []struct {
		address string
		o       Options
		want    []string
	}{
		{"", Options{}, []string{"address", "no host"}},
		{"http://localhost:8080", Options{}, []string{"address", `"http"`, "pulsar://host:port"}},
		{"pulsar://user:secret@localhost", Options{}, []string{"credentials", "Options.Token"}},
		{"pulsar://localhost/public/default", Options{}, []string{"more than hosts and ports"}},
		{"pulsar://a:6650,,b:6650", Options{}, []string{"no host"}},
		{"pulsar://localhost:port", Options{}, []string{"not a URL"}},
		{"pulsar://localhost", Options{TLS: &tls.Config{MinVersion: tls.VersionTLS12}}, []string{"Options.TLS", "pulsar+ssl://localhost:6650"}},
		{"a", Options{Namespace: "public"}, []string{"Options.Namespace", `"public"`, "public/default"}},
		{"a", Options{Namespace: "a/b/c"}, []string{"Options.Namespace"}},
		{"a", Options{Namespace: "/b"}, []string{"Options.Namespace"}},
		{"a", Options{Token: func() (string, error) { return "", nil }, Credentials: tidegate.Credentials{AccessKey: "a", SecretKey: "b"}}, []string{"Options.Token", "Credentials"}},
		{"a", Options{Credentials: tidegate.Credentials{AccessKey: "a"}}, []string{"Options.Credentials"}},
		{"a", Options{Credentials: tidegate.Credentials{SecretKey: "a"}}, []string{"Options.Credentials"}},
		{"a", Options{Credentials: tidegate.Credentials{AccessKey: "a", SecretKey: "b", SessionToken: "c"}}, []string{"SessionToken"}},
		{"a", Options{RequestTimeout: -1}, []string{"Options.RequestTimeout", "-1ns", "3s"}},
		{"a", Options{IdleTimeout: -1}, []string{"Options.IdleTimeout", "20s"}},
		{"a", Options{NegativeAckDelay: -time.Second}, []string{"Options.NegativeAckDelay", "-1s", "1m0s"}},
		{"a", Options{MaxBodySize: -1}, []string{"Options.MaxBodySize", "-1"}},
		{"a", Options{Prefetch: -2}, []string{"Options.Prefetch", "-2", "64"}},
		{"a", Options{Naming: 3}, []string{"Options.Naming", "3", "ByGroup"}},
		{"a", Options{Naming: -1}, []string{"Options.Naming"}},
		{"a", Options{Levels: []time.Duration{}}, []string{"Options.Levels"}},
		{"a", Options{Levels: []time.Duration{time.Second, time.Millisecond}}, []string{"level 2", "1ms", "1s"}},
		{"a", Options{Levels: []time.Duration{864_001 * time.Second}}, []string{"level 1", "240h0m0s"}},
		{"a", Options{DeadLetterSubscription: "a/b"}, []string{"Options.DeadLetterSubscription"}},
		{"ftp://a", Options{Prefetch: -1, MaxBodySize: -1}, []string{"ftp", "Options.Prefetch", "Options.MaxBodySize"}},
	} {
		client, err := New(c.address, c.o)
		if client != nil {
			_ = client.Close()
		}
		if err == nil || tidegate.Classify(err) != tidegate.ClassPermanent {
			t.Errorf("%q, %+v: %v, want a permanent error", c.address, c.o, err)
			continue
		}
		assert.Contains(t, "error", err.Error(), c.want...)
		assert.That(t, !strings.Contains(err.Error(), "secret"), "the error has the password: %v", err)
	}
}

// New calls Options.Token and fails with its error, also if it panics.
func TestTokenFails(t *testing.T) {
	for name, c := range map[string]struct {
		token func() (string, error)
		text  string
	}{
		"error": {func() (string, error) { return "", errSealed }, errSealed.Error()},
		"panic": {func() (string, error) { panic("sealed") }, "Options.Token panicked: sealed"},
	} {
		_, err := New("localhost", Options{Token: c.token})
		expected{class: tidegate.ClassPermanent, code: tidegate.CodeBadRequest}.check(t, name, err)
		assert.Contains(t, name, err.Error(), c.text)
	}
}

func TestAddresses(t *testing.T) {
	for address, want := range map[string]struct {
		endpoint string
		secure   bool
	}{
		"pulsar://localhost:6650":       {"localhost:6650", false},
		"localhost:7000":                {"localhost:7000", false},
		"localhost":                     {"localhost:6650", false},
		"pulsar+ssl://localhost":        {"localhost:6651", true},
		"pulsar://a, b:1 ,c:6650/":      {"a:6650,b:1,c:6650", false},
		"pulsar+ssl://[::1]:9,10.0.0.1": {"[::1]:9,10.0.0.1:6651", true},
	} {
		endpoint, secure, err := parse(address)
		assert.That(t, err == nil && endpoint == want.endpoint && secure == want.secure, "%s: %s, %v, %v", address, endpoint, secure, err)
	}
}

// The defaults are those of the comments, and the client gets the options.
func TestDefaultOptions(t *testing.T) {
	o, err := Options{}.withDefaults()
	assert.Must(t, err)
	assert.That(t, o.RequestTimeout == 3*time.Second && o.IdleTimeout == 20*time.Second && o.NegativeAckDelay == time.Minute && o.Prefetch == 64 &&
		o.MaxBodySize == tidegate.MaxBodySize && o.Naming == ByTopic && o.Namespace == "public/default" && o.DeadLetterSubscription == "dead-letters", "defaults %+v", o)
	assert.That(t, len(o.Levels) == 18 && o.Levels[0] == time.Second && o.Levels[17] == 2*time.Hour, "levels %v", o.Levels)
	f := newFaults(o.Logger, "fake:6650")
	c := o.client("a:1,b:2", false, f)
	assert.Equal(t, "address", c.URL, "pulsar://a:1,b:2")
	assert.That(t, c.ConnectionTimeout == 3*time.Second && c.OperationTimeout == 3*time.Second && c.KeepAliveInterval == 10*time.Second && c.Authentication == nil && c.TLSConfig == nil, "client options %+v", c)
	c = o.client("a:1", true, f)
	assert.That(t, c.URL == "pulsar+ssl://a:1" && c.TLSConfig.MinVersion == tls.VersionTLS12 && !c.TLSAllowInsecureConnection, "client options %+v", c)
}

// The client authenticates by a token, a password or its certificate.
func TestAuthentication(t *testing.T) {
	with := func(o Options) pulsar.ClientOptions {
		o, err := o.withDefaults()
		assert.Must(t, err)
		return o.client("a:1", o.TLS != nil, newFaults(o.Logger, "a:1"))
	}
	type provider interface {
		Name() string
		GetData() ([]byte, error)
	}
	calls := 0
	for _, c := range []struct {
		o          Options
		name, data string
		fails      error
	}{
		{o: Options{Token: func() (string, error) { calls++; return strings.Repeat("t", calls), nil }}, name: "token", data: "t"},
		{o: Options{Token: func() (string, error) { return "", errSealed }}, name: "token", fails: errSealed},
		{o: Options{Credentials: tidegate.Credentials{AccessKey: "user", SecretKey: "pass"}}, name: "basic", data: "user:pass"},
		{o: Options{TLS: &tls.Config{Certificates: []tls.Certificate{{}}, MinVersion: tls.VersionTLS12}}, name: "tls"},
		{o: Options{TLS: &tls.Config{MinVersion: tls.VersionTLS12, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tls.Certificate{}, nil }}}, name: "tls"},
		{o: Options{TLS: &tls.Config{Certificates: []tls.Certificate{{}}, MinVersion: tls.VersionTLS12}, Token: func() (string, error) { return "x", nil }}, name: "token", data: "x"},
	} {
		p, ok := with(c.o).Authentication.(provider)
		assert.MustThat(t, ok, "%s: no authentication", c.name)
		assert.Equal(t, "method", p.Name(), c.name)
		data, err := p.GetData()
		assert.That(t, errors.Is(err, c.fails) && string(data) == c.data, "%s: %s, %v", c.name, data, err)
	}
	assert.That(t, with(Options{TLS: &tls.Config{MinVersion: tls.VersionTLS12}}).Authentication == nil, "a client without a certificate authenticates by one")
}

var errSealed = errors.New("the vault is sealed")

// The names are those of the three versions of TDMQ for Apache Pulsar.
func TestNames(t *testing.T) {
	for naming, want := range map[Naming]struct {
		retry, letters, read string
		pattern, shares      bool
	}{
		ByTopic:          {"topic1-sub1-RETRY", "topic1-sub1-DLQ", ".*-sub1-DLQ$", true, false}, // version 2.9.2
		ByGroup:          {"sub1-RETRY", "sub1-DLQ", "sub1-DLQ", false, true},                   // version 2.7.2
		ByGroupLowerCase: {"sub1-retry", "sub1-dlq", "sub1-dlq", false, true},                   // version 2.6.1
	} {
		retry, letters := naming.Topics("topic1", "sub1")
		read, pattern := naming.deadLettersOf("sub1")
		assert.That(t, retry == want.retry && letters == want.letters && read == want.read && pattern == want.pattern && naming.shares() == want.shares,
			"naming %d: %s, %s, %s", naming, retry, letters, read)
	}
}

// Topics are in Options.Namespace.
func TestNamespace(t *testing.T) {
	o, err := Options{Namespace: "tenant/space"}.withDefaults()
	assert.Must(t, err)
	assert.Equal(t, "full name", o.full("orders"), "persistent://tenant/space/orders")
}

// Settings of groups come from Options.Groups. A panic of it is an error of the call.
func TestGroupSettings(t *testing.T) {
	o := Options{Groups: func(group, topic string) transport.ConsumerSettings {
		if group == "broken" {
			panic("no such group")
		}
		if group == "endless" {
			return transport.ConsumerSettings{MaxAttempts: -1, ReceiveBatchSize: 7}
		}
		return transport.ConsumerSettings{FIFO: topic == "orders"}
	}}
	inBubble(t, o, func(t *testing.T, _ *fakeServer, c *Client) {
		s, err := c.ConsumerSettings(t.Context(), "billing", "orders")
		assert.That(t, err == nil && s.FIFO && s.MaxAttempts == 17, "settings %+v, %v", s, err)
		s, err = c.ConsumerSettings(t.Context(), "endless", "orders")
		assert.That(t, err == nil && s.MaxAttempts == -1 && s.ReceiveBatchSize == 7, "settings %+v, %v", s, err)
		_, err = c.ConsumerSettings(t.Context(), "broken", "orders")
		assert.MustThat(t, err != nil, "no error for a panic")
		assert.Contains(t, "error", err.Error(), "Options.Groups panicked: no such group")
		_, err = c.Receive(t.Context(), request("broken"))
		assert.That(t, err != nil, "a receive without settings")
	})
}

// Ping and Queues report a server that is away, a missing topic and missing permissions.
func TestPing(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		s.manual = true
		assert.NoError(t, c.Ping(t.Context()), "ping without a topic")
		assert.NoError(t, c.Ping(t.Context(), "orders"))
		expected{class: tidegate.ClassPermanent, code: 40402}.check(t, "ping of a missing topic", c.Ping(t.Context(), "orders", "invoices"))
		_, err := c.Queues(t.Context(), "billing", "invoices")
		expected{class: tidegate.ClassPermanent, code: 40402}.check(t, "queues of a missing topic", err)
		s.with(func(s *fakeServer) {
			s.refuse = func(string, string) error { return errors.New("AuthorizationError") }
		})
		assert.NoError(t, c.Ping(t.Context()), "ping without permissions, which shows that the server responds")
		expected{class: tidegate.ClassPermanent, code: 40300}.check(t, "ping of a forbidden topic", c.Ping(t.Context(), "orders"))
		s.with(func(s *fakeServer) { s.refuse, s.away = nil, true })
		start := time.Now()
		_, err = c.Queues(t.Context(), "billing", "orders")
		expected{class: tidegate.ClassTransient, notConnected: true}.check(t, "queues without a server", err)
		assert.That(t, time.Since(start) <= 3*time.Second, "Queues took %v", time.Since(start))
		time.AfterFunc(time.Minute, s.comeBack)
		assert.NoError(t, c.Ping(t.Context(), "orders"), "a ping waits for the server")
	})
}
