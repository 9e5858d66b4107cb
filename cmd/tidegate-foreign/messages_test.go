package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/internal/amqppeer"
	"github.com/tidegate/tidegate/internal/assert"
)

// A message is sent to a topic, redelivered after a release and a retry, becomes a dead letter, and
// is sent back to the topic.
func TestMessages(t *testing.T) { messages(t, onPeer(t, &amqppeer.Peer{}), "orders", "1s") }

// messages sends to a topic and receives from it. wait is the time in which the server delivers.
func messages(t *testing.T, tl *tool, topic, wait string) {
	receive := func(flags ...string) result {
		return tl.must(append([]string{"receive", "billing", topic, "--wait", wait, "-o", "name"}, flags...)...)
	}
	receive("--then", "ack") // creates the queue or subscription of the group
	sent := tl.must("send", topic, "order 42", "--tag", "paid", "--property", "city=Berlin", "-o", "name").stdout
	if got := receive("--then", "release").stdout; got != sent {
		t.Errorf("received %q, want %q", got, sent)
	}
	if got := receive("--then", "retry=1ms", "--max", "1"); got.stdout != sent {
		t.Errorf("after the release: %q, want %q", got.stdout, sent)
	}
	got := tl.must("receive", "billing", topic, "--wait", wait, "--then", "dead=no such account", "--max", "1", "-o", "jsonl").stdout
	for _, want := range []string{`"body_text":"order 42"`, `"tag":"paid"`, `"city":"Berlin"`, `"attempt":2`} {
		if !strings.Contains(got, want) {
			t.Errorf("the retried message is %s, want %s", got, want)
		}
	}
	if got := tl.must("dead-letters", "list", "billing", "-o", "jsonl").stdout; !strings.Contains(got, strings.TrimSpace(sent)) || !strings.Contains(got, "no such account") {
		t.Errorf("the dead letter is %q", got)
	}
	if got := tl.must("dead-letters", "show", "billing", strings.TrimSpace(sent)).stdout; !strings.Contains(got, "order 42") || strings.Contains(got, "offset -1") {
		t.Errorf("the dead letter is %q", got)
	}
	if got := tl.must("dead-letters", "redrive", "billing", "--yes").stderr; strings.Contains(got, "tidegate-foreign trace") {
		t.Errorf("the redrive offers a command that the server does not support: %s", got)
	}
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
func TestExec(t *testing.T) { handled(t, onPeer(t, &amqppeer.Peer{}), "parcels") }

func handled(t *testing.T, tl *tool, topic string) {
	work := func(program string) result {
		return tl.must("receive", "shipping", topic, "--exec", program, "--max", "2", "--wait", "5s")
	}
	tl.must("receive", "shipping", topic, "--then", "ack", "--wait", "100ms")
	tl.must("send", topic, "good")
	tl.must("send", topic, "bad")
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

var artemisFlag = flag.Bool("artemis", false, "start a real Artemis; it needs a JDK of version 17 or later and Maven")

// start builds a program that runs a server, and starts it until the end of the test. It returns
// the words of the line that the program prints when the server accepts connections.
func start(t *testing.T, source string, flags ...string) []string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "server")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, append([]string{"-port", "0"}, flags...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	assert.Must(t, err)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended
		_ = cmd.Wait()                       // its directory is temporary, so its exit code does not matter
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	words := strings.Fields(line)
	assert.MustThat(t, err == nil && len(words) >= 3, "the server printed %q: %v", line, err)
	return words
}

// The commands work on a real Artemis, and doctor finds its faults. Without -artemis there is no
// server, and nothing is tested.
func TestArtemis(t *testing.T) {
	if !*artemisFlag {
		return
	}
	words := start(t, "github.com/tidegate/tidegate/transport/amqp/artemis", "-user", "app=sesame",
		"-set", `addressSettings."#".autoDeleteQueues=false`, "-set", `addressSettings."#".autoDeleteAddresses=false`,
		"-set", `addressSettings."#".maxDeliveryAttempts=-1`, "-set", `addressSettings."#".redeliveryDelay=0`,
		"-set", `addressSettings."closed.#".autoCreateAddresses=false`, "-set", `addressSettings."closed.#".autoCreateQueues=false`,
		"-set", `addressSettings."lost.DLQ".autoCreateAddresses=false`, "-set", `addressSettings."lost.DLQ".autoCreateQueues=false`,
		"-set", `addressSettings."full".maxSizeBytes=10240`, "-set", `addressSettings."full".addressFullMessagePolicy=FAIL`,
		"-set", `addressSettings."full".autoDeleteQueues=false`)
	user := func(t *testing.T, password string) *tool {
		tl := on(t, strings.TrimPrefix(words[0], "amqp://"))
		tl.env["TIDEGATE_ACCESS_KEY"], tl.env["TIDEGATE_SECRET"] = "app", password
		return tl
	}
	t.Run("messages", func(t *testing.T) { messages(t, user(t, "sesame"), "orders", "1s") })
	t.Run("exec", func(t *testing.T) { handled(t, user(t, "sesame"), "parcels") })
	t.Run("doctor", func(t *testing.T) {
		tl := user(t, "sesame")
		tl.must("receive", "g", "full", "--then", "ack", "--wait", "100ms")
		tl.run("send", "full", strings.Repeat("x", 1024), "--count", "50", "--ack-timeout", "10s") // until it is full
		for _, c := range []struct {
			name, password string
			code           int
			step           string
			flags          []string
		}{
			{"all is well", "sesame", 0, "ok       group", []string{"--topic", "orders", "--group", "doctor", "--send"}},
			{"wrong password", "wrong", 4, "failed   credentials", nil},
			{"no address", "sesame", 3, "failed   topic", []string{"--topic", "closed.orders"}},
			{"dead letters without a queue", "sesame", 3, "failed   dead letters", []string{"--topic", "orders", "--group", "lost"}},
			{"full address", "sesame", 5, "failed   send", []string{"--topic", "full", "--send"}},
		} {
			r := user(t, c.password).run(append([]string{"doctor"}, c.flags...)...)
			if r.code != c.code || !strings.Contains(r.stdout, c.step) {
				t.Errorf("%s: exit code %d, want %d and %q:\n%s%s", c.name, r.code, c.code, c.step, r.stdout, r.stderr)
			}
		}
	})
	t.Run("bench", func(t *testing.T) {
		r := user(t, "sesame").run("bench", "e2e", "--topic", "load", "--into-existing", "--rounds", "1", "--duration", "1s", "--warmup", "0s", "--callers", "16")
		if r.code != 0 && r.code != 7 || !strings.Contains(r.stdout, "lost 0") {
			t.Errorf("exit code %d, %s%s", r.code, r.stdout, r.stderr)
		}
	})
}

// Each fault ends the examination in its step, with the exit code of its class and the remedy.
func TestDoctor(t *testing.T) {
	refuse := func(address string, receives bool, condition, text string) *amqppeer.Peer {
		return &amqppeer.Peer{Refuse: func(at string, receiver bool) *amqppeer.Fault {
			if at == address && receiver == receives {
				return &amqppeer.Fault{Condition: condition, Description: text}
			}
			return nil
		}}
	}
	const missing, forbidden = "amqp:not-found", "amqp:unauthorized-access"
	for _, c := range []struct {
		name string
		peer *amqppeer.Peer
		code int
		step string // the last one
		want string // the remedy
	}{
		{"all is well", &amqppeer.Peer{}, 0, "ok       group", ""},
		{"wrong password", &amqppeer.Peer{Users: map[string]string{"app": "other"}}, 4, "failed   credentials", "--secret-file"},
		{"no address", refuse("orders", false, missing, "AMQ119002: target address orders does not exist"), 3, "failed   topic", "artemis address create --name orders --multicast"},
		{"may not send", refuse("orders", false, forbidden, "AMQ229032: no permission='SEND'"), 4, "failed   topic", "permission send"},
		{"dead letters without a queue", refuse("billing.DLQ", true, missing, "AMQ119010: source address billing.DLQ does not exist"), 3, "failed   dead letters", "artemis queue create --name billing.DLQ"},
		{"no queue", refuse("orders::orders.billing", true, missing, "AMQ119010: does not exist"), 3, "failed   group", "artemis queue create --name orders.billing"},
		{"may not consume", refuse("orders::orders.billing", true, forbidden, "AMQ229032: no permission='CONSUME'"), 4, "failed   group", "permission consume"},
		{"full address", &amqppeer.Peer{NoCredit: []string{"orders"}}, 5, "failed   send", "max-size-bytes"},
		{"rejected by a full address", &amqppeer.Peer{Reject: func(string) *amqppeer.Fault {
			return &amqppeer.Fault{Condition: "amqp:resource-limit-exceeded", Description: "AMQ229102: Address is full"}
		}}, 5, "failed   send", "max-size-bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tl := onPeer(t, c.peer)
			tl.env["TIDEGATE_ACCESS_KEY"], tl.env["TIDEGATE_SECRET"] = "app", "sesame"
			if c.peer.Users == nil {
				c.peer.Users = map[string]string{"app": "sesame"}
			}
			r := tl.run("doctor", "--topic", "orders", "--group", "billing", "--send")
			steps := strings.Split(strings.TrimSpace(r.stdout), "\n")
			last := len(steps) - 1
			if c.want != "" {
				last--
			}
			if r.code != c.code || last < 0 || !strings.HasPrefix(steps[last], c.step) || !strings.Contains(steps[len(steps)-1], c.want) {
				t.Errorf("exit code %d, want %d with %q and %q:\n%s%s", r.code, c.code, c.step, c.want, r.stdout, r.stderr)
			}
			assert.That(t, !strings.Contains(r.stdout+r.stderr, "sesame"), "the password is printed")
		})
	}
}

