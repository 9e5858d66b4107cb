package amqp

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/amqppeer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/servertest"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// A wire is a connection whose writes wait for the test.
type wire struct {
	net.Conn               // nil: only the methods below are used
	free     chan struct{} // each value permits a write; closed: all

	mu     sync.Mutex
	writes []string
	fail   error // of the next write
	closed chan struct{}
}

func newWire() *wire { return &wire{free: make(chan struct{}), closed: make(chan struct{})} }

func (w *wire) Write(b []byte) (int, error) {
	select {
	case <-w.free:
	case <-w.closed:
		return 0, net.ErrClosed
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fail != nil {
		return 0, w.fail
	}
	w.writes = append(w.writes, string(b))
	return len(b), nil
}

func (w *wire) Read([]byte) (int, error) { <-w.closed; return 0, net.ErrClosed }

func (w *wire) SetWriteDeadline(time.Time) error { return nil }

func (w *wire) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.closed:
	default:
		close(w.closed)
	}
	return nil
}

func (w *wire) written() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.writes...)
}

func write(t *testing.T, c net.Conn, frame string) {
	t.Helper()
	n, err := c.Write([]byte(frame))
	assert.That(t, n == len(frame) && err == nil, "wrote %d bytes of %q: %v", n, frame, err)
}

// Frames that arrive during a write are written together. Traffic counts the written ones only.
func TestFramesOfAWriteAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire()
		c := newTraffic(w)
		write(t, c, "first")
		synctest.Wait() // its write has begun
		for _, frame := range []string{"-second", "-third", "-fourth"} {
			write(t, c, frame)
		}
		n, writing := c.state()
		assert.That(t, n == 0 && writing, "%d bytes are written, more on their way: %v; want 0 and true", n, writing)
		close(w.free)
		assert.NoError(t, c.flush())
		if got := w.written(); len(got) != 2 || got[0] != "first" || got[1] != "-second-third-fourth" {
			t.Errorf("writes %q, want the first frame, and then the others together", got)
		}
		n, writing = c.state()
		assert.That(t, n == 25 && !writing, "%d bytes are written, more on their way: %v; want 25 and false", n, writing)
		c.Close()
	})
}

// flush returns after the write of the frames before it, and does not wait for later frames.
func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire()
		c := newTraffic(w)
		defer c.Close()
		assert.NoError(t, c.flush(), "without frames")
		write(t, c, "first")
		synctest.Wait()
		flushed := make(chan error, 1)
		go func() { flushed <- c.flush() }()
		synctest.Wait()
		write(t, c, "second")
		select {
		case err := <-flushed:
			t.Errorf("flush returned %v before the write", err)
		default:
		}
		w.free <- struct{}{}
		if err := <-flushed; err != nil || len(w.written()) != 1 {
			t.Errorf("flush: %v after the writes %q, want success after the first", err, w.written())
		}
		close(w.free)
	})
}

// A writer waits while much is unwritten.
func TestUnwrittenBytesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire()
		c := newTraffic(w)
		defer c.Close()
		frame := bytes.Repeat([]byte("x"), 64<<10)
		taken := 0
		go func() {
			for range 100 {
				assert.NoError(t, assert.Err(c.Write(frame)))
				taken++
			}
		}()
		synctest.Wait()
		if taken*len(frame) > 2*(maxUnwritten+len(frame)) { // one half is in the write that hangs
			t.Errorf("%d frames of 64 KiB are accepted while nothing is written", taken)
		}
		close(w.free)
		synctest.Wait()
		assert.Equal(t, "of 100 frames are accepted after the writes", taken, 100)
	})
}

// Close writes the last frames, and does not wait for a connection that hangs.
func TestCloseWritesTheLastFrames(t *testing.T) {
	for hangs, want := range map[bool]time.Duration{false: 500 * time.Millisecond, true: lastWrite} {
		synctest.Test(t, func(t *testing.T) {
			w := newWire()
			c := newTraffic(w)
			write(t, c, "last")
			if !hangs {
				time.AfterFunc(want, func() { close(w.free) })
			}
			start := time.Now()
			c.Close()
			if d := time.Since(start); d != want || (len(w.written()) == 1) == hangs {
				t.Errorf("hangs %v: Close took %v and wrote %q, want %v", hangs, d, w.written(), want)
			}
			assert.Is(t, "a write after Close", assert.Err(c.Write([]byte("late"))), net.ErrClosed)
		})
	}
}

