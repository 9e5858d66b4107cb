package runner

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

func TestDefaults(t *testing.T) {
	o, err := Options{}.withDefaults()
	if err != nil || o.Port != 8081 || o.Version != "5.2.0" || o.Brokers != 1 || o.Proxies != 1 || o.Cluster || o.Heap != "512m" {
		t.Errorf("the defaults are %+v, %v", o, err)
	}
	for name, o := range map[string]Options{"brokers": {Brokers: 2}, "proxies": {Proxies: 2}, "throttle": {Throttle: true}} {
		if o, err := o.withDefaults(); err != nil || !o.Cluster {
			t.Errorf("%s: %+v, %v, want processes of their own", name, o, err)
		}
	}
}

func TestFaultsOfOptions(t *testing.T) {
	for want, o := range map[string]Options{
		`version "5.1.0" is not one of 5.2.0, 5.3.3, 5.4.0, 5.5.0`: {Version: "5.1.0"},
		"the number of brokers is 9, not 1 to 8":                   {Brokers: 9},
		"the number of proxies is -1, not 1 to 8":                  {Proxies: -1},
		"begin at 65535":       {Port: 65535, Proxies: 2},
		"begin at 19999":       {Port: 19999, Proxies: 2}, // 20000 can be that of a name server
		"begin at 31999":       {Port: 31999},
		"begin at -1":          {Port: -1},
		`heap "512"`:           {Heap: "512"},
		`setting "a b"="c"`:    {Broker: map[string]string{"a b": "c"}},
		`setting "a"="b\nc=d"`: {Proxy: map[string]string{"a": "b\nc=d"}},
	} {
		_, err := o.withDefaults()
		assert.That(t, err != nil && strings.Contains(err.Error(), want), "%+v: %v, want %q", o, err, want)
	}
	for _, o := range []Options{{Port: 19999}, {Port: 32000}, {Port: 65535}} {
		assert.NoError(t, assert.Err(o.withDefaults()), "%+v", o)
	}
}

// The largest set-up has ports of its own, in one block, and a broker also has the two ports below
// its own: RocketMQ listens on listenPort - 2 too.
func TestPortsAreDistinct(t *testing.T) {
	o := Options{Port: 8081, Brokers: maxMembers, Proxies: maxMembers}
	p := assert.Value(o.pickPorts(func(int) bool { return false }))(t)
	all := append(slices.Clone(p.Proxies), p.NameServer)
	for _, b := range p.Brokers {
		all = append(all, b, b-1, b-2)
	}
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); n != 1+4*maxMembers || all[n-1]-all[0] >= blockPorts || all[0] < firstPort || all[n-1] > lastPort {
		t.Errorf("the ports are %v", all)
	}
}

func TestPortsInUseAreAvoided(t *testing.T) {
	o := Options{Port: 8081, Brokers: 1, Proxies: 1}
	first, err := o.pickPorts(func(int) bool { return false })
	assert.Must(t, err)
	for _, taken := range []int{first.NameServer, first.Brokers[0], first.Brokers[0] - 2, first.Proxies[0]} {
		other, err := o.pickPorts(func(port int) bool { return port == taken })
		assert.That(t, err == nil && other.NameServer != first.NameServer,
			"with port %d in use: %+v, %v, want another block than %+v", taken, other, err, first)
	}
	if _, err := o.pickPorts(func(int) bool { return true }); err == nil {
		t.Error("no port is free, and there is no error")
	}
	near, err := Options{Port: 8082, Brokers: 1, Proxies: 1}.pickPorts(func(int) bool { return false })
	assert.That(t, err == nil && near.NameServer != first.NameServer,
		"two set-ups that start at once have the ports %+v and %+v, %v", first, near, err)
}

