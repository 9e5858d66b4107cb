package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// Errors name the flag, the value and the legal values. The exit code is 2.
func TestBadFlags(t *testing.T) {
	for _, c := range []struct {
		args string
		says []string
	}{
		{"serv", []string{`unknown command "serv"`, "serve", "tidegate --help"}},
		{"serve now", []string{"no arguments", `"now"`}},
		{"serve --nope", []string{"--nope", "tidegate serve --help"}},
		{"serve --grpc 1", []string{`--grpc is "1"`, "host:port"}},
		{"serve --http 0.0.0.0:1 --log-level loud --log-format xml", []string{`--http is "0.0.0.0:1"`, "--insecure", `--log-level is "loud"`}},
		{"serve --max-backlog -1 --stop-timeout -1s --topic a:B", []string{"--max-backlog", "--stop-timeout", `"a:B"`, "FIFO"}},
		{"serve --topic a!b:FIFO --advertise here", []string{`--topic is "a!b:FIFO"`, "allowed are letters", `--advertise is "here"`, "host:port"}},
		{"serve --advertise h:99999", []string{`--advertise is "h:99999"`, "65535"}},
	} {
		var stdout, stderr strings.Builder
		if code := run(t.Context(), strings.Fields(c.args), &stdout, &stderr); code != 2 || stdout.Len() > 0 {
			t.Errorf("%s: code %d, stdout %q", c.args, code, stdout.String())
		}
		for _, w := range c.says {
			assert.That(t, strings.Contains(stderr.String(), w), "%s: stderr does not contain %q: %s", c.args, w, stderr.String())
		}
	}
}

func TestServeFailures(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "--data", dir)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--data", dir}, "another process uses the directory"},
		{[]string{"--grpc", p.grpc}, "address already in use"},
	} {
		var stdout, stderr strings.Builder
		args := append([]string{"serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"}, c.args...)
		if code := run(t.Context(), args, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%v: code %d, stderr %q, want %q", c.args, code, stderr.String(), c.says)
		}
	}
	if code := p.stop(); code != 0 {
		t.Errorf("SIGTERM: code %d\n%s", code, p.stderr.String())
	}
}

// Clients of the admin that stop in the middle, or never begin, are cut off.
func TestSilentAdminConnections(t *testing.T) {
	for name, said := range map[string]string{
		"nothing":     "",
		"half a line": "PUT /v1/top",
		"no body":     "PUT /v1/topics/t HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{",
		"idle":        "GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lis := bufconn.Listen(1 << 16)
				admin := adminServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }),
					slog.New(slog.DiscardHandler))
				go admin.Serve(lis)
				defer admin.Close()
				c, err := lis.DialContext(t.Context())
				assert.Must(t, err)
				defer c.Close()
				assert.Must(t, assert.Err(io.WriteString(c, said)))
				c.SetReadDeadline(time.Now().Add(5 * time.Minute))
				_, err = io.Copy(io.Discard, c)
				if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
					t.Errorf("still open after 5 minutes: %v", err)
				}
			})
		})
	}
}

// A client that does not read has a minute for a response.
func TestUnreadAdminResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan time.Duration, 1)
		admin := adminServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			began := time.Now()
			_, _ = w.Write(make([]byte, 1<<20))
			ended <- time.Since(began)
		}), slog.New(slog.DiscardHandler))
		lis := bufconn.Listen(1 << 16)
		go admin.Serve(lis)
		defer admin.Close()
		c := assert.Value(lis.DialContext(t.Context()))(t)
		defer c.Close()
		assert.Must(t, assert.Err(io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")))
		select {
		case took := <-ended:
			assert.That(t, took == time.Minute, "the response was given up after %v, want 1m0s", took)
		case <-time.After(time.Hour):
			t.Error("the response still waits for its reader after an hour")
		}
	})
}

