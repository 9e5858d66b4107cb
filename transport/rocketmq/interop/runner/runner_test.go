package runner

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// The Java of these tests is this test binary. It plays the classes of RocketMQ.
func TestMain(m *testing.M) {
	if os.Getenv("TIDEGATE_FAKE_JAVA") != "" {
		fmt.Fprintln(os.Stderr, fakeJava(os.Args[1:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// fakeJava serves until the process is killed, or returns the error that ends it. A fake broker
// registers when it is asked to change a setting, as those of RocketMQ do, and the end of its
// connection removes it from the name server.
func fakeJava(args []string) error {
	if slices.Equal(args, []string{"-version"}) {
		return errors.New(`openjdk version "17.0.1"`) // the exit status is 0 with a real one
	}
	option := func(name string) string {
		if i := slices.Index(args, name); i >= 0 {
			return args[i+1]
		}
		return ""
	}
	conf := map[string]string{}
	for _, name := range []string{"-c", "-bc"} {
		if file := option(name); file != "" {
			b, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(b)) {
				k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
				conf[k] = v
			}
		}
	}
	if conf["fake"] == "fails" {
		return errors.New("the store is damaged")
	}
	if file := option("-pc"); file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var proxy struct{ GRPCServerPort int }
		if err := json.Unmarshal(b, &proxy); err != nil {
			return err
		}
		l, err := net.Listen("tcp", local(proxy.GRPCServerPort))
		if err != nil {
			return err
		}
		go accept(l, func(c net.Conn) { c.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}) })
		if option("-pm") == "cluster" {
			select {}
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:"+conf["listenPort"])
	if err != nil {
		return err
	}
	var mu sync.Mutex
	registered := map[string]bool{} // addresses, guarded by mu
	accept(l, func(c net.Conn) {
		r := bufio.NewReader(c)
		for {
			header, body, err := readRequest(r)
			if err != nil {
				return
			}
			mu.Lock()
			response := ""
			switch {
			case header.Code == 103: // register
				address := string(body)
				registered[address] = true
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					delete(registered, address)
				}()
			case header.Code == clusterInfo:
				for a := range registered {
					response += `"` + a + `" `
				}
			case header.Code == updateBrokerConfig && !registered["self"]:
				registered["self"] = true
				if other, err := net.Dial("tcp", conf["namesrvAddr"]); err == nil { // open until the process ends
					other.Write(frame(`{"code":103}`, "127.0.0.1:"+conf["listenPort"]))
				}
			}
			if f, err := os.OpenFile(conf["brokerName"]+".requests", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
				fmt.Fprintf(f, "%d %s %s\n", header.Code, header.ExtFields["topic"], body)
				f.Close()
			}
			mu.Unlock()
			c.Write(frame(`{"code":0}`, response))
		}
	})
	return errors.New("the listener is closed")
}

func accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			serve(c)
		}()
	}
}

type requestHeader struct {
	Code      int
	ExtFields map[string]string
}

func readRequest(r io.Reader) (h requestHeader, body []byte, err error) {
	var sizes [8]byte
	if _, err := io.ReadFull(r, sizes[:]); err != nil {
		return h, nil, err
	}
	rest := make([]byte, binary.BigEndian.Uint32(sizes[:4])-4)
	if _, err := io.ReadFull(r, rest); err != nil {
		return h, nil, err
	}
	size := binary.BigEndian.Uint32(sizes[4:])
	err = json.Unmarshal(rest[:size], &h)
	return h, rest[size:], err
}

// machine makes a machine with the fake Java, and with the jars of all versions.
func machine(t *testing.T) {
	t.Helper()
	home := t.TempDir()
	self := assert.Value(os.Executable())(t)
	assert.Must(t, os.MkdirAll(filepath.Join(home, "bin"), 0o755))
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" != -version ] || { %q -version; exit 0; }\nexec %q \"$@\"\n", self, self)
	assert.Must(t, os.WriteFile(filepath.Join(home, "bin", "java"), []byte(script), 0o700))
	t.Setenv("TIDEGATE_FAKE_JAVA", "1")
	t.Setenv("JAVA_HOME", home)
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("HOME", home)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(home, "cache"))
	cache := assert.Value(os.UserCacheDir())(t)
	for _, v := range Versions {
		assert.Must(t, os.MkdirAll(installationAt(cache, v), 0o755))
	}
}

// freePort returns the first of two free ports for gRPC.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		// Below the ports that systems give to clients: one of those could take the next port.
		port := 10_000 + rand.IntN(firstPort-10_000-maxMembers)
		free := true
		for n := range 2 {
			l, err := net.Listen("tcp", local(port+n))
			if free = free && err == nil; err == nil {
				l.Close()
			}
		}
		if free {
			return port
		}
	}
	t.Fatal("no free ports")
	return 0
}

func start(t *testing.T, o Options) *Setup {
	t.Helper()
	s := assert.Value(Up(t.Context(), o))(t)
	t.Cleanup(func() {
		err := s.Wipe(context.WithoutCancel(t.Context()))
		assert.That(t, err == nil || errors.Is(err, os.ErrNotExist), "%v", err)
	})
	return s
}