// If a port speaks another protocol than its address has, the doctor names the protocol.
func TestDoctorOfAnotherPort(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	plain, secure := httptest.NewServer(page), httptest.NewUnstartedServer(page)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // the handshakes that the test breaks
	secure.StartTLS()
	defer plain.Close()
	defer secure.Close()
	silent := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer silent.Close()
	go func() {
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("AMQP\x00\x00\x09\x01")) // as a server of AMQP 0.9.1
			c.Close()
		}
	}()
	for _, c := range []struct {
		name, address string
		code          int
		want          string
	}{
		{"the web console", "amqp://" + plain.Listener.Addr().String(), 2, "web console"},
		{"TLS", "amqp://" + secure.Listener.Addr().String(), 2, "amqps://"},
		{"no TLS", "amqps://" + plain.Listener.Addr().String(), 2, "amqp://"},
		{"an unknown authority", "amqps://" + secure.Listener.Addr().String(), 2, "--cacert"},
		{"AMQP 0.9.1", "amqp://" + silent.Addr().String(), 2, "RabbitMQ"},
		{"no server", "amqp://127.0.0.1:1", 6, "5672"},
		{"the REST API of Pulsar", "pulsar://" + plain.Listener.Addr().String(), 2, "REST API"},
		{"TLS for Pulsar", "pulsar://" + secure.Listener.Addr().String(), 2, "pulsar+ssl://"},
		{"no TLS for Pulsar", "pulsar+ssl://" + plain.Listener.Addr().String(), 2, "pulsar://"},
		{"an unknown authority for Pulsar", "pulsar+ssl://" + secure.Listener.Addr().String(), 2, "--cacert"},
		{"no Pulsar", "pulsar://" + silent.Addr().String(), 2, "6650"},
		{"no server of several", "pulsar://127.0.0.1:1,127.0.0.1:2", 6, "other hosts"},
	} {
		kind, _, _ := strings.Cut(strings.Replace(strings.Replace(c.address, "amqps", "amqp", 1), "+ssl", "", 1), ":")
		if r := on(t, "unused").run("doctor", "--"+kind, c.address); r.code != c.code || !strings.Contains(r.stdout, c.want) {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s%s", c.name, r.code, c.code, c.want, r.stdout, r.stderr)
		}
	}
}