// The server closes the connection of a client that sends its headers one byte at a time after 10
// s. It closes that of a client with larger headers after 64 KiB.
func TestHeadersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lis := bufconn.Listen(1 << 10)
		admin := adminServer(http.NotFoundHandler(), slog.New(slog.DiscardHandler))
		go admin.Serve(lis)
		defer admin.Close()
		dial := func() net.Conn {
			c := assert.Value(lis.DialContext(t.Context()))(t)
			go io.Copy(io.Discard, c)
			return c
		}
		slow, began := dial(), time.Now()
		for err := error(nil); err == nil; time.Sleep(time.Second) {
			_, err = slow.Write([]byte("G"))
		}
		if took := time.Since(began); took > 12*time.Second {
			t.Errorf("a client without a complete header was cut off after %v", took)
		}
		large, sent := dial(), 0
		_, err := large.Write([]byte("GET / HTTP/1.1\r\nHost: h\r\nX: "))
		for ; err == nil && sent < 1<<20; sent += 1 << 10 {
			_, err = large.Write(make([]byte, 1<<10))
		}
		assert.That(t, sent <= 96<<10, "%d KiB of headers were read", sent>>10) // net/http reads a buffer more
	})
}

// The help shows the default of each flag, and a name for the value of those that take one.
func TestHelpShowsDefaults(t *testing.T) {
	var stdout, stderr strings.Builder
	if code := run(t.Context(), []string{"serve", "--help"}, &stdout, &stderr); code != 0 {
		t.Fatalf("code %d: %s", code, stderr.String())
	}
	lines := map[string]string{}
	for line := range strings.Lines(stdout.String()) {
		if f := strings.Fields(line); len(f) > 1 {
			lines[f[0]] = line
		}
	}
	for flag, want := range map[string]struct{ value, preset string }{
		"--grpc":         {"address", "127.0.0.1:8081"},
		"--stop-timeout": {"duration", "10s"},
		"--log-format":   {"format", "text"},
		"--max-backlog":  {"messages", ""},
		"--insecure":     {},
	} {
		line := lines[flag]
		value, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), flag), "  ")
		preset, ok := "", strings.HasSuffix(line, ")\n")
		if _, after, found := strings.Cut(line, " (default "); found && ok {
			preset = strings.TrimSuffix(after, ")\n")
		}
		assert.That(t, strings.TrimSpace(value) == want.value && preset == want.preset, "%q: value %q and default %q, want %q and %q", line, value, preset, want.value, want.preset)
	}
}

// run is the program with the commands of this package alone.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{Use: "tidegate"}
	root.AddCommand(Commands(stdout, stderr)...)
	return cli.Execute(ctx, root, args, stdout, stderr)
}

