package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/filelock"
)

// newMove starts a source and a target broker. Commands of the source know the target as context
// "target".
func newMove(t *testing.T) (source, target *tool) {
	source, target = newTool(t), newTool(t)
	source.must("context", "add", "target", "--grpc", target.grpc, "--http", target.http)
	return source, target
}

// bodies consumes a topic and returns the bodies in the order of their deliveries.
func (tl *tool) bodies(group, topic string, n int) []string {
	tl.t.Helper()
	var out []string
	for _, d := range messagesOf(tl, group, topic, n) {
		out = append(out, d.BodyText)
	}
	return out
}

func messagesOf(tl *tool, group, topic string, n int, flags ...string) []received {
	tl.t.Helper()
	t, ok := tl.t.(*testing.T)
	assert.MustThat(tl.t, ok, "this is for tests")
	return lines[received](t, tl.must(append([]string{"receive", group, topic, "--then", "ack", "--max", fmt.Sprint(n), "--wait", "1s", "-o", "jsonl"}, flags...)...).stdout)
}

// A move carries the backlog of a group with IDs, properties and the order of message groups, waits
// for retries, and leaves nothing.
func TestMove(t *testing.T) {
	t.Parallel()
	source, target := newMove(t)
	for _, tl := range []*tool{source, target} {
		tl.must("topic", "create", "orders", "type=FIFO", "queues=4")
		tl.must("group", "create", "billing", "max_attempts=5", "retry=1s", "fifo=true")
	}
	var input strings.Builder
	for i := range 300 {
		fmt.Fprintf(&input, `{"body_text":"%d","message_group":"g%d","tag":"t","keys":["k%d"],"properties":{"color":"red"}}`+"\n", i, i%7, i)
	}
	source.pipe(input.String(), "send", "orders", "--jsonl", "-o", "name")
	ids := strings.Fields(source.input(`{"body_text":"last","message_group":"other"}`+"\n", "send", "orders", "--jsonl", "-o", "name").stdout)
	source.must("receive", "billing", "orders", "--then", "retry=2s", "--max", "1") // waits for its retry
	source.must("move", "orders", "--group", "billing", "--to", "target", "--dry-run").prints("waiting for a retry  1").lacks("to create")
	journal := filepath.Join(source.home, "j.jsonl")
	r := source.must("move", "orders", "--group", "billing", "--to", "target", "--journal", journal, "--yes", "-o", "json")
	var report struct {
		Moved  int64
		Failed int64 `json:"failed_before"`
		Left   int64 `json:"left_waiting_retry"`
	}
	decode(t, r.stdout, &report)
	assert.That(t, report.Moved == 301 && report.Failed == 1 && report.Left == 0, "the report is %s", r.stdout)
	at, last := map[string]int{}, received{}
	for _, d := range messagesOf(target, "billing", "orders", 302) {
		if d.BodyText == "last" {
			last = d
			continue
		}
		var n int
		assert.Must(t, assert.Err(fmt.Sscan(d.BodyText, &n)))
		if before, ok := at[d.MessageGroup]; ok && n <= before || d.MessageGroup != fmt.Sprintf("g%d", n%7) {
			t.Errorf("message %d of group %s came after %d", n, d.MessageGroup, before)
		}
		if at[d.MessageGroup] = n; d.Properties["color"] != "red" || d.Tag != "t" || !slices.Equal(d.Keys, []string{fmt.Sprintf("k%d", n), d.ID}) {
			t.Errorf("the message is %+v", d)
		}
	}
	if len(at) != 7 || last.ID != ids[0] {
		t.Errorf("groups %v, and the last message %+v, want the ID %s", at, last, ids[0])
	}
	source.must("move", "orders", "--group", "billing", "--to", "target", "--journal", journal, "--yes").prints("moved  0")
}

