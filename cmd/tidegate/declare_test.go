package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
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
	assert.Must(t, os.WriteFile(file, []byte(cluster), 0o600))
	dry := tl.must("apply", file, "--dry-run")
	assert.That(t, strings.Contains(dry.stdout, "topic orders: new\n") && strings.Contains(dry.stdout, "max_backlog.messages: default -> 1000\n"), "the dry run printed\n%s", dry.stdout)
	tl.fails(3, "", "topic", "show", "orders") // the dry run created no topic
	tl.must("apply", file)
	tl.must("apply", file).is("").notes("nothing changes")
	tl.must("topic", "set", "orders", "retention.time=1h")
	assert.Equal(t, "a setting that the file does not name changed", tl.must("apply", file).stdout, "")
	exported := tl.must("export").stdout
	assert.Must(t, os.WriteFile(file, []byte(exported), 0o600))
	for name, other := range map[string]*tool{"apply": newTool(t), "serve --config": newTool(t, "--config", file)} {
		if name == "apply" {
			other.must("apply", file)
		}
		other.must("export").is(exported)
	}
}

// apply --prune removes what a file does not declare. A file of which it would read only a part, or
// another part than serve, is an error, and nothing is applied or removed.
func TestApplyReadsTheWholeFile(t *testing.T) {
	tl := newTool(t, "--topic", "orders", "--topic", "payments")
	tl.must("send", "payments", "a message")
	for _, c := range map[string]struct{ text, says string }{
		"nothing to apply":    {"grpc: 127.0.0.1:1", "no topics, groups or address_settings"},
		"two documents":       {"topics:\n  orders: {}\n---\ntopics:\n  payments: {}\n", "standard input:3: a second YAML document begins here"},
		"the same part":       {"topics:\n  payments: {}\ntopics:\n  orders: {}\n", `standard input:3: "topics" is repeated, first in line 1`},
		"the same topic":      {"topics:\n  orders: {queues: 9}\n  orders: {queues: 10}\n", `standard input:3: "orders" is repeated, first in line 2`},
		"indented too little": {"topics:\n  orders: {}\npayments:\n  queues: 8\n", `standard input:3: "payments" is unknown`},
		"mistyped part":       {"topics:\n  orders: {}\ngroup:\n  payments: {}\n", `standard input:3: "group" is unknown; did you mean groups?`},
		"an alias":            {"topics:\n  orders: &a {queues: 9}\n  payments: *a\n", "topics.payments is a YAML alias"},
		"a merge":             {"topics:\n  orders: &a {queues: 9}\n  payments: {<<: *a}\n", `"<<" is unknown in topics.payments`},
		"no value":            {"topics:\n  orders: {queues: }\n", "topics.orders.queues has no value"},
		"hexadecimal":         {"topics:\n  orders: {queues: 0x9}\n", "give a whole number"},
		"a fraction":          {"topics:\n  orders: {queues: 9.0}\n", "give a whole number"},
		"not true or false":   {"groups:\n  billing: {fifo: yes}\n", "give true or false"},
		"a list of settings":  {"topics:\n  orders: [queues]\n", "topics.orders is a list"},
		"UTF-16":              {"\xff\xfet\x00", "standard input:1: the text is UTF-16"},
	} {
		for _, args := range [][]string{{"apply", "-", "--dry-run"}, {"apply", "-", "--prune", "--yes"}} {
			tl.input(c.text, args...).exits(2).is("").notes(c.says)
		}
	}
	if out := tl.must("peek", "payments", "--columns", "text", "--no-headers").stdout; strings.TrimSpace(out) != "a message" {
		t.Errorf("payments has %q", out)
	}
	tl.must("topic", "show", "orders", "-o", "json").prints(`"queues": 8`)
	for _, text := range []string{
		"\xef\xbb\xbftopics: {orders: {queues: 9, max_backlog: {bytes: 1MiB, age: 1m}}, payments: }\n", "# a comment\n---\ntopics: {orders: , payments: {}}\n...\n",
	} {
		tl.pipe(text, "apply", "-", "--prune", "--yes")
	}
	tl.must("topic", "show", "orders", "-o", "json").prints(`"queues": 9`, `"bytes": 1048576`, `"age": "1m0s"`)
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