// The first error ends all waits and closes the connection. Later calls return the same error.
func TestFirstError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire()
		c := newTraffic(w)
		errBroken := errors.New("broken pipe")
		w.fail = errBroken
		write(t, c, "lost")
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { assert.Is(t, "flush", c.flush(), errBroken) })
		}
		synctest.Wait()
		w.free <- struct{}{}
		wg.Wait()
		<-w.closed
		assert.Is(t, "a later write", assert.Err(c.Write([]byte("later"))), errBroken)
		assert.Is(t, "a later read", assert.Err(c.Read(make([]byte, 1))), errBroken)
		c.Close()
	})
}

// CASES.md names tests that exist.
func TestCases(t *testing.T) { servertest.Cases(t, ".", 25) }

// The transport uses neither of the two functions of go-amqp that lose messages or links on Artemis.
func TestForbiddenFunctions(t *testing.T) {
	forbidden := regexp.MustCompile(`\.(DrainCredit|RejectMessage)\(`)
	assert.Must(t, filepath.WalkDir(".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".go" {
			return err
		}
		text, err := os.ReadFile(name)
		m := forbidden.Find(text)
		assert.That(t, m == nil || name == filepath.Join("interop", "send_test.go"), "%s calls %s", name, m)
		return err
	}))
}

// The suite on a scripted server, in virtual time. The same suite runs on a real Artemis in
// ./interop.
func TestSuiteOnAPeer(t *testing.T) {
	s := transporttest.AllGuarantees()
	s.Virtual, s.Slack = true, 300*time.Millisecond // a receive without a wait takes 200 ms
	s.PushesThrottleBackoff, s.TimeoutsTakeTheSchedule, s.Recall = false, false, false
	s.FullReceives, s.Priorities, s.LiteTopics = false, false, false
	s.LacksPositions, s.LacksTopicTypes, s.LacksStoreTimes = true, true, true
	s.Capabilities = transport.Capabilities{Suspend: true, IdempotentDeadLetter: true, RepeatReceive: true, Verdicts: transport.Snooze}
	transporttest.Run(t, func(t *testing.T) transporttest.Fixture {
		var mu sync.Mutex
		groups, topics := map[string]transport.ConsumerSettings{}, map[string]bool{}
		var conns []net.Conn
		p := &amqppeer.Peer{Refuse: func(address string, _ bool) *amqppeer.Fault {
			mu.Lock()
			defer mu.Unlock()
			if topic, _, _ := strings.Cut(address, "::"); topics[topic] || strings.HasSuffix(topic, ".DLQ") {
				return nil
			}
			return &amqppeer.Fault{Condition: "amqp:not-found", Description: "there is no such address"}
		}}
		c, err := New("orders.example:5672", Options{
			CopyRetries: true, IdleTimeout: 24 * time.Hour, // the peer sends no heartbeats
			Dialer: func(ctx context.Context, address string) (net.Conn, error) {
				n, err := p.Dial(ctx, address)
				if err == nil {
					mu.Lock()
					conns = append(conns, n)
					mu.Unlock()
				}
				return n, err
			},
			Groups: func(group, _ string) transport.ConsumerSettings {
				mu.Lock()
				defer mu.Unlock()
				return groups[group]
			},
		})
		assert.Must(t, err)
		return transporttest.Fixture{
			Transport: c,
			Disconnect: func() {
				p.RefuseNext(1 << 30)
				mu.Lock()
				defer mu.Unlock()
				for _, n := range conns {
					_ = n.Close() // it may have ended
				}
			},
			CreateTopic: func(_ context.Context, name string, _ settings.TopicType) error {
				mu.Lock()
				defer mu.Unlock()
				topics[name] = true
				return nil
			},
			CreateGroup: func(_ context.Context, name string, s transport.ConsumerSettings) error {
				mu.Lock()
				defer mu.Unlock()
				groups[name] = s
				for topic := range topics {
					p.Create(topic + "::" + topic + "." + name)
				}
				return nil
			},
		}
	}, s)
}
