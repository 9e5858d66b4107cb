package rocketmq

import (
	"context"
	"time"

	"google.golang.org/grpc/connectivity"

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
func (e *endpoint) knockOnce(l *link, gap time.Duration) {
	now, last := e.age(time.Now()), e.knocked.Load()
	if (last == 0 || time.Duration(now-last) >= gap) && e.knocked.CompareAndSwap(last, now) {
		l.conn.ResetConnectBackoff()
	}
}

// knock has a connection that could not be made tried again now, and gives it
// a moment. It is for consumers, who wait between two receives as long as they
// were told to, and must not wait for gRPC's backoff on top of that: after some
// minutes it is longer than two. A server that is down is knocked at once a moment
// at most, whoever waits for it.
func (e *endpoint) knock(ctx context.Context) {
	l := e.link.Load()
	if l.conn.GetState() != connectivity.TransientFailure {
		return
	}
	e.knockOnce(l, minReopen)
	ctx, cancel := context.WithTimeout(ctx, minReopen)
	defer cancel()
	// gRPC stays in this state, over attempts that fail too, until one does not.
	l.conn.WaitForStateChange(ctx, connectivity.TransientFailure)
}

// await waits for a connection until ctx ends, and has it tried about once a second
// meanwhile. The error is the cause of ctx; nil with a channel that was closed, since
// the call that follows reports that.
func (c *Client) await(ctx context.Context, e *endpoint) error {
	gap := knockGap(c.opts.ConnectBackoff.Initial)
	for {
		l := e.link.Load()
		state := l.conn.GetState()
		switch state {
		case connectivity.Ready, connectivity.Shutdown:
			return nil
		case connectivity.Idle:
			l.conn.Connect()
		case connectivity.TransientFailure:
			if l.fault.Load() != nil {
				return nil // no connection will come; the call that follows reports why
			}
			e.knockOnce(l, gap)
		case connectivity.Connecting:
		}
		// The state stays TransientFailure over attempts that fail, so the wait ends in
		// time for the next knock.
		wait, cancel := context.WithTimeout(ctx, gap)
		l.conn.WaitForStateChange(wait, state)
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// notConnected makes the error of a call that waited in vain.
func (r request) notConnected(cause error) *tidegate.Error {
	return &tidegate.Error{Op: r.op, Subject: r.subject, Endpoint: r.ep.key, Err: cause,
		Message: "there was no connection to the server"}
}

// sleep waits for d. It returns the cause if ctx ends before, and nil early if the
// client is closed, which the call that follows reports.
func (c *Client) sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ctx.Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
