package artemis

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
	"strconv"
	"strings"
	"sync"
	"time"
)

// startTimeout bounds the start of a broker that is installed. Java needed more than a minute on a
// busy machine; the end of the process ends the wait before.
const startTimeout = 3 * time.Minute

// A Server is an Artemis broker. Several goroutines may call its methods.
type Server struct {
	options   Options
	installed installation
	dir       string
	temporary bool // Close removes dir

	mu   sync.Mutex
	port int
	now  *process // nil: stopped
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
	i, err := install(ctx)
	if err != nil {
		return nil, err
	}
	s := &Server{options: o, installed: i, dir: o.Dir, port: o.Port}
	if s.dir == "" {
		if s.dir, err = os.MkdirTemp("", "tidegate-artemis-"); err != nil {
			return nil, err
		}
		s.temporary = true
	}
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	if err := s.Restart(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Restart starts a broker that was stopped or killed, with the same port and data.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil {
		return errors.New("the broker is running")
	}
	properties, err := s.options.write(s.dir)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "artemis.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	// The process must outlive ctx.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), s.installed.java, "-Xmx512m",
		"-Djava.security.auth.login.config="+filepath.Join(s.dir, "login.config"),
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", // the audit loggers write a line for each message
		"-cp", filepath.Join(s.installed.dir, "classes")+string(os.PathListSeparator)+filepath.Join(s.installed.dir, "lib", "*"),
		"Artemis", s.dir, s.options.acceptor(s.port), properties)
	cmd.Dir, cmd.Stderr = s.dir, log
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
	ready := make(chan int, 1)
	go p.watch(output, ready)
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case s.port = <-ready:
		s.now = p
		return nil
	case <-p.ended:
		err = errors.New("it ended")
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.kill()
	end, _ := os.ReadFile(log.Name())
	return fmt.Errorf("artemis did not start: %w; its log ends with:\n%s", err, end[max(0, len(end)-2000):])
}

// watch reads the output of the process until it ends.
func (p *process) watch(output io.Reader, ready chan<- int) {
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if port, ok := strings.CutPrefix(lines.Text(), "ready "); ok {
			if n, err := strconv.Atoi(port); err == nil {
				ready <- n
			}
		}
	}
	_ = p.cmd.Wait() // the exit status of a killed process has no meaning
	close(p.ended)
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended before
	<-p.ended
}

// Address returns the broker's address, 127.0.0.1:PORT.
func (s *Server) Address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
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

// Kill ends the process of the broker at once, as kill -9 does.
func (s *Server) Kill() { s.end((*process).kill) }

// Stop stops the broker in order. After 10 s it kills the process.
func (s *Server) Stop() {
	s.end(func(p *process) {
		_ = p.input.Close() // the process may have ended
		t := time.NewTimer(10 * time.Second)
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
