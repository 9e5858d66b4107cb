// Package standalone starts a real Apache Pulsar, for tests and for the program
// transport/pulsar/standalone. Broker, bookie and metadata store run in one Java process, without
// function workers and stream storage. The process listens on 127.0.0.1 only, on the ports of the
// broker and of its HTTP API; the bookie has no port. It ends with the process that started it.
//
// The package needs a JDK of version 17 or later and Maven. Maven downloads Pulsar 4.0.7 once, about
// 230 MB, into the user's cache directory.
package standalone

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// startTimeout bounds the start of a broker that is installed. Java needed minutes on a machine whose
// processors were busy with other programs; the end of the process ends the wait before.
const startTimeout = 10 * time.Minute

// stopTimeout bounds the stop of a broker, which needed 7 s there.
const stopTimeout = time.Minute

// A Server is a Pulsar broker. Several goroutines may call its methods.
type Server struct {
	options   Options
	installed installation
	dir       string
	temporary bool   // Close removes dir
	key       []byte // signs tokens; nil without authentication

	mu        sync.Mutex
	port, web int
	now       *process // nil: stopped
}

// A process is one Java process of a broker.
type process struct {
	cmd   *exec.Cmd
	input io.Closer
	ended chan struct{} // closed after the process has ended
}

// Start installs and starts a broker and waits until it serves. The end of ctx ends the
// installation and the wait, not the broker.
func Start(ctx context.Context, o Options) (*Server, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	i, err := install(ctx)
	if err != nil {
		return nil, err
	}
	s := &Server{options: o, installed: i, dir: o.Dir, port: o.Port, web: o.WebPort}
	if s.dir == "" {
		if s.dir, err = os.MkdirTemp("", "tidegate-pulsar-"); err != nil {
			return nil, err
		}
		s.temporary = true
	}
	if err := s.begin(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) begin(ctx context.Context) (err error) {
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	if len(s.options.SuperUsers) > 0 {
		if s.key, err = secretKey(s.dir); err != nil {
			return err
		}
	}
	return s.Restart(ctx)
}

// Restart starts a broker that was stopped or killed, with the same ports and data.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil {
		return errors.New("the broker is running")
	}
	for _, port := range []int{s.port, s.web} {
		if err := checkFree(port); err != nil {
			return err
		}
	}
	settings, err := s.options.write(s.dir, s.port, s.web, s.key)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "pulsar.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	// The process must outlive ctx.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), s.installed.java, slices.Concat(s.options.memory(), javaOptions, []string{
		"-Dlog4j.configurationFile=" + filepath.Join(s.installed.dir, "log4j2.xml"),
		"-cp", filepath.Join(s.installed.dir, "classes") + string(os.PathListSeparator) + filepath.Join(s.installed.dir, "lib", "*"),
		"org.apache.pulsar.Standalone", s.dir, settings,
	})...)
	cmd.Dir, cmd.Stderr, cmd.Env = s.dir, log, environment(os.Environ())
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p := &process{cmd: cmd, input: input, ended: make(chan struct{})}
	ready := make(chan [2]int, 1)
	go p.watch(output, ready)
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case ports := <-ready:
		s.port, s.web, s.now = ports[0], ports[1], p
		return nil
	case <-p.ended:
		err = errors.New("it ended")
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.kill()
	end, _ := os.ReadFile(log.Name())
	return fmt.Errorf("pulsar did not start: %w; its log ends with:\n%s", err, end[max(0, len(end)-2000):])
}

// checkFree returns an error if a program listens on a port: Java needs seconds to find that.
func checkFree(port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("pulsar cannot use port %d: end the program that listens on it, or use another port: %w", port, err)
	}
	return l.Close()
}

// environment returns the variables of an environment without those that change what a broker
// starts: ZooKeeper instead of its metadata store, and a port for metrics.
func environment(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(v string) bool {
		return strings.HasPrefix(v, "PULSAR_") || strings.HasPrefix(v, "OTEL_")
	})
}

// watch reads the output of the process until it ends.
func (p *process) watch(output io.Reader, ready chan<- [2]int) {
	for lines := bufio.NewScanner(output); lines.Scan(); {
		var ports [2]int
		if n, _ := fmt.Sscanf(lines.Text(), "ready %d %d", &ports[0], &ports[1]); n == len(ports) {
			ready <- ports
		}
	}
	_ = p.cmd.Wait() // the exit status of a killed process has no meaning
	close(p.ended)
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended before
	<-p.ended
}

// Address returns the broker's address, 127.0.0.1:PORT. With Options.Certificate it is that of TLS.
func (s *Server) Address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
}

// URL returns the service URL for clients, pulsar://127.0.0.1:PORT or, with Options.Certificate,
// pulsar+ssl://127.0.0.1:PORT.
func (s *Server) URL() string {
	if s.options.Certificate != "" {
		return "pulsar+ssl://" + s.Address()
	}
	return "pulsar://" + s.Address()
}

// AdminURL returns the URL of the HTTP API, http://127.0.0.1:PORT.
func (s *Server) AdminURL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(s.web))
}

// PID returns the process ID of the broker, or 0 if it is not running.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil {
		return 0
	}
	return s.now.cmd.Process.Pid
}

// Token returns a token with which a client authenticates as a role until expires. The zero time
// means that the token does not expire.
func (s *Server) Token(role string, expires time.Time) (string, error) {
	if s.key == nil {
		return "", fmt.Errorf("token for role %q: the broker has no authentication: set Options.SuperUsers", role)
	}
	return token(s.key, role, expires), nil
}

// Kill ends the process of the broker at once, as kill -9 does.
func (s *Server) Kill() { s.end((*process).kill) }

// Stop stops the broker in order. After a minute it kills the process.
func (s *Server) Stop() {
	s.end(func(p *process) {
		_ = p.input.Close() // the process may have ended
		t := time.NewTimer(stopTimeout)
		defer t.Stop()
		select {
		case <-p.ended:
		case <-t.C:
			p.kill()
		}
	})
}

func (s *Server) end(how func(*process)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil {
		how(s.now)
		s.now = nil
	}
}

// Done returns a channel that is closed after the process of the broker has ended.
func (s *Server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil {
		c := make(chan struct{})
		close(c)
		return c
	}
	return s.now.ended
}

// Close kills the broker and removes its temporary directory.
func (s *Server) Close() error {
	s.Kill()
	if s.temporary {
		return os.RemoveAll(s.dir)
	}
	return nil
}
