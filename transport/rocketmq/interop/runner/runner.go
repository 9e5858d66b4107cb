// Package runner starts real Apache RocketMQ servers for tests: one name server, and brokers and
// gRPC proxies in Java processes of their own, which it starts and kills by name. Program
// transport/rocketmq/interop/rocketmq has the same as commands. [Up] starts a set-up, and [Open]
// finds one that another program started.
//
// The package needs a Java of version 8 or later and Maven, on Linux, macOS or another Unix. Maven
// downloads each version of RocketMQ once; the jars are then in the user's cache directory.
//
// The processes outlive the program. Their data, configuration and logs are in a directory of the
// set-up, below the directory for temporary files. All ports are on 127.0.0.1, except for those
// that RocketMQ cannot restrict: the gRPC and remoting ports of a proxy and the replication port of
// a broker. Do not run it on a machine that others can reach.
package runner

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tidegate/tidegate/internal/javaserver"
)

//go:embed pom.xml
var pom []byte

// ErrMissing is the error of [Up] on a machine without Java, without Maven, or with an operating
// system that the runner does not support.
var ErrMissing = javaserver.ErrMissing

// install returns the installation of a version in the user's cache directory, which it creates on
// demand.
func install(ctx context.Context, version string) (javaserver.Installation, error) {
	p := javaserver.Program{Name: "RocketMQ", Version: version, Files: []javaserver.File{{Name: "pom.xml", Text: pom}}, OldestJava: 8}
	return p.Install(ctx)
}

// javaArgs returns the arguments that RocketMQ needs with a version of Java.
func javaArgs(version int) []string {
	if version == 8 {
		return nil
	}
	return []string{
		"--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.nio=ALL-UNNAMED",
		"--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
		"--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
	}
}

// A Setup is a name server with its brokers and proxies. Its methods act on the processes,
// whichever program started them. Methods that change processes wait until no other program changes
// the same set-up. Several goroutines may call its methods, except while one calls Configure.
type Setup struct {
	dir   string
	state state // as at Open or Up
}

// A state is the file of a set-up.
type state struct {
	Options Options
	Ports   ports
}

const stateFile = "setup.json"

// directories returns the directory that has those of all set-ups of this user.
func directories() string {
	return filepath.Join(os.TempDir(), "tidegate-rocketmq-"+strconv.Itoa(os.Getuid()))
}

// setupAt returns the set-up of a port without its state.
func setupAt(port int) *Setup { return &Setup{dir: filepath.Join(directories(), strconv.Itoa(port))} }

// Open returns the set-up that [Up] started with this port.
func Open(port int) (*Setup, error) {
	s := setupAt(port)
	if err := s.read(); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("there is no RocketMQ with the port %d: start one with go run ./transport/rocketmq/interop/rocketmq up --port %d", port, port)
		}
		return nil, err
	}
	return s, nil
}

