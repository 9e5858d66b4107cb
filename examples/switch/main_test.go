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
	pulsars = flag.Bool("pulsar", false, "start a real Pulsar too, as -artemis does")
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
	var runs [][2]string // primary and secondary
	if *artemis {
		runs = append(runs, [2]string{"artemis", "tidegate"})
	}
	if *pulsars {
		runs = append(runs, [2]string{"pulsar", "artemis"}, [2]string{"tidegate", "pulsar"})
	}
	if runs == nil {
		t.Log("-artemis and -pulsar start the servers")
	}
	for _, r := range runs {
		t.Run(r[0]+" and "+r[1], func(t *testing.T) {
			var out strings.Builder
			err := run(t.Context(), &out, r[0], r[1])
			t.Log("\n" + out.String())
			assert.Must(t, err)
			for _, w := range []string{"from " + r[0] + " to " + r[1], "from " + r[1] + " to " + r[0], "none failed", "each had its effect once"} {
				assert.That(t, strings.Contains(out.String(), w), "it does not print %q", w)
			}
		})
	}
}

func TestSystems(t *testing.T) {
	for want, pair := range map[string][2]string{"both systems are pulsar": {"pulsar", "pulsar"}, `no system "nats"`: {"nats", "tidegate"}} {
		err := run(t.Context(), &strings.Builder{}, pair[0], pair[1])
		assert.That(t, err != nil && strings.Contains(err.Error(), want), "%v: %v, want %q", pair, err, want)
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
	err = run(t.Context(), &strings.Builder{}, "artemis", "tidegate")
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
