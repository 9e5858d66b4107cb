package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
)

// A redrive says in its question, its dry run and its result which other groups receive the
// messages, and how to avoid it. It says nothing if the failed group is the only one, or if the
// messages go to it alone.
func TestRedriveNamesTheGroups(t *testing.T) {
	tl := newTool(t, "--topic", "orders", "--topic", "pays")
	bury := func(group, topic string) {
		t.Helper()
		tl.must("send", topic, "1 EUR")
		tl.must("receive", group, topic, "--max", "1", "--then", "dead=unknown currency")
	}
	asks := func(args ...string) string {
		t.Helper()
		tl.terminal = true
		defer func() { tl.terminal = false }()
		r := tl.input("n\n", append([]string{"dead-letters", "redrive", "billing"}, args...)...)
		assert.That(t, r.code == 1 && strings.Contains(r.stderr, "[y/N]"), "%q: exit code %d, %s", args, r.code, r.stderr)
		return r.stderr
	}
	edit := []string{"--edit", "sed s/EUR/USD/"}
	bury("billing", "orders")
	if text := asks(edit...); strings.Contains(text, "all groups") {
		t.Errorf("the question names other groups than the only one: %s", text)
	}
	tl.must(append([]string{"dead-letters", "redrive", "billing", "--yes"}, edit...)...).lacks("all groups")
	tl.must("receive", "billing", "orders", "--max", "1", "--then", "dead=again")
	bury("billing", "pays")
	tl.must("receive", "ledger", "orders", "--max", "2", "--then", "ack")
	advice := "; --to-group-only sends to group billing alone"
	for _, tt := range []struct {
		args []string
		want string
	}{
		{edit, "all groups of topics orders, pays: billing, ledger" + advice},
		{nil, "all groups of topics orders, pays: billing, ledger" + advice},
		{[]string{"--topic", "orders"}, "all groups of topic orders: billing, ledger" + advice},
		{[]string{"--topic", "pays"}, ""},
		{[]string{"--set-tag", "x", "--to", "orders"}, "all groups of topic orders: billing, ledger; a topic of group billing alone, given by --to, avoids it"},
		{append([]string{"--to-group-only"}, edit...), ""},
	} {
		if text := asks(tt.args...); !strings.Contains(text, tt.want) || strings.Contains(text, "all groups") != (tt.want != "") {
			t.Errorf("%q asks %q, want %q", tt.args, text, tt.want)
		}
		if out := tl.must(append([]string{"dead-letters", "redrive", "billing", "--dry-run"}, tt.args...)...).stdout; strings.Contains(out, "they would go to") != (tt.want != "") || !strings.Contains(out, tt.want) {
			t.Errorf("the dry run of %q prints %s, want %q", tt.args, out, tt.want)
		}
	}
	r := tl.must("dead-letters", "redrive", "billing", "--topic", "orders", "--set-tag", "x", "--yes", "-o", "json")
	if got := strings.Join(strings.Fields(r.stdout), ""); !strings.Contains(got, `"to":{"topics":["orders"],"groups":["billing","ledger"]}`) {
		t.Errorf("the result as JSON is %s", r.stdout)
	}
	delete(tl.env, "TIDEGATE_SERVER_HTTP")
	tl.must("context", "add", "rmq", "--kind", "rocketmq", "--grpc", tl.grpc)
	tl.must("receive", "other", "orders", "--max", "1", "--then", "ack", "--wait", "1s", "--context", "rmq")
	if text := asks("--context", "rmq", "--as", "repair", "--set-tag", "x"); !strings.Contains(text, "all groups of the topic of each message; ") {
		t.Errorf("without the HTTP API it asks %q", text)
	}
}

// Edits of body, tag, keys and properties, alone and together, for one letter or all, to all groups
// or to the failed one. Each has its journal line, its new ID and its trace, and a second run sends
// nothing.
func TestRedriveEditsFields(t *testing.T) {
	for name, alone := range map[string]bool{"all groups": false, "group": true} {
		t.Run(name, func(t *testing.T) {
			tl := newTool(t, "--topic", "orders")
			var ids []string
			for i := range 2 {
				ids = append(ids, strings.TrimSpace(tl.must("send", "orders", fmt.Sprint(i, " EUR"), "--tag", "old", "--key", "k", "-p", "a=1", "-p", "b=2", "-o", "name").stdout))
			}
			tl.must("receive", "billing", "orders", "--max", "2", "--then", "dead=unknown currency")
			tl.must("receive", "ledger", "orders", "--max", "2", "--then", "ack")
			redrive := []string{"dead-letters", "redrive", "billing", "--journal", filepath.Join(tl.home, "journal")}
			if alone {
				redrive = append(redrive, "--to-group-only")
			}
			flags := []string{"--set-tag", "new", "--set-key", "x,y", "--set-key", "z", "--set-property", "c=3=4", "--set-property", "b=5", "--unset-property", "a"}
			tl.must(append(append(redrive, "--dry-run", "--edit", "sed s/EUR/USD/"), flags...)...).prints("0 EUR -> 0 USD; tag old -> new; keys k -> x,y z; property a 1 -> none; property b 2 -> 5; property c none -> 3=4")
			one := append(append(redrive, "--id", ids[0], "--yes", "--edit", "sed s/EUR/USD/"), flags...)
			tl.must(one...).notes(ids[0] + " was sent as " + ids[0] + ".redrive-1")
			tl.fails(3, "", one...) // the second run
			const format = "%b|%T|%k|%p{a}|%p{b}|%p{c}"
			got := tl.must("receive", "billing", "orders", "--max", "1", "--then", "ack", "--format", format).stdout
			if want := "0 USD|new|x,y,z||5|3=4"; strings.TrimSpace(got) != want {
				t.Errorf("the group received %q, want %q", got, want)
			}
			tl.must("trace", ids[0]).prints("its dead letter was sent back as message " + ids[0] + ".redrive-1")
			if text := tl.must("trace", ids[0]+".redrive-1").stdout; !strings.Contains(text, "billing") || strings.Contains(text, "ledger") == alone {
				t.Errorf("the trace of the new message is %s", text)
			}
			tl.must(append(redrive[:5:5], append(redrive[5:], "--journal", filepath.Join(tl.home, "second"), "--reason", "currency", "--yes", "--unset-tag", "--unset-keys")...)...)
			if got := tl.must("receive", "billing", "orders", "--max", "1", "--then", "ack", "--format", format).stdout; strings.TrimSpace(got) != "1 EUR|||1|2|" {
				t.Errorf("without tag and keys %q came", got)
			}
			if r := tl.run("receive", "ledger", "orders", "--max", "1", "--then", "ack", "--wait", "100ms"); (r.stdout == "") != alone {
				t.Errorf("the other group received %q", r.stdout)
			}
			tl.must("audit", "-o", "jsonl").prints(ids[0] + ".redrive-1")
		})
	}
}

