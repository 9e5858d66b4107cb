package remote

import (
	"cmp"
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
)

// knockGap is the least time between two knocks for calls that wait for a
// connection. gRPC tries again by itself one initial backoff after a knock. With an
// initial backoff of 1 s both together try once a second.
func knockGap(initial time.Duration) time.Duration {
	if initial > time.Second {
		return time.Second
	}
	return 2 * time.Second
}

// knockOnce has gRPC connect now instead of at the end of its backoff, unless another
// caller did that within gap.
func (e *Server) knockOnce(l *Link, gap time.Duration) {
	now, last := e.age(time.Now()), e.knocked.Load()
	if (last == 0 || time.Duration(now-last) >= gap) && e.knocked.CompareAndSwap(last, now) {
		l.ResetConnectBackoff()
	}
}

// Knock starts a new attempt for a failed connection, and waits a moment for it. It is for
// consumers, which wait between two receives for the requested time and must not also wait for
// gRPC's backoff: after some minutes of failures it is longer than two minutes. A server that is
// down gets at most one such attempt at a time.
func (e *Server) Knock(ctx context.Context) {
	l := e.Link.Load()
	if l.State() != connectivity.TransientFailure {
		return
	}
	e.knockOnce(l, connectWait)
	ctx, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	// gRPC stays in this state, over attempts that fail too, until one does not.
	l.channel().conn.WaitForStateChange(ctx, connectivity.TransientFailure)
}

// Lack completes the error e of a call that was written to no connection: it sets NotConnected if
// the call had none, and describes the outage. err is gRPC's error.
func (l *Link) Lack(e *tidegate.Error, err error) {
	if e.NotConnected = l.lacked(e, err); e.NotConnected {
		e.Message = cmp.Or(l.Outage(), e.Message)
	}
}

// lacked is false after Close, and for a fault of the set-up or of the host name at addresses that
// have never worked.
func (l *Link) lacked(e *tidegate.Error, err error) bool {
	switch status.Code(err) {
	case codes.Unavailable:
	case codes.Canceled, codes.DeadlineExceeded: // the call may have waited for a free stream
		if l.ready() {
			return false
		}
	default:
		return false
	}
	return e.Code == 0 && !errors.Is(e, tidegate.ErrClosed) && !l.misconfigured()
}

// Missing reports whether there is no connection, for a reason other than a fault of the set-up or
// of the host name at addresses that have never worked.
func (l *Link) Missing() bool { return !l.ready() && !l.misconfigured() }

func (l *Link) ready() bool { return l.State() == connectivity.Ready }

// misconfigured reports a fault of the set-up or of the host name that waiting does not cure. At
// addresses that have worked such a fault is an outage: a certificate has expired or is being
// replaced, a name server has lost the name, or a gateway responds instead of the server.
func (l *Link) misconfigured() bool {
	return !l.worked.Load() && (l.Fault.Load() != nil || l.unnamed.Load())
}

// Misconfigured returns the fault of the set-up of the latest attempt to connect, nil if there is
// none or if the addresses have worked before.
func (l *Link) Misconfigured() *SetupFault {
	if l.worked.Load() {
		return nil
	}
	return l.Fault.Load()
}

// Outage describes the fault of the set-up of the latest attempt to connect to addresses that have
// worked before; empty if there is none.
func (l *Link) Outage() string {
	f := l.Fault.Load()
	if f == nil || !l.worked.Load() {
		return ""
	}
	return f.Text + " (the address has worked before, so this counts as an outage)"
}

// Await waits for a connection until ctx ends, and has it tried about once a second
// meanwhile. The error is the cause of ctx; nil with a channel that was closed, since
// the call that follows reports that.
func (e *Server) Await(ctx context.Context) error {
	for {
		l := e.Link.Load()
		state := l.State()
		switch state {
		case connectivity.Ready, connectivity.Shutdown:
			return nil
		case connectivity.Idle:
			l.channel().conn.Connect()
		case connectivity.TransientFailure:
			if l.Misconfigured() != nil {
				return nil // no connection will come; the call that follows reports why
			}
			e.knockOnce(l, e.gap)
		case connectivity.Connecting:
		}
		// The state stays TransientFailure over attempts that fail, so the wait ends in
		// time for the next knock.
		wait, cancel := context.WithTimeout(ctx, e.gap)
		l.channel().conn.WaitForStateChange(wait, state)
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}
