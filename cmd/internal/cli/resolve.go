package cli

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/internal/httpapi"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// The addresses of tidegate serve without settings.
const (
	defaultGRPC = "127.0.0.1:8081"
	defaultHTTP = "http://127.0.0.1:8082"
)

// Variables are the environment variables of client commands. None is a setting of tidegate serve.
var Variables = []string{"TIDEGATE_CONTEXT", "TIDEGATE_SERVER_HTTP", "TIDEGATE_SERVER_GRPC", "TIDEGATE_SERVER_AMQP", "TIDEGATE_SERVER_PULSAR", "TIDEGATE_ACCESS_KEY", "TIDEGATE_SECRET"}

// flags are the flags of a connection.
type flags struct {
	context, http, grpc, key, secretFile, caCert, cert, certKey string
	foreign                                                     [len(systems)]string // addresses
	tls, skipVerify                                             bool
}

// Register adds the flags to a command. A program hides the flags of the foreign servers that it
// does not reach; their use then names the program that does.
func (f *flags) Register(set *pflag.FlagSet, programs map[string]*Foreign) {
	set.StringVar(&f.context, "context", "", "`name` of a context ('tidegate context list')")
	set.StringVar(&f.http, "http", "", "`URL` of the broker's HTTP API (default "+defaultHTTP+")")
	set.StringVar(&f.grpc, "grpc", "", "`host:port` of the broker or RocketMQ proxy (default "+defaultGRPC+")")
	for i := range systems {
		s := &systems[i]
		set.StringVar(&f.foreign[i], s.kind, "", "`URL` of "+s.product+", "+s.schemes()+" (default "+s.standard+")")
		set.Lookup(s.kind).Hidden = programs[s.kind] == nil
	}
	set.StringVar(&f.key, "access-key", "", "access `key`; its secret is never an argument")
	of := "the access key"
	if programs[pulsar] != nil {
		of += "; on a Pulsar without --access-key, with the token"
	}
	set.StringVar(&f.secretFile, "secret-file", "", "`file` with the secret of "+of)
	set.BoolVar(&f.tls, "tls", false, "use TLS for --grpc")
	set.StringVar(&f.caCert, "cacert", "", "`file` with the certificates to trust; implies --tls")
	set.StringVar(&f.cert, "cert", "", "`file` with the client certificate; implies --tls")
	set.StringVar(&f.certKey, "cert-key", "", "`file` with the key of the client certificate")
	set.BoolVar(&f.skipVerify, "tls-skip-verify", false, "accept any certificate; implies --tls")
}

// A Server is a server with the sources of its values.
type Server struct {
	Context               // the values in effect
	Name    string        // of the context; empty without one
	Sources [][3]string   // name, value and source of each value that is set
	Timeout time.Duration // of one response; 0 means that of the transport

	secret   string              // from the environment
	programs map[string]*Foreign // the foreign servers that the program reaches, by their kind
}

// resolve returns the server of a command: a flag goes before the environment, and the environment
// before the context. It writes a warning if others can read the file of contexts. programs are the
// foreign servers that the program reaches, by their kind.
func resolve(f flags, env func(string) string, warnings io.Writer, programs map[string]*Foreign) (Server, error) {
	path, err := filePath(env)
	if err != nil {
		return Server{}, err
	}
	file, readable, err := readFile(path)
	if err != nil {
		return Server{}, err
	}
	if readable {
		fmt.Fprintf(warnings, "tidegate: other users can read %s; run chmod 600 on it\n", path)
	}
	s := Server{programs: programs}
	var source string
	switch {
	case f.context != "":
		s.Name, source = f.context, "--context"
	case env("TIDEGATE_CONTEXT") != "":
		s.Name, source = env("TIDEGATE_CONTEXT"), "TIDEGATE_CONTEXT"
	default:
		s.Name, source = file.Current, path
	}
	if s.Name != "" {
		if s.Context, err = file.Get(s.Name); err != nil {
			return Server{}, fmt.Errorf("%w (the name is from %s)", err, source)
		}
		s.note("context", s.Name, source)
	}
	if err := s.addresses(f, env); err != nil {
		return Server{}, err
	}
	s.choose("access-key", &s.Key, f.key, env("TIDEGATE_ACCESS_KEY"), "TIDEGATE_ACCESS_KEY", "")
	if f.secretFile == "" {
		s.secret = env("TIDEGATE_SECRET")
	}
	if s.secret != "" {
		s.note("secret", "(hidden)", "TIDEGATE_SECRET")
	} else {
		s.choose("secret-file", &s.SecretFile, f.secretFile, "", "", "")
		if len(s.SecretCommand) > 0 && s.SecretFile == "" {
			s.note("secret-command", strings.Join(s.SecretCommand, " "), "context "+s.Name)
		}
	}
	s.choose("cacert", &s.CACert, f.caCert, "", "", "")
	s.choose("cert", &s.Cert, f.cert, "", "", "")
	s.choose("cert-key", &s.CertKey, f.certKey, "", "", "")
	s.SkipVerify = s.SkipVerify || f.skipVerify
	s.TLS = s.TLS || f.tls || s.SkipVerify || s.CACert != "" || s.Cert != ""
	if s.TLS {
		s.note("tls", "true", "flags or context")
	}
	return s, nil
}

