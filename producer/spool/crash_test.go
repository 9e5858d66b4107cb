package spool

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
)

// crashDir names the directory of the process that is killed.
const crashDir = "TIDEGATE_SPOOL_CRASH_DIR"

// lives are the lives of that process that not every system has, by the value of crashMode.
var lives = map[string]func(dir string){}

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		switch mode := os.Getenv(crashMode); {
		case mode == "":
			runUntilKilled(dir)
		case lives[mode] != nil:
			lives[mode](dir)
		default:
			produceUntilKilled(dir, mode)
		}
		return
	}
	os.Exit(m.Run())
}

// runUntilKilled puts messages and drains them at the same time. It appends the
// ID of each accepted message to one file, of each delivered one to another.
func runUntilKilled(dir string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	s, err := Open(filepath.Join(dir, "spool.db"), Options{})
	fail(err)
	appendTo := func(name string) *os.File {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		fail(err)
		return f
	}
	accepted, delivered := appendTo("accepted"), appendTo("delivered")
	ctx := context.Background()
	go func() {
		n := 0
		fail(s.Drain(ctx, func(_ context.Context, msgs []*tidegate.Message) []error {
			errs := make([]error, len(msgs))
			for i, m := range msgs {
				if n++; n%2 == 0 { // so that some wait at any time
					errs[i] = &tidegate.Error{Code: protocol.CodeInternalError}
					continue
				}
				_, err := fmt.Fprintln(delivered, m.ID)
				fail(err)
			}
			return errs
		}))
	}()
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for range 100_000 { // the parent kills long before
				m := message(tidegate.NewMessageID(), []string{"", "a"}[g%2])
				fail(s.Put(ctx, m))
				_, err := fmt.Fprintln(accepted, m.ID)
				fail(err)
			}
		})
	}
	wg.Wait()
}

// After a kill at any time every accepted message is delivered or in the spool.
func TestKillLosesNothing(t *testing.T) {
	dir := t.TempDir()
	for round := range 5 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), crashDir+"="+dir)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		before := len(lines(t, dir, "accepted"))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Kill only once there is something to lose; the exact moment is up to chance.
		for len(lines(t, dir, "accepted")) < before+100+50*round && t.Context().Err() == nil {
			<-time.After(time.Millisecond)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil || stderr.Len() > 0 {
			t.Fatalf("the process ended before its kill: %v, %s", err, stderr.String())
		}
		check(t, dir, round)
	}
}

func check(t *testing.T, dir string, round int) {
	t.Helper()
	s := open(t, filepath.Join(dir, "spool.db"), Options{})
	defer s.Close()
	known := map[string]bool{}
	for _, id := range lines(t, dir, "delivered") {
		known[id] = true
	}
	after := uint64(0)
	for {
		list, err := s.Entries(false, after, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			known[e.Message.ID] = true
			after = e.Sequence
		}
		if len(list) == 0 {
			break
		}
	}
	accepted := lines(t, dir, "accepted")
	for _, id := range accepted {
		if !known[id] {
			t.Errorf("round %d: message %s was accepted and is lost", round, id)
		}
	}
	t.Logf("round %d: %d accepted, %d of them wait in the spool", round, len(accepted), s.Stats().Pending)
}

// lines returns the complete lines of a file.
func lines(t *testing.T, dir, name string) []string {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, name))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list []string
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return list
		}
		list = append(list, strings.TrimSuffix(line, "\n"))
	}
}
