package broker_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

var clockSteps = flag.Bool("clock.steps", false, "build a broker whose wall clock a test can set; it compiles the standard library anew")

// steppedBroker builds the program in testdata/clockstep with a time.Now that adds time.WallStep to
// the wall clock, and not to the monotonic clock, as a time server does.
func steppedBroker(t *testing.T) string {
	t.Helper()
	source := filepath.Join(runtime.GOROOT(), "src", "time", "time.go") //nolint:staticcheck // the toolchain that runs the test builds the program
	b, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	const before = "\tsec, nsec, mono := runtimeNow()\n\tif mono == 0 {\n\t\treturn Time{uint64(nsec)"
	text := strings.Replace(string(b), before, strings.Replace(before, "\tif", "\tsec += WallStep.Load()\n\tif", 1), 1)
	if text == string(b) {
		t.Fatalf("%s has no %q", source, before)
	}
	text = strings.Replace(text, "import (\n", "import (\n\t\"sync/atomic\"\n", 1) +
		"\n// WallStep is how far the wall clock is ahead, in seconds.\nvar WallStep atomic.Int64\n"
	dir := t.TempDir()
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{source: filepath.Join(dir, "time.go")}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"time.go": text, "overlay.json": string(overlay)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "clockstep")
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, "./testdata/clockstep")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	return program
}

// A stepped is a running program of steppedBroker.
type stepped struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

func startStepped(t *testing.T, program, dir string, env ...string) *stepped {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, dir)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &stepped{t, cmd, in, bufio.NewScanner(out)}
	if got := s.answer(); got != "open <nil>" {
		t.Fatal(got)
	}
	return s
}

func (s *stepped) answer() string {
	s.t.Helper()
	if !s.out.Scan() {
		s.t.Fatal("the program has ended: ", s.out.Err())
	}
	return s.out.Text()
}

// do writes a command and compares the response.
func (s *stepped) do(command, want string) {
	s.t.Helper()
	fmt.Fprintln(s.in, command)
	if got := s.answer(); got != want {
		s.t.Errorf("%s: %s, want %s", command, got, want)
	}
}

// until repeats a command until it has the response.
func (s *stepped) until(command, want string) {
	s.t.Helper()
	got := ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		fmt.Fprintln(s.in, command)
		if got = s.answer(); got == want {
			return
		}
	}
	s.t.Errorf("%s: %s, want %s", command, got, want)
}

func (s *stepped) close() {
	s.t.Helper()
	s.do("close", "closed <nil>")
	if err := s.cmd.Wait(); err != nil {
		s.t.Error(err)
	}
}

// A wall clock that is wrong for a while removes and hides no message, in a process and at its
// start. .ci/run -long runs it with -clock.steps.
func TestClockSteps(t *testing.T) {
	if !*clockSteps {
		return
	}
	program := steppedBroker(t)
	const day = 24 * 3600
	t.Run("four days ahead for a moment", func(t *testing.T) {
		s := startStepped(t, program, t.TempDir())
		s.do("send 47", "sent 47")
		s.do(fmt.Sprint("step ", 4*day), "ok")
		s.do("send 1", "sent 1")
		s.until("clock", "distrusted 47 0") // the round of retention has looked at them
		s.do("stored", "stored 48 <nil>")
		s.do(fmt.Sprint("step ", -4*day), "ok")
		s.do("send 1", "sent 1")
		s.until("clock", "distrusted 0 0")
		s.do("receive 60000", "received 32 <nil>")
		s.do("receive 60000", "received 17 <nil>")
		s.close()
	})
	t.Run("a restart four days ahead", func(t *testing.T) {
		dir := t.TempDir()
		s := startStepped(t, program, dir)
		s.do("send 47", "sent 47")
		s.close()
		for range 2 { // the time of the first process is not trusted in the second one
			s = startStepped(t, program, dir, fmt.Sprint("WALL_STEP=", 4*day))
			s.do("send 1", "sent 1")
			s.until("clock", "distrusted 47 0")
			s.close()
		}
		s = startStepped(t, program, dir)
		s.do("clock", "trusted")
		s.do("stored", "stored 49 <nil>")
		s.close()
	})
	t.Run("expiry two hours ahead", func(t *testing.T) {
		s := startStepped(t, program, t.TempDir(), "EXPIRY=1")
		s.do("send 3", "sent 3")
		s.do("step 7200", "ok")
		s.do("send 1", "sent 1")
		s.do("consume 60000", "received 1 <nil>") // the new one
		s.do("clock", "distrusted 0 3")
		s.do("step -7200", "ok")
		s.do("consume 60000", "received 3 <nil>")
		s.close()
	})
	t.Run("leases an hour behind", func(t *testing.T) {
		dir := t.TempDir()
		s := startStepped(t, program, dir)
		s.do("send 1", "sent 1")
		s.do("receive 60000", "received 1 <nil>")
		s.close()
		s = startStepped(t, program, dir, "WALL_STEP=-3000") // trusted: within an hour of the newest time
		s.do("clock", "trusted")
		s.do("receive 60000", "received 1 <nil>") // after its invisible duration of a second
		s.close()
	})
}
