package connection

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
)

// The addresses of tidegate serve without settings.
const (
	defaultGRPC = "127.0.0.1:8081"
	defaultHTTP = "http://127.0.0.1:8082"
)

// Variables are the environment variables of client commands. None is a setting of tidegate serve.
var Variables = []string{"TIDEGATE_CONTEXT", "TIDEGATE_SERVER_HTTP", "TIDEGATE_SERVER_GRPC", "TIDEGATE_ACCESS_KEY", "TIDEGATE_SECRET"}

// Flags are the flags of a connection.
type Flags struct {
	context, http, grpc, key, secretFile, caCert, cert, certKey string
	tls, skipVerify                                             bool
}

// Named returns the flags with the name of a context alone.
func Named(context string) Flags { return Flags{context: context} }

// Register adds the flags to a command.
func (f *Flags) Register(set *pflag.FlagSet) {
	set.StringVar(&f.context, "context", "", "`name` of a context ('tidegate context list')")
	set.StringVar(&f.http, "http", "", "`URL` of the broker's HTTP API (default "+defaultHTTP+")")
	set.StringVar(&f.grpc, "grpc", "", "`host:port` of the broker or RocketMQ proxy (default "+defaultGRPC+")")
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
}

// Resolve returns the server of a command: a flag goes before the environment, and the environment
// before the context. It writes a warning if others can read the file of contexts.
func Resolve(f Flags, env func(string) string, warnings io.Writer) (Server, error) {
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
	var s Server
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
	s.choose("http", &s.HTTP, f.http, env("TIDEGATE_SERVER_HTTP"), "TIDEGATE_SERVER_HTTP", defaultHTTP)
	s.choose("grpc", &s.GRPC, f.grpc, env("TIDEGATE_SERVER_GRPC"), "TIDEGATE_SERVER_GRPC", defaultGRPC)
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
