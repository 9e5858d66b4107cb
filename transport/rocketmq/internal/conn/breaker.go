package conn

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// Each server has a circuit breaker that only sends feed. One failure excludes the
// server: sends without a message group go to others. After ExcludeFor one of them at
// a time probes the server, and its success admits the server again. At most half of
// a topic's servers are excluded at once, those that failed first; a message group
// always stays with its server.
const (
	ExcludeFor = 5 * time.Second

	// ProbeGap is the least time between two lanes to a server to be probed. The
	// breaker decides which of them probes.
	ProbeGap = time.Second
)

var errFailing, errNothing = errors.New("the server failed"), errors.New("the send does not show the state of the server")

// newBreaker returns the breaker of e. trips counts the trips of all breakers.
func newBreaker(e *Server, trips *atomic.Int64) *gobreaker.TwoStepCircuitBreaker[struct{}] {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:     ExcludeFor,
		ReadyToTrip: func(gobreaker.Counts) bool { return true },
		IsExcluded:  func(err error) bool { return errors.Is(err, errNothing) },
		OnStateChange: func(_ string, from, to gobreaker.State) { // under the breaker's lock
			switch {
			case from == gobreaker.StateClosed:
				e.Tripped.Store(trips.Add(1))
			case to == gobreaker.StateClosed:
				e.Tripped.Store(0)
			}
		},
	})
}

// Begin asks the server's breaker for a send. The send reports its result to done;
// nil if the breaker does not want it.
func (e *Server) Begin() (done func(Verdict)) {
	report, err := e.breaker.Allow()
	if err != nil {
		return nil
	}
	return func(v Verdict) {
		switch v {
		case Healthy:
			report(nil)
		case failing:
			report(errFailing)
		case Nothing:
			report(errNothing)
		}
	}
}

// MayProbe reports whether a lane may lead to the excluded server, to probe it.
func (e *Server) MayProbe(now time.Time) bool {
	if e.breaker.State() != gobreaker.StateHalfOpen {
		return false
	}
	if c := e.breaker.Counts(); c.Requests > c.TotalExclusions {
		return false // another send probes
	}
	at, last := e.age(now), e.probed.Load()
	return (last == 0 || time.Duration(at-last) >= ProbeGap) && e.probed.CompareAndSwap(last, at)
}

// patience is the least time without a response that counts as a failure when the
// caller's own deadline ends a send.
const patience = 250 * time.Millisecond

// A Verdict is the information of a send about its server.
type Verdict int

const (
	Nothing Verdict = iota
	Healthy
	failing
)

// VerdictOf returns the state of the server that the result of a send shows:
//
//	accepted, throttled                      healthy: the server does its work
//	transient: no response, 5xxxx            failing
//	permanent: the message or the set-up     nothing
//	not sent, or the client was closed       nothing
//	cancelled by the caller                  nothing, since it was not waited for
//	the caller's deadline                    failing after patience, else nothing
//
// A caller that gives up on the server, as a producer does after an attempt's share
// of the time, has a cause that matches ErrUnavailable: failing. cause is that of the
// caller's ctx, nil if it has not ended, and took the time of the request.
func VerdictOf(err *tidegate.Error, cause error, took time.Duration) Verdict {
	switch {
	case err == nil:
		return Healthy
	case errors.Is(err, transport.ErrLaneChanged), errors.Is(err, tidegate.ErrClosed):
		return Nothing
	}
	switch class := tidegate.Classify(err); {
	case class == tidegate.ClassThrottled:
		return Healthy
	case class != tidegate.ClassTransient:
		return Nothing
	case err.Code != 0 || cause == nil || errors.Is(cause, tidegate.ErrUnavailable):
		return failing
	case errors.Is(cause, context.DeadlineExceeded) && took >= patience:
		return failing
	}
	return Nothing
}
