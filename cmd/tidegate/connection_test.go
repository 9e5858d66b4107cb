package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
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

// A flag goes before the environment, and the environment before the context. Each value has its
// source, and a secret is never printed.
func TestSources(t *testing.T) {
	tl := newTool(t)
	tl.env["TIDEGATE_SECRET"] = "sesame"
	tl.must("context", "add", "one", "--grpc", "one.example:1", "--http", "http://one.example:2", "--access-key", "k")
	tl.must("context", "show", "--http", "http://flag.example:3").prints("kind        tidegate", "http://flag.example:3 (--http)", tl.grpc+" (TIDEGATE_SERVER_GRPC)", "k (context one)", "(hidden) (TIDEGATE_SECRET)")
	tl.must("context", "show", "--secret-file", "given").prints("given (--secret-file)").lacks("TIDEGATE_SECRET")
	for _, args := range [][]string{{"context", "show"}, {"context", "show", "-o", "json"}, {"status", "--http", "http://127.0.0.1:1", "--no-retry"}} {
		tl.run(args...).lacks("sesame")
	}
}

// The secret of a key comes from a file or a command; if the secret is missing or broken, the error
// names the place where the command looked for it.
func TestSecrets(t *testing.T) {
	tl := newTool(t)
	file := filepath.Join(tl.home, "secret")
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"none", nil, "set TIDEGATE_SECRET"},
		{"no such file", []string{"--secret-file", file + "x"}, file + "x"},
		{"command fails", []string{"--secret-command", "false"}, "false"},
	} {
		tl.must(append([]string{"context", "add", "c", "--http", tl.http, "--access-key", "k"}, c.args...)...)
		tl.fails(2, c.want, "topic", "list", "--context", "c")
	}
	assert.Must(t, os.WriteFile(file, []byte("sesame\n"), 0o600))
	for _, args := range [][]string{{"--secret-file", file}, {"--secret-command", "echo,sesame"}} {
		tl.must(append([]string{"context", "add", "c", "--http", tl.http, "--access-key", "k"}, args...)...)
		tl.must("topic", "list", "--context", "c") // a broker without keys takes any
	}
}

// The error of an invalid file of contexts names the file and the place. A file that other users
// can read causes a warning.
func TestContextFile(t *testing.T) {
	tl := newTool(t)
	tl.must("context", "add", "one", "--grpc", tl.grpc, "--http", tl.http).notes("one is now the current context")
	tl.must("context", "add", "two", "--grpc", tl.grpc).lacks("current")
	tl.must("context", "use", "two").notes("two")
	tl.must("context", "use", "-")
	tl.must("context", "list").prints("one *")
	tl.fails(3, "did you mean two?", "context", "use", "tow")
	path := filepath.Join(tl.env["XDG_CONFIG_HOME"], "tidegate", "contexts.yaml")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of contexts: %v, %v", info.Mode(), err)
	}
	assert.Must(t, os.Chmod(path, 0o644))
	tl.must("topic", "list").notes("chmod 600")
	assert.Must(t, os.WriteFile(path, []byte("contexts:\n  one: {grcp: x}\n"), 0o600))
	tl.run("topic", "list").exits(2).notes(path, "grcp", "line 2")
}

// The kind of a context holds for its own addresses. The addresses of the environment go before
// those of the current context, but not before a context that --context names.
func TestKindOfAContext(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	tl.must("context", "add", "rmq", "--kind", "rocketmq", "--grpc", "127.0.0.1:1")
	kind := func(want string, args ...string) {
		t.Helper()
		if r := tl.must(append([]string{"context", "show"}, args...)...); !strings.HasPrefix(strings.Join(strings.Fields(r.stdout), " "), "kind "+want+" ") {
			t.Errorf("context show %q has not the kind %s:\n%s", args, want, r.stdout)
		}
	}
	kind("tidegate")
	tl.must("topic", "list")
	tl.must("send", "orders", "a")
	kind("rocketmq", "--context", "rmq")
	tl.fails(2, "mqadmin topicList", "topic", "list", "--context", "rmq") // a context that the flag names
	kind("tidegate", "--context", "rmq", "--http", tl.http)
	tl.must("topic", "list", "--context", "rmq", "--http", tl.http)
	kind("tidegate", "--context", "rmq", "--grpc", tl.grpc)
	tl.must("send", "orders", "a", "--context", "rmq", "--grpc", tl.grpc)
	delete(tl.env, "TIDEGATE_SERVER_HTTP")
	kind("tidegate")
	delete(tl.env, "TIDEGATE_SERVER_GRPC")
	kind("rocketmq")
	kind("rocketmq", "--grpc", "127.0.0.1:1")
}