// A move rejects a missing target, other groups, a protected source and the journal of another
// move, and changes nothing then.
func TestMoveRejects(t *testing.T) {
	t.Parallel()
	source, target := newMove(t)
	source.must("topic", "create", "orders", "queues=3")
	source.must("group", "create", "billing", "max_attempts=4", "retry=1s 5s")
	source.must("send", "orders", "a")
	journal := filepath.Join(source.home, "j.jsonl")
	move := []string{"move", "orders", "--group", "billing", "--to", "target", "--journal", journal, "--yes"}
	if r := source.run(move...); r.code != 3 || !strings.Contains(r.stderr, "tidegate topic create orders type=NORMAL queues=3 --context target") ||
		!strings.Contains(r.stderr, "tidegate group create billing max_attempts=4 'retry=1s 5s' --context target") {
		t.Errorf("a missing target: exit code %d, %s", r.code, r.stderr)
	}
	target.must("topic", "create", "orders")
	source.must(append(move, "--dry-run")...).notes("to create the group on the target: tidegate group create billing").lacks("tidegate topic create")
	source.must("context", "add", "rmq", "--kind", "rocketmq", "--grpc", target.grpc)
	source.run("move", "orders", "--group", "billing", "--to", "rmq", "--to-topic", "other", "--yes").exits(3).notes("mqadmin updateTopic", "if it is missing: mqadmin updateSubGroup").lacks("tidegate topic create")
	for _, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no group":        {[]string{"move", "orders", "--to", "target", "--yes"}, 2, "--group"},
		"unknown group":   {[]string{"move", "orders", "--group", "biling", "--to", "target", "--yes"}, 3, "biling"},
		"unknown topic":   {[]string{"move", "nothing", "--group", "billing", "--to", "target", "--yes"}, 3, "nothing"},
		"unknown context": {[]string{"move", "orders", "--group", "billing", "--to", "targt", "--yes"}, 2, "did you mean target"},
		"without --yes":   {[]string{"move", "orders", "--group", "billing", "--to", "target"}, 2, "--yes"},
		"itself":          {[]string{"move", "orders", "--group", "billing", "--to", "target", "--grpc", target.grpc, "--http", target.http, "--yes"}, 2, "same topic"},
	} {
		source.fails(c.code, c.want, c.args...)
	}
	source.must("receive", "ledger", "orders", "--then", "ack", "--max", "1")
	source.fails(2, "[ledger]", move...) // another group
	source.must(append(move, "--other-groups")...).prints("moved  1")
	if r := source.run(append(move, "--to-topic", "other")...); r.code == 0 {
		t.Error("a journal of another move was continued")
	}
	assert.Slices(t, "the target has", target.bodies("billing", "orders", 5), []string{"a"})
}

// Delayed messages are carried when they are due, and dead letters to a topic of the target.
func TestMoveOfDelayedAndDead(t *testing.T) {
	t.Parallel()
	source, target := newMove(t)
	for _, tl := range []*tool{source, target} {
		tl.must("topic", "create", "reminders", "type=DELAY")
	}
	target.must("topic", "create", "billing-dead")
	source.must("group", "create", "billing", "max_attempts=2", "retry=1s")
	source.must("send", "reminders", "dead", "--in", "1ms")
	source.must("receive", "billing", "reminders", "--then", "dead=no such account", "--max", "1")
	source.must("send", "reminders", "now", "--in", "1ms")
	source.must("send", "reminders", "later", "--in", "2s")
	source.must("move", "reminders", "--group", "billing", "--to", "target", "--dead-letters", "billing-dead", "--yes").prints("moved         2", "dead letters  1")
	if got := target.bodies("billing", "reminders", 3); !slices.Equal(got, []string{"now", "later"}) && !slices.Equal(got, []string{"later", "now"}) {
		t.Errorf("the target has %q", got)
	}
	assert.Slices(t, "the topic for dead letters has", target.bodies("audit", "billing-dead", 2), []string{"dead"})
	source.must("dead-letters", "list", "billing", "-o", "name").is("")
}

