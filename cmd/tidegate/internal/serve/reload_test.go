package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

func write(t *testing.T, file, text string) {
	t.Helper()
	assert.Must(t, os.WriteFile(file, []byte(text), 0o600))
}

// get reads a topic or group over HTTP.
func get[T any](t *testing.T, p *process, path string) (v T, code int) {
	t.Helper()
	req := assert.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.http+"/v1/"+path, nil))(t)
	resp := assert.Value(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		assert.Must(t, json.NewDecoder(resp.Body).Decode(&v))
	}
	return v, resp.StatusCode
}

// SIGHUP applies the settings that can change and names those that cannot. From a file with a fault
// it applies nothing.
func TestReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tidegate.yaml")
	write(t, file, "topics:\n  orders: {queues: 2}\n  old: {}\ngroups:\n  billing: {max_attempts: 3, retry: 1s 5s}\n")
	p := start(t, "--config", file, "--log-format", "json")
	reload := func(text, says string) string {
		t.Helper()
		from := len(p.stderr.String())
		write(t, file, text)
		assert.Must(t, p.cmd.Process.Signal(syscall.SIGHUP))
		p.await(t, from, says)
		return p.stderr.String()[from:]
	}
	const reloaded, refused = "configuration reloaded", "configuration not reloaded"
	if orders, _ := get[status.Topic](t, p, "topics/orders"); orders.Queues != 2 || orders.Type != settings.TopicNormal {
		t.Errorf("the topic of the file is %+v", orders)
	}
	if billing, _ := get[status.Group](t, p, "groups/billing"); billing.MaxAttempts != 3 || billing.Retry.String() != "1s 5s" {
		t.Errorf("the group of the file is %+v", billing)
	}
	c := dial(t, p)
	defer c.Close()
	send := func() error {
		return c.Send(t.Context(), []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte("x")}})[0].Err
	}
	assert.Must(t, send())

	good := "log_level: debug\nmax_backlog: 1\nstop_timeout: 3s\nmin_long_polling: 1s\n" +
		"topics:\n  orders: {queues: 4}\n  new: {type: FIFO}\ngroups:\n  billing: {max_attempts: 5}\n"
	log := reload(good, reloaded)
	orders, _ := get[status.Topic](t, p, "topics/orders")
	made, _ := get[status.Topic](t, p, "topics/new")
	billing, _ := get[status.Group](t, p, "groups/billing")
	assert.That(t, orders.Queues == 4 && made.Type == settings.TopicFIFO && billing.MaxAttempts == 5 && len(billing.Retry) == 16, "after the reload: %+v, %+v, %+v", orders, made, billing)
	assert.Is(t, "with a backlog of 1, and max_backlog 1 in the file", send(), tidegate.ErrThrottled)
	for _, w := range []string{
		`"keys":["min_long_polling","stop_timeout"]`, `"names":["topics.old"]`,
		`"changed":["max_backlog","log_level","topics.new","topics.orders","groups.billing"]`,
	} {
		assert.That(t, strings.Contains(log, w), "the log does not contain %s:\n%s", w, log)
	}
	if _, code := get[status.Topic](t, p, "topics/old"); code != http.StatusOK {
		t.Errorf("the topic that left the file: %d", code)
	}

	newLedger().receive(t, t.Context(), c, "billing", time.Minute) // now it has received

	// Each of these has good changes beside its faults: none is applied.
	for _, c := range []struct {
		text string
		says []string
	}{
		{"max_backlog: 100\nlog_level: loud\nnope: 1\n", []string{file + ":2: log_level is", file + `:3: \"nope\" is unknown`}},
		{"max_backlog: 100\ntopics:\n  orders: {queues: 3, type: FIFO}\n", []string{file + ":3: topics.orders.queues is", file + ":3: topics.orders.type is"}},
		{"max_backlog: 100\ngroups:\n  billing: {fifo: true}\n", []string{file + ":3: groups.billing cannot be", "fifo cannot change"}},
		{"max_backlog: 100\ndata: 'x\n", []string{"this is not YAML"}},
		{"max_backlog: 5\nmax_backlog_age: 50ms\ntopics:\n  orders: {queues: 8}\n  newer: {}\n", []string{file + ":2: max_backlog_age is"}},
		{"max_backlog: 5\ntopics:\n  orders: {queues: 8}\n  newer: {max_rate: {burst: 5}}\n", []string{file + ":4: topics.newer.max_rate.burst is"}},
	} {
		log := reload(c.text, refused)
		for _, w := range c.says {
			assert.That(t, strings.Contains(log, w), "%q: the log does not contain %q:\n%s", c.text, w, log)
		}
		if err := send(); !errors.Is(err, tidegate.ErrThrottled) {
			t.Errorf("%q: max_backlog was changed by a file with a fault: %v", c.text, err)
		}
		orders, _ := get[status.Topic](t, p, "topics/orders")
		if _, code := get[status.Topic](t, p, "topics/newer"); orders.Queues != 4 || code != http.StatusNotFound {
			t.Errorf("%q: topics were changed by a file with a fault: %+v, %d", c.text, orders, code)
		}
	}
	// The log names again the settings that need a restart. A setting that has its first value
	// again is not a change.
	if log := reload(good, reloaded); !strings.Contains(log, `"keys":["min_long_polling","stop_timeout"]`) || !strings.Contains(log, `"changed":null`) {
		t.Errorf("the same file again:\n%s", log)
	}
	reload("max_backlog: 100\nlog_level: info\n", reloaded)
	assert.NoError(t, send(), "with the backlog limit raised")
	if code := p.stop(); code != 0 {
		t.Errorf("SIGTERM: code %d\n%s", code, p.stderr.String())
	}
}

