package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
	"github.com/tidegate/tidegate/transport/rocketmq/interop/runner"
)

// With this environment variable the test binary runs the program. The client reads its own
// environment variables before main begins, so the tests need a process for each setting.
const asProgram = "OFFICIALCLIENT_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// built returns the path of a program tidegate of this repository.
func built(t *testing.T) string {
	t.Helper()
	tidegate := filepath.Join(t.TempDir(), "tidegate")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-o", tidegate, "./cmd/tidegate").CombinedOutput(); err != nil {
		t.Fatalf("building tidegate: %v\n%s", err, out)
	}
	return tidegate
}

func TestAgainstTidegate(t *testing.T) {
	tidegate := built(t)
	atOnce := []string{"--min-invisible-duration", "0", "--min-long-polling", "0"}
	for _, test := range []struct {
		name   string
		broker []string // flags of tidegate serve
		env    string   // of the program
		key    string   // likewise, its access key
		want   string   // expected in the output, in addition to the lines of every run
	}{
		{"in memory, TLS", atOnce, "", "", "TLS on"},
		{"on disk, default settings, plain text", []string{"--data", t.TempDir()}, "rocketmq.client.enableSsl=false", "", "TLS off"},
		{"with keys", append(atOnce, "--config", keyFile(t)), secretVariable + "=open sesame", "clerk", "TLS on"},
		{"with keys and a certificate", append(append(atOnce, "--config", keyFile(t)), certificate(t)...), secretVariable + "=open sesame", "clerk", "TLS on"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := serve(t, tidegate, test.broker...)
			if slices.Contains(test.broker, "--tls-cert") { // then HTTP speaks TLS too
				b.http = "https://" + b.http
			}
			out := play(t, b, test.env, test.key)
			for _, want := range []string{
				test.want,
				"order 3 (attempt 2) came after",
				"poison (attempt 4) came after",
				`billing: "poison", because:`,
				"its old handle is rejected: CODE: INVALID_RECEIPT_HANDLE",
				"in order: message group alice",
				"in order: message group carol",
				"bob 6 came while alice 2 waited for its retry",
				`support: "carol 3", because:`,
				"hello 2 was suspended, and came again with the same attempt after",
				`agents: "curse", because:`,
				"delivered from session-3: bye to session-3",
				"asked about transfer 1 after",
				"for the 2. time",
				"delivered: transfer 1 (attempt 1)",
				"all expected steps happened",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("it does not print %q", want)
				}
			}
			if strings.Contains(out, "left behind") {
				t.Error("it left topics or consumer groups behind")
			}
			b.stop()
			if t.Failed() {
				t.Logf("the program:\n%s\nthe broker:\n%s", out, &b.stderr)
			}
		})
	}
}

