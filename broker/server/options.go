package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/server/internal/auth"
	"github.com/tidegate/tidegate/broker/server/internal/requests"
	"github.com/tidegate/tidegate/broker/server/internal/session"
	"github.com/tidegate/tidegate/internal/access"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// Defaults of Options.
const (
	defaultBrokerName           = "tidegate"
	defaultMaxReceiveSize       = 32 << 20 // bytes; RocketMQ's clients send one message of at most 4 MiB
	defaultHandshakeTimeout     = 10 * time.Second
	defaultMaxSilentConnections = 1024
	defaultMinLongPolling       = 5 * time.Second
	defaultMaxLongPolling       = 20 * time.Second
	defaultProducerMaxAttempts  = 3 // RocketMQ: sending retry and throttling: one send and two retries
)

// Options are the settings of a Server. The zero value means all defaults.
type Options struct {
	// Advertise is the host:port in routes, to which clients connect. Default: the address in the
	// client's request, as in RocketMQ's proxy, or else the local address of its connection.
	Advertise string

	// BrokerName is the broker's name in routes. Default: "tidegate".
	BrokerName string

	// Version is the version that the overview of the broker shows. Default: the version of this
	// module in the program, if the program has it.
	Version string

	// Logger is the log of the server. Nil means no log.
	Logger *slog.Logger

	// MaxReceiveSize is the maximum size of a SendMessage over gRPC in bytes. A larger request ends
	// with gRPC's ResourceExhausted before it is read. The maximum of an AckMessage is 1000 KiB,
	// and that of other requests 64 KiB. A message with the largest body needs some KiB more than
	// that body. tidegate's SDK divides a large Send into requests of 16 MiB, so a large Send can
	// fail if MaxReceiveSize is below 17 MiB. The maximum is a quarter of MaxTransitBytes. Default:
	// 32 MiB, or 1 MiB more than the broker's largest body if that is larger, or the
	// maximum if that is less.
	MaxReceiveSize int

	// MaxTransitBytes bounds the memory that requests and responses take while they are read,
	// carried out and written, in bytes, over gRPC and HTTP together. A single connection gets half
	// of it at most. The server rejects a request above the bound with 42900, over HTTP with 429;
	// clients can retry it. It also closes connections whose clients hold much memory and neither
	// send nor read. The process needs about as much memory again for other purposes, so set at
	// most a quarter of its memory. Default: a quarter of Go's memory limit (GOMEMLIMIT), at most
	// 1 GiB, or 256 MiB without a limit, and at least 12 times the broker's largest body plus
	// 16 MiB.
	MaxTransitBytes int64

	// MaxParkedBytes bounds the memory of waiting receives in bytes; each takes about 20 KiB. It
	// also bounds the number of gRPC requests in progress on all connections, including waiting
	// receives: one for each 10 KiB, and at least 1000. Further requests end with gRPC's
	// Unavailable. One connection can have at most half of this number. Receives of consumers with
	// many topics leave watches instead of waiting, which take at most as much memory again: one
	// for each KiB, and at most 20 000 of one client. Further receives wait. Default: an eighth of
	// Go's memory limit, at most 1 GiB, or 128 MiB without a limit.
	MaxParkedBytes int64

	// TLS is the configuration for clients that begin with TLS. Other clients get plain text on
	// the same port. Nil means a self-signed certificate that New creates; RocketMQ's Go and Java
	// clients accept it.
	TLS *tls.Config

	// RequireTLS rejects clients that begin with plain text. Default: false, they are accepted.
	RequireTLS bool

	// Access has the permissions of clients; SetAccess changes them. The zero value allows
	// everything.
	Access AccessConfig

	// AnyHost accepts HTTP requests for any host. If it is false, a request without credentials
	// that arrives in plain text at a loopback address must be for an IP address, localhost, the
	// host of Advertise or one of HTTPHosts. This protects against DNS rebinding, in which a web
	// page makes its own host name resolve to this machine.
	AnyHost bool

	// HTTPHosts are further host names for such requests, without scheme and port, for example
	// those of a reverse proxy on this machine. Nil means none.
	HTTPHosts []string

	// NoConsole disables the web console at /console/. It has no data of its own: the browser uses
	// the HTTP API with the credentials of its user. Default: false, the console is served.
	NoConsole bool

	// SnapshotDir is the directory in which POST /v1/snapshot creates a directory for each snapshot
	// ([broker.Broker.Snapshot]). It must be on the file system of the data. Empty means that the
	// request is rejected.
	SnapshotDir string

	// HandshakeTimeout is the time after which the server closes a new connection that has not
	// begun HTTP/2. Default: 10 s.
	HandshakeTimeout time.Duration

	// MaxSilentConnections is the maximum number of gRPC connections that have not begun HTTP/2. If
	// a client opens one more, the server closes the one that has been silent longest. If the
	// listener has a maximum of its own, set a smaller value here, or silent connections can
	// exclude all others. Default: 1024.
	MaxSilentConnections int

	// MinLongPolling and MaxLongPolling bound the time for which a receive waits; they override the
	// client's value. Default: 5 s and 20 s. For no minimum,
	// for example in tests, set MinLongPolling to 1 (ns).
	MinLongPolling time.Duration
	MaxLongPolling time.Duration

	// ProducerMaxAttempts and ProducerBackoff are the retry policy that the server pushes to
	// producers. RocketMQ's proxy pushes 3 attempts and 10 ms × 2 up to 1 s. Defaults:
	// 3 and backoff.Default().
	ProducerMaxAttempts int
	ProducerBackoff     *backoff.Exponential

	// Intercept is called around every request; see [Call]. Nil means none.
	Intercept func(ctx context.Context, call Call, next func(context.Context) error) error
}

