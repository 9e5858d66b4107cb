package standalone

import (
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/servertest"
)

var pulsarFlag = flag.Bool("pulsar", false, "start a real Pulsar; it needs a JDK of version 17 or later and Maven")

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
		want string // in the error; empty for none
	}{
		{"zero", Options{}, ""},
		{"all", Options{Port: 6650, WebPort: 65535, Properties: map[string]string{"journalSyncData": "true"}, Heap: 256, SuperUsers: []string{"app"}, Certificate: "c.pem", ClientAuthority: "a.pem"}, ""},
		{"a setting of an option", Options{Properties: map[string]string{"webServicePort": "8080"}}, "remove it and set WebPort"},
		{"TLS by a setting", Options{Properties: map[string]string{"brokerServicePortTls": "6651"}}, "set Port and Certificate"},
		{"port", Options{Port: 65536}, "Port is 65536: use a port from 1 to 65535"},
		{"web port", Options{WebPort: -1}, "WebPort is -1"},
		{"heap", Options{Heap: -1}, "Heap is -1 MiB"},
		{"a list as a role", Options{SuperUsers: []string{"app", "a,b"}}, `"a,b"`},
		{"no TLS", Options{ClientAuthority: "a.pem"}, "set Certificate too"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.o.check()
			assert.That(t, err == nil && c.want == "" || err != nil && c.want != "" && strings.Contains(err.Error(), c.want), "check: %v, want %q", err, c.want)
		})
	}
}

// settingsOf are the settings of a test by their names; "-" stands for none.
type settingsOf map[string]string

func TestSettings(t *testing.T) {
	key, dir := []byte("0123456789abcdef0123456789abcdef"), t.TempDir()
	for _, c := range []struct {
		name string
		o    Options
		key  []byte
		want settingsOf
	}{
		{"zero", Options{}, nil, settingsOf{
			"brokerServicePort": "0", "webServicePort": "0", "brokerServicePortTls": "-", "bindAddress": "127.0.0.1", "advertisedAddress": "127.0.0.1",
			"journalSyncData": "false", "authenticationEnabled": "-", "tlsRequireTrustedClientCertOnConnect": "-",
		}},
		{"ports and properties", Options{Port: 6650, WebPort: 8080, Properties: map[string]string{"journalSyncData": "true", "backlogQuotaCheckIntervalInSeconds": "1"}}, nil, settingsOf{
			"brokerServicePort": "6650", "webServicePort": "8080", "journalSyncData": "true", "backlogQuotaCheckIntervalInSeconds": "1",
		}},
		{"TLS", Options{Port: 6651, Certificate: "c.pem"}, nil, settingsOf{
			"brokerServicePort": "0", "brokerServicePortTls": "6651", "tlsCertificateFilePath": filepath.Join(dir, "certificate.pem"),
			"tlsKeyFilePath": filepath.Join(dir, "key.pem"), "tlsTrustCertsFilePath": "-",
		}},
		{"tokens", Options{SuperUsers: []string{"app", "ops"}}, key, settingsOf{
			"authenticationEnabled": "true", "authorizationEnabled": "true", "superUserRoles": "tidegate-standalone,app,ops",
			"authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
			"tokenSecretKey":          "data:;base64,MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
		}},
		{"client certificates", Options{Certificate: "c.pem", ClientAuthority: "/a.pem", SuperUsers: []string{"app"}}, key, settingsOf{
			"tlsTrustCertsFilePath": "/a.pem", "tlsRequireTrustedClientCertOnConnect": "true",
			"authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken,org.apache.pulsar.broker.authentication.AuthenticationProviderTls",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.o.settings(dir, c.o.Port, c.o.WebPort, c.key)
			for k, want := range c.want {
				v, ok := got[k]
				if !ok {
					v = "-"
				}
				assert.Equal(t, k, v, want)
			}
		})
	}
}

func TestMemory(t *testing.T) {
	assert.Slices(t, "memory by default", Options{}.memory(), []string{"-Xmx512m", "-XX:MaxDirectMemorySize=512m"})
	assert.Slices(t, "memory", Options{Heap: 1024}.memory(), []string{"-Xmx1024m", "-XX:MaxDirectMemorySize=1024m"})
}

func TestEnvironment(t *testing.T) {
	got := environment([]string{"PATH=/bin", "PULSAR_STANDALONE_USE_ZOOKEEPER=1", "OTEL_SDK_DISABLED=false", "HOME=/h"})
	assert.Slices(t, "environment", got, []string{"PATH=/bin", "HOME=/h"})
}

