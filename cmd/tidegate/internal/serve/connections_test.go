package serve

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

func TestMaxConnections(t *testing.T) {
	for files, want := range map[uint64]int{
		0: 65536, 1: 16, 64: 16, 100: 25, 256: 64, 1024: 256, 20_000: 5000, 1 << 20: 65536, math.MaxUint64: 65536,
	} {
		if got := maxConnections(files); got != want {
			t.Errorf("%d files: %d connections, want %d", files, got, want)
		}
	}
}

// Half of the connections may be silent, at least one, and never more than the server's own limit.
func TestMostSilent(t *testing.T) {
	for most, want := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2, 256: 128, 1 << 30: 1024} {
		if got := mostSilent(most); got != want {
			t.Errorf("%d of %d connections may be silent, want %d", got, most, want)
		}
	}
}

// idleAttack opens n connections, writes hello on each, reads the response and keeps them open.
func idleAttack(t *testing.T, address string, n int, hello string, answered func(*bufio.Reader) error) {
	t.Helper()
	for i := range n {
		c := assert.Value(net.Dial("tcp", address))(t)
		t.Cleanup(func() { c.Close() })
		assert.Must(t, c.SetDeadline(time.Now().Add(time.Minute)))
		assert.Must(t, assert.Err(io.WriteString(c, hello)), "connection %d", i+1)
		assert.Must(t, answered(bufio.NewReader(c)), "connection %d got no response", i+1)
	}
}

const (
	httpHello = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
	grpcHello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
)

