package relay

import (
	"bufio"
	"io"
	"net"
	"sync"
	"time"
)

// A link is a connection of a client and the relay's own connection to the server. One goroutine
// forwards each direction; a third one writes delayed responses.
type link struct {
	relay          *Relay
	client, server side

	mu      sync.Mutex
	closed  bool
	streams map[uint32]*stream
	late    []lateFrames // in the order of their times
	wake    *time.Timer  // writes late; nil while late is empty
}

// A stream is a request and its response.
type stream struct {
	path      string
	throttled bool // the relay responds, and the server never sees the request
	started   bool // the first header of the response has come
	lost      bool
	delay     time.Duration
}

type lateFrames struct {
	due    time.Time
	frames []frame
}

// A side is one of the two connections of a link.
type side struct {
	conn net.Conn
	mu   sync.Mutex // keeps the frames of one call of write together
}

func (s *side) write(frames ...frame) error {
	var b []byte
	for _, f := range frames {
		b = f.append(b)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.conn.Write(b)
	return err
}

// reset closes both connections; the client gets a RST.
func (l *link) reset() {
	l.mu.Lock()
	l.closed = true
	server := l.server.conn
	l.mu.Unlock()
	if c, ok := l.client.conn.(*net.TCPConn); ok {
		_ = c.SetLinger(0) // it fails on a closed connection
	}
	l.client.conn.Close()
	if server != nil {
		server.Close()
	}
}

// attach stores the connection to the server, unless the link is reset.
func (l *link) attach(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.server.conn = c
	}
	return !l.closed
}

// dialTimeout bounds the connection to a server on loopback.
const dialTimeout = time.Second

func (l *link) serve() {
	if _, err := l.relay.current(); err != nil {
		return
	}
	c, err := (&net.Dialer{Timeout: dialTimeout}).Dial("tcp", l.relay.target)
	if err != nil {
		return
	}
	if !l.attach(c) {
		c.Close()
		return
	}
	var both sync.WaitGroup
	for _, forward := range []func() error{l.requests, l.responses} {
		both.Go(func() {
			_ = forward() // the end of either connection ends the other
			l.reset()
		})
	}
	both.Wait()
}

// requests forwards the frames of the client.
func (l *link) requests() error {
	r := bufio.NewReader(l.client.conn)
	preface := make([]byte, len(clientPreface))
	if _, err := io.ReadFull(r, preface); err != nil {
		return err
	}
	if _, err := l.server.conn.Write(preface); err != nil {
		return err
	}
	headers := newDecoder()
	for {
		frames, err := readFrames(r)
		if err != nil {
			return err
		}
		fault, err := l.relay.current()
		if err != nil {
			return err
		}
		first := &frames[0]
		switch first.kind {
		case kindSettings:
			*first = first.withoutTable()
		case kindPing:
			if first.flags&flagAck == 0 {
				// Servers end a connection with pings between which they have sent nothing, and
				// clients ping after responses, also after those of the relay.
				first.flags |= flagAck
				if err := l.client.write(*first); err != nil {
					return err
				}
				continue
			}
		case kindHeaders:
			path, err := headers.path(frames)
			if err != nil {
				return err
			}
			l.open(first.stream, path, fault)
		}
		if !l.throttled(first.stream) {
			if err := l.server.write(frames...); err != nil {
				return err
			}
			if first.kind == kindReset {
				l.forget(first.stream)
			}
			continue
		}
		if err := l.swallow(*first); err != nil {
			return err
		}
	}
}

// swallow takes a frame of a throttled request, and responds at its end.
func (l *link) swallow(f frame) error {
	if f.kind == kindData && len(f.payload) > 0 { // the server would have returned the window
		if err := l.client.write(windowUpdate(0, len(f.payload))); err != nil {
			return err
		}
	}
	ends := f.flags&flagEndStream != 0 && (f.kind == kindData || f.kind == kindHeaders)
	if f.kind != kindReset && !ends {
		return nil
	}
	delay := l.delay(f.stream)
	l.forget(f.stream)
	if !ends {
		return nil
	}
	return l.respond(delay, throttledResponse(f.stream)...)
}

// responses forwards the frames of the server.
func (l *link) responses() error {
	r := bufio.NewReader(l.server.conn)
	for {
		frames, err := readFrames(r)
		if err != nil {
			return err
		}
		fault, err := l.relay.current()
		if err != nil {
			return err
		}
		f := &frames[0]
		if f.kind == kindSettings {
			*f = f.withoutTable()
		}
		lost, delay := l.response(*f, fault)
		if !lost {
			if err := l.respond(delay, frames...); err != nil {
				return err
			}
			continue
		}
		if f.kind == kindData && len(f.payload) > 0 { // the client would have returned the window
			if err := l.server.write(windowUpdate(0, len(f.payload))); err != nil {
				return err
			}
		}
	}
}

// open notes a new request.
func (l *link) open(id uint32, path string, f Fault) {
	s := &stream{path: path, throttled: isSend(path) && f.Throttle != nil && f.Throttle()}
	if oneResponse(path) {
		s.delay = f.Delay
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams[id] == nil { // otherwise these are the trailers of a request
		l.streams[id] = s
	}
}

func (l *link) throttled(id uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.streams[id]
	return s != nil && s.throttled
}

func (l *link) delay(id uint32) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.streams[id]; s != nil {
		return s.delay
	}
	return 0
}

func (l *link) forget(id uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.streams, id)
}

// response reports whether a frame of the server is lost, and its delay otherwise.
func (l *link) response(f frame, fault Fault) (lost bool, delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.streams[f.stream]
	if s == nil || f.kind != kindHeaders && f.kind != kindData && f.kind != kindReset {
		return false, 0
	}
	if !s.started {
		s.started = true
		s.lost = oneResponse(s.path) && l.relay.lose() < fault.LoseResponses
	}
	if f.kind == kindReset || f.flags&flagEndStream != 0 {
		delete(l.streams, f.stream)
	}
	return s.lost, s.delay
}

// respond writes frames to the client after the delay. The frames of one stream have the same
// delay, which keeps their order; each header block stands on its own (see withoutTable).
func (l *link) respond(delay time.Duration, frames ...frame) error {
	if delay == 0 {
		return l.client.write(frames...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = append(l.late, lateFrames{time.Now().Add(delay), frames})
	for i := len(l.late) - 1; i > 0 && l.late[i].due.Before(l.late[i-1].due); i-- {
		l.late[i], l.late[i-1] = l.late[i-1], l.late[i]
	}
	l.schedule()
	return nil
}

// schedule sets the timer for the first of l.late. The caller holds l.mu.
func (l *link) schedule() {
	if l.wake != nil {
		l.wake.Stop()
		l.wake = nil
	}
	if len(l.late) > 0 && !l.closed {
		l.wake = time.AfterFunc(time.Until(l.late[0].due), l.flush)
	}
}

// flush writes the late frames whose time has come.
func (l *link) flush() {
	for {
		l.mu.Lock()
		if len(l.late) == 0 || l.closed || time.Until(l.late[0].due) > 0 {
			l.schedule()
			l.mu.Unlock()
			return
		}
		first := l.late[0]
		l.late = l.late[1:]
		l.mu.Unlock()
		if l.client.write(first.frames...) != nil {
			l.reset()
			return
		}
	}
}
