package spool

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

const (
	crashMode = "TIDEGATE_SPOOL_CRASH_MODE" // of the process in crashDir: a number of a life, or one of:
	lastMode  = "last"                      // sends the content of the spool and ends
)

// A recorder is a server that appends the ID of each message to a file, and is down
// half of the time unless it is steady.
type recorder struct {
	mu     sync.Mutex
	file   *os.File
	steady bool
	dead   bool // guarded by mu
}

func (r *recorder) Send(_ context.Context, msgs []*tidegate.Message) []transport.SendResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	results := make([]transport.SendResult, len(msgs))
	for i, m := range msgs {
		if r.dead || !r.steady && time.Now().UnixMilli()/20%2 == 0 {
			results[i].Err = errors.New("connection refused")
			continue
		}
		_, results[i].Err = fmt.Fprintln(r.file, m.ID)
	}
	return results
}

func (r *recorder) ProducerSettings(context.Context, string) (transport.ProducerSettings, error) {
	return transport.ProducerSettings{}, nil
}

func failOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

// produceUntilKilled sends messages through a producer with a spool. It appends the
// ID of each accepted message to a file, and the server that of each delivered one.
func produceUntilKilled(dir, life string) {
	appendTo := func(name string) *os.File {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		failOn(err)
		return f
	}
	s, err := Open(filepath.Join(dir, "spool.db"), Options{})
	failOn(err)
	accepted := appendTo("accepted")
	p, err := producer.New(&recorder{file: appendTo("delivered"), steady: life == lastMode}, producer.Options{Spool: s})
	failOn(err)
	if life == lastMode {
		for s.Stats().Pending > 0 {
			<-time.After(10 * time.Millisecond)
		}
		failOn(p.Close())
		failOn(s.Close())
		return
	}
	var wg sync.WaitGroup
	for _, group := range []string{"", "", "a", "b"} {
		wg.Go(func() {
			for n := range 100_000 { // the parent kills long before
				m := message(fmt.Sprintf("%s-%s-%d", group, life, n), group)
				if group == "" {
					m.ID = tidegate.NewMessageID()
				}
				_, err := p.Send(context.Background(), m)
				failOn(err)
				_, err = fmt.Fprintln(accepted, m.ID)
				failOn(err)
			}
		})
	}
	wg.Wait()
}

func child(t *testing.T, dir, mode string, stderr *strings.Builder) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), crashDir+"="+dir, crashMode+"="+mode)
	cmd.Stderr = stderr
	assert.Must(t, cmd.Start())
	return cmd
}

// Every message that a producer with a spool accepted is delivered, in the order of
// its message group, although the process was killed at random moments.
//
// Messages wait on the local disk while the broker is away.
func TestKilledProducerLosesNothing(t *testing.T) {
	dir := t.TempDir()
	var stderr strings.Builder
	for life := range 5 {
		before := len(lines(t, dir, "accepted"))
		cmd := child(t, dir, fmt.Sprint(life), &stderr)
		for len(lines(t, dir, "accepted")) < before+100 && t.Context().Err() == nil {
			<-time.After(time.Millisecond)
		}
		<-time.After(time.Duration(rand.IntN(400)) * time.Millisecond) // chance picks the moment
		assert.Must(t, cmd.Process.Kill())
		err := cmd.Wait()
		assert.MustThat(t, err != nil && stderr.Len() <= 0, "the process ended before its kill: %v, %s", err, stderr.String())
	}
	s := open(t, filepath.Join(dir, "spool.db"), Options{})
	waiting := s.Stats().Pending
	s.Close()
	err := child(t, dir, lastMode, &stderr).Wait()
	assert.MustThat(t, err == nil, "%v: %s", err, stderr.String())
	last := map[string]int{} // number of the latest message of a message group
	delivered := map[string]bool{}
	for _, id := range lines(t, dir, "delivered") {
		if delivered[id] {
			continue // again, with its ID: a server that remembers IDs stores it once
		}
		delivered[id] = true
		if group, rest, ok := strings.Cut(id, "-"); ok {
			var life, n int
			assert.Must(t, assert.Err(fmt.Sscanf(rest, "%d-%d", &life, &n)))
			if n += life * 1_000_000; n < last[group] {
				t.Errorf("message group %s: message %d was delivered behind %d", group, n, last[group])
			}
			last[group] = n
		}
	}
	accepted := lines(t, dir, "accepted")
	for _, id := range accepted {
		assert.That(t, delivered[id], "message %s was accepted and is lost", id)
	}
	assert.That(t, len(last) == 2 && waiting != 0, "message groups %v, %d messages waited in the spool: the test shows too little", last, waiting)
	t.Logf("%d accepted, %d delivered, %d waited in the spool after the last kill", len(accepted), len(delivered), waiting)
}

// crashDir names the directory of the process that is killed.
const crashDir = "TIDEGATE_SPOOL_CRASH_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		produceUntilKilled(dir, os.Getenv(crashMode))
		return
	}
	os.Exit(m.Run())
}

// lines returns the complete lines of a file.
func lines(t *testing.T, dir, name string) []string {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, name))
	if os.IsNotExist(err) {
		return nil
	}
	assert.Must(t, err)
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
