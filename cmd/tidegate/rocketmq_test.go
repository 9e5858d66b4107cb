package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport/rocketmq/interop/runner"
)

var rocketmqPort = flag.Int("rocketmq", 0, "the `port` of a real RocketMQ that transport/rocketmq/interop/rocketmq started; 0 for a tidegate broker in this process")

// A target is a server for the commands that need no HTTP API.
type target struct {
	*tool
	suffix string
	real   *runner.Setup // nil for a tidegate broker
}

func newTarget(t *testing.T) *target {
	t.Helper()
	x := &target{tool: newTool(t), suffix: "-" + strconv.FormatInt(time.Now().UnixNano(), 36)}
	if *rocketmqPort != 0 {
		var err error
		if x.real, err = runner.Open(*rocketmqPort); err != nil {
			t.Fatal(err)
		}
		delete(x.env, "TIDEGATE_SERVER_GRPC")
		delete(x.env, "TIDEGATE_SERVER_HTTP")
		x.must("context", "add", "rmq", "--kind", "rocketmq", "--grpc", x.endpoints())
	}
	return x
}

// topic creates a topic of a type.
func (x *target) topic(base, kind string) string {
	x.t.Helper()
	if x.real != nil {
		assert.Must(x.t, x.real.Topic(x.t.Context(), base+x.suffix, kind, 0))
	} else {
		x.must("topic", "create", base+x.suffix, "type="+kind)
	}
	return base + x.suffix
}

// group creates a consumer group with a number of attempts.
func (x *target) group(base string, attempts int) string {
	x.t.Helper()
	if x.real != nil {
		assert.Must(x.t, x.real.Group(x.t.Context(), base+x.suffix, runner.Group{MaxRetries: attempts - 1, Retry: []time.Duration{time.Second}}))
	} else {
		x.must("group", "create", base+x.suffix, "max_attempts="+strconv.Itoa(attempts), "retry=1s")
	}
	return base + x.suffix
}

// endpoints returns the addresses of the RocketMQ.
func (x *target) endpoints() string { return strings.Join(x.real.Endpoints(), ";") }

// The commands for messages and dead letters work on a tidegate broker and on a RocketMQ.
func TestCommandsForMessages(t *testing.T) {
	t.Parallel()
	x := newTarget(t)
	topic, group := x.topic("orders", "NORMAL"), x.group("billing", 3)
	delayed := x.topic("reminders", "DELAY")
	x.must("status")
	x.must("check")
	x.must("doctor", "--topic", topic, "--group", group, "--send").lacks("failed")
	x.run("doctor", "--topic", delayed, "--send").exits(2).prints("DELAY a time")
	x.must("send", topic, "one", "--tag", "a", "--key", "k", "-p", "color=red")
	x.pipe("two\nthree\nbad\n", "send", topic, "--lines")
	x.must("send", delayed, "later", "--in", "2s")
	if got := lines[received](t, x.must("receive", group, topic, "--then", "ack", "--filter", "a", "--max", "1", "-o", "jsonl").stdout); len(got) != 1 || got[0].BodyText != "one" || got[0].Properties["color"] != "red" {
		t.Errorf("with a filter: %+v", got)
	}
	if got := lines[received](t, x.must("receive", group, delayed, "--then", "ack", "--max", "1", "--wait", "20s", "-o", "jsonl").stdout); len(got) != 1 || got[0].BodyText != "later" {
		t.Errorf("the delayed message: %+v", got)
	}
	worker := `body=$(cat); [ "$body" != bad ] || { echo no such account >&2; exit 1; }`
	all := x.group("all", 3)
	x.must("receive", all, topic, "--exec", worker, "--max", "5", "--workers", "3").notes("5 handled, 1 failed")
	as := []string{}
	if x.real != nil {
		as = []string{"--as", x.group("repair", 200)}
	}
	top := lines[struct{ Count int }](t, x.must(append([]string{"dead-letters", "top", all, "-o", "jsonl"}, as...)...).stdout)
	assert.That(t, len(top) == 1 && top[0].Count == 1, "the classes of dead letters are %+v, want one with one letter", top)
	x.looksAtLetter(t, all, topic, as)
	var preview struct {
		Attempts []struct{ After string }
		End      string
	}
	decode(t, x.must("retry", "preview", all, topic, "-o", "json").stdout, &preview)
	if len(preview.Attempts) != 3 || preview.Attempts[2].After != "2s" || !strings.Contains(preview.End, "dead letter after 3 attempts") {
		t.Errorf("the preview of 3 attempts, each 1s after the one before: %+v", preview)
	}
	x.must(append([]string{"dead-letters", "redrive", all, "--to", topic, "--edit", "sed s/bad/good/", "--yes"}, as...)...)
	if got := lines[received](t, x.must("receive", all, topic, "--then", "ack", "--max", "1", "--wait", "20s", "-o", "jsonl").stdout); len(got) != 1 || got[0].BodyText != "good" {
		t.Errorf("the corrected message: %+v", got)
	}
}