func TestPlanOfCluster(t *testing.T) {
	o, err := Options{Brokers: 2, Proxies: 2, Version: "5.5.0", Broker: map[string]string{"recallMessageEnable": "true", "flushDiskType": "ASYNC_FLUSH"},
		Proxy: map[string]string{"useEndpointPortFromRequest": "true"}, Throttle: true}.withDefaults()
	assert.Must(t, err)
	list := o.plan("/d", o.portsAt(20000))
	var names []string
	for _, p := range list {
		names = append(names, p.name)
	}
	if want := "[namesrv broker-a broker-b proxy-1 proxy-2]"; fmt.Sprint(names) != want {
		t.Fatalf("the processes are %v, want %s", names, want)
	}
	b := list[2]
	conf := b.files["conf/broker-b.conf"]
	for _, line := range []string{
		"brokerName=broker-b", "brokerId=0", "namesrvAddr=127.0.0.1:20000", "listenPort=20006", "haListenPort=20005", "bindAddress=127.0.0.1", "brokerIP1=127.0.0.1",
		"storePathRootDir=/d/store/broker-b", "recallMessageEnable=true", "sendThreadPoolQueueCapacity=8", "flushDiskType=ASYNC_FLUSH",
	} {
		assert.That(t, strings.Count("\n"+conf, "\n"+line+"\n") == 1, "broker.conf has not the line %s once:\n%s", line, conf)
	}
	if !slices.Equal(b.args, []string{"-c", "conf/broker-b.conf"}) || !slices.Equal(b.brokers, []int{20006}) || b.heap != "512m" {
		t.Errorf("broker-b is %+v", b)
	}
	x := list[4]
	want := `{"grpcServerPort":8082,"grpcShutdownTimeSeconds":2,"namesrvAddr":"127.0.0.1:20000","remotingListenPort":20008,"rocketMQClusterName":"DefaultCluster","topicRouteServiceCacheRefreshSeconds":2,"useEndpointPortFromRequest":"true"}` + "\n"
	if x.files["conf/proxy-2.json"] != want || x.grpc != 8082 || !slices.Equal(x.args, []string{"-pm", "cluster", "-pc", "conf/proxy-2.json"}) || x.brokers != nil {
		t.Errorf("proxy-2 is %+v, want the configuration %s", x, want)
	}
}

// Without a cluster the broker runs within the process of the proxy.
func TestPlanOfOneProcess(t *testing.T) {
	o := assert.Value(Options{}.withDefaults())(t)
	list := o.plan("/d", o.portsAt(20000))
	assert.MustThat(t, len(list) == 2 && list[0].name == "namesrv" && list[1].name == "proxy-1", "the processes are %+v", list)
	x := list[1]
	files := slices.Sorted(maps.Keys(x.files))
	if fmt.Sprint(files) != "[conf/broker-a.conf conf/proxy-1.json]" || fmt.Sprint(x.args) != "[-pm local -pc conf/proxy-1.json -bc conf/broker-a.conf]" ||
		!slices.Equal(x.brokers, []int{20003}) || x.grpc != 8081 {
		t.Errorf("the proxy is %+v", x)
	}
}

func TestArgumentsOfJava(t *testing.T) {
	for version, want := range map[int]int{8: 0, 17: 5, 21: 5} {
		assert.Equal(t, fmt.Sprint("arguments of Java ", version), len(javaArgs(version)), want)
	}
}

// A machine without Java or Maven is left out by .ci/run: the error is ErrMissing.
func TestMissingPrograms(t *testing.T) {
	for _, name := range []string{"PATH", "XDG_CACHE_HOME", "HOME", "TMPDIR"} {
		t.Setenv(name, t.TempDir())
	}
	java := filepath.Join(t.TempDir(), "bin", "java")
	assert.Must(t, os.MkdirAll(filepath.Dir(java), 0o755))
	assert.Must(t, os.WriteFile(java, []byte("#!/bin/sh\necho 'openjdk version \"17.0.1\"'\n"), 0o700))
	for home, want := range map[string]string{"": "install a Java of version 8 or later", filepath.Dir(filepath.Dir(java)): "install Maven"} {
		t.Setenv("JAVA_HOME", home)
		_, err := Up(t.Context(), Options{})
		assert.That(t, errors.Is(err, ErrMissing) && strings.Contains(err.Error(), want), "Up with JAVA_HOME=%s: %v, want %q", home, err, want)
	}
}