func httpAnswered(r *bufio.Reader) error {
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func grpcAnswered(r *bufio.Reader) error {
	var frame [9]byte
	if _, err := io.ReadFull(r, frame[:]); err != nil {
		return err
	}
	if frame[3] != 4 { // SETTINGS
		return fmt.Errorf("frame %x", frame)
	}
	return nil
}

// Clients that make one request on each connection and keep it open do not lock out other clients,
// with and without keys. The server closes the longest idle connection for each new one. It keeps
// the connections of authenticated clients and those with a request under way.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	const most = 4
	for _, keys := range []bool{false, true} {
		t.Run(fmt.Sprintf("keys=%t", keys), func(t *testing.T) {
			args := []string{"--max-connections", strconv.Itoa(most), "--topic", "orders"}
			options := rocketmq.Options{}
			if keys {
				file := filepath.Join(t.TempDir(), "tidegate.yaml")
				if err := os.WriteFile(file, []byte("access:\n  keys:\n    app:\n      secret: sesame\n      allow:\n      - {actions: [send, receive], topics: [orders], groups: ['*']}\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				args = append(args, "--config", file)
				options.Credentials = tidegate.Credentials{AccessKey: "app", SecretKey: "sesame"}
			}
			p := start(t, args...)

			stays := resident(t, p, keys)
			idleAttack(t, p.http, 2*most, httpHello, httpAnswered)
			idleAttack(t, p.grpc, 2*most, grpcHello, grpcAnswered)

			canary := assert.Value(rocketmq.New(p.grpc, options))(t)
			defer canary.Close()
			ctx, cancel := context.WithTimeout(transport.AwaitConnection(t.Context()), time.Minute)
			defer cancel()
			if err := canary.Send(ctx, []*tidegate.Message{{Topic: "orders", ID: "1", Body: []byte("canary")}})[0].Err; err != nil {
				t.Errorf("over gRPC, beside %d idle connections of %d: %v", 2*most, most, err)
			}
			if line := p.await(t, 0, "max_connections=4"); !strings.Contains(line, "raise max_connections") {
				t.Errorf("the log has %s", line)
			}
			stays()
		})
	}
}

// resident opens a connection to the HTTP address that no other connection may replace. With keys
// it is an idle connection of an authenticated client, without keys one with a receive that waits
// for a message. The returned function fails the test if the connection was replaced.
func resident(t *testing.T, p *process, keys bool) (stays func()) {
	t.Helper()
	c := assert.Value(net.Dial("tcp", p.http))(t)
	t.Cleanup(func() { c.Close() })
	assert.Must(t, c.SetDeadline(time.Now().Add(time.Minute)))
	r := bufio.NewReader(c)
	body, more := `{"wait":"20s"}`, "Content-Type: application/json\r\n"
	if keys {
		body = "{}"
		more += "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("app:sesame")) + "\r\n"
	}
	ask := func() {
		t.Helper()
		if _, err := fmt.Fprintf(c, "POST /v1/groups/g/topics/orders/receive HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n%s", more, len(body), body); err != nil {
			t.Fatalf("the connection that was there before: %v", err)
		}
	}
	answer := func() {
		t.Helper()
		resp, err := http.ReadResponse(r, nil)
		assert.Must(t, err, "the connection that was there before was closed")
		defer resp.Body.Close()
		if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s, %v", resp.Status, text, err)
		}
	}
	ask()
	if keys {
		answer()
	}
	return func() {
		if keys {
			ask()
		}
		answer()
	}
}

// While every connection has a request under way, new ones wait until one ends.
func TestConnectionsBeyondTheLimitWait(t *testing.T) {
	p := start(t, "--max-connections", "2", "--topic", "orders")
	var conns []net.Conn
	const receive = "POST /v1/groups/g/topics/orders/receive HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/x-ndjson\r\nContent-Length: 2\r\n\r\n{}"
	for _, hello := range []string{receive, receive, httpHello} {
		c := assert.Value(net.Dial("tcp", p.http))(t)
		defer c.Close()
		assert.Must(t, assert.Err(io.WriteString(c, hello)))
		conns = append(conns, c)
		if hello == receive {
			if line, err := bufio.NewReader(c).ReadString('\n'); line != "HTTP/1.1 200 OK\r\n" || err != nil {
				t.Fatalf("a stream begins with %q, %v", line, err)
			}
		}
	}
	answered := make(chan error, 1)
	go func() { answered <- httpAnswered(bufio.NewReader(conns[2])) }()
	if line := p.await(t, 0, "max_connections=2"); !strings.Contains(line, p.http) || !strings.Contains(line, "waited=1") {
		t.Errorf("the log has %s", line)
	}
	select {
	case err := <-answered:
		t.Errorf("a third connection got a response beside two with requests under way: %v", err)
	default:
	}
	assert.Must(t, conns[0].Close())
	assert.NoError(t, <-answered, "the third connection, once the first had ended")
}

// Clients that open silent connections again and again do not lock out other clients: the server
// accepts such connections, and closes them for later ones.
func TestSilentConnectionsMakeRoom(t *testing.T) {
	p := start(t, "--max-connections", "4")
	for range 4 {
		c := assert.Value(net.Dial("tcp", p.grpc))(t)
		defer c.Close()
	}
	idleAttack(t, p.grpc, 1, grpcHello, grpcAnswered)
}

// A full address is logged once in a while, and not for each connection.
func TestFullAddressIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		l := fullLog{logger: slog.New(slog.NewTextHandler(&text, nil)), address: "here", most: 2, lines: rate.Sometimes{Interval: fullInterval}}
		for _, step := range []struct {
			waits  bool
			after  time.Duration
			logged string
		}{
			{false, 0, "address=here max_connections=2 closed=1 waited=0"},
			{true, 0, ""},
			{false, fullInterval - 1, ""},
			{false, 1, "closed=2 waited=1"},
			{true, fullInterval, "closed=0 waited=1"},
		} {
			time.Sleep(step.after)
			text.Reset()
			l.note(step.waits)
			if got := text.String(); (got != "") != (step.logged != "") || !strings.Contains(got, step.logged) {
				t.Errorf("%+v: logged %q", step, got)
			}
		}
	})
}

func TestGarbageOf(t *testing.T) {
	for limit, want := range map[int64]int64{math.MaxInt64: 64 << 20, 1 << 30: 64 << 20, 512 << 20: 64 << 20, 128 << 20: 16 << 20} {
		if got := garbageOf(limit); got != want {
			t.Errorf("with %d bytes of memory %d of garbage, want %d", limit, got, want)
		}
	}
}