// Every file here has faults, and may have a secret, sesame, that no fault repeats.
var badAccess = []struct{ file, want string }{
	{"access:\n  keys:\n    k: sesame", `f:3: access.keys.k is a single value; give "key: value"`},
	{"access:\n  keys: [sesame]", `f:2: access.keys is a list`},
	{"access:\n  keys:", `f:2: access.keys is empty, and without keys every client has all permissions`},
	{"access:\n  keys:\n#   k: {secret: sesame}\n", `f:2: access.keys is empty, and without keys every client has all permissions`},
	{"access:\n  keys: []", `f:2: access.keys is a list; give "key: value", one on each line`},
	{"access:", `f:1: access is a single value; give "key: value"`},
	{"access:\n  keys:\n    k: {sesame}", `f:3: a name is unknown in access.keys.k; the names are secret, secret_file`},
	{"access:\n  keys:\n    k: {secert: sesame}", `f:3: "secert" is unknown in access.keys.k; did you mean secret?`},
	{"access:\n  keys:\n    k: {secret: {sesame: sesame}}", `f:3: access.keys.k.secret is a mapping; give a single value`},
	{"access:\n  keys:\n    k: {secret: !sesame x}", `f:3: access.keys.k.secret is a value with a YAML`},
	{"access:\n  keys:\n    k: {secret: *sesame}", `f:3: this is not YAML: a value that begins with *`},
	{"access:\n  keys:\n    k: {secret: &sesame x, secret_env: *sesame}", `f:3: access.keys.k.secret_env is a YAML alias`},
	{"access:\n  keys:\n    k: {secret: ''}", `f:3: access.keys.k.secret is empty`},
	{"access:\n  keys:\n    k: {secret: [sesame, sesame2], secret_env: X}", `f:3: access.keys.k has 3 secrets; the limit`},
	{"access:\n  keys:\n    k:\n      allow: []", `f:2: access.keys are invalid: key "k" has neither a secret nor a certificate, so no client can use it`},
	{"access:\n  keys:\n    'sesame!': {secret: x}", `f:3: access.keys has an invalid name: give letters`},
	{"access:\n  keys:\n    k: {secret: sesame, certificates: [c]}", `f:3: access.keys.k has certificates; set tls.client_certificates`},
	{"access:\n  keys:\n    k:\n      secret: sesame\n      allow: {actions: [send]}", `f:5: access.keys.k.allow is a mapping; give a list of rules`},
	{"access:\n  keys:\n    k:\n      secret: sesame\n      allow:\n      - {actions: [send], topic: x}", `f:6: "topic" is unknown in access.keys.k.allow[1]; did you mean topics?`},
	{"access:\n  keys:\n    k:\n      secret: sesame\n      allow:\n      - {actions: [send], topics: [x]}\n      - {actions: [receive], topics: [x]}", `f:7: access.keys.k.allow[2] is invalid: action receive needs topics and groups`},
	{"access:\n  keys:\n    k:\n      secret: sesame\n      allow: [{actions: [write], topics: [x]}]", `f:5: access.keys.k.allow[1] is invalid: the action "write" is unknown; the actions are send, receive, observe and admin`},
	{"access:\n  keys:\n    k:\n      secret: sesame\n      allow: [{actions: [send], topics: ['orders.#']}]", `f:5: access.keys.k.allow[1] is invalid: the pattern "orders.#" matches no name: names of topics have letters, digits and %|_-.; in`},
	{"access:\n  anonymous: [{actions: [send], topics: [x]}]", `f:2: access.anonymous[1] has rules for requests without credentials, but without access.keys every client`},
	{"access:\n  time_zones: [UTC, Mars/Olympus]", `f:2: access.time_zones is "UTC,Mars/Olympus": the time zone "Mars/Olympus" is unknown; give a name such as UTC`},
	{"acces: {}", `f:1: "acces" is unknown; did you mean access?`},
	{"tls: yes", `f:1: tls is "yes"; give "key: value"`},
	{"tls:\n  cert: c", `f:2: tls.cert needs tls.key too`},
	{"tls:\n  key: k", `f:2: tls.key needs tls.cert too`},
	{"tls: {cert: c, key: k, client_certificates: require}", `f:1: tls.client_certificates needs tls.client_ca too`},
	{"tls: {cert: c, key: k, client_ca: ca}", `f:1: tls.client_ca needs tls.client_certificates (request or require) too`},
	{"tls: {cert: c, key: k, min_version: '1.1'}", `f:1: tls.min_version is "1.1": give 1.2 or 1.3`},
	{"tls: {allow_plain_text: true}", `f:1: tls.allow_plain_text needs tls.cert too`},
}

func TestBadAccess(t *testing.T) {
	for _, c := range badAccess {
		err := check("f", c.file)
		assert.That(t, err != nil && strings.HasPrefix(err.Error(), c.want) && !strings.Contains(err.Error(), "\n"), "%q:\ngot  %v\nwant %s...", c.file, err, c.want)
		assert.That(t, err == nil || !strings.Contains(err.Error(), "sesame"), "%q: the fault repeats the secret: %v", c.file, err)
	}
}

const goodAccess = `
tls: {cert: c, key: k, client_ca: ca, client_certificates: request}
access:
  max_clock_skew: 5m
  time_zones: [UTC]
  keys:
    orders:
      secret_file: [a, b]
      certificates: [orders.test]
      allow:
      - {actions: [send, receive], topics: ["orders-*", "%DLQ%*"], groups: [billing]}
    mixed:
      secret: [sesame]
      secret_env: MIXED
  anonymous:
  - actions: [observe]
    groups: ["*"]
`