// frame returns a frame of RocketMQ's remoting protocol: the size of the rest, the size of the
// header, the header, the body.
func frame(header, body string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)+len(body)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(header)))
	return append(append(b, header...), body...)
}

func TestRequestFrame(t *testing.T) {
	b := assert.Value(request{code: 17, fields: map[string]string{"topic": "t"}, body: []byte("body")}.encode())(t)
	size := binary.BigEndian.Uint32(b[4:8])
	var header struct {
		Code, Flag int
		ExtFields  map[string]string
	}
	assert.Must(t, json.Unmarshal(b[8:8+size], &header))
	if int(binary.BigEndian.Uint32(b)) != len(b)-4 || header.Code != 17 || header.Flag != 0 || header.ExtFields["topic"] != "t" || string(b[8+size:]) != "body" {
		t.Errorf("the frame is %q", b)
	}
}

func TestResponseFrame(t *testing.T) {
	for name, c := range map[string]struct {
		frame []byte
		body  string
		err   string
	}{
		"success":           {frame(`{"code":0,"flag":1,"opaque":1}`, "body"), "body", ""},
		"without a body":    {frame(`{"code":0}`, ""), "", ""},
		"an error":          {frame(`{"code":1,"remark":"the topic is wrong"}`, ""), "", "code 1: the topic is wrong"},
		"of another server": {[]byte("HTTP/1.1 400 Bad Request"), "", "not RocketMQ's remoting protocol"},
		"a large header":    {[]byte{0, 0, 0, 4, 0, 0, 0, 1}, "", "not RocketMQ's remoting protocol"},
		"in binary":         {[]byte{0, 0, 0, 8, 1, 0, 0, 4, 1, 2, 3, 4}, "", "not RocketMQ's remoting protocol"},
		"cut":               {frame(`{"code":0}`, "body")[:20], "", "EOF"},
		"no JSON":           {frame(`{`, ""), "", "header of the response"},
	} {
		body, err := readResponse(bytes.NewReader(c.frame))
		if c.err == "" && (err != nil || string(body) != c.body) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %q, %v, want %q, %q", name, body, err, c.body, c.err)
		}
	}
}

// The response of a RocketMQ 5.2.0 to a request for the addresses of the cluster.
func TestIsRegistered(t *testing.T) {
	info := []byte(`{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:20003"},"brokerName":"broker-a","cluster":"DefaultCluster"}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}`)
	for port, want := range map[int]bool{20003: true, 2000: false, 20006: false} {
		assert.That(t, isRegistered(info, port) == want, "port %d is registered: %v", port, !want)
	}
}

// The settings of a broker are Java's properties, in which a backslash precedes another one.
func TestConfigRequest(t *testing.T) {
	r := configRequest(map[string]string{"recallMessageEnable": "true", "path": `a\b`})
	if want := "path=a\\\\b\nrecallMessageEnable=true\n"; r.code != 25 || string(r.body) != want {
		t.Errorf("the request %d has %q, want %q", r.code, r.body, want)
	}
	s := &Setup{}
	assert.That(t, s.Configure(t.Context(), map[string]string{"a b": "c"}) != nil, "a setting with a space is accepted")
}

func TestTopicRequest(t *testing.T) {
	r, err := topicRequest("orders", "fifo", 0)
	if err != nil || r.code != 17 || r.fields["topic"] != "orders" || r.fields["attributes"] != "+message.type=FIFO" || r.fields["readQueueNums"] != "8" || r.fields["writeQueueNums"] != "8" || r.fields["perm"] != "6" {
		t.Errorf("%+v, %v", r, err)
	}
	for _, c := range []struct {
		name, kind string
		queues     int
	}{{"", "NORMAL", 1}, {"a b", "NORMAL", 1}, {strings.Repeat("a", 128), "NORMAL", 1}, {"a", "QUEUE", 1}, {"a", "NORMAL", -1}, {"a", "NORMAL", 1025}} {
		assert.That(t, assert.Err(topicRequest(c.name, c.kind, c.queues)) != nil, "%+v is accepted", c)
	}
}

