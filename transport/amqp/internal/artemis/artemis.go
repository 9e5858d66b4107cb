// Package artemis starts a real Apache ActiveMQ Artemis broker, for tests and for the program
// transport/amqp/artemis. The broker runs in a Java process of its own and listens on 127.0.0.1
// only. It ends with the process that started it.
//
// The package needs a JDK of version 17 or later and Maven. Maven downloads the broker once, into
// the user's cache directory.
package artemis

import (
	"context"
	_ "embed"
	"path/filepath"
	"time"

	"github.com/tidegate/tidegate/internal/javaserver"
)

var (
	//go:embed java/Artemis.java
	source []byte
	//go:embed java/pom.xml
	pom []byte
)

var program = javaserver.Program{
	Name: "Artemis", Files: []javaserver.File{{Name: "pom.xml", Text: pom}, {Name: "Artemis.java", Text: source}}, Source: "Artemis.java", OldestJava: 17,
}

const (
	startTimeout = 3 * time.Minute // Java needed more than a minute on a busy machine
	stopTimeout  = 10 * time.Second
)

// A Server is an Artemis broker. Several goroutines may call its methods.
type Server struct{ *javaserver.Server }

// Start installs and starts a broker and waits until it serves. The end of ctx ends the
// installation and the wait, not the broker.
func Start(ctx context.Context, o Options) (*Server, error) {
	s, err := javaserver.Start(ctx, javaserver.Config{
		Program: program, Dir: o.Dir, Ports: []int{o.Port}, Command: o.command, StartTimeout: startTimeout, StopTimeout: stopTimeout,
	})
	if err != nil {
		return nil, err
	}
	return &Server{s}, nil
}

// command writes the configuration into dir and returns the arguments of Java.
func (o Options) command(i javaserver.Installation, dir string, ports []int) ([]string, error) {
	properties, err := o.write(dir)
	return []string{
		"-Xmx512m",
		"-Djava.security.auth.login.config=" + filepath.Join(dir, "login.config"),
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", // the audit loggers write a line for each message
		"-cp", i.ClassPath(), "Artemis", dir, o.acceptor(ports[0]), properties,
	}, err
}

// Address returns the broker's address, 127.0.0.1:PORT.
func (s *Server) Address() string { return s.Server.Address(0) }