// Validate returns an error that names all invalid options, or nil. New returns the same error.
func (o Options) Validate() error {
	_, _, err := o.check()
	return err
}

// check returns o with its defaults, or an error that lists all faults.
func (o Options) check() (Options, *rmqpb.Endpoints, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	var advertise *rmqpb.Endpoints
	if o.Advertise != "" {
		var err error
		if advertise, err = requests.ParseEndpoints(o.Advertise); err != nil {
			bad("Advertise is %q: %w", o.Advertise, err)
		}
	}
	for _, h := range o.HTTPHosts {
		if !auth.IsHostName(h) {
			bad("HTTPHosts has %q; give host names without scheme and port, such as broker.example", h)
		}
	}
	for name, d := range map[string]time.Duration{
		"HandshakeTimeout": o.HandshakeTimeout, "MinLongPolling": o.MinLongPolling, "MaxLongPolling": o.MaxLongPolling,
	} {
		if d < 0 {
			bad("%s is %v; it must not be negative, 0 means the default", name, d)
		}
	}
	if o.MaxReceiveSize < 0 {
		bad("MaxReceiveSize is %d; it must not be negative, 0 means %d", o.MaxReceiveSize, defaultMaxReceiveSize)
	}
	for name, n := range map[string]int64{"MaxTransitBytes": o.MaxTransitBytes, "MaxParkedBytes": o.MaxParkedBytes} {
		if n < 0 {
			bad("%s is %d; it must not be negative, 0 means the default", name, n)
		}
	}
	if most := requests.MostOf(o.MaxTransitBytes / 2); o.MaxTransitBytes > 0 && int64(o.MaxReceiveSize) > most {
		bad("MaxReceiveSize is %d; with MaxTransitBytes of %d, give %d or less", o.MaxReceiveSize, o.MaxTransitBytes, most)
	}
	if o.MaxSilentConnections < 0 {
		bad("MaxSilentConnections is %d; it must not be negative, 0 means %d", o.MaxSilentConnections, defaultMaxSilentConnections)
	}
	if o.ProducerMaxAttempts < 0 {
		bad("ProducerMaxAttempts is %d; it must not be negative, 0 means %d", o.ProducerMaxAttempts, defaultProducerMaxAttempts)
	}
	if o.ProducerBackoff == nil {
		d := backoff.Default()
		o.ProducerBackoff = &d
	}
	if err := o.ProducerBackoff.Validate(); err != nil {
		bad("ProducerBackoff: %w", err)
	}
	if o.TLS != nil && len(o.TLS.Certificates) == 0 && o.TLS.GetCertificate == nil && o.TLS.GetConfigForClient == nil {
		bad("TLS has no certificate; set Certificates or GetCertificate, or leave TLS nil for a self-signed one")
	}

	if o.TLS != nil && o.TLS.MinVersion != 0 && o.TLS.MinVersion < tls.VersionTLS12 {
		bad("TLS.MinVersion is %#04x; give tls.VersionTLS12 or more, or 0 for tls.VersionTLS12", o.TLS.MinVersion)
	}

	setDefault(&o.BrokerName, defaultBrokerName)
	setDefault(&o.Version, moduleVersion())
	setDefault(&o.HandshakeTimeout, defaultHandshakeTimeout)
	o = o.WithDefaults()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MinLongPolling > o.MaxLongPolling && o.MaxLongPolling > 0 {
		bad("MinLongPolling is %v and MaxLongPolling is %v; the minimum must not exceed the maximum", o.MinLongPolling, o.MaxLongPolling)
	}
	if err := errors.Join(errs...); err != nil {
		return o, nil, fmt.Errorf("server options: %w", err)
	}
	return o, advertise, nil
}

