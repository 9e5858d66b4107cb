//go:build unix

package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// processes returns the processes whose numbers a program has written to a file.
func processes(t *testing.T, file string, n int) (pids []int) {
	t.Helper()
	for len(pids) < n {
		text, err := os.ReadFile(file)
		assert.MustThat(t, err == nil || errors.Is(err, os.ErrNotExist), "%v", err)
		pids = nil
		for line := range strings.FieldsSeq(string(text)) {
			pid := assert.Value(strconv.Atoi(line))(t)
			pids = append(pids, pid)
		}
	}
	return pids
}

// ends waits until a process has ended. It may be one that nobody has waited for. A process that is
// not killed never ends.
func ends(t *testing.T, pid int) {
	t.Helper()
	for until := time.Now().Add(time.Minute); time.Now().Before(until); {
		if syscall.Kill(pid, 0) != nil {
			return
		}
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(text), ") Z ") {
			return
		}
	}
	t.Errorf("process %d runs on", pid)
}

// No process of a program survives it: not a child in the background, not one that ignores the
// request to end, and not one that has another parent. A child that holds the output does not
// change the exit code.
func TestChildrenEndWithTheProgram(t *testing.T) {
	for name, c := range map[string]struct {
		program string
		n       int
		code    int
	}{
		"holds the output":     {`sleep 1000 & echo $! >> pids; echo done`, 1, 0},
		"holds the input":      {`sleep 1000 <&0 >/dev/null 2>&1 & echo $! >> pids`, 1, 0},
		"ignores SIGTERM":      {`sh -c 'trap "" TERM; echo $$ >> pids; sleep 1000 & echo $! >> pids; wait' > /dev/null 2>&1 & while [ "$(wc -l < pids)" != 2 ]; do :; done`, 2, 0},
		"is a grandchild":      {`(sleep 1000 & echo $! >> pids); exit 3`, 1, 3},
		"after a failure":      {`sleep 1000 & echo $! >> pids; exit 9`, 1, 9},
		"after an own signal":  {`sleep 1000 & echo $! >> pids; kill -9 $$`, 1, -1},
		"of a program of many": {`for i in 1 2 3; do sleep 1000 & echo $! >> pids; done`, 3, 0},
		"without any":          {`echo $$ >> pids`, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			assert.Must(t, os.WriteFile(filepath.Join(dir, "pids"), nil, 0o600))
			var out strings.Builder
			p := newProgram(t.Context(), c.program, nil)
			p.Dir, p.Stdin, p.Stdout = dir, strings.NewReader(strings.Repeat("x", 1<<20)), &out
			if _, code := endOf(p.Run()); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, pid := range processes(t, filepath.Join(dir, "pids"), c.n) {
				ends(t, pid)
			}
			assert.That(t, !strings.Contains(c.program, "echo done") || out.String() == "done\n", "the output is %q", out.String())
		})
	}
}

// The end of ctx reaches the program and its children: by SIGTERM, and by SIGKILL if they ignore
// it, or if the cause leaves no grace.
func TestEndOfTheContext(t *testing.T) {
	lost := errors.New("lost")
	const deaf = `trap "" TERM; sh -c 'trap "" TERM; echo $$ >> pids; sleep 1000' & echo $$ >> pids; wait; sleep 1000`
	for name, c := range map[string]struct {
		program string
		cause   error
		n       int
		cleaned bool
	}{
		"asked":        {`trap 'sleep 0; echo cleaned > cleaned; exit 1' TERM; sleep 1000 & echo $! >> pids; echo $$ >> pids; wait`, context.Canceled, 2, true},
		"ignored":      {deaf, context.Canceled, 2, false},
		"at once":      {`trap 'echo cleaned > cleaned; exit 1' TERM; sleep 1000 & echo $! >> pids; echo $$ >> pids; wait`, lost, 2, false},
		"deaf at once": {deaf, lost, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			ctx, cancel := context.WithCancelCause(t.Context())
			p := newProgram(ctx, c.program, lost)
			p.Dir = dir
			assert.Must(t, p.Start())
			pids := processes(t, filepath.Join(dir, "pids"), c.n)
			cancel(c.cause)
			assert.That(t, p.Wait() != nil, "the program has ended without an error")
			for _, pid := range pids {
				ends(t, pid)
			}
			if _, err := os.Stat(filepath.Join(dir, "cleaned")); (err == nil) != c.cleaned {
				t.Errorf("the program had time to clean up: %t, want %t", err == nil, c.cleaned)
			}
		})
	}
}

// A program has no terminal that could stop it, and is not in the session of this process.
func TestSessionOfItsOwn(t *testing.T) {
	p := newProgram(t.Context(), `(: < /dev/tty) 2> /dev/null && echo terminal; cat /proc/$$/stat 2> /dev/null | cut -d' ' -f1,5,6`, nil)
	out := assert.Value(p.Output())(t)
	ids := strings.Fields(string(out))
	if len(ids) != 3 || ids[0] != ids[1] || ids[0] != ids[2] {
		t.Errorf("process, group and session are %q, want three times the same", ids)
	}
}

// KillAll ends the programs that run, and those that start later.
func TestKillAll(t *testing.T) {
	t.Cleanup(func() { running.ended = false })
	dir := t.TempDir()
	p := newProgram(t.Context(), `trap "" TERM; sleep 1000 & echo $! >> pids; wait; sleep 1000`, nil)
	p.Dir = dir
	assert.Must(t, p.Start())
	pid := processes(t, filepath.Join(dir, "pids"), 1)[0]
	killAll()
	if end, _ := endOf(p.Wait()); end != signalled {
		t.Errorf("the program ended by %d", end)
	}
	ends(t, pid)
	late := newProgram(t.Context(), `trap "" TERM; sleep 1000`, nil)
	if end, _ := endOf(late.Run()); end != signalled {
		t.Errorf("a program that started later ended by %d", end)
	}
}

// Exit codes of a shell: POSIX "Shell Command Language", 2.8.2; 255 is the exit code of ssh and of
// exit -1.
func TestClassify(t *testing.T) {
	want := map[int]programEnd{0: exited, 1: exited, 75: exited, 125: exited, 126: unusable, 127: unusable, 128: exited, 129: signalled, 137: signalled, 143: signalled, 192: signalled, 193: exited, 255: exited}
	for code, end := range want {
		if got := classify(code); got != end {
			t.Errorf("exit code %d is %d, want %d", code, got, end)
		}
	}
	for program, want := range map[string]programEnd{"exit 3": exited, "./no-such-program": unusable, "/dev/null": unusable, "kill -9 $$": signalled, "sh -c 'kill -15 $$'; exit $?": signalled} {
		if got, code := endOf(newProgram(t.Context(), program, nil).Run()); got != want {
			t.Errorf("%s ended by %d, code %d, want %d", program, got, code, want)
		}
	}
	p := newProgram(t.Context(), "exit 0", nil)
	p.Path, p.Err = "", &os.PathError{Op: "exec", Path: "sh", Err: syscall.EAGAIN}
	if got, _ := endOf(p.Run()); got != notBegun {
		t.Errorf("a program that could not start ended by %d", got)
	}
}