func TestPercentFor(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		live    uint64
		garbage int64
		want    int
	}{
		{0, 64 * mib, mostPercent},
		{mib, 64 * mib, mostPercent},
		{16 * mib, 64 * mib, 400},
		{64 * mib, 64 * mib, 100},
		{1 << 40, 64 * mib, 100},
		{16 * mib, 16 * mib, 100},
		{math.MaxUint64, math.MaxInt64, 100},
	} {
		if got := percentFor(c.live, c.garbage); got != c.want {
			t.Errorf("with %d bytes live and %d of garbage GOGC is %d, want %d", c.live, c.garbage, got, c.want)
		}
	}
}

// The pace follows the live heap, and the environment's GOGC holds.
func TestPaceCollector(t *testing.T) {
	current := func() int {
		n := debug.SetGCPercent(leastPercent)
		debug.SetGCPercent(n)
		return n
	}
	before := current()
	defer debug.SetGCPercent(before)
	t.Setenv("GOGC", "")
	stop := paceCollector()
	runtime.GC()
	if got := current(); got <= leastPercent {
		t.Errorf("GOGC is %d with a small heap, want more than %d", got, leastPercent)
	}
	stop()
	assert.Equal(t, "GOGC is afterwards", current(), leastPercent)
	t.Setenv("GOGC", "150")
	debug.SetGCPercent(150)
	paceCollector()()
	assert.Equal(t, "GOGC is, but the environment has 150", current(), 150)
}

// flagged returns the values of flags, in pairs of key and text.
func flagged(pairs ...string) values {
	v := values{}
	for i := 0; i < len(pairs); i += 2 {
		v[pairs[i]] = append(v[pairs[i]], given{pairs[i+1], origin{Name: "--" + flagName(pairs[i])}})
	}
	return v
}

// Each source is checked, also a value that a flag or the environment overrides. Settings that
// depend on each other may come from different sources.
func TestOverriddenValues(t *testing.T) {
	for _, c := range []struct {
		name, file string
		env        []string
		flags      values
		want       string // "" if the configuration is accepted
	}{
		{name: "file below a flag", file: "\nlog_level: loud", flags: flagged("log_level", "info"),
			want: `f:2: log_level is "loud": give debug, info, warn or error`},
		{name: "file below the environment", file: "stop_timeout: -3s", env: []string{"TIDEGATE_STOP_TIMEOUT=3s"},
			want: `f:1: stop_timeout is "-3s": give 0s or more`},
		{name: "environment below a flag", env: []string{"TIDEGATE_MIN_FREE_DISK_BYTES=-2", "TIDEGATE_MAX_BACKLOG=-1"}, flags: flagged("max_backlog", "1", "min_free_disk_bytes", "1"),
			want: "TIDEGATE_MAX_BACKLOG is \"-1\": MaxBacklog is -1 messages and 0 bytes; neither may be negative, 0 is no limit\n" +
				`TIDEGATE_MIN_FREE_DISK_BYTES is "-2": Pressure.min_free_disk_bytes is -2; give -1 or more`},
		{name: "flag below the same flag", flags: flagged("log_format", "xml", "log_format", "json"),
			want: `--log-format is "xml": give text or json`},
		{name: "one of two lists", env: []string{"TIDEGATE_TOPIC=a,b:ODD"}, flags: flagged("topic", "c", "topic", "d:ODD"),
			want: "TIDEGATE_TOPIC is \"a,b:ODD\": give NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY or LITE after the colon\n" +
				`--topic is "d:ODD": give NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY or LITE after the colon`},
		{name: "all three", file: "log_level: a", env: []string{"TIDEGATE_LOG_LEVEL=b"}, flags: flagged("log_level", "c"),
			want: "f:1: log_level is \"a\": give debug, info, warn or error\n" +
				"TIDEGATE_LOG_LEVEL is \"b\": give debug, info, warn or error\n" +
				`--log-level is "c": give debug, info, warn or error`},
		{name: "combination across sources", file: "min_long_polling: 30s", flags: flagged("max_long_polling", "1m")},
		{name: "hidden combination", file: "min_long_polling: 30s\nmax_long_polling: 1m", flags: flagged("min_long_polling", "1s", "max_long_polling", "2s")},
		{name: "combination without its partner", file: "min_long_polling: 30s", flags: flagged("min_long_polling", "1s"),
			want: `f:1: min_long_polling is "30s": server options: MinLongPolling is 30s and MaxLongPolling is 20s; the minimum must not exceed the maximum`},
		{name: "combination beside another fault", file: "max_client_rate: 10\nmax_client_burst: 5\nlog_level: loud",
			want: `f:3: log_level is "loud": give debug, info, warn or error`},
		{name: "effective combination beside a hidden fault", file: "log_level: loud\nmin_long_polling: 18s\nmax_long_polling: 15s", flags: flagged("log_level", "info"),
			want: "f:1: log_level is \"loud\": give debug, info, warn or error\n" +
				`f:2: min_long_polling is "18s": server options: MinLongPolling is 18s and MaxLongPolling is 15s; the minimum must not exceed the maximum`},
		{name: "combination that a flag destroys", file: "max_client_rate: 10\nmax_client_burst: 5", flags: flagged("max_client_rate", "0"),
			want: `f:2: max_client_burst is "5": ClientQuota is 0 messages per second with a burst of 5; give a rate above 0 and a burst of 0 or more, or a rate and burst of 0 for no limit`},
	} {
		t.Run(c.name, func(t *testing.T) {
			env, _ := environment(c.env)
			_, err := merge("f", []byte(c.file), env, c.flags)
			got := ""
			if err != nil {
				got = err.Error()
			}
			assert.That(t, got == c.want, "got\n%s\nwant\n%s", got, c.want)
		})
	}
}

