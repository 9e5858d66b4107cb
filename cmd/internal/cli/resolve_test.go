package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// Host has a port, that of the scheme if the address of an Artemis has none.
func TestHost(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"amqp://mq.example:61616": "mq.example:61616",
		"amqp://mq.example":       "mq.example:5672",
		"amqps://mq.example":      "mq.example:5671",
		"amqps://[::1]":           "[::1]:5671",
	} {
		if got := (Server{Context: Context{AMQP: address}}).Host(); got != want {
			t.Errorf("%s is %s, want %s", address, got, want)
		}
	}
	assert.Equal(t, "the addresses for gRPC are", (Server{Context: Context{GRPC: "a:1;b:2"}}).Host(), "a:1;b:2")
}

// A file of contexts that can only be read in part is invalid: the next change of it would remove
// the rest.
func TestContextsAreReadWhole(t *testing.T) {
	t.Parallel()
	const one = "contexts:\n  a: {grpc: 127.0.0.1:1}\n"
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"one document": {one, true}, "its end is marked": {"---\n" + one + "...\n", true}, "empty": {"", true},
		"two documents": {one + "---\n" + one, false}, "the same name": {one + "  a: {grpc: 127.0.0.1:2}\n", false}, "the same key": {"contexts:\n  a: {grpc: x, grpc: y}\n", false},
		"not YAML behind it": {one + "---\n{", false}, "byte order mark": {"\xef\xbb\xbf" + one, true},
	} {
		path := filepath.Join(t.TempDir(), "contexts.yaml")
		assert.Must(t, os.WriteFile(path, []byte(c.text), 0o600))
		if f, _, err := readFile(path); (err == nil) != c.ok || c.ok && c.text != "" && len(f.Contexts) != 1 {
			t.Errorf("%s: %v, %v", name, f.Contexts, err)
		}
	}
}

// A client certificate needs its key, and a key its certificate: a forgotten half is an error, and
// not a connection without the certificate.
func TestCertificateAndKeyBelongTogether(t *testing.T) {
	t.Parallel()
	for _, c := range []Context{{Cert: "client.pem"}, {CertKey: "client.key"}} {
		if _, err := (Server{Context: c}).TLSConfig(); err == nil || !strings.Contains(err.Error(), "give both") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if c, err := (Server{}).TLSConfig(); err != nil || len(c.Certificates) != 0 || c.InsecureSkipVerify {
		t.Errorf("without files: %+v, %v", c, err)
	}
}

// The days of a certificate are whole ones, and negative from its end on.
func TestCertificateDays(t *testing.T) {
	t.Parallel()
	key := assert.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	for left, want := range map[time.Duration]int64{36 * time.Hour: 1, 12 * time.Hour: 0, -12 * time.Hour: -1, -36 * time.Hour: -2} {
		c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-100 * time.Hour), NotAfter: time.Now().Add(left)}
		text := assert.Value(x509.CreateCertificate(rand.Reader, c, c, key.Public(), key))(t)
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{text}, PrivateKey: key}}}
		s.StartTLS()
		if got, err := (Server{Context: Context{HTTP: s.URL}}).CertificateDays(t.Context()); err != nil || got != want {
			t.Errorf("%v before its end: %d days, %v; want %d", left, got, err, want)
		}
		s.Close()
	}
	if days, err := (Server{Context: Context{HTTP: "http://127.0.0.1:1"}}).CertificateDays(t.Context()); err == nil {
		t.Errorf("without TLS: %d days", days)
	}
}