// given are the addresses of one source.
type given struct {
	foreign    [len(systems)]string
	grpc, http string
}

// chosen returns the index of the foreign system that a source names, -1 for tidegate and RocketMQ,
// and none without an address. Addresses of two kinds are an error.
func (g *given) chosen() (system int, err error) {
	const none = len(systems)
	system = none
	if first := cmp.Or(g.grpc, g.http); first != "" {
		system = -1
	}
	for i, address := range g.foreign {
		switch {
		case address == "":
		case system == -1:
			return none, fmt.Errorf("%s is given beside the address %s; remove one of them", address, cmp.Or(g.grpc, g.http))
		case system != none:
			return none, fmt.Errorf("%s is given beside the address %s; remove one of them", address, g.foreign[system])
		default:
			system = i
		}
	}
	return system, nil
}

// addresses chooses the addresses. The first of the flags, the environment and the context that has
// one decides between a foreign system and the protocols of tidegate and RocketMQ. A context that
// --context names goes before the environment. The kind of a context, with its namespace and
// naming, holds for its own addresses only.
func (s *Server) addresses(f flags, env func(string) string) error {
	flags := given{f.foreign, f.grpc, f.http}
	variables := given{grpc: env("TIDEGATE_SERVER_GRPC"), http: env("TIDEGATE_SERVER_HTTP")}
	for i := range systems {
		variables.foreign[i] = env(systems[i].variable)
	}
	if f.context != "" {
		variables = given{}
	}
	kind := s.Kind
	if s.Name == "" && s.programs[systems[0].kind] != nil {
		kind = systems[0].kind
	}
	for _, g := range []*given{&variables, &flags} {
		for i := range systems {
			if g.foreign[i] == "" && systems[i].has(g.grpc) {
				g.foreign[i], g.grpc = g.grpc, ""
			}
		}
		switch i, err := g.chosen(); {
		case err != nil:
			return err
		case i == -1:
			if kind = s.Kind; s.foreign() != nil {
				kind = ""
			}
		case i < len(systems):
			kind = systems[i].kind
		}
	}
	if kind != s.Kind && (kind == pulsar || s.Kind == pulsar) {
		s.Namespace, s.Naming = "", ""
	}
	s.Kind = kind
	for i := range systems {
		f := &systems[i]
		if f.kind != kind {
			*s.address(f) = ""
			continue
		}
		s.GRPC, s.HTTP = "", ""
		s.choose(f.kind, s.address(f), flags.foreign[i], variables.foreign[i], f.variable, f.standard)
		s.TLS = s.TLS || f.encrypted(*s.address(f))
	}
	if f := s.foreign(); f != nil {
		return f.check(*s.address(f))
	}
	grpc, http := cmp.Or(flags.grpc, variables.grpc), cmp.Or(flags.http, variables.http)
	if s.Kind == connectionRocketMQ && (http != "" || grpc != "" && grpc != s.GRPC) {
		s.Kind, s.GRPC = "", ""
	}
	s.choose("http", &s.HTTP, flags.http, variables.http, "TIDEGATE_SERVER_HTTP", defaultHTTP)
	s.choose("grpc", &s.GRPC, flags.grpc, variables.grpc, "TIDEGATE_SERVER_GRPC", defaultGRPC)
	return nil
}

func (s *Server) note(name, value, source string) {
	s.Sources = append(s.Sources, [3]string{name, value, source})
}

