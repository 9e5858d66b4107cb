package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

// certificatesCheck is the shortest time between two checks of the files by handshakes.
const certificatesCheck = 2 * time.Second

// ClientCertificates is the mode of client certificates.
type ClientCertificates string

// The modes of client certificates.
const (
	ClientCertificatesNone    ClientCertificates = "none"    // the server requests no certificate
	ClientCertificatesRequest ClientCertificates = "request" // optional; the server verifies a certificate that a client sends
	ClientCertificatesRequire ClientCertificates = "require" // the server rejects connections without a valid certificate
)

// CertificateOptions are the files of [Certificates], all in PEM.
type CertificateOptions struct {
	// CertFile has the certificate and the intermediate certificates, KeyFile its private key. Both
	// are required.
	CertFile string
	KeyFile  string

	// ClientCAFile has the CAs of client certificates. Required unless ClientCertificates is none.
	ClientCAFile string

	// ClientCertificates is the mode of client certificates. Default: ClientCertificatesNone.
	ClientCertificates ClientCertificates

	// MinVersion is the oldest version of TLS: tls.VersionTLS12 or tls.VersionTLS13. Default:
	// tls.VersionTLS12.
	MinVersion uint16

	// Logger logs changed files. Nil means no log.
	Logger *slog.Logger
}

// Certificates serve TLS from files. They read changed files again at the next handshake, at most
// once in 2 s. While the files do not match each other, for example in the middle of a renewal, the
// earlier contents stay in use. Goroutines may share the value.
type Certificates struct {
	o      CertificateOptions
	loaded atomic.Pointer[certificates]
	next   atomic.Int64                 // when to look again, in ns since 1970
	failed atomic.Pointer[fingerprints] // of files that were logged as unusable
}

// certificates are the contents of the files at one time. They are not changed.
type certificates struct {
	config *tls.Config
	of     fingerprints
}

// fingerprints show whether the files have changed.
type fingerprints [3]fingerprint

type fingerprint struct {
	changed time.Time
	size    int64
}

// LoadCertificates reads the files. The error lists all faults.
func LoadCertificates(o CertificateOptions) (*Certificates, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.ClientCertificates == "" {
		o.ClientCertificates = ClientCertificatesNone
	}
	if o.MinVersion == 0 {
		o.MinVersion = tls.VersionTLS12
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.CertFile == "" || o.KeyFile == "" {
		bad("CertFile is %q and KeyFile is %q; set both", o.CertFile, o.KeyFile)
	}
	if o.MinVersion < tls.VersionTLS12 || o.MinVersion > tls.VersionTLS13 {
		bad("MinVersion is %#04x; give tls.VersionTLS12 or tls.VersionTLS13", o.MinVersion)
	}
	switch o.ClientCertificates {
	case ClientCertificatesNone:
	case ClientCertificatesRequest, ClientCertificatesRequire:
		if o.ClientCAFile == "" {
			bad("ClientCertificates is %q, but ClientCAFile is empty; set it to the CAs that sign client certificates", o.ClientCertificates)
		}
	default:
		bad("ClientCertificates is %q; give none, request or require", o.ClientCertificates)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	c := &Certificates{o: o}
	if _, err := c.Reload(); err != nil {
		return nil, err
	}
	return c, nil
}

// Reload reads the files now, and reports whether their sizes or times differ from those of the
// contents in use. On an error, the earlier contents stay in use.
func (c *Certificates) Reload() (changed bool, err error) {
	of, err := c.fingerprints()
	if err != nil {
		return false, err
	}
	before := c.loaded.Load()
	return before == nil || before.of != of, c.load(of)
}

// Config returns a configuration for servers of the given protocols (ALPN), such as "h2". The
// configuration uses changed files without a restart.
func (c *Certificates) Config(protocols ...string) *tls.Config {
	type made struct {
		from   *certificates
		config *tls.Config
	}
	var last atomic.Pointer[made]
	return &tls.Config{
		MinVersion: c.o.MinVersion,
		NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			from := c.current(time.Now())
			m := last.Load()
			if m == nil || m.from != from {
				m = &made{from, from.config.Clone()}
				m.config.NextProtos = protocols
				last.Store(m)
			}
			return m.config, nil
		},
	}
}

// current returns the contents of the files at the time now. One handshake looks at the files;
// concurrent ones use the known contents.
func (c *Certificates) current(now time.Time) *certificates {
	if at := c.next.Load(); now.UnixNano() >= at && c.next.CompareAndSwap(at, now.Add(certificatesCheck).UnixNano()) {
		of, err := c.fingerprints()
		switch failed := c.failed.Load(); {
		case err == nil && (of == c.loaded.Load().of || failed != nil && of == *failed):
			return c.loaded.Load() // as before
		case err == nil:
			err = c.load(of)
		case failed != nil && *failed == (fingerprints{}):
			return c.loaded.Load() // logged already
		}
		if err != nil {
			c.failed.Store(&of)
			c.o.Logger.Error("changed certificates not loaded; the old ones remain in use", "error", err)
		} else {
			c.o.Logger.Info("certificates reloaded", "file", c.o.CertFile)
		}
	}
	return c.loaded.Load()
}

func (c *Certificates) fingerprints() (of fingerprints, err error) {
	for i, file := range []string{c.o.CertFile, c.o.KeyFile, c.o.ClientCAFile} {
		if file == "" {
			continue
		}
		info, err := os.Stat(file)
		if err != nil {
			return fingerprints{}, fmt.Errorf("certificates: %w", err)
		}
		of[i] = fingerprint{info.ModTime(), info.Size()}
	}
	return of, nil
}

// load reads the files. before are the fingerprints of the known contents.
func (c *Certificates) load(of fingerprints) error {
	pair, err := tls.LoadX509KeyPair(c.o.CertFile, c.o.KeyFile)
	if err != nil {
		return fmt.Errorf("certificates: %s with the key in %s: %w", c.o.CertFile, c.o.KeyFile, err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: c.o.MinVersion}
	if c.o.ClientCertificates != ClientCertificatesNone {
		text, err := os.ReadFile(c.o.ClientCAFile)
		if err != nil {
			return fmt.Errorf("certificates: %w", err)
		}
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("certificates: %s contains no certificate in PEM", c.o.ClientCAFile)
		}
		config.ClientAuth = tls.VerifyClientCertIfGiven
		if c.o.ClientCertificates == ClientCertificatesRequire {
			config.ClientAuth = tls.RequireAndVerifyClientCert
		}
		// A resumed session would not check whether the CA is still in the file.
		config.SessionTicketsDisabled = true
	}
	c.failed.Store(nil)
	c.loaded.Store(&certificates{config, of})
	return nil
}