// Values that no message can have, and flags that contradict each other, are errors before anything
// is sent. Limits that depend on the message are errors of its letter, which stays.
func TestRedriveEditMistakes(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	id := strings.TrimSpace(tl.must("send", "orders", "1 EUR", "--tag", "old", "-p", "a=1", "-o", "name").stdout)
	tl.must("receive", "billing", "orders", "--max", "1", "--then", "dead=unknown currency")
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--edit", ""}, "--edit is empty"},
		{[]string{"--set-tag", ""}, "--unset-tag removes the tag"},
		{[]string{"--set-tag", "a|b"}, "tag"},
		{[]string{"--set-tag", "a", "--unset-tag"}, "exclude each other"},
		{[]string{"--set-key", ""}, "--unset-keys removes all keys"},
		{[]string{"--set-key", " "}, "key"},
		{[]string{"--set-key", "a", "--unset-keys"}, "exclude each other"},
		{[]string{"--set-property", "a"}, "the form is NAME=VALUE"},
		{[]string{"--set-property", "=1"}, "is empty, reserved"},
		{[]string{"--set-property", "a="}, "--unset-property a removes it"},
		{[]string{"--set-property", "a=1", "--set-property", "a=2"}, "given twice"},
		{[]string{"--set-property", "a=1", "--unset-property", "a"}, "exclude each other"},
		{[]string{"--set-property", "TAGS=1"}, `"TAGS" is empty, reserved`},
		{[]string{"--set-property", "DLQ_REDRIVES=0"}, "the redrive sets this property"},
		{[]string{"--set-property", "a\x1bb=1"}, "control character"},
		{[]string{"--set-property", "a=" + strings.Repeat("x", protocol.MaxPropertiesSize)}, "16384"},
		{[]string{"--unset-property", ""}, "give the name"},
		{[]string{"--unset-property", "DLQ_REASON"}, "belongs to the servers"},
	} {
		tl.fails(2, tt.want, append([]string{"dead-letters", "redrive", "billing", "--yes"}, tt.args...)...)
	}
	var many []string
	for i := range protocol.MaxProperties {
		many = append(many, "--set-property", fmt.Sprintf("p%d=1", i))
	}
	for want, args := range map[string][]string{
		"the message has 129 properties; the limit is 128":                                        many,
		"the flags did not change the message, which has these values; leave them out":            {"--set-tag", "old", "--set-property", "a=1", "--unset-property", "b"},
		"the program of --edit did not change the body; correct the program, or leave out --edit": {"--edit", "cat", "--set-tag", "new"},
		"the program of --edit failed":                                                            {"--edit", "exit 3"},
		"the body is empty; give at least one byte":                                               {"--edit", "true"},
	} {
		for _, alone := range []string{"--to-group-only", "--to-group-only=false"} {
			tl.run(append([]string{"dead-letters", "redrive", "billing", "--yes", "--max-failures", "1", alone}, args...)...).exits(7).notes(id+" failed: edit: ", want)
		}
	}
	tl.must("dead-letters", "list", "billing", "-o", "name").is(id + "\n")
}

// A program of --edit that puts a byte order mark before a body is named, in a dry run too. The
// body is sent as it is, and one that had the mark before is no news.
func TestEditWithAByteOrderMark(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("send", "orders", "100 EUR")
	tl.must("receive", "billing", "orders", "--then", "dead", "--max", "1")
	edit := []string{"dead-letters", "redrive", "billing", "--edit", `printf '\357\273\277'; sed 's/EUR/USD/'`}
	for _, further := range []string{"--dry-run", "--yes"} {
		if r := tl.run(append(edit, further)...); r.code != 0 || strings.Count(r.stderr, "byte order mark") != 1 {
			t.Errorf("%s: %+v", further, r)
		}
	}
	if got := tl.bodies("billing", "orders", 1); len(got) != 1 || got[0] != "\xef\xbb\xbf100 USD" {
		t.Errorf("the body is %q", got)
	}
	tl.must("send", "orders", "\xef\xbb\xbfagain")
	tl.must("receive", "audit", "orders", "--then", "dead", "--max", "3")
	tl.must("dead-letters", "redrive", "audit", "--edit", "sed 's/$/ and again/'", "--dry-run").lacks("byte order mark")
}