// choose sets one value from the first source that has it.
func (s *Server) choose(name string, at *string, flag, variable, variableName, standard string) {
	source := "context " + s.Name
	switch {
	case flag != "":
		*at, source = flag, "--"+name
	case variable != "":
		*at, source = variable, variableName
	case *at == "" && standard != "" && s.Name == "":
		*at, source = standard, "default"
	}
	if *at != "" {
		s.note(name, *at, source)
	}
}

// Elsewhere reports whether the address for HTTP may be that of another server: the address for
// gRPC is from the flags or the environment, and that for HTTP from a source behind it.
func (s Server) Elsewhere() bool {
	rank := map[string]int{}
	for _, v := range s.Sources {
		switch v[2] {
		case "--" + v[0]:
			rank[v[0]] = 2
		case "TIDEGATE_SERVER_GRPC", "TIDEGATE_SERVER_HTTP":
			rank[v[0]] = 1
		}
	}
	return rank["grpc"] > rank["http"]
}

// Secret returns the secret of the access key: from TIDEGATE_SECRET, the file or the command. It
// is empty without an access key, except on a Pulsar, whose token is a secret without a key.
func (s Server) Secret(ctx context.Context) (string, error) {
	of := fmt.Sprintf("the secret of key %q", s.Key)
	if s.Key == "" {
		if of = "the token"; s.Kind != pulsar {
			return "", nil
		}
	}
	var secret string
	switch {
	case s.secret != "":
		secret = s.secret
	case s.SecretFile != "":
		text, err := os.ReadFile(expand(s.SecretFile))
		if err != nil {
			return "", fmt.Errorf("%s cannot be read: %w", of, err)
		}
		secret = string(text)
	case len(s.SecretCommand) > 0:
		var stderr bytes.Buffer
		c := exec.CommandContext(ctx, s.SecretCommand[0], s.SecretCommand[1:]...)
		c.Stderr = &stderr
		text, err := c.Output()
		if err != nil {
			return "", fmt.Errorf("secret_command of %s failed: %s: %w: %s", strings.TrimPrefix(of, "the secret of "), s.SecretCommand[0], err, strings.TrimSpace(stderr.String()))
		}
		secret = string(text)
	case s.Key == "":
		return "", nil // neither a token nor a name and password
	default:
		return "", fmt.Errorf("key %q has no secret: set TIDEGATE_SECRET, --secret-file, or secret_file or secret_command of the context", s.Key)
	}
	secret = strings.TrimRight(secret, "\r\n")
	if secret == "" {
		return "", errors.New(of + " is empty")
	}
	if err := declare.Marked([]byte(secret)); err != nil {
		return "", fmt.Errorf("%s: %w", of, err)
	}
	return secret, nil
}

// expand replaces a leading ~/ by the home directory.
func expand(path string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	return path
}

// WithoutHTTP reports whether servers of this kind have no HTTP API for administration.
func (s Server) WithoutHTTP() bool { return s.Kind == connectionRocketMQ || s.foreign() != nil }

// Address returns the address for messages.
func (s Server) Address() string { return cmp.Or(s.AMQP, s.Pulsar, s.GRPC) }

// access returns the credentials and the TLS settings of the HTTP API. The error of a server
// without one is errNoHTTP.
func (s Server) access(ctx context.Context) (c tidegate.Credentials, config *tls.Config, err error) {
	if s.WithoutHTTP() || s.HTTP == "" {
		return c, nil, errNoHTTP
	}
	if c.SecretKey, err = s.Secret(ctx); err == nil {
		config, err = s.TLSConfig()
	}
	c.AccessKey = s.Key
	return c, config, err
}

// Admin returns a client of the server's HTTP API. The error of a server without one is errNoHTTP.
func (s Server) Admin(ctx context.Context, maxAttempts int) (*admin.Client, error) {
	credentials, config, err := s.access(ctx)
	if err != nil {
		return nil, err
	}
	return admin.New(s.HTTP, admin.Options{Credentials: credentials, TLS: config, MaxAttempts: maxAttempts})
}

// Raw returns a client for any request of the server's HTTP API, with the credentials.
func (s Server) Raw(ctx context.Context) (*httpapi.Client, error) {
	credentials, config, err := s.access(ctx)
	if err != nil {
		return nil, err
	}
	return httpapi.New(s.HTTP, httpapi.Options{Op: "tidegate api", TLS: config, Credentials: credentials})
}

