package filelock

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// TestMain locks the file of the environment, if there is one, until the end of standard input. It
// is then the other process of a test.
func TestMain(m *testing.M) {
	path := os.Getenv("FILELOCK_TEST_HOLD")
	if path == "" {
		os.Exit(m.Run())
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		_, err = Lock(f)
	}
	if err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	os.Stdout.WriteString("locked\n")
	_, _ = bufio.NewReader(os.Stdin).ReadByte() // the end of the test
}

// A file that another process has locked is rejected with the ID of that process, is not changed,
// and can be read. The kill of that process ends the lock.
func TestOtherProcess(t *testing.T) {
	program := assert.Value(os.Executable())(t)
	path := filepath.Join(t.TempDir(), "journal")
	assert.Must(t, os.WriteFile(path, []byte("a line\n"), 0o600))
	other := exec.CommandContext(t.Context(), program)
	other.Env = append(os.Environ(), "FILELOCK_TEST_HOLD="+path)
	assert.Must(t, assert.Err(other.StdinPipe()))
	out := assert.Value(other.StdoutPipe())(t)
	assert.Must(t, other.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "locked\n" {
		t.Fatalf("the other process printed %q, %v", line, err)
	}
	f := assert.Value(os.OpenFile(path, os.O_RDWR, 0o600))(t)
	defer f.Close()
	_, err := Lock(f)
	if busy, ok := errors.AsType[*BusyError](err); !ok || busy.PID != other.Process.Pid || !strings.Contains(err.Error(), path+" is in use by process "+strconv.Itoa(other.Process.Pid)+";") {
		t.Errorf("the error is %v, and the process %d", err, other.Process.Pid)
	}
	assert.Equal(t, "the file", string(assert.Value(os.ReadFile(path))(t)), "a line\n")
	assert.Must(t, other.Process.Kill())
	_ = other.Wait()                   // it was killed
	unlock := assert.Value(Lock(f))(t) // the kill has ended the other lock
	if text, err := os.ReadFile(path + ".pid"); err != nil || string(text) != strconv.Itoa(os.Getpid())+"\n" {
		t.Errorf("the file beside it has %q, %v", text, err)
	}
	again := assert.Value(os.OpenFile(path, os.O_RDWR, 0o600))(t)
	defer again.Close()
	if _, err := Lock(again); err == nil || !strings.Contains(err.Error(), "this process") {
		t.Errorf("a second lock of this process: %v", err)
	}
	assert.NoError(t, unlock())
	if _, err := os.Stat(path + ".pid"); err == nil {
		t.Error("the file beside it is still there")
	}
}

// A file is locked although its process ID cannot be written beside it, for example on a full disk.
func TestLockWithoutPID(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	assert.Must(t, os.MkdirAll(filepath.Join(path+".pid", "in the way"), 0o700))
	f := assert.Value(os.Create(path))(t)
	defer f.Close()
	unlock := assert.Value(Lock(f))(t)
	again := assert.Value(os.OpenFile(path, os.O_RDWR, 0o600))(t)
	defer again.Close()
	if _, err := Lock(again); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second lock: %v", err)
	}
	assert.NoError(t, unlock())
}

func TestTorn(t *testing.T) {
	for line, want := range map[string]bool{
		"": true, "{": true, `{"ti`: true, `{"time":"2026`: true, `{"event":"sent","ids":["i`: true,
		`{"a":1}`: false, "a note": false, "[1,2": false, `{"message_id":"x"`: false, "{}": false, "\x00": false,
	} {
		if got := Torn(1, []byte(line), `{"time":`, `{"event":`); got != want {
			t.Errorf("%q: %t, want %t", line, got, want)
		}
	}
	for line, want := range map[string]bool{"": true, "\x00\x00": true, `{"time":"20\x00`: true, "\x00a": false} {
		if got := Torn(2, []byte(line), `{"time":`, `{"event":`); got != want {
			t.Errorf("%q behind another line: %t, want %t", line, got, want)
		}
	}
}

func open(t *testing.T, path string) (j *Journal, lines []string) {
	t.Helper()
	j = assert.Value(OpenJournal(path, "; advice", func(line []byte) error {
		lines = append(lines, string(line))
		return nil
	}))(t)
	return j, lines
}

// A last line that a crash has cut off is removed, whatever its length: the next ones follow the
// last whole line.
func TestTornLineIsRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	whole := `{"event":"sent"}` + "\n"
	assert.Must(t, os.WriteFile(path, []byte(whole+`{"event":"intent","id":"`+strings.Repeat("x", 1000)), 0o600))
	for run := range 2 {
		j, lines := open(t, path)
		if len(lines) != run+1 || lines[run] != whole {
			t.Errorf("run %d: the lines %q", run, lines)
		}
		assert.Must(t, errors.Join(j.Append([]byte(whole), true), j.Close()))
	}
	assert.Equal(t, "the journal", string(assert.Value(os.ReadFile(path))(t)), whole+whole+whole)
}

// A failed write may have written a part of a line. A later one would complete that line to
// garbage, for example when the full disk has space again, and the job could not be continued.
func TestNothingAfterAFailure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, _ := open(t, path)
	writable := j.File
	defer writable.Close()
	j.File = assert.Value(os.Open(path))(t) // its writes fail
	defer j.File.Close()
	first := j.Append([]byte("{}\n"), false)
	j.File = writable
	if again := j.Append([]byte("{}\n"), false); first == nil || !strings.HasSuffix(first.Error(), "; advice") || !errors.Is(again, first) || !errors.Is(j.Failed(), first) {
		t.Errorf("after the failure %v a write returns %v", first, again)
	}
	assert.Equal(t, "the journal", string(assert.Value(os.ReadFile(path))(t)), "")
}

// Lines are written when they are on disk: a file that cannot be synced, such as a pipe, accepts
// none.
func TestLinesAreSynced(t *testing.T) {
	j, _ := open(t, filepath.Join(t.TempDir(), "journal"))
	defer j.Close()
	file := j.File
	r, w, err := os.Pipe()
	assert.Must(t, err)
	defer r.Close()
	defer w.Close()
	j.File = w
	if err := j.Append([]byte("{}\n"), true); err == nil {
		t.Error("a line is written without a sync")
	}
	j.File = file
}