// RFC 7515, appendix A.1.
func TestSignature(t *testing.T) {
	key := assert.Value(base64.RawURLEncoding.DecodeString("AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"))(t)
	text := "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
	assert.Equal(t, "signature", signature(key, text), "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")
}

func TestToken(t *testing.T) {
	key := []byte("key")
	for _, c := range []struct {
		expires time.Time
		want    string
	}{
		{time.Time{}, `{"sub":"app"}`},
		{time.Unix(1300819380, 0), `{"sub":"app","exp":1300819380}`},
	} {
		parts := strings.Split(token(key, "app", c.expires), ".")
		assert.MustEqual(t, "parts", len(parts), 3)
		for i, want := range []string{`{"alg":"HS256","typ":"JWT"}`, c.want} {
			text, err := base64.RawURLEncoding.DecodeString(parts[i])
			assert.NoError(t, err)
			assert.Equal(t, "part", string(text), want)
		}
	}
	_, err := (&Server{}).Token("app", time.Time{})
	assert.That(t, err != nil && strings.Contains(err.Error(), "set Options.SuperUsers"), "a token without authentication: %v", err)
}

func TestSecretKey(t *testing.T) {
	dir := t.TempDir()
	key := assert.Value(secretKey(dir))(t)
	assert.Equal(t, "bytes", len(key), 32)
	assert.Slices(t, "the key of a second start", assert.Value(secretKey(dir))(t), key)
	assert.That(t, string(assert.Value(secretKey(t.TempDir()))(t)) != string(key), "two directories have the same key")
	assert.Must(t, os.WriteFile(filepath.Join(dir, "secret.key"), []byte("short"), 0o600))
	_, err := secretKey(dir)
	assert.That(t, err != nil && strings.Contains(err.Error(), "has 5 bytes, not 32"), "a short key: %v", err)
}

// Pulsar reads keys in PKCS #8, and the certificates and the key from two files.
func TestSplitPEM(t *testing.T) {
	ca := servertest.NewAuthority(t)
	certificate, rest := pem.Decode(assert.Value(os.ReadFile(ca.File("broker")))(t))
	private, _ := pem.Decode(rest)
	rsaKey := assert.Value(x509.ParsePKCS8PrivateKey(private.Bytes))(t).(*rsa.PrivateKey)
	old := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(rsaKey)}) // as of OpenSSL 1
	certificates, key, err := splitPEM(append(pem.EncodeToMemory(certificate), old...))
	assert.Must(t, err)
	assert.That(t, strings.HasPrefix(string(key), "-----BEGIN PRIVATE KEY-----") && !strings.Contains(string(certificates), "KEY"), "got\n%s%s", certificates, key)
	_, err = tls.X509KeyPair(certificates, key)
	assert.NoError(t, err)
	_, _, err = splitPEM(assert.Value(os.ReadFile(ca.RootFile()))(t))
	assert.That(t, err != nil, "a file without a key is no error")
}

func TestTopicPath(t *testing.T) {
	for _, c := range []struct{ topic, want string }{ // an empty path is an error
		{"orders", "persistent/public/default/orders"},
		{"shop/eu/orders", "persistent/shop/eu/orders"},
		{"persistent://shop/eu/orders", "persistent/shop/eu/orders"},
		{"non-persistent://shop/eu/orders", "non-persistent/shop/eu/orders"},
		{"billing-%DLQ%", "persistent/public/default/billing-%25DLQ%25"},
		{"shop/orders", ""}, {"", ""}, {"persistent://orders", ""}, {"://a/b/c", ""}, {"shop//orders", ""},
	} {
		got, err := topicPath(c.topic)
		assert.That(t, got == c.want && (err != nil) == (c.want == ""), "topicPath(%q): %q, %v, want %q", c.topic, got, err, c.want)
	}
}

// start starts a server of the test's own.
func start(t *testing.T, o Options) *Server {
	t.Helper()
	began := time.Now()
	s := assert.Value(Start(t.Context(), o))(t)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	t.Logf("%s and %s serve after %v, process %d", s.URL(), s.AdminURL(), time.Since(began).Round(100*time.Millisecond), s.PID())
	return s
}

