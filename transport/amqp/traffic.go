package amqp

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxUnwritten bounds the bytes that wait for a write, in addition to one frame.
	maxUnwritten = 256 << 10

	// writeTimeout bounds one write.
	writeTimeout = 30 * time.Second

	// lastWrite bounds the wait of Close for the bytes that are not written yet.
	lastWrite = time.Second
)

// A traffic writes the frames of a connection. go-amqp writes each frame with a call of its own;
// a traffic gathers the frames that arrive while it writes, and writes them together. It closes the
// connection after the first error of a read or write. The close ends a write that hangs. All later
// errors are the first one.
//
// Wake-ups: one goroutine writes. Write and Acceptor.Accept signal work to it. It signals progress
// after each write to the calls of Write that wait for space and to flush; so does the first error,
// and Close. Each write ends within writeTimeout.
type traffic struct {
	net.Conn
	fault atomic.Pointer[error] // the first

	mu        sync.Mutex
	work      sync.Cond // there is something to write, or the connection is closed
	progress  sync.Cond // something was written, or never will be
	unwritten []byte
	spare     []byte // the memory of the write before
	queued    int64  // bytes that Write and Accept took
	written   int64
	writing   bool
	closed    bool
	channels  map[uint16]*channel // the open sessions
}

func newTraffic(c net.Conn) *traffic {
	t := &traffic{Conn: c, channels: map[uint16]*channel{}}
	t.work.L, t.progress.L = &t.mu, &t.mu
	go t.run()
	return t
}

// run writes until the connection is closed.
func (t *traffic) run() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		for len(t.unwritten) == 0 && !t.closed {
			t.work.Wait()
		}
		if len(t.unwritten) == 0 || t.fault.Load() != nil {
			return
		}
		b := t.unwritten
		t.unwritten, t.writing = t.spare[:0], true
		t.mu.Unlock()
		_ = t.Conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // a write then reports why
		n, err := t.Conn.Write(b)
		_ = t.first(err)
		t.mu.Lock()
		t.spare, t.writing = b, false
		t.written += int64(n)
		t.progress.Broadcast()
	}
}

// Read reads from the connection.
func (t *traffic) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	return n, t.first(err)
}

// Write takes a frame, which is written later. It blocks while too much is unwritten.
func (t *traffic) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.unwritten) > maxUnwritten && t.err() == nil {
		t.progress.Wait()
	}
	if err := t.err(); err != nil {
		return 0, err
	}
	t.note(b)
	t.unwritten = append(t.unwritten, b...)
	t.queued += int64(len(b))
	t.work.Signal()
	return len(b), nil
}

// err returns why nothing is written any more; nil while the connection is open. The lock is held.
func (t *traffic) err() error {
	if err := t.fault.Load(); err != nil {
		return *err
	}
	if t.closed {
		return net.ErrClosed
	}
	return nil
}

// flush waits until the frames so far are written. An error means that some are not.
func (t *traffic) flush() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	goal := t.queued
	for t.written < goal {
		if err := t.err(); err != nil {
			return err
		}
		t.progress.Wait()
	}
	return nil
}

// SetWriteDeadline does nothing: each write has a deadline of its own.
func (*traffic) SetWriteDeadline(time.Time) error { return nil }

// Close closes the connection. It waits for the last frames, but not long.
func (t *traffic) Close() error {
	timer := time.AfterFunc(lastWrite, func() { _ = t.first(net.ErrClosed) })
	_ = t.flush() // the connection ends in any case
	timer.Stop()
	t.mu.Lock()
	t.closed = true
	t.work.Signal()
	t.progress.Broadcast()
	t.mu.Unlock()
	return t.Conn.Close()
}

// state returns the number of bytes written so far, and whether others are on their way.
func (t *traffic) state() (written int64, writing bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.written, t.writing || len(t.unwritten) > 0
}

// first returns the first error of the connection, which is err if there was none.
func (t *traffic) first(err error) error {
	if err == nil {
		return nil
	}
	fault := err // only a fault needs memory
	if t.fault.CompareAndSwap(nil, &fault) {
		t.Conn.Close()
		t.mu.Lock()
		t.closed = true
		t.work.Signal()
		t.progress.Broadcast()
		t.mu.Unlock()
	}
	return *t.fault.Load()
}
