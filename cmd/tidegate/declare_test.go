package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const cluster = `
topics:
  orders: {type: FIFO, queues: 4, max_backlog: {messages: 1000}}
  payments:
groups:
  billing: {fifo: true, max_attempts: 5, retry: 1s 2s}
address_settings:
  orders.#: {max-delivery-attempts: 4}
`

// A file is applied once: the second time nothing changes. Settings that it does not name stay, and
// the export of one broker makes another the same, also as a configuration of serve.
func TestApplyAndExport(t *testing.T) {
	tl := newTool(t)
	file := filepath.Join(tl.home, "cluster.yaml")
	if err := os.WriteFile(file, []byte(cluster), 0o600); err != nil {
		t.Fatal(err)
	}
	dry := tl.must("apply", file, "--dry-run")
	if !strings.Contains(dry.stdout, "topic orders: new\n") || !strings.Contains(dry.stdout, "max_backlog.messages: default -> 1000\n") {
		t.Errorf("the dry run printed\n%s", dry.stdout)
	}
	if r := tl.run("topic", "show", "orders"); r.code != 3 {
		t.Errorf("after a dry run the topic exists: %s", r.stdout)
	}
	tl.must("apply", file)
	if r := tl.must("apply", file); r.stdout != "" || !strings.Contains(r.stderr, "nothing changes") {
		t.Errorf("the second time: %s%s", r.stdout, r.stderr)
	}
	tl.must("topic", "set", "orders", "retention.time=1h")
	if r := tl.must("apply", file); r.stdout != "" {
		t.Errorf("a setting that the file does not name changed: %s", r.stdout)
	}
	exported := tl.must("export").stdout
	if err := os.WriteFile(file, []byte(exported), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, other := range map[string]*tool{"apply": newTool(t), "serve --config": newTool(t, "--config", file)} {
		if name == "apply" {
			other.must("apply", file)
		}
		if got := other.must("export").stdout; got != exported {
			t.Errorf("%s: the other broker has\n%s\nwant\n%s", name, got, exported)
		}
	}
	for _, c := range []struct{ text, says string }{
		{"topics: {orders: {queus: 4}}", "queus"},
		{"topics: [orders]", "topics"},
		{"grpc: 127.0.0.1:1", "no topics, groups or address_settings"},
		{"topics: {", "standard input:1: this is not YAML"},
	} {
		if r := tl.input(c.text, "apply", "-"); r.code != 2 || !strings.Contains(r.stderr, c.says) {
			t.Errorf("%s: exit code %d, want 2 with %q: %s", c.text, r.code, c.says, r.stderr)
		}
	}
}

// A shell completes the names of topics and groups from the server, and nothing without one.
func TestCompletion(t *testing.T) {
	tl := newTool(t, "--topic", "orders", "--topic", "payments")
	tl.must("group", "create", "billing")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"topic", "show", ""}, "orders\npayments\n"},
		{[]string{"topic", "show", "pa"}, "payments\n"},
		{[]string{"receive", "billing", "o"}, "orders\n"},
		{[]string{"group", "show", ""}, "billing\n"},
		{[]string{"topic", "show", "orders", ""}, ""},
	} {
		got := tl.must(append([]string{"__complete"}, c.args...)...).stdout
		if names, _, _ := strings.Cut(got, ":"); names != c.want {
			t.Errorf("%q completes to %q, want %q", c.args, names, c.want)
		}
	}
	tl.env["TIDEGATE_SERVER_HTTP"] = "http://127.0.0.1:1"
	if got := tl.must("__complete", "topic", "show", ""); !strings.HasPrefix(got.stdout, ":") {
		t.Errorf("without a server: %q", got.stdout)
	}
}