// looksAtLetter lists, shows and exports the only dead letter of a group, which has the body "bad".
// None of the commands consumes it. A RocketMQ does not report the topic of the original send.
func (x *target) looksAtLetter(t *testing.T, group, topic string, as []string) {
	t.Helper()
	type letter struct {
		ID     string `json:"message_id"`
		Body   string `json:"body_text"`
		Origin struct{ Topic string }
	}
	list := lines[letter](t, x.must(append([]string{"dead-letters", "list", group, "-o", "jsonl"}, as...)...).stdout)
	if x.real != nil {
		topic = ""
	}
	assert.MustThat(t, len(list) == 1 && list[0].ID != "" && list[0].Origin.Topic == topic && list[0].Body == "", "the list is %+v, want a letter of topic %q without its body", list, topic)
	exported := lines[letter](t, x.must(append([]string{"dead-letters", "export", group}, as...)...).stdout)
	if len(exported) != 1 || exported[0].ID != list[0].ID || exported[0].Body != "bad" {
		t.Errorf("the export is %+v, want the letter %s with its body", exported, list[0].ID)
	}
	var shown letter
	decode(t, x.must(append([]string{"dead-letters", "show", group, list[0].ID, "-o", "json"}, as...)...).stdout, &shown)
	assert.That(t, shown.ID == list[0].ID && shown.Body == "bad", "show prints %+v", shown)
	x.fails(3, "", append([]string{"dead-letters", "show", group, "0", "-o", "json"}, as...)...) // show with an unknown ID
}

// A backlog moves from a tidegate broker to the server and back, with IDs as keys, properties and
// the order of message groups. The server is a RocketMQ in the step for it.
func TestMoveToAndFrom(t *testing.T) {
	t.Parallel()
	x := newTarget(t)
	topic, group := x.topic("moved", "FIFO"), x.group("mover", 16)
	tide := newTool(t)
	tide.must("topic", "create", topic, "type=FIFO")
	tide.must("group", "create", group, "fifo=true")
	if x.real != nil {
		tide.must("context", "add", "far", "--kind", "rocketmq", "--grpc", x.endpoints())
	} else {
		tide.must("context", "add", "far", "--grpc", x.grpc, "--http", x.http)
	}
	x.must("context", "add", "near", "--grpc", tide.grpc, "--http", tide.http)
	if x.real != nil {
		x.must("context", "use", "rmq")
	}
	var input strings.Builder
	ids := make([]string, 60)
	for i := range ids {
		ids[i] = tidegate.NewMessageID()
		fmt.Fprintf(&input, `{"id":"%s","body_text":"%d","message_group":"g%d","tag":"t","properties":{"color":"red"}}`+"\n", ids[i], i, i%3)
	}
	tide.pipe(input.String(), "send", topic, "--jsonl")
	tide.must("move", topic, "--group", group, "--to", "far", "--yes").prints("moved  60")
	back := x.must("move", topic, "--group", group, "--to", "near", "--yes", "--wait", "12s")
	t.Logf("back:\n%s%s", back.stdout, back.stderr)
	last, seen := map[string]int{}, map[int]bool{}
	for _, d := range messagesOf(tide, group, topic, 100) {
		n := assert.Value(strconv.Atoi(d.BodyText))(t)
		if before, ok := last[d.MessageGroup]; ok && n < before && !seen[n] {
			t.Errorf("message %d of group %s came after %d", n, d.MessageGroup, before)
		}
		last[d.MessageGroup], seen[n] = max(n, last[d.MessageGroup]), true
		assert.That(t, d.Properties["color"] == "red" && d.Tag == "t" && slices.Equal(d.Keys, []string{ids[n]}), "the message is %+v", d)
	}
	assert.That(t, len(seen) == 60, "%d of 60 messages came back", len(seen))
}

