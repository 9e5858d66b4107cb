package server_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A testCA makes certificates.
type testCA struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCA(t *testing.T) *testCA {
	ca := &testCA{t: t}
	der, key := ca.make("CA")
	ca.key = key
	var err error
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return ca
}

// make signs a certificate with the name: its own if there is no CA yet.
func (ca *testCA) make(name string) ([]byte, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		ca.t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<60))
	if err != nil {
		ca.t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: []string{name + ".test"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: ca.cert == nil, BasicConstraintsValid: true,
	}
	parent, signer := ca.cert, ca.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		ca.t.Fatal(err)
	}
	return der, key
}

// write makes a certificate and writes it and its key to files.
func (ca *testCA) write(name, certFile, keyFile string) {
	der, key := ca.make(name)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		ca.t.Fatal(err)
	}
	ca.pem(certFile, "CERTIFICATE", der)
	ca.pem(keyFile, "PRIVATE KEY", raw)
}

func (ca *testCA) pem(file, kind string, der []byte) {
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		ca.t.Fatal(err)
	}
}

// client returns the TLS of a client that trusts the CA and shows a certificate of by, if it is not
// nil.
func (ca *testCA) client(by *testCA, name string) *tls.Config {
	c := &tls.Config{RootCAs: x509.NewCertPool()}
	c.RootCAs.AddCert(ca.cert)
	if by != nil {
		der, key := by.make(name)
		c.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	}
	return c
}

// A client with a certificate of the CA is the key of that name. A signature has priority over it.
// A certificate of another CA, or none where one is required, makes no connection; neither does
// plain text.
func TestClientCertificates(t *testing.T) {
	dir, ca, other := t.TempDir(), newCA(t), newCA(t)
	cert, key, cas := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "ca")
	ca.write("server", cert, key)
	ca.pem(cas, "CERTIFICATE", ca.cert.Raw)
	config := someAccess()
	config.Keys[0].Certificates = []string{"producer.test"}
	config.Keys = append(config.Keys, server.Key{Name: "mesh", Certificates: []string{"mesh"}, Allow: config.Keys[0].Allow})
	const broken = -1
	for _, want := range []server.ClientCertificates{server.ClientCertificatesRequest, server.ClientCertificatesRequire} {
		certs, err := server.LoadCertificates(server.CertificateOptions{CertFile: cert, KeyFile: key, ClientCAFile: cas, ClientCertificates: want})
		if err != nil {
			t.Fatal(err)
		}
		e, addr := listen(t, server.Options{TLS: certs.Config("h2"), RequireTLS: true, Access: config})
		none := map[server.ClientCertificates]int{server.ClientCertificatesRequest: int(tidegate.CodeUnauthorized), server.ClientCertificatesRequire: broken}[want]
		for name, c := range map[string]struct {
			creds credentials.TransportCredentials
			key   string // signs with it
			code  int
		}{
			"DNS name":                {credentials.NewTLS(ca.client(ca, "producer")), "", protocol.CodeOK},
			"common name":             {credentials.NewTLS(ca.client(ca, "mesh")), "", protocol.CodeOK},
			"a name that is no key's": {credentials.NewTLS(ca.client(ca, "stranger")), "", int(tidegate.CodeUnauthorized)},
			"and a signature":         {credentials.NewTLS(ca.client(ca, "producer")), "nothing", int(tidegate.CodeForbidden)},
			"and a wrong signature":   {credentials.NewTLS(ca.client(ca, "producer")), "unknown", int(tidegate.CodeUnauthorized)},
			"of another CA":           {credentials.NewTLS(ca.client(other, "producer")), "", broken},
			"none":                    {credentials.NewTLS(ca.client(nil, "")), "", none},
			"plain text":              {insecure.NewCredentials(), "producer", broken},
			"TLS 1.1":                 {credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS11, MaxVersion: tls.VersionTLS11}), "producer", broken},
		} {
			ctx := as(t.Context(), "client")
			if c.key != "" {
				ctx = signed(t.Context(), c.key)
			}
			r, err := dial(t, addr, c.creds).QueryRoute(ctx, &rmqpb.QueryRouteRequest{Topic: res("normal")})
			if got := int(r.GetStatus().GetCode()); err == nil && got != c.code || err != nil && c.code != broken {
				t.Errorf("%s, %s: %v, %v; want %d", want, name, r, err, c.code)
			}
		}
		if n, _ := scrapedBy(t, e.s); n[`tidegate_access_refusals_total{reason="plain_text"}`] == 0 {
			t.Error("plain text is refused, but not counted")
		}
	}
}

