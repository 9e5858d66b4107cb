package connection

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tidegate/tidegate/cmd/internal/input"
)

// The addresses of tidegate serve without settings.
const (
	defaultGRPC = "127.0.0.1:8081"
	defaultHTTP = "http://127.0.0.1:8082"
	defaultAMQP = "amqp://127.0.0.1:5672" // of a program that speaks AMQP
)

// Variables are the environment variables of client commands. None is a setting of tidegate serve.
var Variables = []string{"TIDEGATE_CONTEXT", "TIDEGATE_SERVER_HTTP", "TIDEGATE_SERVER_GRPC", "TIDEGATE_SERVER_AMQP", "TIDEGATE_ACCESS_KEY", "TIDEGATE_SECRET"}

// Flags are the flags of a connection.
type Flags struct {
	context, http, grpc, amqp, key, secretFile, caCert, cert, certKey string
	tls, skipVerify                                                   bool
}

// Named returns the flags with the name of a context alone.
func Named(context string) Flags { return Flags{context: context} }

// Register adds the flags to a command. A program that does not speak AMQP hides --amqp, whose use
// then names the program that does.
func (f *Flags) Register(set *pflag.FlagSet, amqp bool) {
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
	amqp    Opener      // nil: the program does not speak AMQP
}

// Resolve returns the server of a command: a flag goes before the environment, and the environment
// before the context. It writes a warning if others can read the file of contexts. amqp connects to
// servers of the kind AMQP; nil means that the program cannot.
func Resolve(f Flags, env func(string) string, warnings io.Writer, amqp Opener) (Server, error) {
	path, err := FilePath(env)
	if err != nil {
		return Server{}, err
	}
	file, readable, err := ReadFile(path)
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
func (s *Server) addresses(f Flags, env func(string) string) error {
	flags := [3]string{f.amqp, f.grpc, f.http}
	variables := [3]string{env("TIDEGATE_SERVER_AMQP"), env("TIDEGATE_SERVER_GRPC"), env("TIDEGATE_SERVER_HTTP")}
	if f.context != "" {
		variables = [3]string{}
	}
	speaks := s.Kind == AMQP || s.Name == "" && s.amqp != nil
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
		s.Kind, s.GRPC, s.HTTP = AMQP, "", ""
		s.choose("amqp", &s.AMQP, flags[0], variables[0], "TIDEGATE_SERVER_AMQP", defaultAMQP)
		s.TLS = s.TLS || strings.HasPrefix(s.AMQP, "amqps:")
		return (&Context{Kind: AMQP, AMQP: s.AMQP}).Check("x")
	}
	grpc, http := cmp.Or(flags[1], variables[1]), cmp.Or(flags[2], variables[2])
	if s.Kind == AMQP || s.Kind == RocketMQ && (http != "" || grpc != "" && grpc != s.GRPC) {
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
	if err := input.Marked([]byte(secret)); err != nil {
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