// post sends messages to a topic over the HTTP API, and returns the status of the response.
func post(t *testing.T, s *Server, topic, token string, messages int) int {
	t.Helper()
	body := strings.Repeat(`{"payload":"m"},`, messages)
	body = `{"schema":"{\"type\":\"STRING\"}","producerName":"test","messages":[` + strings.TrimSuffix(body, ",") + `]}`
	path := assert.Value(topicPath(topic))(t)
	r := assert.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, s.AdminURL()+"/topics/"+path, strings.NewReader(body)))(t)
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	response := assert.Value(http.DefaultClient.Do(r))(t)
	defer response.Body.Close()
	text := assert.Value(io.ReadAll(response.Body))(t)
	if response.StatusCode == http.StatusOK {
		assert.Equal(t, "accepted", strings.Count(string(text), `"errorCode":0`), messages)
	}
	return response.StatusCode
}

// status returns the status of an error of the HTTP API, or 0.
func status(err error) int {
	if s, ok := errors.AsType[*StatusError](err); ok {
		return s.Status
	}
	return 0
}

// A topic and its messages survive kill -9, a restart and a stop. Without -pulsar there is no server,
// and nothing is tested.
func TestServer(t *testing.T) {
	if !*pulsarFlag {
		t.Log("-pulsar starts the servers")
		return
	}
	s := start(t, Options{Properties: map[string]string{"backlogQuotaCheckIntervalInSeconds": "1"}})
	ctx, admin := t.Context(), s.Admin()
	assert.Must(t, admin.CreateTopic(ctx, "orders"))
	assert.Must(t, admin.CreateSubscription(ctx, "orders", "billing"))
	assert.Equal(t, "status of the second creation", status(admin.CreateTopic(ctx, "orders")), http.StatusConflict)
	assert.Must(t, admin.CreatePartitionedTopic(ctx, "parts", 3))
	assert.Must(t, admin.CreateSubscription(ctx, "parts", "billing"))
	assert.Equal(t, "status of 10 messages", post(t, s, "orders", "", 10), http.StatusOK)

	address, web := s.Address(), s.AdminURL()
	ended := s.Done()
	s.Kill()
	<-ended
	assert.Equal(t, "PID of a killed broker", s.PID(), 0)
	began := time.Now()
	assert.Must(t, s.Restart(ctx))
	t.Logf("it serves again %v after kill -9", time.Since(began).Round(100*time.Millisecond))
	assert.Equal(t, "address", s.Address(), address)
	assert.Equal(t, "URL of the HTTP API", s.AdminURL(), web)
	assert.That(t, s.Restart(ctx) != nil, "a broker that runs starts again")

	stats := assert.Value(admin.TopicStats(ctx, "orders"))(t)
	assert.Equal(t, "subscriptions", len(stats.Subscriptions), 1)
	assert.Equal(t, "backlog after kill -9", stats.Subscriptions["billing"].Backlog, 10)
	stats = assert.Value(admin.TopicStats(ctx, "parts"))(t)
	assert.Equal(t, "partitions", stats.Partitions, 3)
	assert.Equal(t, "subscriptions of a partitioned topic", len(stats.Subscriptions), 1)
	assert.Must(t, admin.Unload(ctx, "orders"))
	assert.Must(t, admin.Unload(ctx, "parts"))
	assert.Equal(t, "status after an unload", post(t, s, "orders", "", 1), http.StatusOK)

	assert.Must(t, admin.CreateNamespace(ctx, "public/small"))
	assert.Must(t, admin.SetBacklogQuota(ctx, "public/small", 10240, "producer_exception"))
	assert.Must(t, admin.CreateTopic(ctx, "public/small/full"))
	stats = assert.Value(admin.TopicStats(ctx, "public/small/full"))(t)
	assert.Equal(t, "backlog quota", stats.BacklogQuota, 10240)
	assert.Must(t, admin.SetAutoTopicCreation(ctx, "public/small", false))
	var policy struct{ AllowAutoTopicCreation *bool }
	assert.Must(t, admin.do(ctx, "read", http.MethodGet, "namespaces/public/small/autoTopicCreation", nil, &policy))
	assert.That(t, policy.AllowAutoTopicCreation != nil && !*policy.AllowAutoTopicCreation, "automatic topics: %v, want false", policy.AllowAutoTopicCreation)

	began = time.Now()
	s.Stop()
	t.Logf("it stopped in %v", time.Since(began).Round(100*time.Millisecond))
	assert.That(t, time.Since(began) < stopTimeout, "the broker did not stop in order")
	<-s.Done()
	assert.Must(t, s.Restart(ctx))
	stats = assert.Value(admin.TopicStats(ctx, "orders"))(t)
	assert.Equal(t, "backlog after a stop", stats.Subscriptions["billing"].Backlog, 11)
	assert.Must(t, admin.DeleteSubscription(ctx, "orders", "billing"))
	stats = assert.Value(admin.TopicStats(ctx, "orders"))(t)
	assert.Equal(t, "subscriptions after their deletion", len(stats.Subscriptions), 0)
	_, err := admin.TopicStats(ctx, "none")
	assert.Equal(t, "status of the statistics of a missing topic", status(err), http.StatusNotFound)
}