// --print-config prints the keys as in the file, without their secrets.
func TestPrintedAccess(t *testing.T) {
	c, err := merge("f", []byte(goodAccess), nil, nil)
	assert.Must(t, err)
	text := shown(t, c)
	assert.That(t, !strings.Contains(text, "sesame") && strings.Contains(text, "the secret is not shown"), "printed:\n%s", text)
	again, err := merge("f", []byte(text), nil, nil)
	assert.MustThat(t, err == nil, "%v\n%s", err, text)
	assert.That(t, reflect.DeepEqual(c.anonymous, again.anonymous) && reflect.DeepEqual(c.settings, again.settings), "it became %+v\n%s", again, text)
	for name, k := range c.keys {
		k.Secret = nil
		if got := again.keys[name]; !reflect.DeepEqual(k, got) {
			t.Errorf("%s: %+v became %+v", name, k, got)
		}
	}
}

func TestResolve(t *testing.T) {
	c, err := merge("f", []byte(goodAccess), nil, nil)
	assert.Must(t, err)
	files := map[string]string{"a": "old\n", "b": "new\r\n"}
	read := func(name string) ([]byte, error) {
		if text, ok := files[name]; ok {
			return []byte(text), nil
		}
		return os.ReadFile(filepath.Join(t.TempDir(), name))
	}
	variables := map[string]string{"MIXED": "env"}
	lookup := func(name string) (string, bool) { v, ok := variables[name]; return v, ok }
	who := assert.Value(c.resolve(read, lookup))(t)
	got := map[string][]string{}
	for _, k := range who.Keys {
		for _, s := range k.Secrets {
			got[k.Name] = append(got[k.Name], s.Reveal())
		}
	}
	if want := map[string][]string{"orders": {"old", "new"}, "mixed": {"sesame", "env"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("secrets %q, want %q", got, want)
	}
	delete(files, "a")
	files["b"] = "\n"
	variables["MIXED"] = "sesame" // twice for one key does no harm
	_, err = c.resolve(read, lookup)
	if want := "f:8: access.keys.orders.secret_file cannot be read: no such file or directory\n" +
		"f:8: access.keys.orders.secret_file is an empty file; write the secret into it"; err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
	delete(variables, "MIXED")
	if _, err = c.resolve(read, lookup); err == nil || !strings.Contains(err.Error(), "f:14: access.keys.mixed.secret_env is a variable that is empty or not set") {
		t.Errorf("without the variable: %v", err)
	}
}

// Other machines can connect only with keys, over TLS that they can verify.
func TestExposed(t *testing.T) {
	const keys, files, far = "access: {keys: {k: {secret: s}}}\n", "tls: {cert: c, key: k}\n", "grpc: 0.0.0.0:1\nhttp: '[::]:1'\n"
	for text, want := range map[string]int{
		far:                2,
		far + keys:         2,
		far + files:        2,
		far + keys + files: 0,
		far + keys + "tls: {cert: c, key: k, allow_plain_text: true}\n": 2,
		far + "insecure: true":               0,
		keys:                                 0,
		"":                                   0,
		"grpc: localhost:1\nhttp: '[::1]:1'": 0,
		"grpc: example.test:1":               1,
		"grpc: ':1'":                         1,
	} {
		_, err := merge("f", []byte(text), nil, nil)
		if bad, _ := errors.AsType[faults](err); len(bad) != want {
			t.Errorf("%q: %v, want %d faults", text, bad, want)
		}
	}
}

// A configuration by which other machines can administer the broker without credentials is legal,
// and logged as a warning.
func TestOpenToAll(t *testing.T) {
	const far, keys = "tls: {cert: c, key: k}\nhttp: 0.0.0.0:1\n", "access:\n  keys: {k: {secret: s}}\n"
	const admin, send = "  anonymous:\n  - {actions: [send], topics: ['*']}\n  - {actions: [admin], topics: ['*'], groups: ['*']}\n", "  anonymous: [{actions: [send], topics: ['*']}]\n"
	for text, want := range map[string]string{
		far + keys:             "",
		far + keys + send:      "",
		far + keys + admin:     "f:7: access.anonymous",
		keys + admin:           "",
		"":                     "",
		far + "insecure: true": "no access keys",
	} {
		c, err := merge("f", []byte(text), nil, nil)
		assert.MustThat(t, err == nil, "%q: %v", text, err)
		if got := c.openToAll(c.settings); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func client(t *testing.T, p *process, key, secret string) *rocketmq.Client {
	t.Helper()
	c := assert.Value(rocketmq.New(p.grpc, rocketmq.Options{Credentials: tidegate.Credentials{AccessKey: key, SecretKey: secret}}))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// Keys are renewed under load. Three rules hold: the broker never rejects a client with a valid
// key, it rejects all other clients, and it prints no secret.
func TestKeysAreRenewedUnderLoad(t *testing.T) {
	dir := t.TempDir()
	file, secret := filepath.Join(dir, "tidegate.yaml"), filepath.Join(dir, "secret")
	write(t, secret, "sesame-0\n")
	config := func(keys string) string {
		return "topic: [orders-1, other]\naccess:\n  keys:\n    app:\n" + keys +
			"      allow:\n      - {actions: [send], topics: [orders-*]}\n" +
			"    operator:\n      secret_env: TEST_OPERATOR\n      allow:\n      - {actions: [admin], topics: ['*'], groups: ['*']}\n"
	}
	write(t, file, config("      secret_file: "+secret+"\n"))
	t.Setenv("TEST_OPERATOR", "sesame-operator")
	p := start(t, "--config", file, "--log-level", "debug")
	send := func(c *rocketmq.Client, topic string) error {
		return c.Send(t.Context(), []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: topic, Body: []byte("x")}})[0].Err
	}
	if err := send(client(t, p, "app", "sesame-0"), "other"); !errors.Is(err, tidegate.ErrForbidden) {
		t.Errorf("to a topic that no rule allows: %v", err)
	}
	for _, wrong := range [][2]string{{"app", "sesame-1"}, {"nobody", "sesame-0"}, {"", ""}} {
		if err := send(client(t, p, wrong[0], wrong[1]), "orders-1"); !errors.Is(err, tidegate.ErrUnauthorized) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	now := client(t, p, "app", "sesame-0")
	var using sync.RWMutex // read-locked during a send with the key of now
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var sent atomic.Int64
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				using.RLock()
				err := send(now, "orders-1")
				using.RUnlock()
				if err != nil {
					t.Errorf("refused under load: %v", err)
					return
				}
				sent.Add(1)
			}
		})
	}
	reload := func(text string) {
		t.Helper()
		from := len(p.stderr.String())
		write(t, file, text)
		assert.Must(t, p.cmd.Process.Signal(syscall.SIGHUP))
		p.await(t, from, "configuration reloaded")
	}
	for i := 1; i <= 5; i++ { // old and new, then clients change, then new alone
		write(t, secret, fmt.Sprintf("sesame-%d", i-1))
		write(t, secret+"-next", fmt.Sprintf("sesame-%d", i))
		reload(config(fmt.Sprintf("      secret_file: [%s, %s-next]\n", secret, secret)))
		next := client(t, p, "app", fmt.Sprintf("sesame-%d", i))
		using.Lock()
		now = next
		using.Unlock()
		for n := sent.Load() + 20; sent.Load() < n && !t.Failed(); {
			assert.NoError(t, send(next, "orders-1"))
		}
	}
	cancel()
	wg.Wait()
	write(t, secret, "sesame-5")
	reload(config("      secret_file: " + secret + "\n"))
	assert.Is(t, "with the first secret", send(client(t, p, "app", "sesame-0"), "orders-1"), tidegate.ErrUnauthorized)
	var said strings.Builder
	for _, path := range []string{"/metrics", "/v1/topics", "/v1/topics/orders-1", "/v1/groups", "/healthz", "/nothing"} {
		r := assert.Value(http.NewRequestWithContext(t.Context(), "GET", "http://"+p.http+path, nil))(t)
		r.SetBasicAuth("operator", "sesame-operator")
		resp := assert.Value(http.DefaultClient.Do(r))(t)
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Fprintf(&said, "%s: %s %v %s\n", path, resp.Status, resp.Header, body)
	}
	for _, w := range []string{"/metrics: 200", "/v1/topics: 200", "/nothing: 404", `tidegate_access_refusals_total{reason="wrong_credentials"} 3`} {
		assert.That(t, strings.Contains(said.String(), w), "the responses do not contain %q", w)
	}
	var printed, stderr strings.Builder
	run(t.Context(), []string{"serve", "--config", file, "--print-config"}, &printed, &stderr)
	run(t.Context(), []string{"config", "check", file}, &printed, &stderr)
	assert.Equal(t, "SIGTERM: code", p.stop(), 0)
	if all := said.String() + printed.String() + stderr.String() + p.stderr.String(); strings.Contains(all, "sesame") || t.Failed() {
		t.Errorf("it printed a secret, or a check failed:\n%s", all)
	}
	if !strings.Contains(printed.String(), "secret_file: [") || !strings.Contains(p.stderr.String(), "key=app ") {
		t.Errorf("printed:\n%s\nlogged:\n%s", printed.String(), p.stderr.String())
	}
}