// The command that an error offers is one for the same server.
func TestHintNamesTheServer(t *testing.T) {
	tl := on(t, "127.0.0.1:1")
	r := tl.run("receive", "billing", "orders", "--then", "ack", "--pulsar", "pulsar://127.0.0.1:2", "--timeout", "100ms")
	if want := "'tidegate-foreign doctor --pulsar=pulsar://127.0.0.1:2'"; r.code != 6 || !strings.Contains(r.stderr, want) {
		t.Errorf("exit code %d, want 6 and %q: %s", r.code, want, r.stderr)
	}
}

// Parts of the place of a message that the server does not report are not printed.
func TestPlaceIsUnknown(t *testing.T) {
	tl := onPeer(t, &amqppeer.Peer{})
	tl.must("receive", "billing", "orders", "--then", "ack", "--wait", "100ms")
	tl.must("send", "orders", "order 42")
	if got := tl.must("receive", "billing", "orders", "--then", "ack", "--max", "1", "-o", "table").stdout; !strings.Contains(got, "order 42") || strings.Contains(got, "queue") || strings.Contains(got, "offset") {
		t.Errorf("received %q", got)
	}
}

// The address is that of a flag, the environment, a context or the default, in this order.
func TestAddress(t *testing.T) {
	tl := on(t, "env.example")
	show := func(want string, args ...string) {
		t.Helper()
		if r := tl.must(append([]string{"context", "show"}, args...)...); !strings.Contains(r.stdout, want) {
			t.Errorf("%q: %s, want %s", args, r.stdout, want)
		}
	}
	show("amqp://env.example (TIDEGATE_SERVER_AMQP)")
	show("amqps://flag.example (--amqp)", "--amqp", "amqps://flag.example")
	show("127.0.0.1:9 (--grpc)", "--grpc", "127.0.0.1:9") // of a tidegate or RocketMQ
	delete(tl.env, "TIDEGATE_SERVER_AMQP")
	show("amqp://127.0.0.1:5672 (default)")
	tl.must("context", "add", "artemis", "--amqp", "amqp://context.example")
	show("amqp://context.example (context artemis)")
}