func TestConfigCheck(t *testing.T) {
	dir := t.TempDir()
	bad, good := filepath.Join(dir, "bad.yaml"), filepath.Join(dir, "good.yaml")
	write(t, bad, "grcp: 1\nhttp: 2\n")
	write(t, good, "topics: {t: {}}\n")
	printed := assert.Value(os.ReadFile("tidegate.example.yaml"))(t)
	t.Setenv("TIDEGATE_GRPC", "not looked at")
	for _, c := range []struct {
		args         []string
		code         int
		stdout, says string
	}{
		{[]string{"config", "check", good}, 0, "ok\n", ""},
		{[]string{"config", "check", bad}, 2, "", "\n" + bad + ":1: \"grcp\" is unknown; did you mean grpc?\n" + bad + ":2: http is \"2\": give"},
		{[]string{"config", "check", dir + "/none"}, 2, "", "no such file"},
		{[]string{"config", "check"}, 2, "", "takes one argument"},
		{[]string{"config", "check", "tidegate.example.yaml"}, 0, "ok\n", ""},
		{[]string{"config", "example"}, 0, string(printed), ""},
		{[]string{"config", "example", "x"}, 2, "", "takes no arguments"},
		{[]string{"config", "chekc"}, 2, "", `"chekc"`},
		{[]string{"serve", "--config", bad, "--print-config"}, 2, "", "TIDEGATE_GRPC is \"not looked at\": give"},
	} {
		var stdout, stderr strings.Builder
		if code := run(t.Context(), c.args, &stdout, &stderr); code != c.code || stdout.String() != c.stdout || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%q: code %d, stdout %q, stderr %q", c.args, code, stdout.String(), stderr.String())
		}
	}
}

// A reload changes the times and the number of the checks of transactions.
func TestReloadOfTransactionSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tidegate.yaml")
	write(t, file, "transaction_timeout: 7s\ntransaction_check_interval: 11s\ntransaction_check_max: 3\n")
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", settings.Topic{Type: settings.TopicTransaction, Queues: 1})
		srv := assert.Value(server.New(b.Broker, server.Options{}))(t)
		defer srv.Close()
		before := assert.Value(load("", nil, nil))(t)
		r := reloader{file: file, broker: b.Broker, server: srv, logger: slog.New(slog.DiscardHandler), level: new(slog.LevelVar), running: *before.settings}
		r.reload(t.Context())
		var mu sync.Mutex
		var asked []time.Duration
		began := time.Now()
		ctx, stop := context.WithCancel(t.Context())
		client := b.Client()
		checks := make(chan error, 1)
		go func() {
			checks <- client.ServeChecks(ctx, []string{"orders"}, func(context.Context, transport.TransactionCheck) transport.Resolution {
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, time.Since(began))
				return transport.ResolutionUnknown
			})
		}()
		synctest.Wait()
		if r := client.SendHalf(ctx, &tidegate.Message{Topic: "orders", ID: tidegate.NewMessageID(), Body: []byte("x")}); r.Err != nil {
			t.Fatal(r.Err)
		}
		time.Sleep(10 * time.Minute)
		stop()
		assert.Must(t, <-checks)
		assert.MustThat(t, len(asked) == 3, "the producer was asked after %v, want 3 times", asked)
		for i, want := range []time.Duration{7 * time.Second, 18 * time.Second, 29 * time.Second} {
			if asked[i] < want || asked[i] > want+2*time.Second {
				t.Errorf("check %d came after %v, want %v", i+1, asked[i], want)
			}
		}
	})
}

func app() *cli.App { return cli.New(strings.NewReader(""), io.Discard, io.Discard) }

// A start of the broker does not build the client commands. Every other call has the whole tree, so
// that the help, the completion and the suggestions know all commands.
func TestForNeeds(t *testing.T) {
	all := len(Root(app()).Commands())
	for _, c := range []struct {
		args  string
		whole bool
	}{
		{"serve --topic orders", false},
		{"config check", false},
		{"", true},
		{"--help", true},
		{"help serve", true},
		{"__complete serve ", true},
		{"send orders text", true},
		{"srve", true},
		{"--no-such-flag serve", true},
	} {
		got := len(For(app(), strings.Fields(c.args)).Commands())
		assert.That(t, c.whole == (got == all), "%q gets %d of %d commands, want all: %v", c.args, got, all, c.whole)
	}
}

