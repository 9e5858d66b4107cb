package main

import (
	"bufio"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

var artemisFlag = flag.Bool("artemis", false, "start a real Artemis; it needs a JDK of version 17 or later and Maven")

// start starts an Artemis and returns its address.
func start(t *testing.T, flags ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "artemis")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/tidegate/tidegate/transport/amqp/artemis").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, append([]string{"-port", "0"}, flags...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	assert.Must(t, err)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended
		_ = cmd.Wait()                       // its directory is temporary, so its exit code does not matter
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	address, _, ok := strings.Cut(strings.TrimPrefix(line, "amqp://"), " ")
	assert.MustThat(t, err == nil && ok, "the server printed %q: %v", line, err)
	return address
}

// The commands work on a real Artemis, and doctor finds its faults. Without -artemis there is no
// server, and nothing is tested.
func TestArtemis(t *testing.T) {
	if !*artemisFlag {
		return
	}
	address := start(t, "-user", "app=sesame",
		"-set", `addressSettings."#".autoDeleteQueues=false`, "-set", `addressSettings."#".autoDeleteAddresses=false`,
		"-set", `addressSettings."#".maxDeliveryAttempts=-1`, "-set", `addressSettings."#".redeliveryDelay=0`,
		"-set", `addressSettings."closed.#".autoCreateAddresses=false`, "-set", `addressSettings."closed.#".autoCreateQueues=false`,
		"-set", `addressSettings."lost.DLQ".autoCreateAddresses=false`, "-set", `addressSettings."lost.DLQ".autoCreateQueues=false`,
		"-set", `addressSettings."full".maxSizeBytes=10240`, "-set", `addressSettings."full".addressFullMessagePolicy=FAIL`,
		"-set", `addressSettings."full".autoDeleteQueues=false`)
	user := func(t *testing.T, password string) *tool {
		tl := on(t, address)
		tl.env["TIDEGATE_ACCESS_KEY"], tl.env["TIDEGATE_SECRET"] = "app", password
		return tl
	}
	t.Run("messages", func(t *testing.T) { messages(t, user(t, "sesame")) })
	t.Run("exec", func(t *testing.T) { handled(t, user(t, "sesame")) })
	t.Run("doctor", func(t *testing.T) {
		tl := user(t, "sesame")
		tl.must("receive", "g", "full", "--then", "ack", "--wait", "100ms")
		tl.run("send", "full", strings.Repeat("x", 1024), "--count", "50", "--ack-timeout", "10s") // until it is full
		for _, c := range []struct {
			name, password string
			code           int
			step           string
			flags          []string
		}{
			{"all is well", "sesame", 0, "ok       group", []string{"--topic", "orders", "--group", "doctor", "--send"}},
			{"wrong password", "wrong", 4, "failed   credentials", nil},
			{"no address", "sesame", 3, "failed   topic", []string{"--topic", "closed.orders"}},
			{"dead letters without a queue", "sesame", 3, "failed   dead letters", []string{"--topic", "orders", "--group", "lost"}},
			{"full address", "sesame", 5, "failed   send", []string{"--topic", "full", "--send"}},
		} {
			r := user(t, c.password).run(append([]string{"doctor"}, c.flags...)...)
			if r.code != c.code || !strings.Contains(r.stdout, c.step) {
				t.Errorf("%s: exit code %d, want %d and %q:\n%s%s", c.name, r.code, c.code, c.step, r.stdout, r.stderr)
			}
		}
	})
	t.Run("bench", func(t *testing.T) {
		r := user(t, "sesame").run("bench", "e2e", "--topic", "load", "--into-existing", "--rounds", "1", "--duration", "1s", "--warmup", "0s", "--callers", "16")
		if r.code != 0 && r.code != 7 || !strings.Contains(r.stdout, "lost 0") {
			t.Errorf("exit code %d, %s%s", r.code, r.stdout, r.stderr)
		}
	})
}
