package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// The program does not speak AMQP. With an address of an Artemis, from any source, a command ends
// with code 2. The error names the program that supports Artemis and how to install it.
func TestNamesTheProgramForAMQP(t *testing.T) {
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
	} {
		tl.run(args...).exits(2).notes("tidegate-amqp", "go install github.com/tidegate/tidegate/cmd/tidegate-amqp@latest")
	}
	tl.env["TIDEGATE_SERVER_AMQP"] = "amqp://mq.example"
	tl.fails(2, "amqp://mq.example is", "send", "orders", "x")
	tl.fails(2, "amqps://mq.example is", "send", "orders", "x", "--context", "artemis")
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

// Neither the program nor its module depends on go-amqp.
func TestLinksNoAMQP(t *testing.T) {
	out := assert.Value(exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output())(t)
	gomod := assert.Value(os.ReadFile("../../go.mod"))(t)
	assert.MustThat(t, strings.Contains(string(out), "google.golang.org/grpc\n") && strings.Contains(string(gomod), "google.golang.org/grpc "), "the lists do not name gRPC: this test sees nothing")
	if all := strings.ToLower(string(out) + string(gomod)); strings.Contains(all, "go-amqp") {
		t.Error("the program or its module depends on go-amqp: it belongs to the module cmd/tidegate-amqp")
	}
}
