// Package javaserver installs servers written in Java, with Maven and once in the user's cache
// directory, and runs them as processes of this program. It is for tests on real servers, and for
// the programs that start one to try a transport.
package javaserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
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

// A Config describes a server on ports of 127.0.0.1. Its class prints one line once it serves,
// "ready PORT …" with all ports, and stops in order at the end of its standard input, so that it does
// not outlive this program. Its standard error is appended to a log in its directory.
type Config struct {
	Program Program

	// Dir is the directory for data and configuration. Empty means a temporary one, which Close
	// removes.
	Dir string

	// Ports are the ports of the server. Zero means a free one, which a restart keeps.
	Ports []int

	// Command writes the configuration into dir and returns the arguments of Java: its options,
	// the class path, the class and the arguments of the class. It is called before each start.
	Command func(i Installation, dir string, ports []int) ([]string, error)

	// Env is the environment of the server. Nil means that of this program.
	Env []string

	// StartTimeout bounds a start without the installation. The end of the process ends the wait
	// before.
	StartTimeout time.Duration

	// StopTimeout bounds an orderly stop.
	StopTimeout time.Duration
}

// A Server is a server that runs, or can be started again. Several goroutines may call its methods.
type Server struct {
	config    Config
	installed Installation
	dir       string
	temporary bool // Close removes dir

	mu    sync.Mutex
	ports []int
	now   *process // nil: stopped
}

// A process is one process of a server.
type process struct {
	cmd   *exec.Cmd
	input io.Closer
	ended chan struct{} // closed after the process has ended
}

// Start installs and starts a server and waits until it serves. The end of ctx ends the
// installation and the wait, not the server.
func Start(ctx context.Context, c Config) (*Server, error) {
	i, err := c.Program.Install(ctx)
	if err != nil {
		return nil, err
	}
	s := &Server{config: c, installed: i, dir: c.Dir, ports: slices.Clone(c.Ports)}
	if s.dir == "" {
		if s.dir, err = os.MkdirTemp("", "tidegate-"+c.name()+"-"); err != nil {
			return nil, err
		}
		s.temporary = true
	}
	if s.dir, err = filepath.Abs(s.dir); err == nil {
		if err = os.MkdirAll(s.dir, 0o755); err == nil {
			err = s.Restart(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// name returns the name of the program in lower case.
func (c Config) name() string { return strings.ToLower(c.Program.Name) }

// Restart starts a server that was stopped or killed, with the same ports and data.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.config
	if s.now != nil {
		return fmt.Errorf("%s is running: stop it before it is started again", c.name())
	}
	for _, port := range s.ports {
		if err := checkFree(port); err != nil {
			return fmt.Errorf("%s cannot use port %d: end the program that listens on it, or use another port: %w", c.name(), port, err)
		}
	}
	args, err := c.Command(s.installed, s.dir, s.ports)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(s.dir, c.name()+".log"), os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), s.installed.Java, args...) // it outlives ctx
	cmd.Dir, cmd.Stderr, cmd.Env = s.dir, log, c.Env
	ownGroup(cmd)
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
	ready := make(chan []int, 1)
	go p.watch(output, len(s.ports), ready)
	ctx, cancel := context.WithTimeoutCause(ctx, c.StartTimeout, fmt.Errorf("it does not serve after %v", c.StartTimeout))
	defer cancel()
	select {
	case s.ports = <-ready:
		s.now = p
		return nil
	case <-p.ended:
		err = errors.New("it ended")
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	p.kill()
	return fmt.Errorf("%s did not start: %w; its log ends with:\n%s", c.name(), err, tail(log))
}

// checkFree returns an error if a program listens on a port: Java needs seconds to find that.
func checkFree(port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}

// tail returns the last 2000 bytes of a file.
func tail(f *os.File) []byte {
	size, _ := f.Seek(0, io.SeekEnd) // what cannot be read is not shown
	text, _ := io.ReadAll(io.NewSectionReader(f, max(0, size-2000), 2000))
	return text
}

// watch reads the output of the process until it ends. It reports the ports of the first line that
// has so many.
func (p *process) watch(output io.Reader, ports int, ready chan<- []int) {
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if list := readyPorts(lines.Text()); len(list) == ports {
			select {
			case ready <- list:
			default:
			}
		}
	}
	_ = p.cmd.Wait() // the exit status of a killed process has no meaning
	close(p.ended)
}

// readyPorts returns the ports of a line "ready PORT …", or nil for another line.
func readyPorts(line string) (ports []int) {
	words := strings.Fields(line)
	if len(words) == 0 || words[0] != "ready" {
		return nil
	}
	for _, w := range words[1:] {
		n, err := strconv.ParseUint(w, 10, 16)
		if err != nil {
			return nil
		}
		ports = append(ports, int(n))
	}
	return ports
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended before
	<-p.ended
}

// Address returns the address of a port, 127.0.0.1:PORT, by its place in Config.Ports.
func (s *Server) Address(i int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.ports[i]))
}

// PID returns the process ID of the server, or 0 if it is not running.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil {
		return 0
	}
	return s.now.cmd.Process.Pid
}

// Kill ends the process of the server at once, as kill -9 does.
func (s *Server) Kill() { s.end((*process).kill) }

// Stop stops the server in order. After StopTimeout it kills the process.
func (s *Server) Stop() {
	s.end(func(p *process) {
		_ = p.input.Close() // the process may have ended
		t := time.NewTimer(s.config.StopTimeout)
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

// Done returns a channel that is closed after the process of the server has ended.
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

// Close kills the server and removes its temporary directory.
func (s *Server) Close() error {
	s.Kill()
	if s.temporary {
		return os.RemoveAll(s.dir)
	}
	return nil
}

// Run waits until ctx ends, stops the server in order and closes it. If the server ends before, Run
// returns an error.
func (s *Server) Run(ctx context.Context) error {
	var err error
	select {
	case <-ctx.Done():
		s.Stop()
	case <-s.Done():
		err = errors.New("the server has ended")
	}
	return errors.Join(err, s.Close())
}

// keys and values of Java's properties files, in which a backslash precedes special characters.
var (
	escapeKey   = strings.NewReplacer(`\`, `\\`, "#", `\#`, "=", `\=`, ":", `\:`, " ", `\ `, "!", `\!`, "\n", `\n`, "\r", `\r`)
	escapeValue = strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`)
)

// Properties returns the text of a properties file of Java.
func Properties(m map[string]string) []byte {
	var b []byte
	for _, k := range slices.Sorted(maps.Keys(m)) {
		b = fmt.Appendf(b, "%s=%s\n", escapeKey.Replace(k), escapeValue.Replace(m[k]))
	}
	return b
}

// Pair returns the function of a flag KEY=VALUE that can be repeated, which sets m[KEY].
func Pair(m map[string]string) func(string) error {
	return func(s string) error {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return fmt.Errorf("%q is not KEY=VALUE", s)
		}
		m[k] = v
		return nil
	}
}
