package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// onPulsar returns a tool for a Pulsar.
func onPulsar(t *testing.T, address string) *tool {
	t.Helper()
	tl := on(t, "unused")
	delete(tl.env, "TIDEGATE_SERVER_AMQP")
	tl.env["TIDEGATE_SERVER_PULSAR"] = address
	return tl
}

// frames accepts connections of Pulsar's clients until the end of the test. It passes each frame to
// respond, and writes the response; an empty one ends the connection.
func frames(t *testing.T, respond func(frame []byte) []byte) (address string) {
	t.Helper()
	l := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				for {
					var size [4]byte
					if _, err := io.ReadFull(c, size[:]); err != nil {
						return
					}
					frame := make([]byte, min(binary.BigEndian.Uint32(size[:]), 1<<16))
					if _, err := io.ReadFull(c, frame); err != nil {
						return
					}
					response := respond(frame)
					if _, err := c.Write(response); err != nil || len(response) == 0 {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// pong responds to PING as a Pulsar 3.3 does.
func pong([]byte) []byte { return []byte("\x00\x00\x00\x09\x00\x00\x00\x05\x08\x13\x9a\x01\x00") }

// onFake returns a tool whose connections to a Pulsar are those of a fake. The port of the server
// responds to the doctor.
func onFake(t *testing.T, fake cli.Transport) *tool {
	t.Helper()
	tl := onPulsar(t, "pulsar://"+frames(t, pong))
	support := *apachePulsar()
	support.Open = func(context.Context, cli.Server) (cli.Transport, error) { return fake, nil }
	tl.foreign = map[string]*cli.Foreign{"pulsar": &support}
	return tl
}

// Each fault of a Pulsar ends the examination in its step, with the exit code of its class and the
// remedy. The errors are those of the transport.
func TestDoctorOnPulsar(t *testing.T) {
	fault := func(code tidegate.Code) error { return &tidegate.Error{Op: "Ping", Code: code, Message: "refused"} }
	// refuse fails the pings of a topic, and the receive that needs it.
	refuse := func(topic string, code tidegate.Code) *transporttest.Fake {
		f := &transporttest.Fake{OnPing: func(_ context.Context, _ int, topics []string) error {
			if slices.Contains(topics, topic) || topic == "" && len(topics) == 0 {
				return fault(code)
			}
			return nil
		}}
		if topic != "orders" {
			f.OnReceive = func(context.Context, int, transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
				return nil, fault(code)
			}
		}
		return f
	}
	const missing, forbidden = tidegate.CodeTopicNotFound, tidegate.CodeForbidden
	for _, c := range []struct {
		name   string
		fake   *transporttest.Fake
		naming string
		code   int
		step   string   // the last one
		want   []string // the remedy
	}{
		{"all is well", &transporttest.Fake{}, "", 0, "ok       subscription", []string{"topics stats persistent://public/default/orders"}},
		{"wrong token", refuse("", tidegate.CodeUnauthorized), "", 4, "failed   credentials", []string{"--secret-file", "that expired 1h"}},
		{"no topic", refuse("orders", missing), "", 3, "failed   topic", []string{"pulsar-admin topics create persistent://public/default/orders", "set-auto-topic-creation", "pulsar-admin namespaces create public/default"}},
		{"may not use the topic", refuse("orders", forbidden), "", 4, "failed   topic", []string{"grant-permission --role ROLE --actions produce,consume public/default"}},
		{"no dead letter topic", refuse("orders-billing-DLQ", missing), "", 3, "failed   dead letters", []string{"topics create persistent://public/default/orders-billing-DLQ", "create-subscription --subscription dead-letters"}},
		{"no retry topic", refuse("orders-billing-RETRY", missing), "", 3, "failed   retry topic", []string{"topics create persistent://public/default/orders-billing-RETRY"}},
		{"no retry topic of another naming", refuse("billing-retry", forbidden), "by-group-lower-case", 4, "failed   retry topic", []string{"grant-permission"}},
		{"no subscription", refuse("none", tidegate.CodeNotFound), "", 3, "failed   subscription", []string{"create-subscription --subscription billing --messageId earliest persistent://public/default/orders"}},
		{"may not consume", refuse("none", forbidden), "", 4, "failed   subscription", []string{"--actions consume public/default"}},
		{"backlog quota", &transporttest.Fake{OnSend: func(context.Context, int, transport.Lane, []*tidegate.Message) []error {
			return []error{fault(tidegate.CodeTooManyRequests)}
		}}, "", 5, "failed   send", []string{"set-backlog-quota"}},
		{"the broker of the topic is elsewhere", &transporttest.Fake{OnSend: func(context.Context, int, transport.Lane, []*tidegate.Message) []error {
			return []error{&tidegate.Error{Op: "SendMessage", NotConnected: true, Err: tidegate.ErrUnavailable}}
		}}, "", 6, "failed   send", []string{"advertisedAddress", "pulsar-admin topics lookup"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tl := onFake(t, c.fake)
			payload := fmt.Sprintf(`{"sub":"app","exp":%d}`, time.Now().Add(-90*time.Minute).Unix())
			token := "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2VzYW1l"
			address := tl.env["TIDEGATE_SERVER_PULSAR"]
			tl.env = map[string]string{"XDG_CONFIG_HOME": tl.env["XDG_CONFIG_HOME"], "HOME": tl.home, "TIDEGATE_SECRET": token}
			tl.must(slices.DeleteFunc([]string{"context", "add", "p", "--pulsar", address, "--naming=" + c.naming}, func(arg string) bool { return arg == "--naming=" })...)
			r := tl.run("doctor", "--topic", "orders", "--group", "billing", "--send", "--timeout", "5s")
			steps := strings.Split(strings.TrimSpace(r.stdout), "\n")
			last := len(steps) - 1
			if c.code != 0 {
				last--
			}
			if r.code != c.code || last < 0 || !strings.HasPrefix(steps[last], c.step) {
				t.Errorf("exit code %d, want %d with %q:\n%s%s", r.code, c.code, c.step, r.stdout, r.stderr)
			}
			for _, want := range c.want {
				assert.That(t, strings.Contains(r.stdout, want), "%q is missing:\n%s%s", want, r.stdout, r.stderr)
			}
			assert.That(t, !strings.Contains(r.stdout+r.stderr, token), "the token is printed")
		})
	}
}

// A secret without an access key is a token, and one with it a password. The client authenticates
// with them by the methods of Pulsar's protocol.
func TestPulsarCredentials(t *testing.T) {
	home := t.TempDir()
	file := filepath.Join(home, "secret")
	assert.Must(t, os.WriteFile(file, []byte("sesame\n"), 0o600))
	for _, c := range []struct {
		name       string
		flags, has []string
		lacks      string
	}{
		{"a token", []string{"--secret-file", file}, []string{"token", "sesame"}, "basic"},
		{"a password", []string{"--secret-file", file, "--access-key", "app"}, []string{"basic", "app:sesame"}, "token"},
		{"nothing", nil, nil, "sesame"},
	} {
		t.Run(c.name, func(t *testing.T) {
			connect := make(chan []byte, 100)
			tl := onPulsar(t, "unused")
			delete(tl.env, "TIDEGATE_SERVER_PULSAR")
			tl.must(append([]string{"context", "add", "p", "--pulsar", "pulsar://" + frames(t, func(frame []byte) []byte {
				connect <- frame
				return nil
			})}, c.flags...)...)
			if r := tl.run("status", "--timeout", "1s"); r.code != 6 {
				t.Errorf("exit code %d, want 6: the server has ended the connection\n%s%s", r.code, r.stdout, r.stderr)
			}
			frame := <-connect
			for _, want := range c.has {
				assert.That(t, bytes.Contains(frame, []byte(want)), "the command CONNECT lacks %q: %q", want, frame)
			}
			assert.That(t, !bytes.Contains(frame, []byte(c.lacks)), "the command CONNECT has %q: %q", c.lacks, frame)
		})
	}
}

// A browsable is a fake whose topic has messages. The Handle of each is its number.
type browsable struct {
	*transporttest.Fake
	messages []*tidegate.Delivery
	fault    error // after the messages
}

func (b *browsable) Browse(_ context.Context, _ string, from time.Time, after string) iter.Seq2[*tidegate.Delivery, error] {
	return func(yield func(*tidegate.Delivery, error) bool) {
		n, _ := strconv.Atoi(after) // empty: 0
		for i := n; i < len(b.messages); i++ {
			d := *b.messages[i]
			d.Handle = strconv.Itoa(i + 1)
			if !d.StoredAt.Before(from) && !yield(&d, nil) {
				return
			}
		}
		if b.fault != nil {
			yield(nil, b.fault)
		}
	}
}

// Peek and find look at the messages of a Pulsar without receiving them. What they cannot do there
// is an error, and so is a fault after some messages.
func TestPeekOnPulsar(t *testing.T) {
	at := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	b := &browsable{Fake: &transporttest.Fake{}}
	for i, m := range []tidegate.Message{
		{ID: "a", Body: []byte("order 1"), Tag: "paid"}, {ID: "b", Body: []byte("order 2"), Keys: []string{"k"}},
		{ID: "c", Body: []byte("order 3"), DeliverAt: time.Now().Add(time.Hour)}, {ID: "d", Body: []byte("order 4"), Properties: map[string]string{"city": "Berlin"}},
	} {
		b.messages = append(b.messages, &tidegate.Delivery{Message: m, Queue: -1, Offset: -1, StoredAt: at.Add(time.Duration(i) * time.Minute)})
	}
	tl := onFake(t, b)
	for args, want := range map[string]string{
		"peek orders": "a b c d", "peek orders --limit 2": "a b", "peek orders --limit 2 --after 1": "b c", "peek orders --scan 3": "a b c",
		"peek orders --tag paid": "a", "peek orders --key k": "b", "peek orders --delayed": "c", "peek orders -p city=Berlin": "d", "peek orders --contains 3": "c",
		"peek orders --from " + at.Add(2*time.Minute).Format(time.RFC3339): "c d", "peek orders --to " + at.Add(time.Minute).Format(time.RFC3339): "a",
		"peek orders --follow --limit 3": "a b c", "find orders d": "d", "peek orders --queue 0": "",
	} {
		if r := tl.must(append(strings.Fields(args), "-o", "name")...); strings.Join(strings.Fields(r.stdout), " ") != want {
			t.Errorf("%s: %q, want %s", args, r.stdout, want)
		}
	}
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"peek orders --from last": {2, "give a time"}, "peek orders --offset 3 --queue 0": {2, "have none"}, "find orders x": {3, "looked at 4 messages"},
		"find orders x --scan 2": {7, "--after=2"}, "peek orders --limit 1": {0, "--after=1"},
	} {
		if r := tl.run(strings.Fields(args)...); r.code != want.code || !strings.Contains(r.stderr, want.text) || strings.Contains(r.stderr, "-1 left") {
			t.Errorf("%s: exit code %d, want %d with %q: %s", args, r.code, want.code, want.text, r.stderr)
		}
	}
	if got := tl.must("peek", "orders", "--bodies").stdout; !strings.Contains(got, "order 4") || strings.Contains(got, "-1") && strings.Contains(got, "offset") {
		t.Errorf("the bodies are %q", got)
	}
	b.fault = &tidegate.Error{Op: "Browse", Err: tidegate.ErrUnavailable, NotConnected: true}
	if r := tl.run("peek", "orders"); r.code != 6 {
		t.Errorf("after a fault: exit code %d, want 6: %s%s", r.code, r.stdout, r.stderr)
	}
}

// A command does not end later because its server is silent. The error of a Close is returned.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan error)
		defer close(end)
		began := time.Now()
		assert.NoError(t, within(closeTime, func() error { return <-end }))
		assert.Equal(t, "time", time.Since(began), closeTime)
		fault := errors.New("fault")
		assert.That(t, within(closeTime, func() error { return fault }) == fault, "the error is not that of Close")
	})
}