// Date returns the time of the server in whole seconds, from the header of a response. It needs no
// credentials.
func (s Server) Date(ctx context.Context) (time.Time, error) {
	if s.WithoutHTTP() || s.HTTP == "" {
		return time.Time{}, errNoHTTP
	}
	config, err := s.TLSConfig()
	if err != nil {
		return time.Time{}, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(s.HTTP, "/")+"/healthz", nil)
	if err != nil {
		return time.Time{}, err
	}
	resp, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment}}).Do(r)
	if err != nil {
		return time.Time{}, err
	}
	_ = resp.Body.Close() // only the header counts
	return http.ParseTime(resp.Header.Get("Date"))
}

// errNoHTTP is the error of a server without HTTP administration.
var errNoHTTP = errors.New("the server has no HTTP API for administration")

// A Transport is a connection for messages. Servers of one kind may support more: a command that
// needs more uses a type assertion.
type Transport interface {
	transport.Transport
	transport.Pinger
	transport.LaneSender
}

// Transport returns a connection for messages. Close ends it.
func (s Server) Transport(ctx context.Context) (Transport, error) {
	if err := s.Supported(); err != nil {
		return nil, err
	}
	if f := s.support(); f != nil {
		return f.Open(ctx, s)
	}
	if s.GRPC == "" {
		return nil, fmt.Errorf("context %q has no grpc address: give --grpc, or add it to the context", s.Name)
	}
	secret, err := s.Secret(ctx)
	if err != nil {
		return nil, err
	}
	o := rocketmq.Options{
		Namespace:   s.Namespace,
		Credentials: tidegate.Credentials{AccessKey: s.Key, SecretKey: secret},
	}
	if s.TLS {
		if o.TLS, err = s.TLSConfig(); err != nil {
			return nil, err
		}
	}
	return rocketmq.New(s.GRPC, o)
}

// TLSConfig returns the TLS settings of the server.
func (s Server) TLSConfig() (*tls.Config, error) {
	c := &tls.Config{InsecureSkipVerify: s.SkipVerify} //nolint:gosec // the user asked for it by name
	if s.CACert != "" {
		text, err := os.ReadFile(expand(s.CACert))
		if err != nil {
			return nil, fmt.Errorf("cacert cannot be read: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("cacert %s has no certificate in PEM form", s.CACert)
		}
	}
	switch {
	case s.Cert != "" && s.CertKey != "":
		pair, err := tls.LoadX509KeyPair(expand(s.Cert), expand(s.CertKey))
		if err != nil {
			return nil, fmt.Errorf("cert and cert-key cannot be used: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	case s.Cert != "" || s.CertKey != "":
		return nil, errors.New("cert and cert-key belong together: give both")
	}
	return c, nil
}

// CertificateDays returns the number of whole days for which the certificate of the server is still
// valid; negative after its end. The server is that of the HTTP API, or without it that of the
// messages. A server without TLS is an error.
func (s Server) CertificateDays(ctx context.Context) (int64, error) {
	address := s.GRPC
	if u, err := url.Parse(s.HTTP); err == nil && u.Scheme == "https" {
		address = u.Host
		if u.Port() == "" {
			address = net.JoinHostPort(u.Hostname(), "443")
		}
	} else if !s.TLS {
		return 0, fmt.Errorf("%s has no certificate: the connection is without TLS", cmp.Or(s.GRPC, s.HTTP))
	}
	config, err := s.TLSConfig()
	if err != nil {
		return 0, err
	}
	config.InsecureSkipVerify = true //nolint:gosec // an expired certificate is an answer here, not a failure
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	if err != nil {
		return 0, &tidegate.Error{Op: "check the certificate", Endpoint: address, Err: fmt.Errorf("%w: %w", tidegate.ErrUnavailable, err)}
	}
	defer func() { _ = conn.Close() }() // the certificate is read
	first := conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
	return int64(math.Floor(time.Until(first.NotAfter).Hours() / 24)), nil
}

// local reports whether an address is certainly of this machine.
func local(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Host returns the host and port of the address for messages, the first one of several.
func (s Server) Host() string {
	if hosts := s.Hosts(); len(hosts) > 0 {
		return hosts[0]
	}
	return s.GRPC
}