// The test of a context is about its server, and not about that of the environment.
func TestContextTest(t *testing.T) {
	tl := newTool(t)
	tl.must("context", "add", "here", "--grpc", tl.grpc, "--http", tl.http)
	tl.must("context", "add", "away", "--grpc", closedPort(t))
	tl.must("context", "test")
	tl.must("context", "test", "here").prints("the clocks agree")
	tl.env["TIDEGATE_ACCESS_KEY"] = "key-of-another-server"
	tl.must("context", "test", "here")
	delete(tl.env, "TIDEGATE_ACCESS_KEY")
	tl.fails(6, "", "context", "test", "away") // a server that is away
	tl.fails(2, "", "context", "test", "nope") // no such context
}

// The help of a command has its own flags before those of the output and of the connection.
func TestHelpIsGrouped(t *testing.T) {
	tl := newTool(t)
	help := tl.must("send", "--help").stdout
	at := func(text string) int { return strings.Index(help, text) }
	if !(at("Flags:") > 0 && at("--ack-timeout duration") > at("\nFlags:") && at("Output:") > at("--tag tag") && at("--columns") > at("Output:") && at("Connection:") > at("--columns") && at("--secret-file") > at("Connection:")) {
		t.Errorf("the help is\n%s", help)
	}
}

// doctor names the fault and the remedy of a wrong port, TLS, topic and group.
func TestDoctor(t *testing.T) {
	tl := newTool(t, "--topic", "orders:FIFO")
	tl.must("doctor").prints("the clocks agree", "messages of orders go to "+tl.grpc).lacks("failed")
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	silent := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer silent.Close()
	go func() { // closes the connection after unknown bytes, as the remoting port of RocketMQ does
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	for _, c := range []struct {
		name, args string
		code       int
		says       string
	}{
		{"nothing listens", "--grpc 127.0.0.1:1", 6, "is the server running"},
		{"an HTTP/1 server", "--grpc " + strings.TrimPrefix(tl.http, "http://"), 2, "remedy"},
		{"another protocol", "--grpc " + silent.Addr().String(), 2, "9876 and 10911"},
		{"no such topic", "--topic nope", 3, "tidegate topic create nope"},
		{"no such group", "--topic orders --group nope", 3, "tidegate group create nope"},
		{"plain text on a port with TLS", "--http " + strings.Replace(secure.URL, "https:", "http:", 1), 2, "--http " + secure.URL},
		{"the HTTP API on the port of gRPC", "--http http://" + tl.grpc, 2, "not the one for gRPC"},
		{"an unknown authority", "--http " + secure.URL, 2, "--cacert FILE"},
		{"an address from elsewhere", "--grpc " + tl.grpc, 0, "left out http"},
		{"two failures, of which the first counts", "--grpc 127.0.0.1:1 --http " + secure.URL, 6, "--cacert FILE"},
		{"a normal message in a FIFO topic", "--topic orders --send", 2, "FIFO needs a message group"},
	} {
		r := tl.run(append([]string{"doctor"}, strings.Fields(c.args)...)...)
		assert.That(t, r.code == c.code && strings.Contains(r.stdout, c.says), "%s: exit code %d, want %d with %q:\n%s%s", c.name, r.code, c.code, c.says, r.stdout, r.stderr)
		assert.That(t, !strings.Contains(r.stdout, "Options.") && !strings.Contains(r.stdout, `\n`), "%s: the text is not for users of the command:\n%s", c.name, r.stdout)
	}
	tl.must("group", "create", "billing")
	tl.must("doctor", "--topic", "orders", "--group", "billing").lacks("does not exist")
	tl.must("context", "add", "rmq", "--kind", "rocketmq", "--grpc", tl.grpc)
	tl.run("doctor", "--context", "rmq", "--topic", "nope").prints("create it: mqadmin updateTopic -t nope").lacks("tidegate topic create")
	tl.run("send", "nope", "a", "--context", "rmq").exits(3).notes("mqadmin updateTopic").lacks("tidegate topic create")
	tl.must("context", "remove", "rmq")
	for _, args := range [][]string{{"topic", "list", "--http", secure.URL}, {"topic", "list", "--http", secure.URL, "-o", "json"}} {
		tl.run(append(args, "--no-retry")...).notes("--cacert").lacks("Options.")
	}
}

// Without --topic, doctor tests the address that the server advertises by the route of any topic.
func TestDoctorTestsTheAdvertisedAddress(t *testing.T) {
	tl := newTool(t, "--advertise", "127.0.0.1:1")
	tl.must("doctor").prints("give --topic NAME to test the address")
	tl.must("topic", "create", "orders")
	tl.run("doctor").exits(6).prints("the route of orders names the server 127.0.0.1:1", "set advertise of tidegate")
}

// A command whose address leads to a server of another protocol ends at once, with the remedy and
// without the words of the protocols.
func TestWrongPort(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	web, tlsPort := strings.TrimPrefix(tl.http, "http://"), strings.TrimPrefix(secure.URL, "https://")
	for _, c := range []struct{ args, says string }{
		{"send orders a --grpc " + web, "it is a port for HTTP"},
		{"receive billing orders --max 1 --then ack --grpc " + web, "it is a port for HTTP"},
		{"receive billing orders --follow --then ack --grpc " + web, "it is a port for HTTP"},
		{"send orders a --grpc " + tlsPort, "give --tls"},
		{"topic list --http http://" + tl.grpc, "not the one for gRPC"},
		{"status --http http://" + tlsPort, "give its address as an https URL"},
	} {
		tl.bounded("", strings.Fields(c.args)...).exits(2).notes(c.says).lacks("http2:", "malformed")
	}
}

// A command that another one offers goes to the same server: pasted, it has the flags of the
// connection, and it works.
func TestOfferedCommandsKeepTheServer(t *testing.T) {
	tl := newTool(t, "--topic", "orders")
	at := []string{"--http", tl.http, "--grpc", tl.grpc}
	delete(tl.env, "TIDEGATE_SERVER_HTTP")
	delete(tl.env, "TIDEGATE_SERVER_GRPC")
	flags := " --grpc=" + tl.grpc + " --http=" + tl.http
	tl.must(append([]string{"send", "orders", "body", "--id", "a", "--count", "1"}, at...)...)
	for _, c := range []struct {
		line, offers string
		run          bool
	}{
		{"receive billing orders --max 1 --then dead=why", "tidegate group delete" + flags + " billing", false},
		{"dead-letters top billing", "tidegate dead-letters show" + flags + " billing a", true},
		{"dead-letters top billing", "tidegate dead-letters redrive" + flags + " billing --class", false},
		{"dead-letters show billing a", "tidegate dead-letters redrive" + flags + " billing --id a", false},
		{"status", "tidegate dead-letters top" + flags + " billing", true},
		{"parked redrive billing --dry-run", "tidegate parked list" + flags + " billing", true},
		{"dead-letters redrive billing --set-tag t --yes", "tidegate trace" + flags + " a.redrive-1", true},
		{"trace a", "tidegate trace" + flags + " a.redrive-1", true},
		{"topic create orders", "tidegate topic set" + flags + " orders KEY=VALUE", false},
	} {
		r := tl.run(append(strings.Fields(c.line), at...)...)
		if !strings.Contains(r.stdout+r.stderr, c.offers) {
			t.Errorf("%s: exit code %d, it does not offer %q:\n%s%s", c.line, r.code, c.offers, r.stdout, r.stderr)
		} else if c.run {
			tl.must(strings.Fields(c.offers)[1:]...)
		}
	}
}

// The program reaches no foreign systems. With an address of an Artemis or a Pulsar, from any
// source, a command ends with code 2. The error names the program that supports them and how to
// install it.
func TestNamesTheProgramForForeignSystems(t *testing.T) {
	tl := newTool(t)
	tl.env = map[string]string{"XDG_CONFIG_HOME": tl.env["XDG_CONFIG_HOME"], "HOME": tl.home}
	tl.must("context", "add", "artemis", "--amqp", "amqps://mq.example")
	tl.must("context", "show").prints("amqps://mq.example (context artemis)")
	tl.must("context", "list").prints("amqp  ")
	for _, args := range map[string][]string{
		"a context":         {"send", "orders", "x"},
		"a flag":            {"receive", "billing", "orders", "--then", "ack", "--amqp", "amqp://mq.example"},
		"an address":        {"doctor", "--grpc", "amqp://mq.example:5672"},
		"a command of HTTP": {"topic", "list"},
		"a target":          {"move", "orders", "--group", "billing", "--to", "artemis", "--grpc", "127.0.0.1:1"},
		"a Pulsar":          {"send", "orders", "x", "--pulsar", "pulsar://mq.example,mq2.example"},
		"as gRPC":           {"doctor", "--grpc", "pulsar+ssl://mq.example:6651"},
	} {
		tl.run(args...).exits(2).notes("tidegate-foreign", "go install github.com/tidegate/tidegate/cmd/tidegate-foreign@latest")
	}
	tl.env["TIDEGATE_SERVER_AMQP"] = "amqp://mq.example"
	tl.fails(2, "amqp://mq.example is", "send", "orders", "x")
	tl.fails(2, "amqps://mq.example is an ActiveMQ Artemis", "send", "orders", "x", "--context", "artemis")
	tl.must("context", "add", "pulsar", "--pulsar", "pulsar://mq.example", "--namespace", "shop/orders", "--naming", "by-group")
	tl.fails(2, "pulsar://mq.example is an Apache Pulsar", "peek", "orders", "--context", "pulsar")
}

// Addresses of two kinds, and a context with an address of another kind, are errors of usage.
func TestAMQPExcludesOtherAddresses(t *testing.T) {
	tl := newTool(t)
	for _, args := range map[string][]string{
		"two flags":         {"send", "orders", "x", "--amqp", "amqp://mq", "--grpc", "127.0.0.1:1"},
		"two in a context":  {"context", "add", "x", "--amqp", "amqp://mq", "--grpc", "127.0.0.1:1"},
		"another kind":      {"context", "add", "x", "--amqp", "amqp://mq", "--kind", "rocketmq"},
		"no address":        {"context", "add", "x", "--kind", "amqp", "--grpc", "127.0.0.1:1"},
		"a password":        {"context", "add", "x", "--amqp", "amqp://user:sesame@mq"},
		"another scheme":    {"context", "add", "x", "--amqp", "http://mq"},
		"amqp in grpc":      {"context", "add", "x", "--grpc", "amqp://mq:5672"},
		"a faulty kind":     {"context", "add", "x", "--kind", "kafka", "--grpc", "127.0.0.1:1"},
		"no address at all": {"context", "add", "x"},
	} {
		tl.run(args...).exits(2).is("").lacks("sesame")
	}
}

// Neither the program nor its module depends on the clients of foreign systems.
func TestLinksNoForeignClient(t *testing.T) {
	out := assert.Value(exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output())(t)
	gomod := assert.Value(os.ReadFile("../../go.mod"))(t)
	assert.MustThat(t, strings.Contains(string(out), "google.golang.org/grpc\n") && strings.Contains(string(gomod), "google.golang.org/grpc "), "the lists do not name gRPC: this test sees nothing")
	for _, client := range []string{"go-amqp", "pulsar-client-go"} {
		if all := strings.ToLower(string(out) + string(gomod)); strings.Contains(all, client) {
			t.Errorf("the program or its module depends on %s: it belongs to the module cmd/tidegate-foreign", client)
		}
	}
}

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
