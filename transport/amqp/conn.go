package amqp

// This file keeps the connection to a server. go-amqp itself never reconnects.

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/go-amqp"
	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/amqp/internal/convert"
)

// redial is the time between two attempts to connect.
const redial = time.Second

// connOptions configure a [supervisor].
type connOptions struct {
	Dial        func(ctx context.Context) (net.Conn, error) // with TLS, if any
	DialTimeout time.Duration
	AMQP        amqp.ConnOptions
}

// A connection is an open connection.
type connection struct {
	*amqp.Conn
	life    context.Context //nolint:containedctx // of the supervisor
	traffic *traffic

	mu       sync.Mutex
	sessions map[any]*session
	values   map[any]any
}

// A supervisor has at most one connection. It connects when a call needs a connection and there is
// none, at most once a second. Several goroutines may call its methods.
type supervisor struct {
	options connOptions
	life    context.Context //nolint:containedctx // of the goroutines that connect; Close ends it
	end     context.CancelCauseFunc

	worked atomic.Bool // the server has accepted a connection and the credentials

	mu     sync.Mutex
	live   *connection
	dial   *attempt // the attempt under way or the last one
	closed bool
}

// An attempt is one attempt to connect.
type attempt struct {
	done chan struct{} // closed at the end of the attempt
	at   time.Time     // begin
	live *connection
	err  *tidegate.Error
}

// newSupervisor returns a supervisor. It does not connect.
func newSupervisor(o connOptions) *supervisor {
	s := &supervisor{options: o}
	s.life, s.end = context.WithCancelCause(context.Background()) // ended by Close
	return s
}

// Current returns the connection, nil if there is none. It neither connects nor waits.
func (s *supervisor) Current() *connection {
	s.mu.Lock()
	l := s.live
	s.mu.Unlock()
	if l == nil || l.Ended() {
		return nil
	}
	return l
}

// Get returns the connection, and connects if there is none. After a failed attempt it fails with
// the same error until a second has passed. If await is set it repeats the attempts until ctx ends.
// The error is a *tidegate.Error, with NotConnected if another attempt can succeed.
func (s *supervisor) Get(ctx context.Context, await bool) (*connection, *tidegate.Error) {
	l, err := s.get(ctx, await)
	if err != nil {
		own := *err // callers share the error of an attempt
		err = &own
	}
	return l, err
}

func (s *supervisor) get(ctx context.Context, await bool) (*connection, *tidegate.Error) {
	var last *tidegate.Error
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return nil, &tidegate.Error{Err: tidegate.ErrClosed}
		}
		if l := s.live; l != nil {
			if !l.Ended() {
				s.mu.Unlock()
				return l, nil
			}
			s.live = nil
		}
		a := s.dial
		wait := time.Duration(0)
		if a != nil && a.over() {
			wait = redial - time.Since(a.at)
			if last = a.err; last == nil { // the connection was lost at once
				last = convert.OfDial(a.live.Lost())
			}
		}
		if a == nil || a.over() && wait <= 0 {
			wait = 0
			a = &attempt{done: make(chan struct{}), at: time.Now()}
			s.dial = a
			go s.connect(a)
		}
		s.mu.Unlock()
		if wait > 0 && (!await || !convert.Awaitable(last)) {
			return nil, last
		}
		if err := s.wait(ctx, a, wait, last); err != nil {
			return nil, err
		}
		if a.over() && a.err != nil {
			last = a.err
			if !await || !convert.Awaitable(last) {
				return nil, last
			}
		}
	}
}

func (a *attempt) over() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// wait waits for the end of an attempt, or if pause is positive for its end.
func (s *supervisor) wait(ctx context.Context, a *attempt, pause time.Duration, last *tidegate.Error) *tidegate.Error {
	done := a.done
	var timer <-chan time.Time
	if pause > 0 {
		t := time.NewTimer(pause)
		defer t.Stop()
		done, timer = nil, t.C
	}
	select {
	case <-done:
		return nil
	case <-timer:
		return nil
	case <-s.life.Done():
		return &tidegate.Error{Err: tidegate.ErrClosed}
	case <-ctx.Done():
		e := &tidegate.Error{Err: context.Cause(ctx), NotConnected: true, Message: "there was no connection to the server"}
		if last != nil {
			e.Err = errors.Join(e.Err, last)
		}
		return e
	}
}

