package amqp

import (
	"bytes"
	"crypto/tls"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
)

func TestParse(t *testing.T) {
	for address, want := range map[string]struct {
		endpoint string
		secure   bool
	}{
		"localhost":               {"localhost:5672", false},
		"localhost:61616":         {"localhost:61616", false},
		"amqp://mq":               {"mq:5672", false},
		"amqps://mq":              {"mq:5671", true},
		"amqps://[::1]:5000/":     {"[::1]:5000", true},
		"":                        {},
		"http://mq":               {},
		"amqp://":                 {},
		"amqp://user:secret@mq":   {},
		"amqp://mq/queue":         {},
		"amqp://mq?heartbeat=10s": {},
		"amqp://mq:port":          {},
	} {
		endpoint, secure, err := parse(address)
		if endpoint != want.endpoint || secure != want.secure || (err == nil) != (want.endpoint != "") {
			t.Errorf("%q: %q, %v, %v; want %q, %v", address, endpoint, secure, err, want.endpoint, want.secure)
		}
		if err != nil && (!errors.Is(err, tidegate.ErrInvalid) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%q: %v, want ErrInvalid without the password", address, err)
		}
	}
}

func TestInvalidOptions(t *testing.T) {
	for field, o := range map[string]Options{
		"Options.RequestTimeout": {RequestTimeout: -1},
		"Options.IdleTimeout":    {IdleTimeout: -1},
		"Options.MaxBodySize":    {MaxBodySize: -1},
		"Options.Credentials":    {Credentials: tidegate.Credentials{AccessKey: "a"}},
		"Options.TLS":            {TLS: &tls.Config{MinVersion: tls.VersionTLS12}},
	} {
		if _, err := New("amqp://mq", o); !errors.Is(err, tidegate.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := New("amqps://mq", Options{External: true, Credentials: tidegate.Credentials{AccessKey: "a", SecretKey: "b"}}); err == nil {
		t.Error("SASL EXTERNAL with a password was accepted")
	}
}

func TestNames(t *testing.T) {
	c, err := New("mq", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for topic, want := range map[string]place{
		"orders":       {address: "orders"},
		"%DLQ%billing": {address: "billing.DLQ", anycast: true},
	} {
		if got := c.place(topic); got != want {
			t.Errorf("%s: %+v, want %+v", topic, got, want)
		}
	}
	for topic, want := range map[string]place{
		"orders":       {address: "orders::orders.billing"},
		"%DLQ%billing": {address: "billing.DLQ", anycast: true},
	} {
		if got := c.queue(topic, "billing"); got != want {
			t.Errorf("%s: %+v, want %+v", topic, got, want)
		}
	}
}

// A program with this transport, producers and consumers links no gRPC.
func TestLinksNoGRPC(t *testing.T) {
	const module = "github.com/tidegate/tidegate"
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".", module+"/producer", module+"/consumer").Output()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(out, []byte("google.golang.org/")) {
		t.Errorf("linked:\n%s", out)
	}
	if !bytes.Contains(out, []byte("github.com/Azure/go-amqp\n")) {
		t.Error("go list does not name go-amqp: this test sees nothing")
	}
}
