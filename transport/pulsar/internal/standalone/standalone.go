// Package standalone starts a real Apache Pulsar, for tests and for the program
// transport/pulsar/standalone. Broker, bookie and metadata store run in one Java process, without
// function workers and stream storage. The process listens on 127.0.0.1 only, on the ports of the
// broker and of its HTTP API; the bookie has no port. It ends with the process that started it.
//
// The package needs a JDK of version 17 or later and Maven. Maven downloads Pulsar 4.0.7 once, about
// 230 MB, into the user's cache directory.
package standalone

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate/internal/javaserver"
)

var (
	//go:embed java/Standalone.java
	source []byte
	//go:embed java/pom.xml
	pom []byte
	//go:embed java/log4j2.xml
	logging []byte
)

var program = javaserver.Program{
	Name:   "Pulsar",
	Files:  []javaserver.File{{Name: "pom.xml", Text: pom}, {Name: "Standalone.java", Text: source}, {Name: "log4j2.xml", Text: logging}},
	Source: "Standalone.java", OldestJava: 17,
}

// Java needed minutes to start on a machine whose processors were busy with other programs, and 7 s
// to stop.
const (
	startTimeout = 10 * time.Minute
	stopTimeout  = time.Minute
)

// A Server is a Pulsar broker. Several goroutines may call its methods.
type Server struct {
	*javaserver.Server
	tls bool
	key []byte // signs tokens; nil without authentication
}

// Start installs and starts a broker and waits until it serves. The end of ctx ends the
// installation and the wait, not the broker.
func Start(ctx context.Context, o Options) (*Server, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	var key []byte
	s, err := javaserver.Start(ctx, javaserver.Config{
		Program: program, Dir: o.Dir, Ports: []int{o.Port, o.WebPort}, Env: environment(os.Environ()), StartTimeout: startTimeout, StopTimeout: stopTimeout,
		Command: func(i javaserver.Installation, dir string, ports []int) (args []string, err error) {
			if key == nil && len(o.SuperUsers) > 0 {
				if key, err = secretKey(dir); err != nil {
					return nil, err
				}
			}
			settings, err := o.write(dir, ports[0], ports[1], key)
			return slices.Concat(o.memory(), javaOptions, []string{
				"-Dlog4j.configurationFile=" + filepath.Join(i.Dir, "log4j2.xml"),
				"-cp", i.ClassPath(), "org.apache.pulsar.Standalone", dir, settings,
			}), err
		},
	})
	if err != nil {
		return nil, err
	}
	return &Server{s, o.Certificate != "", key}, nil
}

// environment returns the variables of an environment without those that change what a broker
// starts: ZooKeeper instead of its metadata store, and a port for metrics.
func environment(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(v string) bool {
		return strings.HasPrefix(v, "PULSAR_") || strings.HasPrefix(v, "OTEL_")
	})
}

// Address returns the broker's address, 127.0.0.1:PORT. With Options.Certificate it is that of TLS.
func (s *Server) Address() string { return s.Server.Address(0) }

// URL returns the service URL for clients, pulsar://127.0.0.1:PORT or, with Options.Certificate,
// pulsar+ssl://127.0.0.1:PORT.
func (s *Server) URL() string {
	if s.tls {
		return "pulsar+ssl://" + s.Address()
	}
	return "pulsar://" + s.Address()
}

// AdminURL returns the URL of the HTTP API, http://127.0.0.1:PORT.
func (s *Server) AdminURL() string { return "http://" + s.Server.Address(1) }

// Token returns a token with which a client authenticates as a role until expires. The zero time
// means that the token does not expire.
func (s *Server) Token(role string, expires time.Time) (string, error) {
	if s.key == nil {
		return "", fmt.Errorf("token for role %q: the broker has no authentication: set Options.SuperUsers", role)
	}
	return token(s.key, role, expires), nil
}