// A move to a cluster goes on while one of its two brokers is killed and starts again: it ends with
// 0, and no message is lost. The proxies keep the broker in their routes for a while, and assign
// messages to it.
func TestMoveWhileABrokerRestarts(t *testing.T) {
	x := newTarget(t)
	if x.real == nil || x.real.Options().Brokers < 2 {
		t.Log("-rocketmq with the port of several brokers starts it")
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	const messages = 600
	topic, group := x.topic("moved", "NORMAL"), x.group("mover", 16)
	tide := newTool(t)
	tide.must("topic", "create", topic)
	tide.must("group", "create", group)
	tide.must("context", "add", "far", "--kind", "rocketmq", "--grpc", x.endpoints())
	var input strings.Builder
	ids := map[string]bool{}
	for range messages {
		id := tidegate.NewMessageID()
		ids[id] = true
		fmt.Fprintf(&input, `{"id":"%s","body_text":"x"}`+"\n", id)
	}
	tide.pipe(input.String(), "send", topic, "--jsonl")
	journal := filepath.Join(t.TempDir(), "journal")
	moved := make(chan result, 1)
	go func() {
		moved <- tide.run("move", topic, "--group", group, "--to", "far", "--yes", "--rate", "10", "--journal", journal)
	}()
	// more waits until the journal has n further lines, each of up to 32 messages. It returns false
	// if the move ends before.
	more := func(n int) bool {
		for want := journalLines(journal) + n; journalLines(journal) < want; {
			if backoff.Sleep(ctx, 100*time.Millisecond) != nil || len(moved) > 0 {
				return false
			}
		}
		return true
	}
	if !more(3) {
		t.Fatalf("the move ended before the kill: %+v", <-moved)
	}
	assert.Must(t, x.real.Kill(ctx, "broker-b"))
	assert.That(t, more(3), "the move ended while broker-b was away")
	assert.Must(t, x.real.Start(ctx, "broker-b"))
	r := <-moved
	assert.That(t, r.code == 0 && strings.Contains(r.stdout, "moved  600"), "the move ended with %d:\n%s%s", r.code, r.stdout, r.stderr)
	x.must("context", "use", "rmq")
	deliveries := 0
	for len(ids) > 0 && ctx.Err() == nil {
		for _, d := range lines[received](t, x.must("receive", group, topic, "--then", "ack", "--max", "500", "--wait", "12s", "-o", "jsonl").stdout) {
			delete(ids, d.Keys[0])
			deliveries++
		}
	}
	t.Logf("%d deliveries of %d messages", deliveries, messages)
	assert.That(t, len(ids) == 0, "%d of %d messages did not arrive", len(ids), messages)
}

func journalLines(file string) int {
	b, _ := os.ReadFile(file) // it does not exist at first
	return bytes.Count(b, []byte("\n"))
}