// WithDefaults returns o with the default of each zero limit of clients: MaxSilentConnections,
// MinLongPolling, MaxLongPolling and ProducerMaxAttempts.
func (o Options) WithDefaults() Options {
	setDefault(&o.MaxSilentConnections, defaultMaxSilentConnections)
	setDefault(&o.MinLongPolling, defaultMinLongPolling)
	setDefault(&o.MaxLongPolling, defaultMaxLongPolling)
	setDefault(&o.ProducerMaxAttempts, defaultProducerMaxAttempts)
	return o
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// hosts returns the host names for which requests without credentials are accepted.
func (o *Options) hosts() auth.Hosts {
	names := o.HTTPHosts
	if o.Advertise != "" {
		names = append(slices.Clip(names), o.Advertise)
	}
	return auth.Hosts{Any: o.AnyHost, Names: names}
}

// certificatesCheck is the shortest time between two checks of the files by handshakes.
const certificatesCheck = 2 * time.Second

// CertificateOptions are the files of [Certificates], all in PEM.
type CertificateOptions struct {
	// CertFile has the certificate and the intermediate certificates, KeyFile its private key. Both
	// are required.
	CertFile string
	KeyFile  string

	// ClientCAFile has the CAs of client certificates. Required unless ClientCertificates is none.
	ClientCAFile string

	// ClientCertificates is the mode of client certificates: "none", "request" (the server verifies
	// a certificate that a client sends) or "require" (it rejects connections without a valid
	// certificate). Default: "none".
	ClientCertificates string

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
		o.ClientCertificates = "none"
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
	case "none":
	case "request", "require":
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
	if c.o.ClientCertificates != "none" {
		text, err := os.ReadFile(c.o.ClientCAFile)
		if err != nil {
			return fmt.Errorf("certificates: %w", err)
		}
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("certificates: %s contains no certificate in PEM", c.o.ClientCAFile)
		}
		config.ClientAuth = tls.VerifyClientCertIfGiven
		if c.o.ClientCertificates == "require" {
			config.ClientAuth = tls.RequireAndVerifyClientCert
		}
		// A resumed session would not check whether the CA is still in the file.
		config.SessionTicketsDisabled = true
	}
	c.failed.Store(nil)
	c.loaded.Store(&certificates{config, of})
	return nil
}

// An AccessConfig has the permissions of clients; see [Options].Access. The zero value allows
// everything. With a key or an anonymous rule, the server rejects each request that no rule allows.
type AccessConfig = access.Config

// A Key is one identity of an [AccessConfig]: RocketMQ's access key, its secrets, the equivalent
// client certificates, and its permissions.
type Key = access.Key

// A Rule allows some actions on the topics and groups whose names match its patterns.
type Rule = access.Rule

// An Action is a permission of a [Rule]: "send" to topics, and recall delayed messages; "receive"
// from topics as groups, and settle the deliveries; "observe" settings, backlogs and metrics; or
// "admin": create, change and delete topics and groups, and observe them.
type Action = access.Action

// A Secret is a text that package fmt, logs and encoders do not show.
type Secret = access.Secret

// NewSecret hides text in a Secret.
func NewSecret(text string) Secret { return access.NewSecret(text) }

// SetAccess replaces the permissions. They apply to all requests that begin afterwards, and to open
// streams: a stream without permission ends with 40100 or 40300, and waiting receives end without
// messages. The error names all faults of c, and no secret. With an error nothing changes.
func (s *Server) SetAccess(c AccessConfig) error {
	var p *access.Policy
	if c.On() {
		var err error
		if p, err = access.New(c); err != nil {
			return fmt.Errorf("access: %w", err)
		}
	}
	s.gate.Begin(p)
	s.sessions.EndPolls(session.ErrNewRules)
	return nil
}

// origin returns a function that returns the origin of a client's request, for package session.
func (s *Server) origin(ctx context.Context, client string) func() string {
	return func() string { return s.gate.Origin(client, requests.PeerAddress(ctx)) }
}
