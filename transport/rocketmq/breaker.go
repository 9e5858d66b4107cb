package rocketmq

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// Each server has a circuit breaker that only sends feed. One failure excludes the
// server: sends without a message group go to others. After excludeFor one of them at
// a time probes the server, and its success admits the server again. At most half of
// a topic's servers are excluded at once, those that failed first; a message group
// stays with its server whatever happens.
const (
	excludeFor = 5 * time.Second

	// probeGap is the least time between two lanes to a server to be probed. The
	// breaker has the last word on who probes.
	probeGap = time.Second

	// patience is the least time without a response that counts as a failure when the
	// caller's own deadline ends a send.
	patience = 250 * time.Millisecond
)

// A verdict is what a send shows about its server.
type verdict int

const (
	nothing verdict = iota
	healthy
	failing
)

// verdictOf returns what the result of a send shows about the server:
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
func verdictOf(err *tidegate.Error, cause error, took time.Duration) verdict {
	switch {
	case err == nil:
		return healthy
	case errors.Is(err, transport.ErrLaneChanged), errors.Is(err, tidegate.ErrClosed):
		return nothing
	}
	switch class := transport.Classify(err); {
	case class == transport.Throttled:
		return healthy
	case class != transport.Transient:
		return nothing
	case err.Code != 0 || cause == nil || errors.Is(cause, tidegate.ErrUnavailable):
		return failing
	case errors.Is(cause, context.DeadlineExceeded) && took >= patience:
		return failing
	}
	return nothing
}

var errFailing, errNothing = errors.New("the server failed"), errors.New("the send shows nothing about the server")

// newBreaker returns the breaker of e.
func (c *Client) newBreaker(e *endpoint) *gobreaker.TwoStepCircuitBreaker[struct{}] {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:     excludeFor,
		ReadyToTrip: func(gobreaker.Counts) bool { return true },
		IsExcluded:  func(err error) bool { return errors.Is(err, errNothing) },
		OnStateChange: func(_ string, from, to gobreaker.State) { // under the breaker's lock
			switch {
			case from == gobreaker.StateClosed:
				e.tripped.Store(c.trips.Add(1))
			case to == gobreaker.StateClosed:
				e.tripped.Store(0)
			}
		},
	})
}

// begin asks the server's breaker for a send. The send reports its result to done;
// nil if the breaker does not want it.
func (e *endpoint) begin() (done func(verdict)) {
	report, err := e.breaker.Allow()
	if err != nil {
		return nil
	}
	return func(v verdict) {
		switch v {
		case healthy:
			report(nil)
		case failing:
			report(errFailing)
		case nothing:
			report(errNothing)
		}
	}
}

// mayProbe reports whether a lane may lead to the excluded server, to probe it.
func (e *endpoint) mayProbe(now time.Time) bool {
	if e.breaker.State() != gobreaker.StateHalfOpen {
		return false
	}
	if c := e.breaker.Counts(); c.Requests > c.TotalExclusions {
		return false // another send probes
	}
	at, last := e.age(now), e.probed.Load()
	return (last == 0 || time.Duration(at-last) >= probeGap) && e.probed.CompareAndSwap(last, at)
}

// excluded returns which of the servers sends leave out: those that tripped first,
// at most half. trips has the number of each one's trip, 0 for none.
func excluded(trips []int64) []bool {
	out := make([]bool, len(trips))
	for range len(trips) / 2 {
		first := -1
		for i, n := range trips {
			if n != 0 && !out[i] && (first < 0 || n < trips[first]) {
				first = i
			}
		}
		if first < 0 {
			break
		}
		out[first] = true
	}
	return out
}

// excludes returns the servers of r that sends leave out; nil if there are none.
func (r *route) excludes() (out []*endpoint) {
	if len(r.servers) < 2 || !slices.ContainsFunc(r.servers, func(e *endpoint) bool { return e.tripped.Load() != 0 }) {
		return nil
	}
	trips := make([]int64, len(r.servers))
	for i, e := range r.servers {
		trips[i] = e.tripped.Load()
	}
	for i, is := range excluded(trips) {
		if is {
			out = append(out, r.servers[i])
		}
	}
	return out
}

// choose returns the queue for a message: its group's, or the next in turn on a
// server that is neither excluded nor in avoid, if there is one. It may be one on an
// excluded server that the message is to probe.
func (t *topic) choose(r *route, group string, avoid []string) (q queue, probe bool) {
	if group != "" {
		return r.forGroup(group), false
	}
	out := r.excludes()
	for _, e := range out {
		if !slices.Contains(avoid, e.key) && e.mayProbe(time.Now()) {
			return r.at[e.key], true
		}
	}
	n := t.next.Add(1) - 1
	for _, avoided := range [][]string{avoid, nil} {
		for i := range uint64(len(r.inTurn)) {
			if q := r.inTurn[(n+i)%uint64(len(r.inTurn))]; !slices.Contains(out, q.ep) && !slices.Contains(avoided, q.ep.key) {
				return q, false
			}
		}
	}
	return r.inTurn[n%uint64(len(r.inTurn))], false // cannot happen: half of the servers are not excluded
}