// A reload of a file that is cut off at any place, or that no longer has keys, does not open a
// broker with keys: the broker keeps its keys.
func TestReloadKeepsTheKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tidegate.yaml")
	const whole = "topic: [orders]\naccess:\n  keys:\n    app:\n      secret: sesame\n      allow:\n      - {actions: [send], topics: [orders]}\n"
	write(t, file, whole)
	p := start(t, "--config", file)
	for _, end := range []string{"", "topic: [orders]\n", "access:\n", "keys:\n", "app:\n", "secret: sesame\n"} {
		text := whole[:strings.Index(whole, end)+len(end)]
		from := len(p.stderr.String())
		write(t, file, text)
		assert.Must(t, p.cmd.Process.Signal(syscall.SIGHUP))
		line := p.await(t, from, "configuration ")
		if unchanged := strings.Contains(line, "not reloaded"); unchanged != (end != "secret: sesame\n") { // a key without rules may do nothing
			t.Errorf("cut after %q: %s", end, line)
		}
		err := client(t, p, "", "").Send(t.Context(), []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte("x")}})[0].Err
		assert.That(t, errors.Is(err, tidegate.ErrUnauthorized), "cut after %q, a send without credentials: %v", end, err)
	}
}

// A reload cannot open a broker to other machines, because it changes neither addresses nor TLS.
func TestReloadChecksTheOpenAddresses(t *testing.T) {
	running := defaultSettings()
	running.grpc = "0.0.0.0:1"
	next, _, _ := change(*running, *defaultSettings())
	assert.Equal(t, "len((&config{}).exposed(&next))", len((&config{}).exposed(&next)), 1)
}

