package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/amqppeer"
)

// A message is sent to a topic, redelivered after a release and a retry, becomes a dead letter, and
// is sent back to the topic.
func TestMessages(t *testing.T) { messages(t, onPeer(t, &amqppeer.Peer{})) }

func messages(t *testing.T, tl *tool) {
	receive := func(flags ...string) result {
		return tl.must(append([]string{"receive", "billing", "orders", "--wait", "1s", "-o", "name"}, flags...)...)
	}
	receive("--then", "ack") // creates the queue of the group
	sent := tl.must("send", "orders", "order 42", "--tag", "paid", "--property", "city=Berlin", "-o", "name").stdout
	if got := receive("--then", "release").stdout; got != sent {
		t.Errorf("received %q, want %q", got, sent)
	}
	if got := receive("--then", "retry=1ms", "--max", "1"); got.stdout != sent {
		t.Errorf("after the release: %q, want %q", got.stdout, sent)
	}
	got := tl.must("receive", "billing", "orders", "--then", "dead=no such account", "--max", "1", "-o", "jsonl").stdout
	for _, want := range []string{`"body_text":"order 42"`, `"tag":"paid"`, `"city":"Berlin"`, `"attempt":2`} {
		if !strings.Contains(got, want) {
			t.Errorf("the retried message is %s, want %s", got, want)
		}
	}
	if got := tl.must("dead-letters", "list", "billing", "-o", "jsonl").stdout; !strings.Contains(got, strings.TrimSpace(sent)) || !strings.Contains(got, "no such account") {
		t.Errorf("the dead letter is %q", got)
	}
	if got := tl.must("dead-letters", "show", "billing", strings.TrimSpace(sent)).stdout; !strings.Contains(got, "order 42") {
		t.Errorf("the dead letter is %q", got)
	}
	tl.must("dead-letters", "redrive", "billing", "--yes")
	if got := receive("--then", "ack", "--max", "1").stdout; got != strings.TrimSpace(sent)+".redrive-1\n" {
		t.Errorf("after the redrive: %q, want the ID with the number of the redrive", got)
	}
	if got := tl.must("dead-letters", "list", "billing", "-o", "name").stdout; got != "" {
		t.Errorf("after the redrive there are dead letters: %q", got)
	}
}

// Released messages are received again in their order.
func TestReleasedMessagesKeepTheirOrder(t *testing.T) {
	tl := onPeer(t, &amqppeer.Peer{})
	receive := func(then string) string {
		t.Helper()
		return strings.Join(strings.Fields(tl.must("receive", "billing", "orders", "--wait", "1s", "--max", "5", "--then", then, "--raw").stdout), "")
	}
	receive("ack")                                           // creates the queue of the group
	for _, body := range []string{"a", "b", "c", "d", "e"} { // one after the other: --lines has no order
		tl.must("send", "orders", body)
	}
	for _, then := range []string{"release", "release", "ack"} {
		if got := receive(then); got != "abcde" {
			t.Errorf("--then %s received %s", then, got)
		}
	}
}

// A program of --exec handles messages by its exit code.
func TestExec(t *testing.T) { handled(t, onPeer(t, &amqppeer.Peer{})) }

func handled(t *testing.T, tl *tool) {
	work := func(program string) result {
		return tl.must("receive", "shipping", "parcels", "--exec", program, "--max", "2", "--wait", "5s")
	}
	tl.must("receive", "shipping", "parcels", "--then", "ack", "--wait", "100ms")
	tl.must("send", "parcels", "good")
	tl.must("send", "parcels", "bad")
	seen := filepath.Join(tl.home, "seen")
	work("b=$(cat); echo $b $TIDEGATE_ATTEMPT >>" + seen + "; test $b = good || { echo no such street >&2; exit 1; }")
	text, err := os.ReadFile(seen)
	if err != nil || string(text) != "good 1\nbad 1\n" {
		t.Errorf("the program saw %q, %v", text, err)
	}
	if got := tl.must("dead-letters", "list", "shipping", "-o", "jsonl").stdout; strings.Count(got, "\n") != 1 || !strings.Contains(got, "no such street") {
		t.Errorf("the dead letters are %q, want one with the last line of the program", got)
	}
}

// Without a terminal, receive needs --then. On Artemis --then retry needs a delay, because Artemis
// has no retry schedule.
func TestReceiveNeedsAFate(t *testing.T) {
	tl := onPeer(t, &amqppeer.Peer{})
	for _, args := range [][]string{{}, {"--then", "retry"}} {
		r := tl.run(append([]string{"receive", "billing", "orders"}, args...)...)
		if r.code != 2 || !strings.Contains(r.stderr, "--then") {
			t.Errorf("%q: exit code %d, %s", args, r.code, r.stderr)
		}
	}
}

// A message cannot be recalled.
func TestRecall(t *testing.T) {
	tl := onPeer(t, &amqppeer.Peer{})
	if r := tl.run("recall", "reminders", "HANDLE"); r.code != 2 || !strings.Contains(r.stderr, "Artemis has no command for it.") {
		t.Errorf("exit code %d, %s", r.code, r.stderr)
	}
}

// A benchmark needs a topic that exists. It prints figures, and loses no message.
func TestBench(t *testing.T) {
	tl := onPeer(t, &amqppeer.Peer{})
	if r := tl.run("bench", "send"); r.code != 2 || !strings.Contains(r.stderr, "--topic NAME --into-existing") {
		t.Errorf("without a topic: exit code %d, %s", r.code, r.stderr)
	}
	short := []string{"--topic", "load", "--into-existing", "--rounds", "1", "--duration", "200ms", "--warmup", "0s", "--callers", "4", "--size", "100"}
	for _, name := range []string{"send", "e2e"} {
		r := tl.run(append([]string{"bench", name}, short...)...)
		if r.code != 0 && r.code != 7 || !strings.Contains(r.stdout, "p99") { // 7: the machine is too busy for valid figures
			t.Errorf("%s: exit code %d, %s%s", name, r.code, r.stdout, r.stderr)
		}
		if name == "e2e" && !strings.Contains(r.stdout, "lost 0") {
			t.Errorf("messages were lost: %s%s", r.stdout, r.stderr)
		}
	}
}

// A move carries messages from one server to another.
func TestMove(t *testing.T) {
	from, to := onPeer(t, &amqppeer.Peer{}), onPeer(t, &amqppeer.Peer{})
	for _, tl := range []*tool{from, to} {
		tl.must("receive", "billing", "orders", "--then", "ack", "--wait", "100ms")
	}
	from.must("context", "add", "other", "--amqp", "amqp://"+to.address)
	sent := from.must("send", "orders", "order 42", "-o", "name").stdout
	from.must("move", "orders", "--group", "billing", "--to", "other", "--wait", "1s", "--yes")
	if got := to.must("receive", "billing", "orders", "--then", "ack", "--max", "1", "-o", "name").stdout; got != sent {
		t.Errorf("moved %q, want %q", got, sent)
	}
}
