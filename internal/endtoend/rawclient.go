package endtoend

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// maxFrame is the size of the largest frame that every server takes.
const maxFrame = 16 << 10

// initialWindow is the window of a connection before any update (RFC 9113 §6.9.2).
const initialWindow = 1<<16 - 1

// A Conn is a connection to a gRPC server. Goroutines may share it.
type Conn struct {
	net.Conn

	closed chan struct{}

	mu      sync.Mutex
	framer  *http2.Framer    // guarded by mu: writes
	encoder *hpack.Encoder   // guarded by mu
	headers bytes.Buffer     // guarded by mu
	next    uint32           // guarded by mu: number of the next stream
	initial int64            // guarded by mu: window of a new stream
	room    int64            // guarded by mu: bytes that the client may still send on the connection
	windows map[uint32]int64 // guarded by mu: likewise on each open stream
	more    chan struct{}    // guarded by mu: closed when a window may have grown
	err     error            // guarded by mu: why the connection ended
}

// New starts an HTTP/2 connection on c. window is the number of bytes of each response that the
// server may send.
func New(c net.Conn, window uint32) (*Conn, error) {
	r := &Conn{
		Conn: c, closed: make(chan struct{}), framer: http2.NewFramer(c, c), next: 1,
		initial: initialWindow, room: initialWindow, windows: map[uint32]int64{}, more: make(chan struct{}),
	}
	r.encoder = hpack.NewEncoder(&r.headers)
	go r.read()
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := c.Write([]byte(http2.ClientPreface)); err != nil {
		return nil, err
	}
	return r, r.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
}

// Closed returns a channel that is closed when the connection has ended.
func (c *Conn) Closed() <-chan struct{} { return c.closed }

// read handles the frames of the server until the connection ends.
func (c *Conn) read() {
	defer close(c.closed)
	fr := http2.NewFramer(nil, c.Conn)
	for {
		f, err := fr.ReadFrame()
		c.mu.Lock()
		if err == nil {
			err = c.handleLocked(f)
		}
		close(c.more)
		c.more = make(chan struct{})
		if c.err = err; err != nil {
			c.mu.Unlock()
			_ = c.Conn.Close()
			return
		}
		c.mu.Unlock()
	}
}

func (c *Conn) handleLocked(f http2.Frame) error {
	id := f.Header().StreamID
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
			for id := range c.windows {
				c.windows[id] += int64(v) - c.initial
			}
			c.initial = int64(v)
		}
		return c.framer.WriteSettingsAck()
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.framer.WritePing(true, f.Data)
		}
	case *http2.WindowUpdateFrame:
		if id == 0 {
			c.room += int64(f.Increment)
		} else if _, ok := c.windows[id]; ok {
			c.windows[id] += int64(f.Increment)
		}
	case *http2.RSTStreamFrame:
		delete(c.windows, id)
	case *http2.HeadersFrame:
		if f.StreamEnded() {
			delete(c.windows, id)
		}
	}
	return nil
}

// Open begins an RPC and returns the number of its stream. headers are pairs of names and values.
func (c *Conn) Open(path string, headers ...string) (id uint32, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers.Reset()
	all := append([]string{":method", "POST", ":scheme", "http", ":path", path, ":authority", "test", "content-type", "application/grpc", "te", "trailers"}, headers...)
	for i := 0; i+1 < len(all); i += 2 {
		if err := c.encoder.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]}); err != nil {
			return 0, err
		}
	}
	id = c.next
	c.next += 2
	c.windows[id] = c.initial
	return id, c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.headers.Bytes(), EndHeaders: true})
}

// Reset cancels a stream.
func (c *Conn) Reset(id uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.windows, id)
	return c.framer.WriteRSTStream(id, http2.ErrCodeCancel)
}

// ErrEnded is returned for a stream that the server has ended.
var ErrEnded = errors.New("the server closed the stream")

// Write sends data on a stream. It blocks while the flow control windows are full. end marks the
// last data of the stream.
func (c *Conn) Write(id uint32, data []byte, end bool) error {
	for {
		c.mu.Lock()
		window, open := c.windows[id]
		n := min(int64(len(data)), maxFrame, c.room, window)
		switch {
		case c.err != nil:
			defer c.mu.Unlock()
			return fmt.Errorf("the connection was closed: %w", c.err)
		case !open:
			c.mu.Unlock()
			return ErrEnded
		case n > 0 || len(data) == 0:
			err := c.framer.WriteData(id, end && n == int64(len(data)), data[:n])
			c.room -= n
			c.windows[id] -= n
			c.mu.Unlock()
			if data = data[n:]; err != nil || len(data) == 0 {
				return err
			}
			continue
		}
		more := c.more
		c.mu.Unlock()
		<-more
	}
}

// Streams returns how many streams the server has not ended.
func (c *Conn) Streams() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.windows)
}

// Message returns a gRPC message: the prefix for a message of size bytes, and data.
func Message(size int, data []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(size)), data...)
}
