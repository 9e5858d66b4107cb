package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport/rocketmq"
)

// The commands of export --mqadmin create topics with their types, and groups with their maximum of
// attempts and retry schedule, on a RocketMQ.
func TestMqadminCreatesTheExport(t *testing.T) {
	x := newTarget(t)
	if x.real == nil {
		t.Log("-rocketmq with the port of a RocketMQ starts it")
		return
	}
	tide := newTool(t)
	accounts, orders, billing := "accounts"+x.suffix, "orders"+x.suffix, "billing"+x.suffix
	tide.must("topic", "create", accounts, "type=FIFO", "queues=3")
	tide.must("topic", "create", orders)
	tide.must("group", "create", billing, "max_attempts=4", "retry=1s 20s")
	args := strings.Split("export --mqadmin --cluster DefaultCluster --name-server "+x.real.NameServer(), " ")
	for line := range strings.Lines(tide.must(args...).stdout) {
		words := assert.Value(exec.CommandContext(t.Context(), "sh", "-c", `mqadmin() { printf '%s\n' "$@"; }; `+line).Output())(t)
		out := assert.Value(x.real.Mqadmin(t.Context(), strings.Fields(string(words))...))(t)
		assert.That(t, strings.Contains(out, " success"), "%s printed\n%s", line, out)
	}
	x.must("send", accounts, "a", "--message-group", "g")
	x.run("send", accounts, "a").exits(2).notes("FIFO")
	x.must("send", orders, "a")
	var preview struct{ Attempts []struct{ After string } }
	decode(t, x.must("retry", "preview", billing, orders, "-o", "json").stdout, &preview)
	got := fmt.Sprint(preview.Attempts)
	assert.Equal(t, "the times after the first delivery", got, "[{0s} {1s} {21s} {41s}]")
}

// mqadmin returns a directory with a program mqadmin for the RocketMQ.
func (x *target) mqadmin() string {
	x.t.Helper()
	dir := x.home
	build := exec.CommandContext(x.t.Context(), "go", "build", "-o", filepath.Join(dir, "rocketmq"), "../../transport/rocketmq/interop/rocketmq")
	if out, err := build.CombinedOutput(); err != nil {
		x.t.Fatalf("%v\n%s", err, out)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec '%s/rocketmq' mqadmin --port %d -- \"$@\"\n", dir, x.real.Options().Port)
	assert.Must(x.t, os.WriteFile(filepath.Join(dir, "mqadmin"), []byte(script), 0o700))
	return dir
}

// seen counts messages by a text.
type seen struct {
	mu sync.Mutex
	n  map[string]int
}

func (s *seen) add(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n[text]++
}

// lacking returns the number of texts that were not seen.
func (s *seen) lacking(texts []string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range texts {
		if s.n[text] == 0 {
			n++
		}
	}
	return n
}

// The way of CLUSTERS.md works as written, there and back: a shell runs its commands, with the names
// and addresses of this test, while a consumer of the group runs at the cluster and a producer sends
// to it. The consumer gets what the machine had and what the producer sent. After the way back the
// machine has what was sent later.
func TestTheWayToAClusterAndBack(t *testing.T) {
	x := newTarget(t)
	if x.real == nil {
		t.Log("-rocketmq with the port of a RocketMQ starts it")
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	machine := newTool(t)
	topic, group := "orders"+x.suffix, "billing"+x.suffix
	page := strings.NewReplacer(
		"10.0.0.5:8081", machine.grpc, "http://10.0.0.5:8082", machine.http, "10.0.1.1:8081;10.0.1.2:8081", x.endpoints(),
		"10.0.1.1:9876", x.real.NameServer(), "orders", topic, "billing", group).Replace(clustersPage(t))
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(page, -1)
	assert.MustThat(t, len(blocks) == 5, "the page has %d blocks of commands, want those for contexts, topics, doctor, move and back", len(blocks))
	machine.must("topic", "create", topic, "queues=4")
	machine.must("group", "create", group, "max_attempts=4")
	delete(machine.env, "TIDEGATE_SERVER_GRPC") // the contexts of the page have the addresses
	delete(machine.env, "TIDEGATE_SERVER_HTTP")
	env, dir := machine.environ(installed(t)+":"+x.mqadmin()), t.TempDir()
	shell := func(block int) string {
		t.Helper()
		sh := exec.CommandContext(ctx, "sh", "-euc", blocks[block][1])
		sh.Dir, sh.Env = dir, env
		out, err := sh.CombinedOutput()
		t.Logf("%s\n%s", blocks[block][1], out)
		assert.Must(t, err)
		return string(out)
	}
	shell(0)
	numbered := func(from, to int) (bodies []string, text string) {
		for i := from; i < to; i++ {
			bodies = append(bodies, strconv.Itoa(i))
		}
		return bodies, strings.Join(bodies, "\n") + "\n"
	}
	backlog, text := numbered(0, 500)
	machine.pipe(text, "send", topic, "--lines")
	if out := shell(1); strings.Count(out, "success") < 2*x.real.Options().Brokers {
		t.Fatalf("the topic and the group were not created on all %d brokers", x.real.Options().Brokers)
	}
	shell(2)

	client := assert.Value(rocketmq.New(x.endpoints(), rocketmq.Options{}))(t)
	defer client.Close()
	at := &seen{n: map[string]int{}}
	stopConsumer := consumeBodies(t, client, group, topic, at)
	defer stopConsumer()
	p := assert.Value(producer.New(client, producer.Options{}))(t)
	defer p.Close()
	var sent []string
	producing, stop := context.WithCancel(ctx)
	var producers sync.WaitGroup
	producers.Go(func() {
		for i := 0; backoff.Sleep(producing, 20*time.Millisecond) == nil; i++ {
			body := fmt.Sprint("new ", i)
			_, err := p.Send(ctx, &tidegate.Message{Topic: topic, Body: []byte(body)})
			assert.That(t, err == nil, "send to the cluster: %v", err)
			sent = append(sent, body)
		}
	})
	moved := shell(3)
	stop()
	producers.Wait()
	assert.That(t, strings.Contains(moved, "moved  500"), "the move did not carry 500 messages")
	for at.lacking(backlog) > 0 || at.lacking(sent) > 0 {
		if backoff.Sleep(ctx, 100*time.Millisecond) != nil {
			t.Fatalf("at the cluster %d of %d carried and %d of %d sent messages are missing", at.lacking(backlog), len(backlog), at.lacking(sent), len(sent))
		}
	}
	t.Logf("%d messages were carried and %d sent meanwhile", len(backlog), len(sent))
	stopConsumer()

	late, text := numbered(500, 530)
	x.must("context", "use", "rmq")
	x.pipe(text, "send", topic, "--lines")
	shell(4)
	got := &seen{n: map[string]int{}}
	machine.must("context", "use", "machine")
	for _, d := range messagesOf(machine, group, topic, 1000) {
		got.add(d.BodyText)
	}
	assert.That(t, got.lacking(late) == 0, "%d of %d messages did not come back", got.lacking(late), len(late))
	assert.That(t, got.lacking(backlog) == len(backlog), "the machine delivers %d messages again", len(backlog)-got.lacking(backlog))
}

// consumeBodies consumes a topic until stop is called.
func consumeBodies(t *testing.T, client *rocketmq.Client, group, topic string, at *seen) (stop func()) {
	t.Helper()
	c := assert.Value(consumer.NewPush(client, consumer.Subscription{Group: group, Topic: topic}, func(_ context.Context, d *tidegate.Delivery) error {
		at.add(string(d.Body))
		return nil
	}, consumer.PushOptions{}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		assert.Must(t, <-done)
	})
}