// The log in the error of Start names a setting that Pulsar does not have.
func TestUnknownSetting(t *testing.T) {
	if !*pulsarFlag {
		t.Log("-pulsar starts the servers")
		return
	}
	_, err := Start(t.Context(), Options{Properties: map[string]string{"backlogQuotaCheckInterval": "1"}})
	assert.That(t, err != nil && strings.Contains(err.Error(), "it ended") && strings.Contains(err.Error(), "Pulsar has no setting backlogQuotaCheckInterval\n"), "Start: %v", err)
}

// With a certificate, an authority of clients and super-users, the broker admits clients with a
// certificate and a role that has permissions.
func TestSecureServer(t *testing.T) {
	if !*pulsarFlag {
		t.Log("-pulsar starts the servers")
		return
	}
	ca := servertest.NewAuthority(t)
	s := start(t, Options{Certificate: ca.File("broker"), ClientAuthority: ca.RootFile(), SuperUsers: []string{"ops"}, Heap: 256})
	assert.That(t, strings.HasPrefix(s.URL(), "pulsar+ssl://127.0.0.1:"), "URL: %s", s.URL())
	ctx, admin := t.Context(), s.Admin()
	assert.Must(t, admin.CreateTopic(ctx, "orders"))
	create := func(topic, token string) int {
		return status((&Admin{url: admin.url, token: token}).CreateTopic(ctx, topic))
	}
	var never time.Time
	assert.Equal(t, "status without a token", create("a", ""), http.StatusUnauthorized)
	assert.Equal(t, "status with an expired token", create("a", assert.Value(s.Token("ops", time.Now().Add(-time.Minute)))(t)), http.StatusUnauthorized)
	assert.Equal(t, "status with a token of another key", create("a", token([]byte("0123456789abcdef0123456789abcdef"), "ops", never)), http.StatusUnauthorized)
	assert.Equal(t, "status of a super-user", create("a", assert.Value(s.Token("ops", time.Now().Add(time.Hour)))(t)), 0)
	app := assert.Value(s.Token("app", never))(t)
	assert.That(t, post(t, s, "orders", app, 1) != http.StatusOK, "a role without permissions sent a message")
	assert.Must(t, admin.GrantPermission(ctx, "public/default", "app", "produce", "consume"))
	assert.Equal(t, "status of a role with permissions", post(t, s, "orders", app, 1), http.StatusOK)

	for _, c := range []struct {
		name, certificate, token string
		want                     bool
	}{
		{"certificate", "app", "", true},
		{"certificate and token", "app", app, true},
		{"certificate and a bad token", "app", "x.y.z", false},
		{"no certificate", "", app, false},
	} {
		ok, err := connect(t, s.Address(), ca.Config(c.certificate), c.token)
		assert.That(t, ok == c.want, "with %s: connected %v, want %v: %v", c.name, ok, c.want, err)
	}
}

// connect performs the handshakes of TLS and of Pulsar, and reports whether the broker accepts the
// client. PulsarApi.proto: a frame is two lengths and a BaseCommand, whose field 1 is its type;
// CONNECT is 2 and CONNECTED 3.
func connect(t *testing.T, address string, config *tls.Config, token string) (bool, error) {
	t.Helper()
	conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	field := func(number byte, s string) string {
		b := []byte{number<<3 | 2}
		for n := len(s); ; n >>= 7 {
			if n < 0x80 {
				return string(append(b, byte(n))) + s
			}
			b = append(b, byte(n)|0x80)
		}
	}
	method, data := "tls", ""
	if token != "" {
		method, data = "token", token
	}
	command := "\x08\x02" + field(2, field(1, "test")+field(3, data)+"\x20\x13"+field(5, method))
	n := byte(len(command)) // the test's tokens are short
	if len(command) > 251 {
		return false, fmt.Errorf("a command of %d bytes", len(command))
	}
	if _, err := io.WriteString(conn, "\x00\x00\x00"+string([]byte{n + 4})+"\x00\x00\x00"+string([]byte{n})+command); err != nil {
		return false, err
	}
	var response [10]byte
	if _, err := io.ReadFull(conn, response[:]); err != nil {
		return false, err
	}
	if response[8] != 0x08 || response[9] != 3 {
		return false, fmt.Errorf("a command of type %d", response[9])
	}
	return true, nil
}
