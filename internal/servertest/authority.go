package servertest

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// An Authority issues certificates for a test.
type Authority struct {
	t      *testing.T
	cert   *x509.Certificate
	key    *rsa.PrivateKey
	serial int64
}

// NewAuthority returns an authority. Its files are in t.TempDir.
func NewAuthority(t *testing.T) *Authority {
	t.Helper()
	a := &Authority{t: t}
	a.cert, a.key, _ = a.create("authority", true)
	return a
}

func (a *Authority) create(name string, root bool) (*x509.Certificate, *rsa.PrivateKey, []byte) {
	a.t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048) // Artemis reads no other keys from PEM files
	assert.Must(a.t, err)
	a.serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.serial), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: root, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := a.cert, a.key
	if root {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	assert.Must(a.t, err)
	cert, err := x509.ParseCertificate(der)
	assert.Must(a.t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	assert.Must(a.t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return cert, key, append(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})...)
}

// File writes a certificate and its key, and returns the name of the file.
func (a *Authority) File(name string) string {
	a.t.Helper()
	_, _, text := a.create(name, false)
	return a.write(name, text)
}

// RootFile writes the authority's own certificate.
func (a *Authority) RootFile() string {
	return a.write("authority", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

func (a *Authority) write(name string, text []byte) string {
	a.t.Helper()
	file := filepath.Join(a.t.TempDir(), name+".pem")
	assert.Must(a.t, os.WriteFile(file, text, 0o600))
	return file
}

// Config returns a client's configuration, with a certificate if name is not empty.
func (a *Authority) Config(name string) *tls.Config {
	a.t.Helper()
	c := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	c.RootCAs.AddCert(a.cert)
	if name != "" {
		_, _, text := a.create(name, false)
		split := bytes.Index(text, []byte("-----BEGIN PRIVATE KEY"))
		pair := assert.Value(tls.X509KeyPair(text[:split], text[split:]))(a.t)
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}