// Up starts a set-up and waits until it serves or ctx ends; on a busy machine that takes minutes.
// The data that an earlier one with the same port has stored are still there. If the set-up runs
// with the same options, Up starts the processes that are missing. ErrMissing means that the
// machine cannot run RocketMQ.
func Up(ctx context.Context, o Options) (*Setup, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := setupAt(o.Port)
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	installed, err := install(ctx, o.Version)
	if err != nil {
		return nil, err
	}
	if err := s.read(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if slices.ContainsFunc(s.plan(), s.runs) {
		if !reflect.DeepEqual(s.state.Options, o) {
			return nil, fmt.Errorf("a RocketMQ with other options has the port %d: end it first (down --port %d), or use another port", o.Port, o.Port)
		}
	} else {
		for i := range o.Proxies {
			if listening(o.Port + i) {
				return nil, fmt.Errorf("the port %d is in use: end the program that listens on it, or use another port", o.Port+i)
			}
		}
		p, err := o.pickPorts(listening)
		if err != nil {
			return nil, err
		}
		s.state = state{Options: o, Ports: p}
		if err := s.write(); err != nil {
			return nil, err
		}
	}
	if err := s.start(ctx, installed, s.plan()); err != nil {
		return nil, err
	}
	return s, nil
}

// Options returns the options of the set-up, with their defaults.
func (s *Setup) Options() Options { return s.state.Options }

// Dir returns the directory with the data, the configuration and the logs.
func (s *Setup) Dir() string { return s.dir }

// Endpoints returns the gRPC addresses of all proxies, in the order of their names.
func (s *Setup) Endpoints() (all []string) {
	for i := range s.state.Options.Proxies {
		all = append(all, local(s.state.Options.Port+i))
	}
	return all
}

// Processes returns the names of the processes in the order of their start, and the ID of each one
// that runs.
func (s *Setup) Processes() (names []string, pids map[string]int) {
	pids = map[string]int{}
	for _, p := range s.plan() {
		names = append(names, p.name)
		if pid := s.pid(p); pid != 0 {
			pids[p.name] = pid
		}
	}
	return names, pids
}

// Start starts the named processes, or all without names, and waits until they serve. It does
// nothing for those that run. RocketMQ: a proxy ends at its start if a broker is away.
func (s *Setup) Start(ctx context.Context, names ...string) error {
	return s.withNamed(ctx, names, func(chosen []process) error {
		installed, err := install(ctx, s.state.Options.Version)
		if err != nil {
			return err
		}
		return s.start(ctx, installed, chosen)
	})
}

// Kill ends the named processes, or all without names, at once, as kill -9 does.
func (s *Setup) Kill(ctx context.Context, names ...string) error {
	return s.withNamed(ctx, names, func(chosen []process) error { return s.end(ctx, chosen, os.Kill) })
}

// Stop ends the named processes, or all without names, as the signal TERM does: they finish their
// requests and close their files. It waits for their end, at most until ctx ends; then they still
// run.
func (s *Setup) Stop(ctx context.Context, names ...string) error {
	return s.withNamed(ctx, names, func(chosen []process) error { return s.end(ctx, chosen, syscall.SIGTERM) })
}

// Wipe kills all processes and removes the directory of the set-up.
func (s *Setup) Wipe(ctx context.Context) error {
	return s.withNamed(ctx, nil, func(chosen []process) error {
		if err := s.end(ctx, chosen, os.Kill); err != nil {
			return err
		}
		return os.RemoveAll(s.dir)
	})
}

// Topic creates or changes a topic on all brokers. kind is one of RocketMQ's types, for example
// "NORMAL", in upper or lower case. queues is their number on each broker; 0 means 8.
func (s *Setup) Topic(ctx context.Context, name, kind string, queues int) error {
	r, err := topicRequest(name, kind, queues)
	if err != nil {
		return err
	}
	return s.all(ctx, "topic "+name, r)
}

// Group creates or changes a consumer group on all brokers.
func (s *Setup) Group(ctx context.Context, name string, g Group) error {
	r, err := groupRequest(name, g)
	if err != nil {
		return err
	}
	return s.all(ctx, "group "+name, r)
}

// Configure changes settings of all brokers while they run, and keeps the changes for their next
// start. RocketMQ reads many settings only at the start of a broker; recallMessageEnable is one that
// it reads with each request.
func (s *Setup) Configure(ctx context.Context, settings map[string]string) error {
	if faults := settingFaults(settings); faults != nil {
		return fmt.Errorf("rocketmq: %s", strings.Join(faults, "; "))
	}
	return s.withNamed(ctx, nil, func([]process) error {
		if err := s.all(ctx, "settings", configRequest(settings)); err != nil {
			return err
		}
		changed := map[string]string{}
		maps.Copy(changed, s.state.Options.Broker)
		maps.Copy(changed, settings)
		s.state.Options.Broker = changed
		return s.write()
	})
}

// NameServer returns the address of the name server, for mqadmin's option -n.
func (s *Setup) NameServer() string { return local(s.state.Ports.NameServer) }

// Mqadmin runs a command of RocketMQ's mqadmin with its arguments, and returns its output. mqadmin
// exits with 0 after most failures, so the output has to be read.
func (s *Setup) Mqadmin(ctx context.Context, args ...string) (string, error) {
	i, err := install(ctx, s.state.Options.Version)
	if err != nil {
		return "", err
	}
	home := "-Duser.home=" + filepath.Join(s.dir, "mqadmin") // for its logs
	class := []string{home, "-cp", i.ClassPath(), "org.apache.rocketmq.tools.command.MQAdminStartup"}
	cmd := exec.CommandContext(ctx, i.Java, slices.Concat(javaArgs(i.Version), class, args)...)
	cmd.Dir, cmd.Env = s.dir, append(environment(), "ROCKETMQ_HOME="+s.dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("mqadmin %s: %w\n%s", strings.Join(args, " "), cmp.Or(context.Cause(ctx), err), out)
	}
	return string(out), nil
}

// all sends a request to all brokers.
func (s *Setup) all(ctx context.Context, subject string, r request) error {
	for i, port := range s.state.Ports.Brokers {
		if _, err := ask(ctx, port, r); err != nil {
			return fmt.Errorf("%s: %s: %w", subject, brokerName(i), err)
		}
	}
	return nil
}

// read reads the state; write writes it.
func (s *Setup) read() error {
	b, err := os.ReadFile(filepath.Join(s.dir, stateFile))
	if err != nil {
		return err
	}
	var on state
	if err := json.Unmarshal(b, &on); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(s.dir, stateFile), err)
	}
	if s.state.Options.Version == "" {
		s.state = on
	}
	return nil
}