// Messages that cannot be carried now are counted, and the command that carries them is printed.
func TestMoveLeavesAPart(t *testing.T) {
	t.Parallel()
	source, target := newMove(t)
	source.must("topic", "create", "orders", "type=DELAY")
	target.must("topic", "create", "orders", "type=DELAY")
	source.must("group", "create", "billing")
	source.must("send", "orders", "a", "--in", "1h")
	journal := filepath.Join(source.home, "j.jsonl")
	source.run("move", "orders", "--group", "billing", "--to", "target", "--journal", journal, "--wait", "1s", "--yes").exits(7).prints("left, delayed  1").notes("tidegate move orders --group=billing")
}

// Two messages with one ID, which a topic stores beyond its duplicate window, are both carried to a
// target that remembers the ID. The report counts the new ID.
func TestMoveOfTwoMessagesWithOneID(t *testing.T) {
	t.Parallel()
	source, target := newMove(t)
	source.must("topic", "create", "orders", "duplicate_window=-1s")
	target.must("topic", "create", "orders")
	source.must("group", "create", "billing")
	source.must("send", "orders", "first", "--id", "17")
	source.must("send", "orders", "second", "--id", "17")
	r := source.must("move", "orders", "--group", "billing", "--to", "target", "--yes", "-o", "json")
	var report struct {
		Moved  int64
		NewIDs int64 `json:"new_ids"`
	}
	if decode(t, r.stdout, &report); report.Moved != 2 || report.NewIDs != 1 {
		t.Errorf("the report is %s", r.stdout)
	}
	got := messagesOf(target, "billing", "orders", 3)
	slices.SortFunc(got, func(a, b received) int { return strings.Compare(a.BodyText, b.BodyText) })
	if len(got) != 2 || got[0].BodyText != "first" || got[1].BodyText != "second" || got[0].ID == got[1].ID || !slices.Equal(got[0].Keys, []string{"17"}) || !slices.Equal(got[1].Keys, []string{"17"}) {
		t.Errorf("the target has %+v", got)
	}
}

// A message that the target cannot store stays, and the others are carried. The command ends with
// the exit code of a part, and names the command that continues it.
func TestMoveSetsAside(t *testing.T) {
	t.Parallel()
	source, target := newMove(t)
	source.must("topic", "create", "orders")
	target.must("topic", "create", "orders", "type=NORMAL")
	source.must("group", "create", "billing")
	long := strings.Repeat("x", 16<<10-len("name"))
	source.must("send", "orders", "full", "--property", "name="+long)
	source.must("send", "orders", "plain")
	r := source.must("move", "orders", "--group", "billing", "--to", "target", "--yes", "-o", "json")
	assert.That(t, strings.Contains(r.stdout, `"moved": 2`) && strings.Contains(r.stdout, `"without_id_as_key": 1`), "the report is %s", r.stdout)
	target.must("topic", "create", "ordered", "type=FIFO")
	source.must("send", "orders", "not of a message group")
	r = source.run("move", "orders", "--group", "billing", "--to", "target", "--to-topic", "ordered", "--wait", "1s", "--yes")
	if r.code != 7 || !strings.Contains(r.stdout, "they stay  1") || !strings.Contains(r.stderr, "stays: the target rejects it") || !strings.Contains(r.stderr, "tidegate move orders --group=billing") {
		t.Errorf("exit code %d, %s%s", r.code, r.stdout, r.stderr)
	}
	assert.Slices(t, "the source has", source.bodies("billing", "orders", 2), []string{"not of a message group"})
}