// A tool runs commands against a server.
type tool struct {
	t       *testing.T
	address string // of the server, host:port
	home    string // the directories of the user
	env     map[string]string
	foreign map[string]*cli.Foreign // nil for those of the program
}

// A result is the output of a command and its exit code.
type result struct {
	code           int
	stdout, stderr string
}

// on returns a tool for a server.
func on(t *testing.T, address string) *tool {
	t.Helper()
	home := t.TempDir()
	return &tool{t: t, address: address, home: home, env: map[string]string{
		"XDG_CONFIG_HOME": filepath.Join(home, "config"), "XDG_STATE_HOME": filepath.Join(home, "state"), "HOME": home,
		"TIDEGATE_SERVER_AMQP": "amqp://" + address,
	}}
}

// onPeer returns a tool for a peer.
func onPeer(t *testing.T, p *amqppeer.Peer) *tool {
	t.Helper()
	l := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	go p.Serve(l)
	return on(t, l.Addr().String())
}

// input runs a command with a standard input.
func (tl *tool) input(stdin string, args ...string) result {
	tl.t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(tl.t.Context(), args, &cli.App{
		In: strings.NewReader(stdin), Out: &stdout, Err: &stderr,
		Env: func(name string) string { return tl.env[name] }, Foreign: tl.foreign,
	})
	return result{code, stdout.String(), stderr.String()}
}

func (tl *tool) run(args ...string) result {
	tl.t.Helper()
	return tl.input("", args...)
}

// must runs a command that ends with 0, and returns its result.
func (tl *tool) must(args ...string) result {
	tl.t.Helper()
	r := tl.run(args...)
	if r.code != 0 {
		tl.t.Fatalf("tidegate-foreign %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r
}