func TestSmallestMemoryLimit(t *testing.T) {
	failure := errors.New("no cgroup")
	unknown := func() (uint64, error) { return 0, failure }
	for _, c := range []struct {
		name   string
		limits []memlimit.Provider
		want   uint64
	}{
		{"the cgroup has less", []memlimit.Provider{memlimit.Limit(1), memlimit.Limit(2)}, 1},
		{"the machine has less", []memlimit.Provider{memlimit.Limit(3), memlimit.Limit(2)}, 2},
		{"there is no cgroup", []memlimit.Provider{unknown, memlimit.Limit(2)}, 2},
	} {
		if got, err := smallest(c.limits...); err != nil || got != c.want {
			t.Errorf("%s: %d, %v; want %d", c.name, got, err, c.want)
		}
	}
	assert.Is(t, "without any limit", assert.Err(smallest(unknown, unknown)), failure)
	if n, err := memory(); err != nil || n < 64<<20 {
		t.Errorf("this machine has %d bytes, %v", n, err)
	}
}

// A message log that is truncated after kill -9 is not opened silently: serve names the log and the
// flag that accepts the loss, and starts with that flag.
func TestTruncatedLogAfterKill(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "--data", dir, "--topic", "orders")
	c := dial(t, p)
	for range 20 {
		if r := c.Send(t.Context(), []*tidegate.Message{{ID: rand.Text(), Topic: "orders", Body: make([]byte, 1000)}})[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	c.Close()
	p.kill()
	logs, err := filepath.Glob(filepath.Join(dir, "messages", "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	log := logs[len(logs)-1]
	info := assert.Value(os.Stat(log))(t)
	assert.Must(t, os.Truncate(log, min(info.Size(), 20_000)-10_000))
	before := content(t, dir)
	var stdout, stderr strings.Builder
	code := run(t.Context(), []string{"serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data", dir}, &stdout, &stderr)
	for _, w := range []string{log, "--accept-data-loss", "restore"} {
		if code != 1 || !strings.Contains(stderr.String(), w) {
			t.Errorf("code %d, and stderr does not contain %q: %s", code, w, stderr.String())
		}
	}
	assert.Equal(t, "there was, and is", content(t, dir), before)
	p = start(t, "--data", dir, "--accept-data-loss")
	p.await(t, 0, "data is missing")
	if code := p.stop(); code != 0 {
		t.Errorf("SIGTERM: exit code %d\n%s", code, p.stderr.String())
	}
	p = start(t, "--data", dir)
	if code := p.stop(); code != 0 {
		t.Errorf("SIGTERM: exit code %d\n%s", code, p.stderr.String())
	}
}

// content returns the names and sizes of the files of the databases.
func content(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	for _, db := range []string{"messages", "groups"} {
		assert.Must(t, filepath.WalkDir(filepath.Join(dir, db), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			all.WriteString(path + " " + info.ModTime().String() + "\n")
			return err
		}))
	}
	return all.String()
}