// The commands of the broker are the same in both trees.
func TestForHasTheSameBroker(t *testing.T) {
	describe := func(root *cobra.Command, name string) string {
		c, _, err := root.Find([]string{name})
		assert.Must(t, err)
		return c.UsageString() + c.Long + c.Example
	}
	for _, name := range []string{"serve", "config"} {
		if part, whole := describe(For(app(), []string{name}), name), describe(Root(app()), name); part != whole {
			t.Errorf("%s has another text in the part of the tree:\n%s\nand in the whole:\n%s", name, part, whole)
		}
	}
}

// writeCertificate creates a self-signed certificate for this machine.
func writeCertificate(t *testing.T, certFile, keyFile string) *tls.Config {
	t.Helper()
	key := assert.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der := assert.Value(x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key))(t)
	raw := assert.Value(x509.MarshalPKCS8PrivateKey(key))(t)
	write(t, certFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
	cert := assert.Value(x509.ParseCertificate(der))(t)
	trust := &tls.Config{RootCAs: x509.NewCertPool()}
	trust.RootCAs.AddCert(cert)
	return trust
}

// The health check of the image finds a broker with TLS and one without, on the port of its
// configuration. It needs no flag beside those of the environment.
func TestProbe(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	writeCertificate(t, cert, key)
	for name, flags := range map[string][]string{
		"plain text": nil, "TLS": {"--tls-cert", cert, "--tls-key", key},
		"client certificates": {"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert, "--tls-client-certificates", "require"},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, flags...)
			run := func(http string) (string, error) {
				c := exec.CommandContext(t.Context(), os.Args[0], "serve", "--probe")
				c.Env = append(os.Environ(), asProgram+"=1", "TIDEGATE_HTTP="+http)
				out, err := c.CombinedOutput()
				return string(out), err
			}
			_, port, _ := net.SplitHostPort(p.http)
			if out, err := run(":" + port); err != nil {
				t.Errorf("the probe of a broker that is ready: %v, %s", err, out)
			}
			p.kill()
			if out, err := run(":" + port); err == nil || !strings.Contains(out, "refused") {
				t.Errorf("the probe of a broker that has ended: %v, %s", err, out)
			}
		})
	}
}

// With a certificate from files, both ports speak verified TLS and nothing
// else, and SIGHUP renews it; secrets may then be shown over HTTP.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key, file := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "tidegate.yaml")
	trust := writeCertificate(t, cert, key)
	write(t, file, "topic: orders\ntls: {cert: "+cert+", key: "+key+"}\n"+
		"access: {keys: {app: {secret: sesame, allow: [{actions: [send, admin], topics: ['*'], groups: ['*']}]}}}\n")
	p := start(t, "--config", file)
	send := func(trust *tls.Config) error {
		c := assert.Value(rocketmq.New(p.grpc, rocketmq.Options{TLS: trust, Credentials: tidegate.Credentials{AccessKey: "app", SecretKey: "sesame"}}))(t)
		defer c.Close()
		return c.Send(t.Context(), []*tidegate.Message{{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte("x")}})[0].Err
	}
	ask := func(scheme string, trust *tls.Config) (int, string) {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: trust, ForceAttemptHTTP2: true}}
		defer client.CloseIdleConnections()
		r, err := http.NewRequestWithContext(t.Context(), "GET", scheme+"://"+p.http+"/v1/topics/orders", nil)
		assert.Must(t, err)
		r.SetBasicAuth("app", "sesame")
		resp, err := client.Do(r)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	both := func(what string, trust *tls.Config, ok bool) {
		t.Helper()
		// A fault of TLS is permanent: another attempt meets it again.
		if err := send(trust); (err == nil) != ok || !ok && !strings.Contains(err.Error(), "Options.TLS") {
			t.Errorf("%s, gRPC: %v", what, err)
		}
		scheme := "https"
		if trust == nil {
			scheme = "http"
		}
		if code, body := ask(scheme, trust); (code == 200) != ok {
			t.Errorf("%s, HTTP: %d %s", what, code, body)
		}
	}
	both("TLS", trust, true)
	both("plain text", nil, false)
	renewed := writeCertificate(t, cert, key)
	assert.Must(t, p.cmd.Process.Signal(syscall.SIGHUP))
	if line := p.await(t, 0, "configuration reloaded"); !strings.Contains(line, "tls.cert") {
		t.Errorf("a new certificate is not among the changes: %s", line)
	}
	both("renewed", renewed, true)
	both("the former certificate", trust, false)
	if code := p.stop(); code != 0 || strings.Contains(p.stderr.String(), "sesame") {
		t.Errorf("SIGTERM: code %d\n%s", code, p.stderr.String())
	}
	write(t, key, "no key")
	var stdout, stderr strings.Builder
	if code := run(t.Context(), []string{"serve", "--config", file}, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), key) {
		t.Errorf("with a broken key: code %d, %s", code, stderr.String())
	}
}