func (s *Setup) write() error {
	b, err := json.MarshalIndent(s.state, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.dir, stateFile), b, 0o600)
}

// plan returns the processes; none without a state.
func (s *Setup) plan() []process {
	if s.state.Options.Version == "" {
		return nil
	}
	return s.state.Options.plan(s.dir, s.state.Ports)
}

// named returns the processes with the names, or all without names, in the order of their start.
func (s *Setup) named(names []string) ([]process, error) {
	list := s.plan()
	var known []string
	for _, p := range list {
		known = append(known, p.name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("there is no process %s, only %s; without --cluster the broker runs within %s", name, strings.Join(known, ", "), proxyName(0))
		}
	}
	if len(names) == 0 {
		return list, nil
	}
	return slices.DeleteFunc(list, func(p process) bool { return !slices.Contains(names, p.name) }), nil
}

// withNamed calls work with the named processes, while no other program changes the set-up.
func (s *Setup) withNamed(ctx context.Context, names []string, work func([]process) error) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.read(); err != nil {
		return err
	}
	chosen, err := s.named(names)
	if err != nil {
		return err
	}
	return work(chosen)
}

// lock waits until no other program changes the set-up. The lock is beside the directory, which
// Wipe removes.
func (s *Setup) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(s.dir), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(s.dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = until(ctx, func() (bool, error) { return tryLock(f) })
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("wait for another program that changes the RocketMQ in %s: %w", s.dir, err)
	}
	return func() { _ = f.Close() }, nil
}

// until calls done every 100 ms until it returns true or an error, or ctx ends.
func until(ctx context.Context, done func() (bool, error)) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// start starts those processes that do not run, and waits until all of them serve. Processes of one
// kind start at the same time. If one does not serve, start kills those that it has started.
func (s *Setup) start(ctx context.Context, i javaserver.Installation, list []process) (err error) {
	var started []process
	ended := map[string]<-chan struct{}{} // by the names of those in started
	defer func() {
		if err != nil {
			_ = s.end(context.WithoutCancel(ctx), started, os.Kill) // err is the cause
		}
	}()
	for len(list) > 0 {
		kind := list[0].class
		n := slices.IndexFunc(list, func(p process) bool { return p.class != kind })
		if n < 0 {
			n = len(list)
		}
		for _, p := range list[:n] {
			if s.runs(p) {
				continue
			}
			if ended[p.name], err = s.launch(ctx, i, p); err != nil {
				return named(p.name, err)
			}
			started = append(started, p)
		}
		for _, p := range list[:n] {
			if err := s.await(ctx, p, ended[p.name]); err != nil {
				return named(p.name, err)
			}
		}
		list = list[n:]
	}
	return nil
}

// launch starts a process. It returns a channel that is closed at the end of the process.
func (s *Setup) launch(ctx context.Context, i javaserver.Installation, p process) (<-chan struct{}, error) {
	for name, text := range p.files {
		file := filepath.Join(s.dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	out, err := os.Create(s.output(p))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	args := slices.Concat(javaArgs(i.Version), []string{
		s.mark(p), "-Xmx" + p.heap, "-XX:MaxDirectMemorySize=1g",
		"-Duser.home=" + filepath.Join(s.dir, p.name), "-cp", i.ClassPath(), p.class,
	}, p.args)
	cmd := exec.CommandContext(context.WithoutCancel(ctx), i.Java, args...) // it outlives ctx
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, out, out
	cmd.Env = append(environment(), "ROCKETMQ_HOME="+s.dir, "RMQ_PROXY_HOME="+s.dir)
	detach(cmd)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // else the process stays as a zombie; the exit status of a killed one has no meaning
		close(ended)
	}()
	if err := os.WriteFile(s.pidFile(p), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		_ = cmd.Process.Kill() // nothing else can find it; err is the cause
		return nil, err
	}
	return ended, nil
}

// environment returns the environment without the variables that change RocketMQ or Java.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{"NAMESRV_ADDR", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "ROCKETMQ_HOME", "RMQ_PROXY_HOME"}, name)
	})
}