// keyFile returns a configuration with a key that has the permissions of the program, and one that
// may only send.
func keyFile(t *testing.T) string {
	file := filepath.Join(t.TempDir(), "tidegate.yaml")
	err := os.WriteFile(file, []byte(`
access:
  keys:
    clerk:
      secret: open sesame
      allow:
      - {actions: [admin, send, receive], topics: ["officialclient-*", "%DLQ%officialclient-*"], groups: ["officialclient-*"]}
    sender:
      secret: open seed
      allow:
      - {actions: [send], topics: ["officialclient-*"]}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// certificate returns flags with a certificate of its own for the broker.
func certificate(t *testing.T) []string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, of, of, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, block := range map[string]*pem.Block{"crt": {Type: "CERTIFICATE", Bytes: cert}, "key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"--tls-cert", filepath.Join(dir, "crt"), "--tls-key", filepath.Join(dir, "key")}
}

// A client with a wrong secret, or without one, gets an authentication error.
func TestWrongKeys(t *testing.T) {
	tidegate := built(t)
	b := serve(t, tidegate, "--topic", "officialclient-x", "--config", keyFile(t))
	if err := logged(func() error {
		for key, secret := range map[string]string{"clerk": "open barley", "nobody": "open sesame", "": ""} {
			keys = credentials.SessionCredentials{AccessKey: key, AccessSecret: secret}
			_, err := scene{&story{endpoint: b.grpc}, "wrong"}.producer(t.Context(), "officialclient-x")
			// The client makes a text of the status.
			if err == nil || !strings.Contains(err.Error(), "UNAUTHORIZED") {
				t.Errorf("%q with %q: %v", key, secret, err)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	keys = credentials.SessionCredentials{}
	b.stop()
	if strings.Contains(b.stderr.String(), "sesame") || strings.Contains(b.stderr.String(), "barley") {
		t.Errorf("the broker prints a secret:\n%s", &b.stderr)
	}
}

// A consumer whose key may only send gets the reason at its start.
func TestRejectedConsumers(t *testing.T) {
	tidegate := built(t)
	const topic = "officialclient-x"
	b := serve(t, tidegate, "--topic", topic, "--config", keyFile(t))
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	if err := logged(func() error {
		s := scene{&story{endpoint: b.grpc}, "rejected"}
		listener := rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: func(mv *rmq.MessageView) rmq.ConsumerResult {
			t.Errorf("received %s", mv.GetMessageId())
			return rmq.SUCCESS
		}})
		for name, c := range map[string]struct {
			key, secret string
			start       func() (starter, error)
			want        string
		}{
			"push": {"sender", "open seed", func() (starter, error) {
				return rmq.NewPushConsumer(s.config("officialclient-g"), listener, rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}))
			}, "PermissionDenied desc = access: sender is not permitted to receive as group"},
			"simple": {"sender", "open seed", func() (starter, error) {
				return rmq.NewSimpleConsumer(s.config("officialclient-g"), rmq.WithSimpleAwaitDuration(time.Second),
					rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}))
			}, "PermissionDenied desc = access: sender is not permitted to receive as group"},
			"lite": {"sender", "open seed", func() (starter, error) {
				return rmq.NewLitePushConsumer(s.config("officialclient-g"), rmq.NewLitePushConsumerConfig(topic, 15*time.Second), listener)
			}, "PermissionDenied desc = access: sender is not permitted to receive as group"},
		} {
			keys = credentials.SessionCredentials{AccessKey: c.key, AccessSecret: c.secret}
			client, err := c.start()
			if err != nil {
				t.Fatal(err)
			}
			if err := starting(ctx, name, client.Start); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", name, err, c.want)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	keys = credentials.SessionCredentials{}
	b.stop()
}

// A starter is a client of any type.
type starter interface{ Start() error }

// play runs the program and returns its output.
func play(t *testing.T, b *broker, env, key string) string {
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "--endpoint", b.grpc, "--http", b.http, "--access-key", key)
	// The client has data races of its own (metric.go), so that under -race
	// these are printed, but do not decide.
	cmd.Env = append(os.Environ(), asProgram+"=1", "HOME="+home, "TMPDIR="+t.TempDir(), "GORACE=exitcode=0")
	if env != "" {
		cmd.Env = append(cmd.Env, env)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("the program: %v", err)
	}
	err = filepath.WalkDir(home, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && path != home {
			t.Errorf("it left %s in the user's home directory", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return string(out)
}

// A broker is a tidegate serve of its own.
type broker struct {
	t          *testing.T
	cmd        *exec.Cmd
	grpc, http string
	stderr     bytes.Buffer // to be read after the process has ended
}

func serve(t *testing.T, tidegate string, flags ...string) *broker {
	t.Helper()
	b := &broker{t: t}
	b.cmd = exec.Command(tidegate, append([]string{"serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"}, flags...)...)
	b.cmd.Stderr = &b.stderr
	stdout, err := b.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if b.cmd.ProcessState == nil { // the test ended before stop
			b.cmd.Process.Kill()
			b.cmd.Wait()
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err == nil {
		_, err = fmt.Sscanf(line, "ready grpc=%s http=%s\n", &b.grpc, &b.http)
	}
	if err != nil {
		io.Copy(io.Discard, stdout)
		b.cmd.Wait()
		t.Fatalf("the broker is not ready: it printed %q: %v\n%s", line, err, &b.stderr)
	}
	return b
}

// stop ends the broker in order.
func (b *broker) stop() {
	b.t.Helper()
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		b.t.Error(err)
	}
	if err := b.cmd.Wait(); err != nil {
		b.t.Errorf("stopping the broker: %v", err)
	}
	if strings.Contains(b.stderr.String(), "level=ERROR") {
		b.t.Errorf("the broker had errors:\n%s", &b.stderr)
	}
}

const portPage = "../../FROM-ROCKETMQ.md"

var rocketmqPort = flag.Int("rocketmq", 0, "the `port` of a real RocketMQ that transport/rocketmq/interop/rocketmq started; 0 for tidegate brokers")

// Both programs of the page do the same on a broker of their own, and on a RocketMQ one after the
// other.
func TestPortedProgram(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", dir, "./port/...").CombinedOutput(); err != nil {
		t.Fatalf("building the programs: %v\n%s", err, out)
	}
	want := []string{
		"billed order 1 in EUR, attempt 1", "billed order 2 in EUR, attempt 1", "billed order 3 in EUR, attempt 2",
		"billed order 4 in EUR, attempt 1", "billed order 5 in EUR, attempt 1",
		"order 3 fails, attempt 1",
		"sent order 1", "sent order 2", "sent order 3", "sent order 4", "sent order 5",
	}
	server := serverOfOrders(t)
	for _, program := range []string{"before", "after"} {
		t.Run(program, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), filepath.Join(dir, program), server(t))
			cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "TMPDIR="+t.TempDir())
			began := time.Now()
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("it took %v", time.Since(began).Round(time.Millisecond))
			var got []string
			for line := range strings.Lines(string(out)) {
				if line = strings.TrimSpace(line); slices.Contains(want, line) || strings.Contains(line, "order") {
					got = append(got, line)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("it printed\n%s", out)
			}
		})
	}
}

// serverOfOrders returns a function that returns the address of a server with the topic orders and
// the consumer group billing, whose retries come after 1 s: that of the RocketMQ of -rocketmq, or
// of a tidegate broker of its own.
func serverOfOrders(t *testing.T) func(t *testing.T) string {
	if *rocketmqPort != 0 {
		s, err := runner.Open(*rocketmqPort)
		if err == nil {
			err = s.Topic(t.Context(), "orders", "NORMAL", 0)
		}
		if err == nil {
			err = s.Group(t.Context(), "billing", runner.Group{MaxRetries: 16, Retry: []time.Duration{time.Second}})
		}
		if err != nil {
			t.Fatal(err)
		}
		return func(*testing.T) string { return s.Endpoints()[0] }
	}
	tidegate, config := built(t), filepath.Join(t.TempDir(), "tidegate.yaml")
	if err := os.WriteFile(config, []byte("topics:\n  orders: {}\ngroups:\n  billing: {retry: 1s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T) string {
		t.Parallel()
		// The official client ends when its receives do.
		b := serve(t, tidegate, "--config", config, "--min-long-polling", "0", "--max-long-polling", "1s")
		t.Cleanup(b.stop)
		return b.grpc
	}
}

// Messages that both clients have sent with priorities reach each client in the order of the
// priorities, and in the order of the sends within one, on a tidegate broker. They also do on the
// RocketMQ of -rocketmq, if its version has topics of type PRIORITY.
func TestPrioritiesOfBothClients(t *testing.T) {
	run := strconv.FormatInt(time.Now().UnixNano(), 36)
	topics := map[string]string{"official": "alerts-official-" + run, "tidegate": "alerts-tidegate-" + run}
	endpoint, ok := serverOfAlerts(t, topics["official"], topics["tidegate"])
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	client, err := rocketmq.New(endpoint, rocketmq.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ours, err := producer.New(client, producer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	s := scene{&story{endpoint: endpoint}, "priorities"}
	if err := logged(func() error {
		for name, topic := range topics {
			official, err := s.producer(ctx, topic)
			if err != nil {
				return err
			}
			defer official.GracefulStop()
			for priority := range 3 {
				if _, err := send(ctx, official, message{topic: topic, body: fmt.Sprint("official ", priority), priority: new(int32(priority))}); err != nil {
					return err
				}
				if _, err := ours.Send(ctx, &tidegate.Message{Topic: topic, Body: fmt.Append(nil, "tidegate ", priority), Priority: priority}); err != nil {
					return err
				}
			}
			order, err := alerts(ctx, s, client, name, topic, 6)
			if err != nil {
				return err
			}
			if want := []string{"official 2", "tidegate 2", "official 1", "tidegate 1", "official 0", "tidegate 0"}; !slices.Equal(order, want) {
				t.Errorf("the %s consumer received %q, want %q", name, order, want)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// alerts receives n messages of a topic one after the other, with the named client, and returns
// their bodies. The consumer group has the name of the topic.
func alerts(ctx context.Context, s scene, client *rocketmq.Client, name, topic string, n int) (bodies []string, err error) {
	if name == "tidegate" {
		c, err := consumer.NewSimple(client, consumer.Subscription{Group: topic, Topic: topic}, consumer.SimpleOptions{LongPolling: 5 * time.Second})
		if err != nil {
			return nil, err
		}
		for len(bodies) < n {
			ds, err := c.Receive(ctx, 1)
			if err != nil {
				return bodies, err
			}
			for _, d := range ds {
				bodies = append(bodies, string(d.Body))
				if err := c.Ack(ctx, d); err != nil {
					return bodies, err
				}
			}
		}
		return bodies, nil
	}
	c, err := s.simpleConsumer(ctx, topic, topic)
	if err != nil {
		return nil, err
	}
	defer c.GracefulStop()
	for len(bodies) < n {
		mvs, err := receive(ctx, c, 1)
		if err != nil {
			return bodies, err
		}
		bodies = append(bodies, string(mvs[0].GetBody()))
		if err := c.Ack(ctx, mvs[0]); err != nil {
			return bodies, err
		}
	}
	return bodies, nil
}

// serverOfAlerts returns the address of a server with the topics, whose type is PRIORITY, and with
// consumer groups of the same names. It is the RocketMQ of -rocketmq, or a tidegate broker. ok is
// false if the version of the RocketMQ has no such topics.
func serverOfAlerts(t *testing.T, topics ...string) (endpoint string, ok bool) {
	if *rocketmqPort == 0 {
		config := filepath.Join(t.TempDir(), "tidegate.yaml")
		text := "topics:\n"
		for _, topic := range topics {
			text += "  " + topic + ": {type: PRIORITY}\n"
		}
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		b := serve(t, built(t), "--config", config, "--min-long-polling", "0")
		t.Cleanup(b.stop)
		return b.grpc, true
	}
	s, err := runner.Open(*rocketmqPort)
	if err != nil {
		t.Fatal(err)
	}
	if s.Options().Version < "5.4.0" {
		t.Logf("RocketMQ %s has no topics of type PRIORITY; one from 5.4.0 on starts it", s.Options().Version)
		return "", false
	}
	for _, topic := range topics {
		if err := errors.Join(s.Topic(t.Context(), topic, "PRIORITY", 0), s.Group(t.Context(), topic, runner.Group{MaxRetries: 16})); err != nil {
			t.Fatal(err)
		}
	}
	return s.Endpoints()[0], true
}

// The page shows the steps of the programs word for word.
func TestPageShowsThePrograms(t *testing.T) {
	page := readText(t, portPage)
	for _, program := range []string{"before", "after"} {
		source := readText(t, filepath.Join("port", program, "main.go"))
		shown := regexp.MustCompile("(?s)<!-- "+program+": step (\\d) -->\n```go\n(.*?)```").FindAllStringSubmatch(page, -1)
		if len(shown) != 4 {
			t.Fatalf("the page has %d steps of %s, want 4", len(shown), program)
		}
		for i, s := range shown {
			if !strings.Contains(dedent(source), dedent(s[2])) || s[1] != string(rune('1'+i)) {
				t.Errorf("step %s of %s is not in its program:\n%s", s[1], program, s[2])
			}
		}
	}
}

func dedent(s string) string { return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(s, "") }

func readText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The page names every option and method that a program of the official client can use, and only
// names of tidegate that exist.
func TestPageIsComplete(t *testing.T) {
	page := readText(t, portPage)
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/apache/rocketmq-clients/golang/v5").Output()
	if err != nil {
		t.Fatal(err)
	}
	official := names(t, strings.TrimSpace(string(dir)), "rmq")
	option := regexp.MustCompile(`^rmq\.With|^rmq\.(Config|Producer|PushConsumer|SimpleConsumer|LitePushConsumer|Transaction|SendReceipt)\.|^rmq\.Message\.(Set|Add)|^rmq\.MessageView\.Get`)
	found := 0
	for name := range official {
		if !option.MatchString(name) || internalOptions[name] {
			continue
		}
		found++
		short := name[strings.LastIndex(name, ".")+1:]
		if !regexp.MustCompile(`\b` + short + `\b`).MatchString(page) {
			t.Errorf("the page lacks %s", name)
		}
	}
	if found < 50 {
		t.Errorf("%d names of the official client were found; the test reads its source wrongly", found)
	}
	ours := map[string]bool{}
	for dir, pkg := range map[string]string{
		"../..": "tidegate", "../../producer": "producer", "../../consumer": "consumer", "../../transport": "transport",
		"../../transport/rocketmq": "rocketmq", "../../ratelimit": "ratelimit", "../../transport/failover": "failover",
	} {
		for name := range names(t, dir, pkg) {
			ours[name] = true
		}
	}
	for _, m := range regexp.MustCompile(`\b(?:tidegate|producer|consumer|rocketmq|ratelimit|transport|failover)\.[A-Z]\w*(?:\.[A-Z]\w*)?`).FindAllString(page, -1) {
		if !ours[m] {
			t.Errorf("the page names %s, which tidegate does not have", m)
		}
	}
}

// internalOptions are for the client's own tests.
var internalOptions = map[string]bool{
	"rmq.WithClientFunc": true, "rmq.WithClientFuncForSimpleConsumer": true, "rmq.WithClientConnFunc": true,
	"rmq.WithRpcClientClientConnFunc": true, "rmq.WithContext": true,
	"rmq.MessageView.GetMessageCommon": true,
}

// names returns the exported names of the package in a directory: pkg.Name and pkg.Type.Member.
func names(t *testing.T, dir, pkg string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	add := func(parts ...string) {
		if ast.IsExported(parts[len(parts)-1]) {
			found[pkg+"."+strings.Join(parts, ".")] = true
		}
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || strings.Contains(name, "_mock") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					add(d.Name.Name)
					continue
				}
				receiver := d.Recv.List[0].Type
				if star, ok := receiver.(*ast.StarExpr); ok {
					receiver = star.X
				}
				if id, ok := receiver.(*ast.Ident); ok {
					add(id.Name, d.Name.Name)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.ValueSpec:
						for _, n := range s.Names {
							add(n.Name)
						}
					case *ast.TypeSpec:
						add(s.Name.Name)
						var members *ast.FieldList
						switch u := s.Type.(type) {
						case *ast.StructType:
							members = u.Fields
						case *ast.InterfaceType:
							members = u.Methods
						}
						if members != nil {
							for _, m := range members.List {
								for _, n := range m.Names {
									add(s.Name.Name, n.Name)
								}
							}
						}
					}
				}
			}
		}
	}
	return found
}
