package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// send --template makes messages that differ; receive -f prints the parts that its verbs name.
func TestTemplateAndFormat(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders", "queues=1", "type=FIFO")
	tl.must("send", "orders", `{"n": %n, "c": "100%%"}`, "--template", "--count", "2", "--key", "k%n", "--tag", "t%n", "--message-group", "g", "-p", "shop=s%n")
	tl.must("receive", "billing", "orders", "--max", "1", "--then", "retry=0s")
	r := tl.must("receive", "billing", "orders", "--max", "2", "--then", "ack", "-f", `%t %q %o %k %T %g %a %p %p{shop} %p{x}|%B %b%%\n`)
	want := "orders 0 0 k1 t1 g 2 shop=s1 s1 |21 {\"n\": 1, \"c\": \"100%\"}%\n" + "orders 0 1 k2 t2 g 1 shop=s2 s2 |21 {\"n\": 2, \"c\": \"100%\"}%\n"
	assert.That(t, r.stdout == want, "receive -f prints\n%s\nwant\n%s", r.stdout, want)
	tl.pipe("a\nb\n", "send", "orders", "<%n:%l>", "--lines", "--template", "--message-group", "g", "--key", "%l")
	tl.must("receive", "billing", "orders", "--max", "2", "--then", "ack", "-f", "%k%b ").is("a<1:a> b<2:b> ")
	tl.must("send", "orders", "%i %r{10} %c", "--template", "--message-group", "g")
	if got := strings.Fields(tl.must("receive", "billing", "orders", "--max", "1", "--then", "ack", "-f", "%i %b").stdout); len(got) != 4 || len(got[1]) != 34 || len(got[2]) != 1 || !strings.HasSuffix(got[3], "Z") {
		t.Errorf("an ID, a random number and a time are %q", got)
	}
	for _, args := range [][]string{
		{"send", "orders", "%x", "--template"}, {"send", "orders", "a", "--template", "--key", "%"}, {"send", "orders", "--template", "--lines"},
		{"send", "orders", "--template", "--jsonl"}, {"receive", "billing", "orders", "-f", "%x", "--then", "ack"}, {"receive", "billing", "orders", "-f", "%b", "--raw", "--then", "ack"},
		{"receive", "billing", "orders", "-f", "%b", "-o", "json", "--then", "ack"}, {"receive", "billing", "orders", "--then", "ask"}, {"receive", "billing", "orders", "--then", "ask=1"},
	} {
		tl.fails(2, "", args...)
	}
	tl.must("send", "orders", "\x1b[2J", "--message-group", "g")
	tl.terminal = true
	tl.must("receive", "billing", "orders", "--max", "1", "--then", "ack", "-f", "%b").is(`\x1b[2J`)
}

// receive --then ask settles each message by the user's choice, and releases the other messages
// when the user quits.
func TestReceiveThenAsk(t *testing.T) {
	tl := newTool(t)
	tl.must("topic", "create", "orders", "queues=1")
	for i := range 6 {
		tl.must("send", "orders", fmt.Sprintf("m%d", i+1))
	}
	tl.terminal = true
	tl.pipe("a\nnonsense\ndead=no such account\nr=1h\n\nq\n", "receive", "billing", "orders", "--then", "ask", "-f", `%b\n`).is("m1\nm2\nm3\nm4\nm5\n").notes("it is release, ack, retry[=TIME], dead[=REASON]")
	tl.terminal = false
	tl.must("dead-letters", "list", "billing", "--columns", "reason", "--no-headers").is("no such account\n")
	tl.must("receive", "billing", "orders", "--max", "3", "--wait", "1s", "--then", "ack", "-f", "%b ").is("m4 m5 m6 ")
	if got := squeezed(tl.must("group", "list", "--no-headers", "--columns", "group,retry,acked").stdout); got != "billing 1 4\n" {
		t.Errorf("the group has %q", got)
	}
}
