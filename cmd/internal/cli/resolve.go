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
	defaultAMQP = "amqp://127.0.0.1:5672" // of a program that speaks AMQP
)

// Variables are the environment variables of client commands. None is a setting of tidegate serve.
var Variables = []string{"TIDEGATE_CONTEXT", "TIDEGATE_SERVER_HTTP", "TIDEGATE_SERVER_GRPC", "TIDEGATE_SERVER_AMQP", "TIDEGATE_ACCESS_KEY", "TIDEGATE_SECRET"}

// flags are the flags of a connection.
type flags struct {
	context, http, grpc, amqp, key, secretFile, caCert, cert, certKey string
	tls, skipVerify                                                   bool
}

// Register adds the flags to a command. A program that does not speak AMQP hides --amqp, whose use
// then names the program that does.
func (f *flags) Register(set *pflag.FlagSet, amqp bool) {
	set.StringVar(&f.context, "context", "", "`name` of a context ('tidegate context list')")
	set.StringVar(&f.http, "http", "", "`URL` of the broker's HTTP API (default "+defaultHTTP+")")
	set.StringVar(&f.grpc, "grpc", "", "`host:port` of the broker or RocketMQ proxy (default "+defaultGRPC+")")
	set.StringVar(&f.amqp, "amqp", "", "`URL` of an ActiveMQ Artemis, amqp://host:port or amqps://host:port (default "+defaultAMQP+")")
	set.Lookup("amqp").Hidden = !amqp
	set.StringVar(&f.key, "access-key", "", "access `key`; its secret is never an argument")
	set.StringVar(&f.secretFile, "secret-file", "", "`file` with the secret of the access key")
	set.BoolVar(&f.tls, "tls", false, "use TLS for --grpc")
	set.StringVar(&f.caCert, "cacert", "", "`file` with the certificates to trust; implies --tls")
	set.StringVar(&f.cert, "cert", "", "`file` with the client certificate; implies --tls")
	set.StringVar(&f.certKey, "cert-key", "", "`file` with the key of the client certificate")
	set.BoolVar(&f.skipVerify, "tls-skip-verify", false, "accept any certificate; implies --tls")
}

// A Server is a server with the sources of its values.
type Server struct {
	Context             // the values in effect
	Name    string      // of the context; empty without one
	Sources [][3]string // name, value and source of each value that is set
	secret  string      // from the environment
	amqp    opener      // nil: the program does not speak AMQP
}