func running(s *Setup) string {
	_, pids := s.Processes()
	return fmt.Sprint(slices.Sorted(maps.Keys(pids)))
}

const allOfCluster = "[broker-a broker-b namesrv proxy-1 proxy-2]"

// The processes of a cluster are killed, started and restarted by name, by another program too.
func TestCluster(t *testing.T) {
	machine(t)
	o := Options{Port: freePort(t), Brokers: 2, Proxies: 2, Version: "5.5.0"}
	start(t, o)
	s, err := Open(o.Port) // as another program
	assert.Must(t, err)
	assert.MustEqual(t, "running(s)", running(s), allOfCluster)
	if want := []string{local(o.Port), local(o.Port + 1)}; !slices.Equal(s.Endpoints(), want) || s.Options().Version != "5.5.0" {
		t.Errorf("the endpoints are %v of version %s, want %v", s.Endpoints(), s.Options().Version, want)
	}
	_, before := s.Processes()
	if err := s.Kill(t.Context(), "broker-b", "proxy-1"); err != nil || running(s) != "[broker-a namesrv proxy-2]" {
		t.Fatalf("after the kill %s run, %v", running(s), err)
	}
	if err := s.Topic(t.Context(), "orders", "NORMAL", 4); err == nil || !strings.Contains(err.Error(), "topic orders: broker-b: ") {
		t.Errorf("a topic without broker-b: %v", err)
	}
	assert.NoError(t, s.Set(t.Context(), "broker-b", map[string]string{"brokerPermission": "4"}))
	if err := s.Start(t.Context(), "broker-b", "proxy-1"); err != nil || running(s) != allOfCluster {
		t.Fatalf("after the start %s run, %v", running(s), err)
	}
	assert.That(t, registered(t.Context(), s.state.Ports.NameServer, s.state.Ports.Brokers[1], "4"),
		"broker-b is not registered when Start returns")
	_, after := s.Processes()
	for name, pid := range before {
		restarted := name == "broker-b" || name == "proxy-1"
		assert.That(t, (after[name] != pid) == restarted, "%s has the process IDs %d and %d", name, pid, after[name])
	}
	if b, err := os.ReadFile(filepath.Join(s.Dir(), "conf", "broker-b.conf")); err != nil || !strings.Contains(string(b), "\nbrokerPermission=4\n") {
		t.Errorf("broker.conf after Set and Start: %s, %v", b, err)
	}
	assert.NoError(t, s.Topic(t.Context(), "orders", "FIFO", 4))
	assert.NoError(t, s.Group(t.Context(), "billing", Group{}))
	assert.NoError(t, s.Set(t.Context(), "broker-a", map[string]string{"recallMessageEnable": "true"}))
	for name, want := range map[string][]string{
		"broker-a": {"17 orders ", "200  {", "25  recallMessageEnable=true\n"}, "broker-b": {"17 orders ", "200  {", "25  brokerPermission=4"},
	} {
		b, err := os.ReadFile(filepath.Join(s.Dir(), name+".requests"))
		for _, w := range want {
			assert.That(t, bytes.Contains(b, []byte(w)), "%s got %s, %v, want %q", name, b, err, w)
		}
	}
	for _, name := range []string{"broker-c", "proxy", "namesrv"} {
		assert.That(t, s.Set(t.Context(), name, map[string]string{"a": "b"}) != nil, "%s has settings", name)
	}
	if err := s.Kill(t.Context(), "broker-c"); err == nil || !strings.Contains(err.Error(), "there is no process broker-c, only namesrv, broker-a,") || running(s) != allOfCluster {
		t.Errorf("Kill of a process that does not exist: %v, and %s run", err, running(s))
	}
}

