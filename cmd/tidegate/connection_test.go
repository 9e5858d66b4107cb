package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
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
