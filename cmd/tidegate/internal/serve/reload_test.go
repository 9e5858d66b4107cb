package serve

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
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
