package serve

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// writeCertificate creates a self-signed certificate for this machine.
func writeCertificate(t *testing.T, certFile, keyFile string) *tls.Config {
	t.Helper()
	key := assert.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der := assert.Value(x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key))(t)
	raw := assert.Value(x509.MarshalPKCS8PrivateKey(key))(t)
	write(t, certFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
	cert := assert.Value(x509.ParseCertificate(der))(t)
	trust := &tls.Config{RootCAs: x509.NewCertPool()}
	trust.RootCAs.AddCert(cert)
	return trust
}

// The health check of the image finds a broker with TLS and one without, on the port of its
// configuration. It needs no flag beside those of the environment.
func TestProbe(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	writeCertificate(t, cert, key)
	for name, flags := range map[string][]string{
		"plain text": nil, "TLS": {"--tls-cert", cert, "--tls-key", key},
		"client certificates": {"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert, "--tls-client-certificates", "require"},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, flags...)
			run := func(http string) (string, error) {
				c := exec.CommandContext(t.Context(), os.Args[0], "serve", "--probe")
				c.Env = append(os.Environ(), asProgram+"=1", "TIDEGATE_HTTP="+http)
				out, err := c.CombinedOutput()
				return string(out), err
			}
			_, port, _ := net.SplitHostPort(p.http)
			if out, err := run(":" + port); err != nil {
				t.Errorf("the probe of a broker that is ready: %v, %s", err, out)
			}
			p.kill()
			if out, err := run(":" + port); err == nil || !strings.Contains(out, "refused") {
				t.Errorf("the probe of a broker that has ended: %v, %s", err, out)
			}
		})
	}
}

// With a certificate from files, both ports speak verified TLS and nothing
// else, and SIGHUP renews it; secrets may then be shown over HTTP.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key, file := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "tidegate.yaml")
	trust := writeCertificate(t, cert, key)
	write(t, file, "topic: orders\ntls: {cert: "+cert+", key: "+key+"}\n"+
		"access: {keys: {app: {secret: sesame, allow: [{actions: [send, admin], topics: ['*'], groups: ['*']}]}}}\n")
	p := start(t, "--config", file)
	send := func(trust *tls.Config) error {
		c := assert.Value(rocketmq.New(p.grpc, rocketmq.Options{TLS: trust, Credentials: tidegate.Credentials{AccessKey: "app", SecretKey: "sesame"}}))(t)
		defer c.Close()
		return c.Send(t.Context(), []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte("x")}})[0].Err
	}
	ask := func(scheme string, trust *tls.Config) (int, string) {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: trust, ForceAttemptHTTP2: true}}
		defer client.CloseIdleConnections()
		r, err := http.NewRequestWithContext(t.Context(), "GET", scheme+"://"+p.http+"/v1/topics/orders", nil)
		assert.Must(t, err)
		r.SetBasicAuth("app", "sesame")
		resp, err := client.Do(r)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	both := func(what string, trust *tls.Config, ok bool) {
		t.Helper()
		// A fault of TLS is permanent: another attempt meets it again.
		if err := send(trust); (err == nil) != ok || !ok && !strings.Contains(err.Error(), "Options.TLS") {
			t.Errorf("%s, gRPC: %v", what, err)
		}
		scheme := "https"
		if trust == nil {
			scheme = "http"
		}
		if code, body := ask(scheme, trust); (code == 200) != ok {
			t.Errorf("%s, HTTP: %d %s", what, code, body)
		}
	}
	both("TLS", trust, true)
	both("plain text", nil, false)
	renewed := writeCertificate(t, cert, key)
	assert.Must(t, p.cmd.Process.Signal(syscall.SIGHUP))
	if line := p.await(t, 0, "configuration reloaded"); !strings.Contains(line, "tls.cert") {
		t.Errorf("a new certificate is not among the changes: %s", line)
	}
	both("renewed", renewed, true)
	both("the former certificate", trust, false)
	if code := p.stop(); code != 0 || strings.Contains(p.stderr.String(), "sesame") {
		t.Errorf("SIGTERM: code %d\n%s", code, p.stderr.String())
	}
	write(t, key, "no key")
	var stdout, stderr strings.Builder
	if code := run(t.Context(), []string{"serve", "--config", file}, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), key) {
		t.Errorf("with a broken key: code %d, %s", code, stderr.String())
	}
}