func TestGroupRequest(t *testing.T) {
	r, err := groupRequest("billing", Group{FIFO: true, MaxRetries: 2, Retry: []time.Duration{time.Second, 1500 * time.Millisecond}})
	want := `{"consumeMessageOrderly":true,"groupName":"billing","groupRetryPolicy":{"customizedRetryPolicy":{"next":[1000,1500]},"type":"CUSTOMIZED"},"retryMaxTimes":2}`
	assert.That(t, err == nil && r.code == 200 && string(r.body) == want, "%d %s, %v, want %s", r.code, r.body, err, want)
	if r, err := groupRequest("billing", Group{}); err != nil || strings.Contains(string(r.body), "groupRetryPolicy") {
		t.Errorf("%s, %v, want no policy", r.body, err)
	}
	r, err = groupRequest("agents", Group{LiteTopic: "sessions", Attributes: map[string]string{"lite.sub.model": "Exclusive"}})
	want = `{"attributes":{"+lite.bind.topic":"sessions","+lite.sub.model":"Exclusive"},"consumeMessageOrderly":false,"groupName":"agents","retryMaxTimes":0}`
	assert.That(t, err == nil && string(r.body) == want, "%s, %v, want %s", r.body, err, want)
	for name, g := range map[string]Group{"a b": {}, "a": {MaxRetries: -1}} {
		assert.That(t, assert.Err(groupRequest(name, g)) != nil, "%q %+v is accepted", name, g)
	}
}

// Stop ends a process so that it can clean up, and Kill does not. Stop returns at the end of its
// context, and the process still runs. The processes here are shells in place of Java.
func TestStopAndKill(t *testing.T) {
	for name, c := range map[string]struct {
		trap  string // what the process does at the signal TERM
		end   func(*Setup, context.Context, ...string) error
		limit time.Duration
		ends  bool
		wrote bool
	}{
		"stop":          {"echo bye >wrote; exit", (*Setup).Stop, time.Minute, true, true},
		"kill":          {"echo bye >wrote; exit", (*Setup).Kill, time.Minute, true, false},
		"stop in vain":  {"echo bye >wrote", (*Setup).Stop, time.Second, false, true},
		"kill anything": {"", (*Setup).Kill, time.Minute, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := assert.Value(Options{Cluster: true}.withDefaults())(t)
			dir := filepath.Join(t.TempDir(), "set-up")
			s := &Setup{dir: dir, state: state{Options: o, Ports: o.portsAt(firstPort)}}
			assert.Must(t, s.write())
			p := s.plan()[1]
			cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "trap '"+c.trap+"' TERM; echo ready; while :; do sleep 0.1; done", s.mark(p))
			cmd.Dir = dir
			out := assert.Value(cmd.StdoutPipe())(t)
			assert.Must(t, cmd.Start())
			assert.Must(t, os.WriteFile(s.pidFile(p), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600))
			_, err := io.ReadFull(out, make([]byte, len("ready\n")))
			assert.Must(t, err)
			ended := make(chan struct{})
			go func() {
				_ = cmd.Wait()
				close(ended)
			}()
			ctx, cancel := context.WithTimeout(t.Context(), c.limit)
			defer cancel()
			err = c.end(s, ctx, p.name)
			_, pids := s.Processes()
			_, failed := os.Stat(filepath.Join(dir, "wrote"))
			assert.That(t, (err == nil) == c.ends && (pids[p.name] == 0) == c.ends && (failed == nil) == c.wrote,
				"%v, processes %v, %v; want an end %v, a file %v", err, pids, failed, c.ends, c.wrote)
			_ = cmd.Process.Kill()
			<-ended
		})
	}
}
