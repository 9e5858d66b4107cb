// Package conn keeps the connection to a server. go-amqp itself never reconnects.
package conn

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/go-amqp"
	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport/amqp/internal/fault"
)

// redial is the time between two attempts to connect.
const redial = time.Second

// Options configure a [Supervisor].
type Options struct {
	Dial        func(ctx context.Context) (net.Conn, error) // with TLS, if any
	DialTimeout time.Duration
	AMQP        amqp.ConnOptions
}

// A Live is an open connection.
type Live struct {
	*amqp.Conn
	life    context.Context //nolint:containedctx // of the supervisor
	traffic *traffic

	mu       sync.Mutex
	sessions map[any]*session
	values   map[any]any
}

// A Supervisor has at most one connection. It connects when a call needs a connection and there is
// none, at most once a second. Several goroutines may call its methods.
type Supervisor struct {
	options Options
	life    context.Context //nolint:containedctx // of the goroutines that connect; Close ends it
	end     context.CancelCauseFunc

	worked atomic.Bool // the server has accepted a connection and the credentials

	mu     sync.Mutex
	live   *Live
	dial   *attempt // the attempt under way or the last one
	closed bool
}

// An attempt is one attempt to connect.
type attempt struct {
	done chan struct{} // closed at the end of the attempt
	at   time.Time     // begin
	live *Live
	err  *tidegate.Error
}

// New returns a supervisor. It does not connect.
func New(o Options) *Supervisor {
	s := &Supervisor{options: o}
	s.life, s.end = context.WithCancelCause(context.Background()) // ended by Close
	return s
}

// Current returns the connection, nil if there is none. It neither connects nor waits.
func (s *Supervisor) Current() *Live {
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
func (s *Supervisor) Get(ctx context.Context, await bool) (*Live, *tidegate.Error) {
	l, err := s.get(ctx, await)
	if err != nil {
		own := *err // callers share the error of an attempt
		err = &own
	}
	return l, err
}

func (s *Supervisor) get(ctx context.Context, await bool) (*Live, *tidegate.Error) {
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
				last = fault.OfDial(a.live.Lost())
			}
		}
		if a == nil || a.over() && wait <= 0 {
			wait = 0
			a = &attempt{done: make(chan struct{}), at: time.Now()}
			s.dial = a
			go s.connect(a)
		}
		s.mu.Unlock()
		if wait > 0 && (!await || !fault.Awaitable(last)) {
			return nil, last
		}
		if err := s.wait(ctx, a, wait, last); err != nil {
			return nil, err
		}
		if a.over() && a.err != nil {
			last = a.err
			if !await || !fault.Awaitable(last) {
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
func (s *Supervisor) wait(ctx context.Context, a *attempt, pause time.Duration, last *tidegate.Error) *tidegate.Error {
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
func (s *Supervisor) connect(a *attempt) {
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
	a.live = &Live{Conn: c, life: s.life, traffic: written, sessions: map[any]*session{}, values: map[any]any{}}
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
func (s *Supervisor) ofDial(err error) *tidegate.Error {
	e := fault.OfDial(err)
	if s.worked.Load() {
		e = fault.OfOutage(e)
	}
	return e
}

// Close closes the connection. Calls under way and later ones fail with tidegate.ErrClosed.
func (s *Supervisor) Close() {
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
func (s *Supervisor) Closed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Ended reports whether the connection has ended. The first error of a read or write ends it:
// go-amqp closes Done later, after a write under way, which can take 30 s.
func (l *Live) Ended() bool {
	select {
	case <-l.Done():
		return true
	default:
		return l.traffic.fault.Load() != nil
	}
}

// Lost returns the error that ended the connection; nil if there was none.
func (l *Live) Lost() error {
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
func (l *Live) Attaching() (context.Context, context.CancelFunc) {
	return context.WithTimeout(l.life, attachTimeout)
}

// Closing returns a context for the closing of a link. It ends with the supervisor.
func (l *Live) Closing() (context.Context, context.CancelFunc) {
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
func (l *Live) Session(ctx context.Context, key any) (*amqp.Session, error) {
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
func (l *Live) openSession(key any, s *session) {
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
func (l *Live) Forget(key any, ended *amqp.Session) {
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
func (l *Live) Value(key any, create func() any) any {
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
func (l *Live) Remove(key, v any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.values[key] == v {
		delete(l.values, key)
	}
}

// Traffic returns the number of bytes written so far, and whether a write is under way.
func (l *Live) Traffic() (written int64, writing bool) {
	return l.traffic.state()
}

// Flush waits until all frames so far are written to the connection. An error means that some of
// them may not be; the connection has ended.
func (l *Live) Flush() error { return l.traffic.flush() }