// Without a time, --then retry is a retry of the level that follows the attempts of the message,
// which a transport for Pulsar has and one for Artemis does not.
func TestRetryByLevel(t *testing.T) {
	var verdicts []transport.Verdict
	fake := &transporttest.Fake{
		Announces: transport.Capabilities{Verdicts: transport.RetryTopic | transport.Snooze},
		OnSettle: func(_ context.Context, _ int, _ *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
			verdicts = append(verdicts, v)
			return transport.RetryResult{}, nil
		},
	}
	fake.Deliver(&tidegate.Delivery{Message: tidegate.Message{ID: "a", Topic: "orders"}})
	onFake(t, fake).must("receive", "billing", "orders", "--then", "retry", "--max", "1")
	if len(verdicts) != 1 || verdicts[0].Kind != transport.RetryTopic || verdicts[0].Delay != 0 || verdicts[0].Level != 0 {
		t.Errorf("the verdicts are %+v, want a RetryTopic without a delay", verdicts)
	}
}

// A context of a Pulsar has its namespace and naming, which hold for its own address only. Faulty
// contexts are errors of usage.
func TestPulsarContext(t *testing.T) {
	tl := onPulsar(t, "pulsar://env.example")
	show := func(want string, args ...string) {
		t.Helper()
		r := tl.must(append([]string{"context", "show"}, args...)...)
		assert.That(t, strings.Contains(r.stdout, want), "%q: %s, want %s", args, r.stdout, want)
	}
	show("pulsar://env.example (TIDEGATE_SERVER_PULSAR)")
	show("pulsar+ssl://flag.example (--pulsar)", "--pulsar", "pulsar+ssl://flag.example")
	show("pulsar://grpc.example", "--grpc", "pulsar://grpc.example")
	show("amqp://flag.example (--amqp)", "--amqp", "amqp://flag.example")
	delete(tl.env, "TIDEGATE_SERVER_PULSAR")
	tl.must("context", "add", "p", "--pulsar", "pulsar://a.example:6650,b.example", "--namespace", "shop/orders", "--naming", "by-group")
	show("pulsar://a.example:6650,b.example (context p)")
	document := tl.must("context", "show", "-o", "json").stdout
	for _, want := range []string{`"kind":"pulsar"`, `"namespace":"shop/orders"`, `"naming":"by-group"`} {
		assert.That(t, strings.Contains(strings.ReplaceAll(document, `": `, `":`), want), "%s is missing: %s", want, document)
	}
	if document := tl.must("context", "show", "-o", "json", "--amqp", "amqp://other").stdout; strings.Contains(document, "shop/orders") || strings.Contains(document, "by-group") {
		t.Errorf("another server has the namespace of the context: %s", document)
	}
	for name, args := range map[string][]string{
		"two kinds":            {"--pulsar", "pulsar://mq", "--amqp", "amqp://mq"},
		"gRPC too":             {"--pulsar", "pulsar://mq", "--grpc", "127.0.0.1:1"},
		"another kind":         {"--pulsar", "pulsar://mq", "--kind", "amqp"},
		"no address":           {"--kind", "pulsar", "--grpc", "127.0.0.1:1"},
		"a password":           {"--pulsar", "pulsar://user:sesame@mq"},
		"another scheme":       {"--pulsar", "amqp://mq"},
		"no host":              {"--pulsar", "pulsar://mq,,"},
		"pulsar in grpc":       {"--grpc", "pulsar+ssl://mq:6651"},
		"a tenant alone":       {"--pulsar", "pulsar://mq", "--namespace", "public"},
		"a faulty naming":      {"--pulsar", "pulsar://mq", "--naming", "by-chance"},
		"a naming elsewhere":   {"--amqp", "amqp://mq", "--naming", "by-group"},
		"both kinds by flags":  {"--pulsar", "pulsar://mq", "--http", "http://mq"},
		"three kinds together": {"--pulsar", "pulsar://mq", "--amqp", "amqp://mq", "--grpc", "127.0.0.1:1"},
	} {
		if r := tl.run(append([]string{"context", "add", "x"}, args...)...); r.code != 2 || r.stdout != "" || strings.Contains(r.stderr, "sesame") {
			t.Errorf("%s: exit code %d, %s%s", name, r.code, r.stdout, r.stderr)
		}
	}
	if r := tl.run("send", "orders", "x", "--pulsar", "pulsar://mq", "--amqp", "amqp://mq"); r.code != 2 || !strings.Contains(r.stderr, "remove one of them") {
		t.Errorf("two flags: exit code %d, %s", r.code, r.stderr)
	}
}