// A second command with the journal of one that runs is rejected with the process of that one, and
// changes nothing. A file of the user is never taken for a journal.
func TestJournalInUse(t *testing.T) {
	t.Parallel()
	source, target := newMove(t)
	for _, tl := range []*tool{source, target} {
		tl.must("topic", "create", "orders")
	}
	source.must("group", "create", "billing")
	source.must("send", "orders", "a")
	source.must("receive", "billing", "orders", "--then", "dead=x", "--max", "1")
	source.must("send", "orders", "b")
	journal := filepath.Join(source.home, "j.jsonl")
	f := assert.Value(os.OpenFile(journal, os.O_CREATE|os.O_RDWR, 0o600))(t)
	unlock := assert.Value(filelock.Lock(f))(t)
	commands := [][]string{
		{"move", "orders", "--group", "billing", "--to", "target", "--journal", journal, "--yes"},
		{"dead-letters", "redrive", "billing", "--journal", journal, "--yes"},
	}
	for _, args := range commands {
		if r := source.run(args...); r.code == 0 || !strings.Contains(r.stderr, fmt.Sprintf("j.jsonl is in use by this process (%d)", os.Getpid())) {
			t.Errorf("%q: exit code %d, %s", args, r.code, r.stderr)
		}
	}
	assert.Must(t, errors.Join(unlock(), f.Close()))
	for _, text := range []string{`{"name":"a file of the user"}`, `{"name":"a file of the user"}` + "\n", "notes"} {
		write(t, journal, text)
		for _, args := range commands {
			if r := source.run(args...); r.code == 0 {
				t.Errorf("%q with the journal %q: %s", args, text, r.stdout)
			}
			if got, err := os.ReadFile(journal); err != nil || string(got) != text {
				t.Errorf("%q: the file %q has become %q, %v", args, text, got, err)
			}
		}
	}
	assert.Slices(t, "the source has", source.bodies("billing", "orders", 2), []string{"b"})
}

// A move that is killed at any point and begun again carries every message, in the order of the
// message groups, and few of them twice.
func TestMoveIsRestartable(t *testing.T) {
	t.Parallel()
	source, target := newMove(t)
	for _, tl := range []*tool{source, target} {
		tl.must("topic", "create", "orders", "type=FIFO", "queues=2")
		tl.must("group", "create", "billing", "max_attempts=16", "retry=1s", "fifo=true")
	}
	var input strings.Builder
	const n = 400
	for i := range n {
		fmt.Fprintf(&input, `{"body_text":"%d","message_group":"g%d"}`+"\n", i, i%5)
	}
	source.pipe(input.String(), "send", "orders", "--jsonl")
	args := []string{"move", "orders", "--group", "billing", "--to", "target", "--journal", filepath.Join(source.home, "j.jsonl"), "--yes", "-o", "json"}
	for round := 1; ; round++ {
		ctx, interrupt := context.WithCancel(limited(t))
		var stdout lockedBuffer
		stderr := &watchedBuffer{text: "the journal is", seen: sync.OnceFunc(func() { go interruptAfter(source.home, round*60, interrupt) })}
		code := run(ctx, args, source.app(&stdout, stderr))
		interrupt()
		if code == 0 {
			break
		}
		if code != 130 || !strings.Contains(stderr.String(), "this continues it: tidegate move orders --group=billing") || round > 20 {
			t.Fatalf("round %d: exit code %d, %s", round, code, stderr)
		}
	}
	got := target.bodies("billing", "orders", n+50)
	seen, last := map[string]bool{}, map[int]int{}
	for _, body := range got {
		var i int
		assert.Must(t, assert.Err(fmt.Sscan(body, &i)))
		if before, ok := last[i%5]; ok && i < before && !seen[body] {
			t.Errorf("message %d came after %d", i, before)
		}
		last[i%5], seen[body] = max(i, last[i%5]), true
	}
	assert.That(t, len(seen) == n, "%d of %d messages arrived", len(seen), n)
}

// interruptAfter calls interrupt when the journal has a number of sent messages.
func interruptAfter(home string, n int, interrupt func()) {
	for {
		text, err := os.ReadFile(filepath.Join(home, "j.jsonl"))
		if err != nil {
			return // the test has ended
		}
		if len(regexp.MustCompile(`[0-9A-F]{32,}`).FindAllString(string(text), -1)) > 2*n {
			interrupt()
			return
		}
	}
}