// connect makes one attempt.
func (s *supervisor) connect(a *attempt) {
	defer close(a.done)
	ctx, cancel := context.WithTimeout(s.life, s.options.DialTimeout)
	defer cancel()
	raw, err := s.options.Dial(ctx)
	if err != nil {
		a.err = s.ofDial(err)
		return
	}
	written := newTraffic(raw)
	o := s.options.AMQP
	c, err := amqp.NewConn(ctx, written, &o)
	if err != nil {
		_ = written.Close()
		a.err = s.ofDial(err)
		return
	}
	s.worked.Store(true)
	a.live = &connection{Conn: c, life: s.life, traffic: written, sessions: map[any]*session{}, values: map[any]any{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		go func() { _ = c.Close() }()
		a.live, a.err = nil, &tidegate.Error{Err: tidegate.ErrClosed}
		return
	}
	s.live = a.live
}

// ofDial returns the error of a failed attempt.
func (s *supervisor) ofDial(err error) *tidegate.Error {
	e := convert.OfDial(err)
	if s.worked.Load() {
		e = convert.OfOutage(e)
	}
	return e
}

// Close closes the connection. Calls under way and later ones fail with tidegate.ErrClosed.
func (s *supervisor) Close() {
	s.mu.Lock()
	l := s.live
	s.live, s.closed = nil, true
	s.mu.Unlock()
	s.end(tidegate.ErrClosed)
	if l != nil {
		_ = l.Close() // the error is for diagnosis only
	}
}

// Closed reports whether Close was called.
func (s *supervisor) Closed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Ended reports whether the connection has ended. The first error of a read or write ends it:
// go-amqp closes Done later, after a write under way, which can take 30 s.
func (l *connection) Ended() bool {
	select {
	case <-l.Done():
		return true
	default:
		return l.traffic.fault.Load() != nil
	}
}

// Lost returns the error that ended the connection; nil if there was none.
func (l *connection) Lost() error {
	if err := l.Err(); err != nil {
		return err
	}
	if err := l.traffic.fault.Load(); err != nil {
		return *err
	}
	return nil
}

// attachTimeout bounds the opening of sessions and links. They do not use the ctx of a caller: an
// ended ctx can leave a half-open link in the session.
const attachTimeout = 10 * time.Second

// closeTimeout bounds the closing. The connection of a server that does not respond ends anyway.
const closeTimeout = 2 * time.Second

// Attaching returns a context for the opening of a link. It ends with the supervisor.
func (l *connection) Attaching() (context.Context, context.CancelFunc) {
	return context.WithTimeout(l.life, attachTimeout)
}

// Closing returns a context for the closing of a link. It ends with the supervisor.
func (l *connection) Closing() (context.Context, context.CancelFunc) {
	return context.WithTimeout(l.life, closeTimeout)
}

// A session is an AMQP session that is opened once.
type session struct {
	opened chan struct{} // closed after the attempt to open it; the fields below are valid then
	s      *amqp.Session
	err    error
}

// Session returns the session for a key, which it opens if there is none. It blocks until the
// session is open or ctx ends. The opening goes on after the end of ctx, for at most 10 s.
func (l *connection) Session(ctx context.Context, key any) (*amqp.Session, error) {
	l.mu.Lock()
	s := l.sessions[key]
	if s == nil {
		s = &session{opened: make(chan struct{})}
		l.sessions[key] = s
		go l.openSession(key, s)
	}
	l.mu.Unlock()
	select {
	case <-s.opened:
		return s.s, s.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// openSession opens a session. One that fails is forgotten.
func (l *connection) openSession(key any, s *session) {
	ctx, cancel := l.Attaching()
	defer cancel()
	s.s, s.err = l.NewSession(ctx, nil)
	if s.err != nil {
		l.mu.Lock()
		if l.sessions[key] == s {
			delete(l.sessions, key)
		}
		l.mu.Unlock()
	}
	close(s.opened)
}

// Forget removes a session that has ended. The next call of Session opens a new one.
func (l *connection) Forget(key any, ended *amqp.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sessions[key]
	if s == nil {
		return
	}
	select {
	case <-s.opened:
		if s.s == ended {
			delete(l.sessions, key)
		}
	default: // a later one, which is being opened
	}
}

// Value returns the value of the connection for a key. The first call creates it.
func (l *connection) Value(key any, create func() any) any {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.values[key]
	if !ok {
		v = create()
		l.values[key] = v
	}
	return v
}

// Remove removes a value, if it is still v.
func (l *connection) Remove(key, v any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.values[key] == v {
		delete(l.values, key)
	}
}

// Traffic returns the number of bytes written so far, and whether a write is under way.
func (l *connection) Traffic() (written int64, writing bool) {
	return l.traffic.state()
}

// Flush waits until all frames so far are written to the connection. An error means that some of
// them may not be; the connection has ended.
func (l *connection) Flush() error { return l.traffic.flush() }
