//go:build unix

package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidegate/tidegate/producer"
)

func init() { lives[fullMode] = fillTheDisk }

// fillTheDisk sends messages until the file of the spool cannot grow, then makes
// space and the server well, and checks that no accepted message is lost.
func fillTheDisk(dir string) {
	s, err := Open(filepath.Join(dir, "spool.db"), Options{})
	failOn(err)
	delivered, err := os.Create(filepath.Join(dir, "delivered"))
	failOn(err)
	r := &recorder{file: delivered, steady: true, dead: true}
	p, err := producer.New(r, producer.Options{Spool: s})
	failOn(err)

	signal.Ignore(syscall.SIGXFSZ) // the write fails instead
	var limit syscall.Rlimit
	failOn(syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit))
	failOn(syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 20, Max: limit.Max}))
	var accepted []string
	var refused error
	for n := 0; refused == nil && n < 1000; n++ {
		m := message(fmt.Sprint(n), "g")
		m.Body = make([]byte, 64<<10)
		if _, refused = p.Send(context.Background(), m); refused == nil {
			accepted = append(accepted, m.ID)
		}
	}
	e, ok := errors.AsType[*producer.SendError](refused)
	if !ok || !errors.Is(e, ErrDisk) || e.Reason != producer.StopSpool || len(accepted) < 3 {
		failOn(fmt.Errorf("after %d accepted messages: %w", len(accepted), refused))
	}
	failOn(syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit))
	r.mu.Lock()
	r.dead = false
	r.mu.Unlock()
	for s.Stats().Pending > 0 {
		<-time.After(10 * time.Millisecond)
	}
	a, err := p.Shutdown(context.Background())
	failOn(err)
	if a.Accepted != len(accepted)+1 || a.Spooled != len(accepted) || a.Failed != 1 || a.Drained != len(accepted) {
		failOn(fmt.Errorf("%d accepted, the accounts are %+v", len(accepted), a))
	}
	text, err := os.ReadFile(filepath.Join(dir, "delivered"))
	failOn(err)
	if got := strings.Join(strings.Fields(string(text)), " "); got != strings.Join(accepted, " ") {
		failOn(fmt.Errorf("delivered %s, accepted %v", got, accepted))
	}
	failOn(s.Close())
}

// A file that cannot grow is a typed error of the send, and costs no accepted message.
func TestDiskFullUnderTheSpool(t *testing.T) {
	var stderr strings.Builder
	if err := child(t, t.TempDir(), fullMode, &stderr).Wait(); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
}
