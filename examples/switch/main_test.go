package main

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
)

var (
	artemis = flag.Bool("artemis", false, "start a real Artemis; it needs a JDK of version 17 or later and Maven")
	data    = flag.String("serve", "", "be the tidegate broker with this data directory")
	address = flag.String("address", "", "host:port of -serve")
)

// The program starts itself as the secondary system; in a test that is the test binary.
func TestMain(m *testing.M) {
	flag.Parse()
	if *data == "" {
		os.Exit(m.Run())
	}
	if err := serve(context.Background(), *data, *address); err != nil {
		panic(err)
	}
}

func TestSwitch(t *testing.T) {
	if !*artemis {
		t.Log("-artemis starts the servers")
		return
	}
	var out strings.Builder
	err := run(t.Context(), &out)
	t.Log("\n" + out.String())
	assert.Must(t, err)
	for _, w := range []string{"from artemis to tidegate", "from tidegate to artemis", "none failed", "each had its effect once"} {
		assert.That(t, strings.Contains(out.String(), w), "it does not print %q", w)
	}
}

// Without Java the program reports that Java is missing.
func TestMissingJava(t *testing.T) {
	program, err := exec.LookPath("go")
	assert.Must(t, err)
	if program, err = filepath.EvalSymlinks(program); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	assert.Must(t, os.Symlink(program, filepath.Join(dir, "go")))
	t.Setenv("PATH", dir)
	t.Setenv("JAVA_HOME", "") // or the program starts its servers on a machine with that variable
	err = run(t.Context(), &strings.Builder{})
	if err == nil || !strings.Contains(err.Error(), "java") || !strings.Contains(err.Error(), "17") {
		t.Errorf("got %v, want an error that names java and its version", err)
	}
}

// A package whose tests use brokertest can check its goroutines with goleak: neither the import nor
// a test with a broker leaves one.
func TestBrokertestLeavesNoGoroutine(t *testing.T) {
	goleak.VerifyNone(t)
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		b.CreateTopic("orders", settings.Topic{})
		b.Consume("billing", "orders", func(context.Context, *tidegate.Delivery) error { return nil })
		b.Send(&tidegate.Message{Topic: "orders", Body: []byte("3 apples")})
		b.WaitIdle("billing", "orders")
	})
	goleak.VerifyNone(t)
}