var pulsarFlag = flag.Bool("pulsar", false, "start a real Pulsar; it needs a JDK of version 17 or later and Maven")

// administer sends a request to the REST API of a real Pulsar.
func administer(ctx context.Context, t *testing.T, api, method, path, body string) {
	t.Helper()
	r := assert.Value(http.NewRequestWithContext(ctx, method, api+"/admin/v2/"+path, strings.NewReader(body)))(t)
	r.Header.Set("Content-Type", "application/json")
	resp := assert.Value(http.DefaultClient.Do(r))(t)
	defer func() { _ = resp.Body.Close() }()
	text := assert.Value(io.ReadAll(resp.Body))(t)
	assert.MustThat(t, resp.StatusCode < 300, "%s %s: %s %s", method, path, resp.Status, text)
}

// The commands work on a real Pulsar, and doctor finds its faults. Without -pulsar there is no
// server, and nothing is tested.
func TestPulsar(t *testing.T) {
	if !*pulsarFlag {
		return
	}
	words := start(t, "github.com/tidegate/tidegate/transport/pulsar/standalone", "-web-port", "0")
	address, api := words[0], words[1]
	first := func() result {
		return onPulsar(t, address).run("receive", "first", "first", "--then", "ack", "--wait", "100ms")
	}
	for first().code == 6 { // a new server on a busy machine is slow, until the timeout of the test
		t.Log("the server does not respond in time")
	}
	t.Run("messages", func(t *testing.T) { messages(t, onPulsar(t, address), "orders", "5s") })
	t.Run("exec", func(t *testing.T) { handled(t, onPulsar(t, address), "parcels") })
	t.Run("peek", func(t *testing.T) {
		tl := onPulsar(t, address)
		tl.must("receive", "billing", "peeked", "--then", "ack", "--wait", "100ms")
		var sent strings.Builder
		for _, delay := range []string{"0s", "1h"} {
			sent.WriteString(tl.must("send", "peeked", "order 42", "--in", delay, "-o", "name").stdout)
		}
		for range 2 {
			if got := tl.must("peek", "peeked", "-o", "name").stdout; got != sent.String() {
				t.Errorf("peek %q, want %q", got, sent.String())
			}
		}
		if got := tl.must("receive", "billing", "peeked", "--then", "ack", "--wait", "5s", "--max", "1", "-o", "jsonl").stdout; !strings.Contains(got, `"attempt":1`) {
			t.Errorf("peek changed a message: %s", got)
		}
		if got := tl.must("peek", "peeked", "--from", "-1h", "-o", "name").stdout; got != sent.String() {
			t.Errorf("after the acknowledgement: peek %q, want %q", got, sent.String())
		}
		if got := tl.must("peek", "peeked", "--from", time.Now().Add(time.Minute).Format(time.RFC3339), "-o", "name").stdout; got != "" {
			t.Errorf("from a later time: peek %q", got)
		}
	})
	t.Run("bench", func(t *testing.T) {
		r := onPulsar(t, address).run("bench", "e2e", "--topic", "load", "--into-existing", "--rounds", "1", "--duration", "1s", "--warmup", "0s", "--callers", "16")
		if r.code != 0 && r.code != 7 || !strings.Contains(r.stdout, "lost 0") { // 7: the machine is too busy for valid figures
			t.Errorf("exit code %d, %s%s", r.code, r.stdout, r.stderr)
		}
	})
	t.Run("move", func(t *testing.T) {
		tl := onPulsar(t, address)
		tl.must("context", "add", "other", "--pulsar", address)
		tl.must("receive", "billing", "from", "--then", "ack", "--wait", "100ms")
		sent := tl.must("send", "from", "order 42", "-o", "name").stdout
		tl.must("move", "from", "--group", "billing", "--to", "other", "--to-topic", "to", "--wait", "5s", "--yes")
		if got := tl.must("receive", "billing", "to", "--then", "ack", "--max", "1", "-o", "name").stdout; got != sent {
			t.Errorf("moved %q, want %q", got, sent)
		}
	})
	t.Run("doctor", func(t *testing.T) {
		tl := onPulsar(t, address)
		namespace, topics := "public/closed", []string{"orders", "late", "late-g-DLQ"}
		administer(t.Context(), t, api, http.MethodPut, "namespaces/"+namespace, "{}")
		administer(t.Context(), t, api, http.MethodPost, "namespaces/"+namespace+"/autoTopicCreation", `{"allowAutoTopicCreation":false}`)
		for _, topic := range topics {
			administer(t.Context(), t, api, http.MethodPut, "persistent/"+namespace+"/"+topic, "")
		}
		tl.must("context", "add", "open", "--pulsar", address)
		tl.must("context", "add", "closed", "--pulsar", address, "--namespace", namespace)
		for _, c := range []struct {
			name  string
			code  int
			step  string
			flags []string
		}{
			{"all is well", 0, "ok       subscription", []string{"--topic", "doctor", "--group", "g", "--send", "--context", "open"}},
			{"no topic", 3, "failed   topic", []string{"--topic", "missing", "--context", "closed"}},
			{"no dead letter topic", 3, "failed   dead letters", []string{"--topic", "orders", "--group", "g", "--context", "closed"}},
			{"no retry topic", 3, "failed   retry topic", []string{"--topic", "late", "--group", "g", "--context", "closed"}},
		} {
			r := tl.run(append([]string{"doctor"}, c.flags...)...)
			if r.code != c.code || !strings.Contains(r.stdout, c.step) {
				t.Errorf("%s: exit code %d, want %d and %q:\n%s%s", c.name, r.code, c.code, c.step, r.stdout, r.stderr)
			}
		}
	})
}