// await waits until a process serves. ended is closed when it ends; nil if another program has
// started it.
func (s *Setup) await(ctx context.Context, p process, ended <-chan struct{}) error {
	err := until(ctx, func() (bool, error) {
		select {
		case <-ended:
			return false, errors.New("the process ended")
		default:
		}
		if ended == nil && !s.runs(p) {
			return false, errors.New("the process ended")
		}
		return s.serves(ctx, p), nil
	})
	if err == nil {
		return nil
	}
	out, _ := os.ReadFile(s.output(p))
	return fmt.Errorf("it does not serve: %w; its logs are in %s, and its output ends with:\n%s", err, filepath.Join(s.dir, p.name), out[max(0, len(out)-3000):])
}

func (s *Setup) serves(ctx context.Context, p process) bool {
	if p.listens != 0 && !listening(p.listens) || p.grpc != 0 && !speaksHTTP2(p.grpc) {
		return false
	}
	for _, port := range p.brokers {
		permission := cmp.Or(s.state.Options.Broker["brokerPermission"], "6") // read and write
		if !registered(ctx, s.state.Ports.NameServer, port, permission) {
			return false
		}
	}
	return true
}

// killLimit bounds the end of killed processes.
const killLimit = 30 * time.Second

// end sends a signal to each process and waits until all have ended.
func (s *Setup) end(ctx context.Context, list []process, signal os.Signal) error {
	if signal == os.Kill {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, killLimit)
		defer cancel()
	}
	signalled := map[int]bool{}
	err := until(ctx, func() (ended bool, err error) {
		ended = true
		for _, p := range list {
			pid := s.pid(p)
			if pid == 0 {
				continue
			}
			ended = false
			if running, err := os.FindProcess(pid); err == nil && !signalled[pid] {
				_ = running.Signal(signal) // it may have ended before
				signalled[pid] = true
			}
		}
		return ended, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the end of the processes in %s: %w", s.dir, err)
	}
	return nil
}

func (s *Setup) output(p process) string  { return filepath.Join(s.dir, p.name+".out") }
func (s *Setup) pidFile(p process) string { return filepath.Join(s.dir, p.name+".pid") }

// mark is an argument of Java that no other process has. A process ID can be that of another
// program later.
func (s *Setup) mark(p process) string {
	return "-Dtidegate.rocketmq=" + filepath.Join(s.dir, p.name)
}

func (s *Setup) runs(p process) bool { return s.pid(p) != 0 }

// pid returns the ID of a process, or 0 if it does not run.
func (s *Setup) pid(p process) int {
	b, err := os.ReadFile(s.pidFile(p))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil {
		return 0
	}
	if runtime.GOOS == "linux" {
		line, err := os.ReadFile("/proc/" + string(b) + "/cmdline")
		switch {
		case err != nil:
			return 0
		case slices.Contains(strings.Split(string(line), "\x00"), s.mark(p)), len(line) == 0 && exits(pid):
			return pid
		}
		return 0
	}
	// A root context, because ps does not wait.
	line, err := exec.CommandContext(context.Background(), "ps", "-ww", "-o", "command=", "-p", string(b)).Output()
	if err == nil && strings.Contains(string(line), s.mark(p)+" ") {
		return pid
	}
	return 0
}

// exits reports whether a process without a command line still has open ports. Linux removes the
// memory of a process that ends before its files, which takes seconds for Java on a busy machine. A
// process that its parent has not awaited stays as a zombie with one thread.
func exits(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid)
	threads, err := os.ReadDir(dir + "/task")
	if err != nil {
		return false
	}
	stat, err := os.ReadFile(dir + "/stat")
	_, state, ok := strings.Cut(string(stat), ") ")
	return err == nil && ok && (len(threads) > 1 || !strings.HasPrefix(state, "Z"))
}

// dial connects to a port within a second.
func dial(port int) (net.Conn, error) {
	d := net.Dialer{Timeout: time.Second}
	return d.DialContext(context.Background(), "tcp", local(port)) // its timeout bounds it
}

// listening reports whether a program accepts connections on a port.
func listening(port int) bool {
	c, err := dial(port)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// speaksHTTP2 reports whether the program on a port responds to the preface of HTTP/2 with a frame
// of type SETTINGS.
func speaksHTTP2(port int) bool {
	c, err := dial(port)
	if err != nil {
		return false
	}
	defer c.Close()
	const settings = 4
	var header [9]byte
	_ = c.SetDeadline(time.Now().Add(2 * time.Second)) // a failure shows in the read
	if _, err := c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
		return false
	}
	n, _ := c.Read(header[:])
	return n > 3 && header[3] == settings
}

func named(name string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return err
}