// Up continues a set-up with the same options, rejects others, and keeps data that Stop leaves.
func TestUpAgain(t *testing.T) {
	machine(t)
	o := Options{Port: freePort(t), Broker: map[string]string{"flushDiskType": "SYNC_FLUSH"}}
	s := start(t, o)
	assert.MustEqual(t, "running(s)", running(s), "[namesrv proxy-1]")
	_, before := s.Processes()
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() { assert.NoError(t, assert.Err(Up(t.Context(), o))) })
	}
	all.Wait()
	_, after := s.Processes()
	assert.That(t, maps.Equal(before, after), "the processes are %v after %v", after, before)
	other := o
	other.Version = "5.5.0"
	_, err := Up(t.Context(), other)
	assert.That(t, err != nil && strings.Contains(err.Error(), "with other options"), "Up with another version: %v", err)
	if _, err := Up(t.Context(), Options{Port: o.Port - 1, Proxies: 2}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("port %d is in use", o.Port)) {
		t.Errorf("Up on a port in use: %v", err)
	}
	assert.Must(t, s.Kill(t.Context(), "proxy-1"))
	_, err = Up(t.Context(), o)
	assert.That(t, err == nil && running(s) == "[namesrv proxy-1]", "Up after the end of the proxy: %v, %s run", err, running(s))
	err = s.Stop(t.Context())
	assert.That(t, err == nil && running(s) == "[]", "after Stop %s run, %v", running(s), err)
	kept := filepath.Join(s.Dir(), "store", "kept")
	assert.Must(t, errors.Join(os.MkdirAll(filepath.Dir(kept), 0o700), os.WriteFile(kept, nil, 0o600)))
	assert.Must(t, assert.Err(Up(t.Context(), other)))
	assert.NoError(t, assert.Err(os.Stat(kept)))
	if list, err := List(); err != nil || len(list) != 1 || list[0].Dir() != s.Dir() || list[0].Options().Version != "5.5.0" {
		t.Errorf("List: %+v, %v", list, err)
	}
	assert.Must(t, s.Wipe(t.Context()))
	_, err = os.Stat(s.Dir())
	assert.That(t, errors.Is(err, os.ErrNotExist) && running(s) == "[]", "after Wipe: %v, %s run", err, running(s))
	_, err = Open(o.Port)
	assert.That(t, err != nil && strings.Contains(err.Error(), "up --port"), "Open after Wipe: %v", err)
}

// A process that ends at its start ends Up, with its output. Up then kills what it has started.
func TestStartFails(t *testing.T) {
	machine(t)
	o := Options{Port: freePort(t), Broker: map[string]string{"fake": "fails"}}
	_, err := Up(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "proxy-1: it does not serve: the process ended") || !strings.Contains(err.Error(), "the store is damaged") {
		t.Errorf("Up: %v", err)
	}
	s, err := Open(o.Port) // its logs are still there
	assert.MustThat(t, err == nil && running(s) == "[]", "%v, %s run", err, running(s))
	if files, err := s.Logs(); err != nil || len(files) != 1 || filepath.Base(files[0]) != "proxy-1.out" {
		t.Errorf("the logs are %v, %v", files, err)
	}
}

// A process with the recorded ID that is not of the set-up is neither counted nor killed.
func TestReusedProcessID(t *testing.T) {
	machine(t)
	s := start(t, Options{Port: freePort(t)})
	assert.Must(t, s.Kill(t.Context(), "proxy-1"))
	other := exec.CommandContext(t.Context(), "sleep", "600")
	assert.Must(t, other.Start())
	assert.Must(t, os.WriteFile(filepath.Join(s.Dir(), "proxy-1.pid"), fmt.Append(nil, other.Process.Pid), 0o600))
	assert.Equal(t, "running(s)", running(s), "[namesrv]")
	assert.NoError(t, s.Kill(t.Context()))
	assert.NoError(t, other.Process.Kill(), "the other process has ended")
	other.Wait()
}

// A process that has ended and that its parent has not awaited does not run. One that still has its
// files, although not its command line, does.
func TestEndOfProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Log("other systems have no /proc")
		return
	}
	zombie := exec.CommandContext(t.Context(), "true")
	out := assert.Value(zombie.StdoutPipe())(t)
	assert.Must(t, zombie.Start())
	io.ReadAll(out) // until it ends
	assert.NoError(t, until(t.Context(), func() (bool, error) { return !exits(zombie.Process.Pid), nil }))
	zombie.Wait()
	assert.That(t, !exits(zombie.Process.Pid) && exits(os.Getpid()),
		"a process that was awaited has open files, or this one has none")
}

func TestMissingPrograms(t *testing.T) {
	machine(t)
	t.Setenv("PATH", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	_, err := Up(t.Context(), Options{Port: freePort(t)})
	assert.That(t, errors.Is(err, ErrMissing) && strings.Contains(err.Error(), "install Maven"), "Up without Maven: %v", err)
	t.Setenv("JAVA_HOME", "")
	if _, err := Up(t.Context(), Options{Port: freePort(t)}); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "install a Java of version 8 or later") {
		t.Errorf("Up without Java: %v", err)
	}
}

// Several goroutines use a set-up: one changes settings while others read its state.
func TestSetWhileOthersRead(t *testing.T) {
	machine(t)
	o, err := Options{Port: freePort(t), Cluster: true}.withDefaults()
	assert.Must(t, err)
	p, err := o.pickPorts(func(int) bool { return false })
	assert.Must(t, err)
	s := setupAt(o.Port)
	if s.state = (state{Options: o, Ports: p}); s.write() != nil {
		t.Fatal("the state cannot be written")
	}
	var reads sync.WaitGroup
	reads.Go(func() {
		for range 50 {
			s.Processes()
			s.Endpoints()
		}
	})
	for i := range 10 {
		assert.NoError(t, s.Set(t.Context(), "proxy-1", map[string]string{fmt.Sprint("k", i): "v"}))
	}
	reads.Wait()
	again, err := Open(o.Port)
	assert.That(t, err == nil && len(again.current()["proxy-1"]) == 10, "the settings are %v, %v", again, err)
}
