package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport/rocketmq/interop/runner"
)

// The README shows this program and this test word for word, except for the address.
func TestReadmeShowsThisProgram(t *testing.T) {
	readme := assert.Value(os.ReadFile("../../README.md"))(t)
	program := assert.Value(os.ReadFile("main.go"))(t)
	test := assert.Value(os.ReadFile("main_test.go"))(t)
	code := dedent(string(program) + string(test))
	blocks := regexp.MustCompile("(?s)<!-- example: (\\w+) -->\n```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	if len(blocks) != 4 {
		t.Fatalf("the README has %d examples, want producer, consumer, topics and brokertest", len(blocks))
	}
	for _, b := range blocks {
		shown := dedent(strings.ReplaceAll(b[2], `"127.0.0.1:8081"`, "endpoint"))
		if !strings.Contains(code, shown) {
			t.Errorf("example %s differs from the program; copy the program into the README:\n%s", b[1], b[2])
		}
	}
}

func dedent(s string) string {
	return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(s, "")
}

func TestProgram(t *testing.T) {
	b := assert.Value(broker.Open(broker.Options{}))(t)
	t.Cleanup(func() { b.Close() })
	assert.Must(t, assert.Err(b.PutTopic(t.Context(), "orders", settings.Topic{})))
	s := assert.Value(server.New(b, server.Options{}))(t)
	lis := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	go s.Serve(lis)
	t.Cleanup(func() { s.Close() })
	assert.Must(t, produce(t.Context(), lis.Addr().String()))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	go func() {
		for ctx.Err() == nil { // ends the consumer once it has acknowledged
			if g, err := b.Group("billing"); err == nil && len(g.Topics) == 1 && g.Topics[0].Acked == 1 {
				cancel()
			}
			<-time.After(5 * time.Millisecond)
		}
	}()
	assert.Must(t, consume(ctx, lis.Addr().String()))
	if g, err := b.Group("billing"); err != nil || g.Topics[0].Acked != 1 {
		t.Errorf("the group is %+v, %v", g, err)
	}
}

var rocketmqPort = flag.Int("rocketmq", 0, "the `port` of a real RocketMQ that transport/rocketmq/interop/rocketmq started; 0 for none")

// The program also runs on a RocketMQ, whose topic and group exist.
func TestProgramOnRocketMQ(t *testing.T) {
	if *rocketmqPort == 0 {
		t.Log("-rocketmq with the port of a RocketMQ starts it")
		return
	}
	s := assert.Value(runner.Open(*rocketmqPort))(t)
	assert.Must(t, s.Topic(t.Context(), "orders", "NORMAL", 0))
	assert.Must(t, s.Group(t.Context(), "billing", runner.Group{MaxRetries: 16}))
	out, err := exec.CommandContext(t.Context(), "go", "run", ".", s.Endpoints()[0]).CombinedOutput()
	if want := "stored after 1 attempt\n" + "attempt 1: 3 apples\n"; err != nil || string(out) != want {
		t.Errorf("it printed %q, %v, want %q", out, err, want)
	}
}

func TestBrokertest(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		b.Consume("billing", "orders", func(_ context.Context, d *tidegate.Delivery) error {
			if d.Attempt == 1 {
				return errors.New("try again") // the next delivery comes 10 s later
			}
			return nil
		})
		b.Send(&tidegate.Message{Topic: "orders", Body: []byte("3 apples")})
		b.WaitIdle("billing", "orders")
		if n := b.Stats("billing", "orders").Acked; n != 1 {
			t.Errorf("%d orders were billed, want 1", n)
		}
	})
}

// One consumer of two topics gets the messages that its filters select.
func TestTopics(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		b.CreateTopic("returns", settings.Topic{})
		sub := consumer.Subscription{Group: "billing", Topics: map[string]tidegate.Filter{
			"orders":  consumer.Tags("paid", "refunded"),
			"returns": {}, // all messages
		}}
		handled := make(chan string, 4)
		c, err := consumer.NewPush(b.Client(), sub, func(_ context.Context, d *tidegate.Delivery) error {
			handled <- d.Topic + " " + d.Tag
			return nil
		}, consumer.PushOptions{})
		assert.Must(t, err)
		b.Send(&tidegate.Message{Topic: "orders", Tag: "paid", Body: []byte("3 apples")},
			&tidegate.Message{Topic: "orders", Tag: "open", Body: []byte("4 apples")},
			&tidegate.Message{Topic: "returns", Tag: "open", Body: []byte("1 apple")})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		assert.NoError(t, c.Run(ctx))
		got := map[string]bool{}
		for len(handled) > 0 {
			got[<-handled] = true
		}
		if len(got) != 2 || !got["orders paid"] || !got["returns open"] {
			t.Errorf("handled %v", got)
		}
	})
}