// A field that is added to a key or to all of access needs one in the file.
func TestEveryFieldOfAKeyIsInTheFile(t *testing.T) {
	for typ, fields := range map[reflect.Type]int{
		reflect.TypeFor[server.Key]():          reflect.TypeFor[keyDeclaration]().NumField() - 2 + 1, // Secrets are three; Name is the key's
		reflect.TypeFor[server.AccessConfig](): 4,                                                    // keys, anonymous, max_clock_skew, time_zones
	} {
		assert.That(t, typ.NumField() == fields, "%s has %d fields, the file %d", typ, typ.NumField(), fields)
	}
}

// Address settings of a file reach the broker, and a change of the file changes them.
// Artemis: undelivered messages: "Delayed redelivery is defined in the address-setting
// configuration"
// Artemis: undelivered messages: "Dead letter address is defined in the address-setting
// configuration"
func TestPutAddressSettings(t *testing.T) {
	b := assert.Value(broker.Open(broker.Options{}))(t)
	defer b.Close()
	apply := func(text string, want ...string) {
		t.Helper()
		c, err := merge("f", []byte(text), nil, nil)
		assert.Must(t, err)
		changed, err := put(t.Context(), c, b)
		assert.That(t, err == nil && slices.Equal(changed, want), "changed %q, %v, want %q", changed, err, want)
		assert.Equal(t, "declared are", len(c.declared()), len(c.addresses))
	}
	apply("address_settings:\n  '#': {redelivery-delay: 5s}\n  orders.*: {max-delivery-attempts: 3, dead-letter-address: DLA}", "address_settings.#", "address_settings.orders.*")
	apply("address_settings:\n  '#': {redelivery-delay: 5000}\n  orders.*: {max-delivery-attempts: 3}", "address_settings.orders.*")
	s := b.TopicAddressSettings("orders.eu")
	assert.That(t, *s.RedeliveryDelay == 5000 && *s.MaxDeliveryAttempts == 3 && s.DeadLetterAddress == nil && len(s.Matches) == 2, "orders.eu has %+v", s)
}
