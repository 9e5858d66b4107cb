//go:build unix

package javaserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// TestMain makes the test binary the programs java, javac and mvn too, by the name of a link to it.
func TestMain(m *testing.M) {
	tool := filepath.Base(os.Args[0])
	if tool != "java" && tool != "javac" && tool != "mvn" {
		os.Exit(m.Run())
	}
	if err := toolMain(tool, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// The variables of the environment that configure the tools.
const (
	varVersion = "FAKE_JAVA_VERSION" // that java prints
	varCalls   = "FAKE_CALLS"        // file with a line for each call of mvn and javac
	varOnline  = "FAKE_ONLINE"       // the answer of mvn to a download: "ok" or "only", which needs the network, or "fails"
)

// toolMain is the main function of a tool. As a server, java does what its last argument says:
//   - "serve ARGUMENT…" prints ready with these, and stops at the end of its input;
//   - "deaf" does not stop then;
//   - "mute" does not print ready;
//   - "fail" writes 3000 bytes to the log and ends.
func toolMain(tool string, args []string) error {
	if tool != "java" {
		f, err := os.OpenFile(os.Getenv(varCalls), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		_, _ = fmt.Fprintln(f, tool, strings.Join(args, " "))
		online := os.Getenv(varOnline)
		switch offline := slices.Contains(args, "--offline"); {
		case tool == "javac":
			return os.Mkdir("classes", 0o700)
		case online == "fails" || online == "only" && offline:
			fmt.Println("no repository has it, offline:", offline)
			return errors.New("BUILD FAILURE")
		}
		return os.Mkdir("lib", 0o700)
	}
	if args[0] == "-version" {
		fmt.Fprintf(os.Stderr, "openjdk version %q 2025-04-15\n", os.Getenv(varVersion))
		return nil
	}
	verb, ports, _ := strings.Cut(args[len(args)-1], " ")
	switch verb {
	case "fail":
		fmt.Fprint(os.Stderr, "first words", strings.Repeat(".", 3000), "last words of ", os.Getenv("FAKE_NAME"), "\n")
		return nil
	case "mute":
		return block()
	}
	fmt.Println("INFO: starts")
	fmt.Println("ready", ports)
	_, _ = io.Copy(io.Discard, os.Stdin)
	if verb == "deaf" {
		return block()
	}
	return os.WriteFile("stopped", nil, 0o600)
}

// block does not return.
func block() error {
	r, w, err := os.Pipe()
	if err == nil {
		_, err = r.Read(make([]byte, 1))
	}
	runtime.KeepAlive(w)
	return err
}

// withTools gives a test the tools and an empty cache, which it returns.
func withTools(t *testing.T, tools ...string) (cache string) {
	t.Helper()
	self := assert.Value(os.Executable())(t)
	bin, home := t.TempDir(), t.TempDir()
	for _, tool := range tools {
		assert.Must(t, os.Symlink(self, filepath.Join(bin, tool)))
	}
	for k, v := range map[string]string{"PATH": bin, "JAVA_HOME": "", "HOME": home, "XDG_CACHE_HOME": "", varVersion: "17.0.15", varCalls: filepath.Join(home, "calls"), varOnline: "ok", "GORACE": "atexit_sleep_ms=0"} {
		t.Setenv(k, v)
	}
	return assert.Value(os.UserCacheDir())(t)
}

// calls returns the calls of mvn and javac.
func calls(t *testing.T) []string {
	t.Helper()
	text, _ := os.ReadFile(os.Getenv(varCalls)) // none without a call
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

var orders = Program{Name: "Orders", Files: []File{{"pom.xml", []byte("<project/>")}, {"Main.java", []byte("class Main {}")}}, Source: "Main.java", OldestJava: 17}

const maven = "mvn --batch-mode --quiet dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=lib"

func TestInstall(t *testing.T) {
	cache := withTools(t, "java", "javac", "mvn")
	i := assert.Value(orders.Install(t.Context()))(t)
	// The name is the start of the output of: printf '%s' '<project/>class Main {}' | sha256sum
	dir := filepath.Join(cache, "tidegate-orders", "8f0406e859f1fee1")
	assert.Equal(t, "directory", i.Dir, dir)
	assert.Equal(t, "version of Java", i.Version, 17)
	assert.Equal(t, "class path", i.ClassPath(), filepath.Join(dir, "classes")+string(os.PathListSeparator)+filepath.Join(dir, "lib", "*"))
	for _, f := range orders.Files {
		assert.Equal(t, f.Name, string(assert.Value(os.ReadFile(filepath.Join(dir, f.Name)))(t)), string(f.Text))
	}
	want := []string{maven + " --offline", "javac -cp lib/* -d classes Main.java"}
	assert.Slices(t, "calls", calls(t), want)
	assert.Equal(t, "second installation", assert.Value(orders.Install(t.Context()))(t), i)
	assert.Slices(t, "calls after the second", calls(t), want)
	assert.Equal(t, "entries of the cache", len(assert.Value(os.ReadDir(filepath.Dir(dir)))(t)), 1)
}

// Without the jars in its local repository, Maven downloads them.
func TestInstallOverTheNetwork(t *testing.T) {
	cache := withTools(t, "java", "mvn")
	t.Setenv(varOnline, "only")
	t.Setenv(varVersion, "1.8.0_412")
	p := Program{Name: "Orders", Version: "5.3.1", Files: orders.Files[:1], OldestJava: 8}
	i := assert.Value(p.Install(t.Context()))(t)
	assert.Equal(t, "version of Java", i.Version, 8)
	// printf '%s' '<project/>' | sha256sum
	assert.Equal(t, "directory", i.Dir, filepath.Join(cache, "tidegate-orders", "5.3.1-618a333ca21cdc97"))
	assert.Slices(t, "calls", calls(t), []string{maven + " -Dserver.version=5.3.1 --offline", maven + " -Dserver.version=5.3.1"})
}

// A failed installation leaves nothing, and its error has the output of Maven.
func TestInstallFails(t *testing.T) {
	cache := withTools(t, "java", "javac", "mvn")
	t.Setenv(varOnline, "fails")
	err := assert.Err(orders.Install(t.Context()))
	assert.Contains(t, "error", fmt.Sprint(err), "maven could not download Orders: mvn: exit status 1", "offline: false", "BUILD FAILURE")
	assert.Equal(t, "entries of the cache", len(assert.Value(os.ReadDir(filepath.Join(cache, "tidegate-orders")))(t)), 0)
}

func TestMissing(t *testing.T) {
	for _, c := range []struct {
		tools, version string
		program        Program
		want           string
	}{
		{"", "", orders, "java is missing: install a JDK of version 17 or later"},
		{"", "", Program{OldestJava: 8}, "java is missing: install a Java of version 8 or later"},
		{"java", "21", orders, "mvn is missing: install Maven"},
		{"java mvn", "17.0.1", orders, "javac is missing: install a JDK of version 17 or later"},
		{"java", "1.8.0_412", orders, "java has version 8: install a JDK of version 17 or later, or set JAVA_HOME"},
		{"java", "11.0.2", orders, "java has version 11: install a JDK of version 17 or later, or set JAVA_HOME"},
	} {
		withTools(t, strings.Fields(c.tools)...)
		t.Setenv(varVersion, c.version)
		err := assert.Err(c.program.Install(t.Context()))
		assert.That(t, errors.Is(err, ErrMissing) && strings.Contains(err.Error(), c.want), "with %q: %v, want %q", c.tools, err, c.want)
	}
	// JAVA_HOME precedes PATH.
	withTools(t, "mvn")
	home := t.TempDir()
	assert.Must(t, os.Rename(os.Getenv("PATH"), filepath.Join(home, "bin")))
	assert.Must(t, os.Symlink(assert.Value(os.Executable())(t), filepath.Join(home, "bin", "java")))
	t.Setenv("JAVA_HOME", home)
	err := assert.Err(orders.Install(t.Context()))
	assert.That(t, errors.Is(err, ErrMissing) && strings.Contains(err.Error(), "mvn is missing"), "with JAVA_HOME: %v", err)
}

func TestJavaVersion(t *testing.T) {
	for out, want := range map[string]int{
		"openjdk version \"17.0.15\" 2025-04-15\nOpenJDK Runtime Environment": 17,
		`openjdk version "21" 2023-09-19`:                                     21,
		`java version "1.8.0_412"`:                                            8,
		"no such command":                                                     0,
	} {
		got, err := Program{OldestJava: 8}.javaVersion([]byte(out))
		assert.That(t, got == want && (err == nil) == (want > 0), "%q: %d, %v, want %d", out, got, err, want)
	}
}

// config returns the configuration of a server whose class does a thing.
func config(t *testing.T, what string, ports ...int) Config {
	t.Helper()
	return Config{
		Program: orders, Dir: filepath.Join(t.TempDir(), "data"), Ports: ports, Env: append(os.Environ(), "FAKE_NAME=orders"),
		StartTimeout: time.Minute, StopTimeout: time.Minute,
		Command: func(i Installation, dir string, ports []int) ([]string, error) {
			line := fmt.Sprintln(filepath.Base(i.Java), filepath.Base(dir), ports)
			return []string{what}, os.WriteFile(filepath.Join(dir, "command"), []byte(line), 0o600)
		},
	}
}

func started(t *testing.T, c Config) *Server {
	t.Helper()
	s := assert.Value(Start(t.Context(), c))(t)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// free returns a port that is free: a restart needs it.
func free(t *testing.T) string {
	t.Helper()
	l := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// A server keeps its ports and its directory over a stop, a kill and a restart.
func TestServer(t *testing.T) {
	withTools(t, "java", "javac", "mvn")
	first, second := free(t), free(t)
	c := config(t, "serve "+first+" "+second, 0, 0)
	s := started(t, c)
	assert.Equal(t, "first address", s.Address(0), "127.0.0.1:"+first)
	assert.Equal(t, "second address", s.Address(1), "127.0.0.1:"+second)
	command := func() string { return string(assert.Value(os.ReadFile(filepath.Join(c.Dir, "command")))(t)) }
	assert.Equal(t, "command", command(), "java data [0 0]\n")
	assert.That(t, s.Restart(t.Context()) != nil, "a server that runs starts again")

	for _, end := range []struct {
		name    string
		how     func()
		orderly bool
	}{{"Kill", s.Kill, false}, {"Stop", s.Stop, true}} {
		pid, ended := s.PID(), s.Done()
		group := assert.Value(syscall.Getpgid(pid))(t)
		assert.Equal(t, "group of processes", group, pid)
		end.how()
		<-ended
		<-s.Done()
		assert.Equal(t, "PID after "+end.name, s.PID(), 0)
		assert.That(t, errors.Is(syscall.Kill(pid, 0), syscall.ESRCH), "process %d runs after %s", pid, end.name)
		_, err := os.Stat(filepath.Join(c.Dir, "stopped"))
		assert.Equal(t, "an orderly end after "+end.name, err == nil, end.orderly)
		end.how() // it has no effect
		assert.Must(t, s.Restart(t.Context()))
		assert.Equal(t, "command", command(), "java data ["+first+" "+second+"]\n")
		assert.That(t, s.PID() != pid && s.PID() != 0, "process %d after a restart, before %d", s.PID(), pid)
	}
	assert.Must(t, s.Close())
	assert.Equal(t, "PID after Close", s.PID(), 0)
	assert.NoError(t, assert.Err(os.Stat(c.Dir)), "the directory of the program is removed")
}

// A server that does not react to the end of its input is killed, and a temporary directory is
// removed.
func TestStopTimeout(t *testing.T) {
	withTools(t, "java", "javac", "mvn")
	t.Setenv("TMPDIR", t.TempDir())
	c := config(t, "deaf "+free(t), 0)
	c.Dir, c.StopTimeout = "", time.Millisecond
	s := started(t, c)
	list := assert.Value(filepath.Glob(filepath.Join(os.TempDir(), "tidegate-orders-*")))(t)
	assert.MustEqual(t, "temporary directories", len(list), 1)
	pid := s.PID()
	s.Stop()
	assert.That(t, errors.Is(syscall.Kill(pid, 0), syscall.ESRCH), "process %d runs after Stop", pid)
	assert.Must(t, s.Close())
	_, err := os.Stat(list[0])
	assert.Is(t, "the temporary directory", err, os.ErrNotExist)
}

// Run ends with its context in order, and with the server as an error.
func TestRun(t *testing.T) {
	withTools(t, "java", "javac", "mvn")
	c := config(t, "serve "+free(t), 0)
	s := started(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.NoError(t, s.Run(ctx))
	assert.NoError(t, assert.Err(os.Stat(filepath.Join(c.Dir, "stopped"))), "the server did not stop in order")
	assert.Must(t, s.Restart(t.Context()))
	assert.Must(t, syscall.Kill(s.PID(), syscall.SIGKILL))
	err := s.Run(t.Context())
	assert.That(t, err != nil && strings.Contains(err.Error(), "the server has ended"), "Run: %v", err)
}

func TestStartFails(t *testing.T) {
	withTools(t, "java", "javac", "mvn")
	l := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	faulty := config(t, "serve "+free(t), 0)
	faulty.Command = func(Installation, string, []int) ([]string, error) { return nil, errors.New("no such certificate") }
	mute := config(t, "mute", 0)
	mute.StartTimeout = time.Millisecond
	for name, c := range map[string]struct {
		config Config
		want   []string
		not    string
	}{
		"an end":           {config(t, "fail", 0), []string{"orders did not start: it ended; its log ends with:\n..", "last words of orders\n"}, "first words"},
		"no ready":         {mute, []string{"orders did not start: it does not serve after 1ms"}, ""},
		"a port in use":    {config(t, "serve "+strconv.Itoa(port), port), []string{fmt.Sprintf("orders cannot use port %d: end the program that listens on it", port)}, ""},
		"no configuration": {faulty, []string{"no such certificate"}, ""},
	} {
		_, err := Start(t.Context(), c.config)
		assert.Contains(t, name, fmt.Sprint(err), c.want...)
		assert.That(t, c.not == "" || !strings.Contains(fmt.Sprint(err), c.not), "%s: %v", name, err)
	}
	// The end of the context ends the wait, and the process with it.
	ctx, cancel := context.WithCancelCause(t.Context())
	mute = config(t, "mute", 0)
	mute.Command = func(Installation, string, []int) ([]string, error) {
		cancel(errors.New("no more time"))
		return []string{"mute"}, nil
	}
	assert.Contains(t, "Start whose context ends", fmt.Sprint(assert.Err(Start(ctx, mute))), "orders did not start: no more time")
}

func TestReadyPorts(t *testing.T) {
	for line, want := range map[string][]int{
		"ready 5672": {5672}, "ready 6650 8080": {6650, 8080}, "ready": nil, "": nil, "ready now": nil, "ready 65536": nil, "is ready 5672": nil,
	} {
		assert.Slices(t, line, readyPorts(line), want)
	}
}

func TestProperties(t *testing.T) {
	got := string(Properties(map[string]string{`addressSettings."orders.#".maxSizeBytes`: "100K", "CN": "CN=a b, O=c:d", "p=q": `\`, "two": "1\n2", "a b": "!"}))
	want := "CN=CN=a b, O=c:d\n" + `a\ b=!` + "\n" + `addressSettings."orders.\#".maxSizeBytes=100K` + "\n" + `p\=q=\\` + "\n" + `two=1\n2` + "\n"
	assert.That(t, got == want, "got\n%s\nwant\n%s", got, want)
}

func TestPair(t *testing.T) {
	m := map[string]string{}
	for text, ok := range map[string]bool{"a=b=c": true, "d=": true, "=e": false, "f": false} {
		err := Pair(m)(text)
		assert.That(t, (err == nil) == ok, "%q: %v", text, err)
	}
	assert.Equal(t, "pairs", fmt.Sprint(m), "map[a:b=c d:]")
}