// The curl commands of the README work. The test makes their requests itself. A word of a command
// ends at a space or is quoted.
func TestCurl(t *testing.T) {
	readme := assert.Value(os.ReadFile("../../README.md"))(t)
	block := regexp.MustCompile("(?s)<!-- example: http -->\n```sh\n(.*?)```").FindSubmatch(readme)
	assert.MustThat(t, block != nil, "the README has no example http")
	b := brokertest.New(t)
	b.CreateTopic("orders", settings.Topic{})
	s := assert.Value(server.New(b.Broker, server.Options{}))(t)
	t.Cleanup(func() { s.Close() })
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	answer := ""
	for line := range strings.Lines(string(block[1])) {
		answer = curl(t, strings.Replace(line, "http://127.0.0.1:8082", srv.URL, 1))
	}
	assert.That(t, strings.Contains(answer, `"body_text":"3 apples"`), "the last response is %s", answer)
}

func curl(t *testing.T, line string) (answer string) {
	t.Helper()
	words := regexp.MustCompile(`'[^']*'|\S+`).FindAllString(strings.TrimSpace(line), -1)
	req, err := http.NewRequestWithContext(t.Context(), "POST", words[len(words)-1], nil)
	assert.MustThat(t, err == nil && words[0] == "curl", "%q: %v", words, err)
	for i := 1; i < len(words)-1; i += 2 {
		switch arg := strings.Trim(words[i+1], "'"); words[i] {
		case "-H":
			name, value, _ := strings.Cut(arg, ": ")
			req.Header.Set(name, value)
		case "-d":
			req.Body = io.NopCloser(strings.NewReader(arg))
		default:
			t.Fatalf("curl takes %s, but this test does not", words[i])
		}
	}
	resp := assert.Value(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	assert.That(t, err == nil && resp.StatusCode == 200, "%q: %s %v: %s", words, resp.Status, err, text)
	return string(text)
}

// The benchmarks and flags that CONTRIBUTING.md names exist in the packages that it names.
func TestBenchmarkCommands(t *testing.T) {
	readme := assert.Value(os.ReadFile("../../CONTRIBUTING.md"))(t)
	// The groups of each command are: the names, the directory, a flag.
	commands := regexp.MustCompile("`go test -run '\\^\\$' -bench '?([\\w\\\\|]+)'?(?: -(?:timeout|benchtime) \\w+)* (\\./\\S+?)(?: -([\\w.]+) \\d+)?`").FindAllStringSubmatch(string(readme), -1)
	for _, c := range regexp.MustCompile("`go test \\./(\\S+) -(artemis|pulsar) -run '\\^\\$' -bench '?(\\w+)(?:\\$')? -benchtime \\w+`").FindAllStringSubmatch(string(readme), -1) {
		module := map[string]string{"artemis": "transport/amqp/", "pulsar": "transport/pulsar/"}[c[2]]
		commands = append(commands, []string{c[0], c[3], module + c[1], c[2]})
	}
	if want := len(regexp.MustCompile("-bench '?Benchmark").FindAllString(string(readme), -1)); len(commands) != want || want == 0 {
		t.Fatalf("%d of %d commands with -bench are understood", len(commands), want)
	}
	for _, c := range commands {
		files := assert.Value(filepath.Glob("../../" + c[2] + "/*_test.go"))(t)
		code := ""
		for _, f := range files {
			text := assert.Value(os.ReadFile(f))(t)
			code += string(text)
		}
		for name := range strings.SplitSeq(c[1], `\|`) {
			if !strings.Contains(code, "\nfunc "+name+"(b *testing.B)") || c[3] != "" && !strings.Contains(code, `("`+c[3]+`", `) {
				t.Errorf("%s: %s has no %s, or no flag %s", c[0], c[2], name, c[3])
			}
		}
	}
}
