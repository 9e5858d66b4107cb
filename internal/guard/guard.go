// Package guard calls the functions that a program hands to the SDK, so that a panic in them does
// not end the process. It is the one rule for all of them:
//
//   - a limiter or a backoff that panics counts as a wait of [Pause], never as none;
//   - a function that returns an error, a connection or settings fails with an error;
//   - another function has done nothing;
//   - the panic is logged, with its stack, where there is a Logger.
//
// A function that runs only on the goroutine of the program's own call, such as the handlers of
// package consumer/inbox and the options of package consumer/deadletter, passes its panic on to the
// caller.
package guard

import (
	"context"
	"fmt"
	"net"
	"runtime/debug"
	"time"

	"github.com/tidegate/tidegate/backoff"
)

// Pause is the wait in place of one that could not be determined.
const Pause = time.Second

// A Report logs the panic of a function, which is the name of its option. It does not block.
type Report func(function string, value any, stack []byte)

// Call calls f, and reports false after a panic. report may be nil.
func Call(function string, report Report, f func()) (ok bool) {
	defer func() {
		if ok {
			return
		}
		if v := recover(); v != nil && report != nil {
			report(function, v, debug.Stack())
		}
	}()
	f()
	return true
}

// Error calls f and returns its error, or one with the value of its panic.
func Error(function string, report Report, f func() error) (err error) {
	Call(function, func(_ string, v any, stack []byte) {
		if err = fmt.Errorf("%s panicked: %v", function, v); report != nil {
			report(function, v, stack)
		}
	}, func() { err = f() })
	return err
}

// Wait calls wait, which waits for a limiter. After a panic it waits for [Pause] instead, or
// returns the cause of the end of ctx.
func Wait(ctx context.Context, function string, report Report, wait func() error) (err error) {
	if Call(function, report, func() { err = wait() }) {
		return err
	}
	return backoff.Sleep(ctx, Pause)
}

// Policy returns a policy whose delay is [Pause] where that of p panics. It returns p itself if it
// is nil or one of package backoff, which do not panic.
func Policy(function string, p backoff.Policy, report Report) backoff.Policy {
	switch p.(type) {
	case nil, backoff.Exponential, backoff.Steps:
		return p
	}
	return policy{p, function, report}
}

type policy struct {
	backoff.Policy
	function string
	report   Report
}

// Delay implements backoff.Policy.
func (p policy) Delay(n int) time.Duration {
	d := Pause
	Call(p.function, p.report, func() { d = p.Policy.Delay(n) })
	return d
}

// A Dialer creates a connection.
type Dialer = func(ctx context.Context, addr string) (net.Conn, error)

// Dial returns a function that fails where d panics. It returns nil if d is nil.
func Dial(function string, d Dialer, report Report) Dialer {
	if d == nil {
		return nil
	}
	return func(ctx context.Context, addr string) (conn net.Conn, err error) {
		err = Error(function, report, func() error {
			conn, err = d(ctx, addr)
			return err
		})
		return conn, err
	}
}