// A new certificate is shown without a restart; an invalid one is not.
func TestCertificatesFollowTheirFiles(t *testing.T) {
	dir, ca := t.TempDir(), newCA(t)
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	ca.write("first", cert, key)
	log, text := testLog()
	certs, err := server.LoadCertificates(server.CertificateOptions{CertFile: cert, KeyFile: key, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	shown := func() string {
		t.Helper()
		now = now.Add(server.CertificatesCheck)
		c, err := x509.ParseCertificate(certs.Shown(now))
		if err != nil {
			t.Fatal(err)
		}
		return c.Subject.CommonName
	}
	touch := func(d time.Duration) { // a file system's clock may be coarse
		for _, f := range []string{cert, key} {
			if err := os.Chtimes(f, now.Add(d), now.Add(d)); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
	}
	if s := shown(); s != "first" {
		t.Errorf("at first: %s", s)
	}
	ca.write("second", cert, key)
	touch(time.Second)
	if s := shown(); s != "second" {
		t.Errorf("after a change: %s", s)
	}
	ca.write("third", cert, filepath.Join(dir, "elsewhere")) // its key is not there yet
	touch(2 * time.Second)
	for range 3 {
		if s := shown(); s != "second" {
			t.Errorf("halfway through a renewal: %s", s)
		}
	}
	if _, err := certs.Reload(); err == nil || !strings.Contains(err.Error(), cert) {
		t.Errorf("Reload: %v", err)
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		shown()
	}
	if n := strings.Count(text.String(), "certificates not loaded"); n != 2 {
		t.Errorf("logged %d times, want once for each change:\n%s", n, text)
	}
	ca.write("fourth", cert, key)
	touch(3 * time.Second)
	if s := shown(); s != "fourth" {
		t.Errorf("after the renewal: %s", s)
	}
	// Between two looks, nothing is looked at.
	before := certs.Shown(now)
	ca.write("fifth", cert, key)
	touch(4 * time.Second)
	if got := certs.Shown(now); !bytes.Equal(got, before) {
		t.Error("it looked twice within 2s")
	}
	if _, err := certs.Reload(); err != nil {
		t.Error(err)
	}
	if s := shown(); s != "fifth" {
		t.Errorf("after Reload: %s", s)
	}
}

func TestCertificateFaults(t *testing.T) {
	dir, ca := t.TempDir(), newCA(t)
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	ca.write("x", cert, key)
	for _, c := range []struct {
		o    server.CertificateOptions
		says []string
	}{
		{server.CertificateOptions{MinVersion: tls.VersionTLS11, ClientCertificates: "maybe"}, []string{"CertFile is", "MinVersion is 0x0302", `"maybe"; give none, request or require`}},
		{server.CertificateOptions{CertFile: cert, KeyFile: key, ClientCertificates: server.ClientCertificatesRequire}, []string{"ClientCAFile is empty"}},
		{server.CertificateOptions{CertFile: cert, KeyFile: dir + "/none"}, []string{"no such file"}},
		{server.CertificateOptions{CertFile: key, KeyFile: cert}, []string{key, cert}},
		{server.CertificateOptions{CertFile: cert, KeyFile: key, ClientCAFile: key, ClientCertificates: server.ClientCertificatesRequest}, []string{key + " contains no certificate"}},
	} {
		got, err := server.LoadCertificates(c.o)
		for _, w := range c.says {
			if err == nil || got != nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%+v: %v; want %q", c.o, err, w)
			}
		}
	}
}

// A client whose certificate is verified makes a full handshake each time: a resumed session would
// be accepted although its CA has left the file.
func TestClientCertificatesAreVerifiedEachTime(t *testing.T) {
	dir, ca := t.TempDir(), newCA(t)
	cert, key, cas := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "ca")
	ca.write("server", cert, key)
	ca.pem(cas, "CERTIFICATE", ca.cert.Raw)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		certs, err := server.LoadCertificates(server.CertificateOptions{CertFile: cert, KeyFile: key, ClientCAFile: cas, ClientCertificates: server.ClientCertificatesRequire})
		if err != nil {
			t.Fatal(err)
		}
		lis, err := tls.Listen("tcp", "127.0.0.1:0", certs.Config("h2"))
		if err != nil {
			t.Fatal(err)
		}
		defer lis.Close()
		go func() {
			for {
				c, err := lis.Accept()
				if err != nil {
					return
				}
				io.WriteString(c, "hello") // after the handshake and its tickets
				c.Close()
			}
		}()
		config := ca.client(ca, "producer")
		config.ClientSessionCache, config.MinVersion, config.MaxVersion = tls.NewLRUClientSessionCache(8), version, version
		for i := range 3 {
			c, err := tls.Dial("tcp", lis.Addr().String(), config)
			if err != nil {
				t.Fatal(err)
			}
			if text, err := io.ReadAll(c); string(text) != "hello" {
				t.Fatalf("%q, %v", text, err)
			}
			if c.ConnectionState().DidResume {
				t.Errorf("TLS %#x: connection %d resumed a session", version, i)
			}
			c.Close()
		}
	}
}