// resolve returns the server of a command: a flag goes before the environment, and the environment
// before the context. It writes a warning if others can read the file of contexts. amqp connects to
// servers of the kind AMQP; nil means that the program cannot.
func resolve(f flags, env func(string) string, warnings io.Writer, amqp opener) (Server, error) {
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
	s := Server{amqp: amqp}
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

// addresses chooses the addresses. The first of the flags, the environment and the context that has
// one decides between AMQP and the protocols of tidegate and RocketMQ. A context that --context
// names goes before the environment. The kind of a context holds for its own addresses only.
func (s *Server) addresses(f flags, env func(string) string) error {
	flags := [3]string{f.amqp, f.grpc, f.http}
	variables := [3]string{env("TIDEGATE_SERVER_AMQP"), env("TIDEGATE_SERVER_GRPC"), env("TIDEGATE_SERVER_HTTP")}
	if f.context != "" {
		variables = [3]string{}
	}
	speaks := s.Kind == amqp || s.Name == "" && s.amqp != nil
	for _, given := range []*[3]string{&variables, &flags} {
		if given[0] == "" && amqpScheme(given[1]) {
			given[0], given[1] = given[1], ""
		}
		if given[0] != "" && given[1]+given[2] != "" {
			return fmt.Errorf("%s is given beside the address %s; remove one of them", given[0], cmp.Or(given[1], given[2]))
		}
		if *given != [3]string{} {
			speaks = given[0] != ""
		}
	}
	if speaks {
		s.Kind, s.GRPC, s.HTTP = amqp, "", ""
		s.choose("amqp", &s.AMQP, flags[0], variables[0], "TIDEGATE_SERVER_AMQP", defaultAMQP)
		s.TLS = s.TLS || strings.HasPrefix(s.AMQP, "amqps:")
		return (&Context{Kind: amqp, AMQP: s.AMQP}).Check("x")
	}
	grpc, http := cmp.Or(flags[1], variables[1]), cmp.Or(flags[2], variables[2])
	if s.Kind == amqp || s.Kind == connectionRocketMQ && (http != "" || grpc != "" && grpc != s.GRPC) {
		s.Kind, s.GRPC = "", ""
	}
	s.AMQP = ""
	s.choose("http", &s.HTTP, flags[2], variables[2], "TIDEGATE_SERVER_HTTP", defaultHTTP)
	s.choose("grpc", &s.GRPC, flags[1], variables[1], "TIDEGATE_SERVER_GRPC", defaultGRPC)
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
// is empty without an access key.
func (s Server) Secret(ctx context.Context) (string, error) {
	if s.Key == "" {
		return "", nil
	}
	var secret string
	switch {
	case s.secret != "":
		secret = s.secret
	case s.SecretFile != "":
		text, err := os.ReadFile(expand(s.SecretFile))
		if err != nil {
			return "", fmt.Errorf("the secret of key %q cannot be read: %w", s.Key, err)
		}
		secret = string(text)
	case len(s.SecretCommand) > 0:
		var stderr bytes.Buffer
		c := exec.CommandContext(ctx, s.SecretCommand[0], s.SecretCommand[1:]...)
		c.Stderr = &stderr
		text, err := c.Output()
		if err != nil {
			return "", fmt.Errorf("secret_command of key %q failed: %s: %w: %s", s.Key, s.SecretCommand[0], err, strings.TrimSpace(stderr.String()))
		}
		secret = string(text)
	default:
		return "", fmt.Errorf("key %q has no secret: set TIDEGATE_SECRET, --secret-file, or secret_file or secret_command of the context", s.Key)
	}
	secret = strings.TrimRight(secret, "\r\n")
	if secret == "" {
		return "", errors.New("the secret of key " + s.Key + " is empty")
	}
	if err := declare.Marked([]byte(secret)); err != nil {
		return "", fmt.Errorf("the secret of key %q: %w", s.Key, err)
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
func (s Server) WithoutHTTP() bool { return s.Kind == connectionRocketMQ || s.Kind == amqp }

// Address returns the address for messages.
func (s Server) Address() string { return cmp.Or(s.AMQP, s.GRPC) }

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

// An opener returns a connection to a server.
type opener func(context.Context, Server) (Transport, error)

// Transport returns a connection for messages. Close ends it.
func (s Server) Transport(ctx context.Context) (Transport, error) {
	if err := s.Supported(); err != nil {
		return nil, err
	}
	if s.Kind == amqp {
		return s.amqp(ctx, s)
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

// An otherProgramError is the error of a program that does not speak AMQP.
type otherProgramError struct{ address string }

func (e *otherProgramError) Error() string {
	return e.address + " is an ActiveMQ Artemis, which needs the program tidegate-amqp"
}

// Hint returns how to install the program.
func (e *otherProgramError) Hint() string {
	return "It has the same commands and uses the same contexts: go install github.com/tidegate/tidegate/cmd/tidegate-amqp@latest"
}

// Is gives the error the exit code of a server that is not supported.
func (e *otherProgramError) Is(target error) bool { return target == errUnsupported }

// Supported returns an error if the program does not reach servers of this kind.
func (s Server) Supported() error {
	if s.Kind == amqp && s.amqp == nil {
		return &otherProgramError{s.AMQP}
	}
	return nil
}

// Host returns the host and port of the address for messages.
func (s Server) Host() string {
	u, err := url.Parse(s.AMQP)
	switch {
	case err != nil || u.Host == "":
		return s.GRPC
	case u.Port() != "":
		return u.Host
	case u.Scheme == "amqps":
		return net.JoinHostPort(u.Hostname(), "5671")
	}
	return net.JoinHostPort(u.Hostname(), "5672")
}
