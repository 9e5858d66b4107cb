package producer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer/internal/plan"
)

var ladder = backoff.Steps{1 * time.Second, 2 * time.Second, 4 * time.Second}

func codeError(c tidegate.Code) *tidegate.Error {
	return &tidegate.Error{Op: "SendMessage", Subject: "orders", Endpoint: "a:1", Code: c, Message: "said the server"}
}

func throttled(after time.Duration) error {
	e := codeError(tidegate.CodeTooManyRequests)
	e.RetryAfter = after
	return e
}

func pushedBack(c tidegate.Code, after time.Duration) error {
	e := codeError(c)
	e.RetryAfter = after
	return e
}

// A situation is a send after an attempt; the test draws the policy's delay from its limits.
type situation struct {
	limits                                  limits
	attempts, throttles, waited             int
	routeGood, ended, closed, half          bool
	throttledFor, elapsed, remaining, floor time.Duration
}

func (s situation) inputs(err error) Inputs {
	in := Inputs{
		Attempts: s.attempts, Throttles: s.throttles, Waited: s.waited, MaxAttempts: s.limits.maxAttempts,
		MaxThrottles: s.limits.maxThrottles, MaxThrottleTime: s.limits.maxThrottleTime, ThrottledFor: s.throttledFor,
		HalfMessage: s.half, RouteGood: s.routeGood, ContextEnded: s.ended, Closed: s.closed, AtOnce: s.limits.atOnce,
		Elapsed: s.elapsed, HasDeadline: s.remaining != 0, Remaining: s.remaining, Floor: s.floor,
	}
	in.ofError(err)
	in.draw(&s.limits, new(draws))
	return in
}

func TestDecide(t *testing.T) {
	const ms = time.Millisecond
	plain := limits{maxAttempts: 4, backoff: ladder, bounds: &bounds{pacing: defaultPacing, atOnce: retriesAtOnce}}
	separate := limits{maxAttempts: 2, backoff: ladder, bounds: &bounds{maxThrottles: 5, pacing: defaultPacing, atOnce: retriesAtOnce}}
	forever := limits{maxAttempts: 2, backoff: ladder, bounds: &bounds{maxThrottles: UntilContextEnds, pacing: defaultPacing, atOnce: retriesAtOnce}}
	timed := limits{maxAttempts: 2, backoff: ladder, bounds: &bounds{maxThrottleTime: 10 * time.Second, pacing: defaultPacing, atOnce: retriesAtOnce}}
	paced := limits{maxAttempts: 5, backoff: ladder, bounds: &bounds{pacing: backoff.Steps{70 * ms, 90 * ms}, atOnce: 1}}
	many := limits{maxAttempts: 16, backoff: ladder, bounds: &bounds{pacing: backoff.Steps{100 * ms}, atOnce: retriesAtOnce}}
	broken := errors.New("connection reset by peer")
	throttledClass, transient := Decision{Class: tidegate.ClassThrottled}, Decision{Class: tidegate.ClassTransient}
	wait := func(d Decision, delay time.Duration, from DelaySource) Decision {
		d.Delay, d.DelaySource = delay, from
		return d
	}
	stop := func(class tidegate.Class, r StopReason) Decision { return Decision{Class: class, Stop: r} }
	tests := []struct {
		name string
		s    situation
		err  error
		want Decision
	}{
		{"success", situation{limits: plain, attempts: 1}, nil, Decision{}},
		{"success although ctx ended", situation{limits: plain, attempts: 1, ended: true}, nil, Decision{}},

		{"throttled first", situation{limits: plain, attempts: 1, throttles: 1}, throttled(0), wait(throttledClass, time.Second, BackoffDelay)},
		{"throttled second", situation{limits: plain, attempts: 2, throttles: 2}, throttled(0), wait(throttledClass, 2*time.Second, BackoffDelay)},
		{"n counts throttles, not attempts", situation{limits: plain, attempts: 3, throttles: 1}, throttled(0), wait(throttledClass, time.Second, BackoffDelay)},
		{"push-back longer", situation{limits: plain, attempts: 1, throttles: 1}, throttled(1500 * ms), wait(throttledClass, 1500*ms, PushBackDelay)},
		{"push-back shorter", situation{limits: plain, attempts: 1, throttles: 1}, throttled(ms), wait(throttledClass, time.Second, BackoffDelay)},
		{"push-back says no", situation{limits: plain, attempts: 1, throttles: 1}, throttled(-1), stop(tidegate.ClassThrottled, StopPushedBack)},
		{"the decision took longer than the delay", situation{limits: plain, attempts: 1, throttles: 1, elapsed: 1100 * ms}, throttled(0),
			wait(throttledClass, 1100*ms, BackoffDelay)},
		{"throttled counts in MaxAttempts", situation{limits: plain, attempts: 4, throttles: 4}, throttled(0), stop(tidegate.ClassThrottled, StopExhausted)},
		{"so do pauses that were waited for", situation{limits: plain, attempts: 1, throttles: 4, waited: 3}, throttled(0), stop(tidegate.ClassThrottled, StopExhausted)},
		{"separate limit, not reached", situation{limits: separate, attempts: 6, throttles: 5}, throttled(0), wait(throttledClass, 4*time.Second, BackoffDelay)},
		{"separate limit, reached", situation{limits: separate, attempts: 6, throttles: 6}, throttled(0), stop(tidegate.ClassThrottled, StopThrottled)},
		{"separate limit, reached by waiting", situation{limits: separate, throttles: 6, waited: 6}, throttled(0), stop(tidegate.ClassThrottled, StopThrottled)},
		{"separate limit leaves the other alone", situation{limits: separate, attempts: 5, throttles: 4}, broken, transient},
		{"separate limit, others used up", situation{limits: separate, attempts: 6, throttles: 4}, broken, stop(tidegate.ClassTransient, StopExhausted)},
		{"throttled after the others were used up", situation{limits: separate, attempts: 4, throttles: 2}, throttled(0), stop(tidegate.ClassThrottled, StopExhausted)},
		{"until the context ends", situation{limits: forever, attempts: 1_000_000, throttles: 1_000_000}, throttled(0), wait(throttledClass, 4*time.Second, BackoffDelay)},
		{"until the context ends, others used up", situation{limits: forever, attempts: 12, throttles: 10}, broken, stop(tidegate.ClassTransient, StopExhausted)},
		{"throttle time left", situation{limits: timed, attempts: 9, throttles: 9, throttledFor: 6 * time.Second}, throttled(0), wait(throttledClass, 4*time.Second, BackoffDelay)},
		{"throttle time too short for the wait", situation{limits: timed, attempts: 9, throttles: 9, throttledFor: 6*time.Second + 1}, throttled(0), stop(tidegate.ClassThrottled, StopThrottled)},
		{"zero delay has no source", situation{limits: limits{maxAttempts: 3, backoff: backoff.Steps{0}, bounds: &bounds{}}, attempts: 1, throttles: 1}, throttled(0), throttledClass},

		{"transient", situation{limits: plain, attempts: 1}, broken, transient},
		{"transient again", situation{limits: plain, attempts: 3}, broken, transient},
		{"transient at the end", situation{limits: plain, attempts: 4}, broken, stop(tidegate.ClassTransient, StopExhausted)},
		{"attempt timed out", situation{limits: plain, attempts: 1}, fmt.Errorf("send: %w", errAttemptTimeout), transient},
		{"deadline below, not ours", situation{limits: plain, attempts: 1}, context.DeadlineExceeded, transient},
		{"cancelled below, not ours", situation{limits: plain, attempts: 1}, context.Canceled, transient},
		{"pacing spares the first", situation{limits: paced, attempts: 1}, broken, transient},
		{"pacing second", situation{limits: paced, attempts: 2}, broken, wait(transient, 70*ms, PacingDelay)},
		{"pacing third", situation{limits: paced, attempts: 3}, broken, wait(transient, 90*ms, PacingDelay)},
		{"pacing counts transients only", situation{limits: paced, attempts: 3, throttles: 2}, broken, transient},
		{"default pacing spares three", situation{limits: many, attempts: 3}, broken, transient},
		{"default pacing from the fourth on", situation{limits: many, attempts: 4}, broken, wait(transient, 100*ms, PacingDelay)},
		{"transient with push-back", situation{limits: plain, attempts: 1}, pushedBack(tidegate.CodeInternalServerError, time.Second), wait(transient, time.Second, PushBackDelay)},
		{"transient, server says no", situation{limits: plain, attempts: 1}, pushedBack(tidegate.CodeInternalServerError, -1), stop(tidegate.ClassTransient, StopPushedBack)},

		{"topic not found", situation{limits: plain, attempts: 1}, codeError(tidegate.CodeTopicNotFound), stop(tidegate.ClassPermanent, StopPermanent)},
		{"topic not found, was good", situation{limits: plain, attempts: 1, routeGood: true}, codeError(tidegate.CodeTopicNotFound), transient},
		{"wrong type before the wire, was good", situation{limits: plain, attempts: 1, routeGood: true}, &tidegate.Error{Code: tidegate.CodeMessagePropertyConflict}, stop(tidegate.ClassPermanent, StopPermanent)},
		{"property conflict, was good", situation{limits: plain, attempts: 1, routeGood: true}, codeError(tidegate.CodeMessagePropertyConflict), transient},
		{"group not found, was good", situation{limits: plain, attempts: 1, routeGood: true}, codeError(tidegate.CodeConsumerGroupNotFound), stop(tidegate.ClassPermanent, StopPermanent)},
		{"permanent beats push-back", situation{limits: plain, attempts: 1}, pushedBack(tidegate.CodeMessageBodyTooLarge, time.Second), stop(tidegate.ClassPermanent, StopPermanent)},

		{"ctx ended", situation{limits: plain, attempts: 1, ended: true}, context.Canceled, stop(tidegate.ClassCancelled, StopContext)},
		{"ctx ended, whatever the response", situation{limits: plain, attempts: 1, throttles: 1, ended: true}, throttled(0), stop(tidegate.ClassCancelled, StopContext)},
		{"producer closed", situation{limits: plain, attempts: 1, closed: true}, tidegate.ErrClosed, stop(tidegate.ClassCancelled, StopClosed)},
		{"transport closed", situation{limits: plain, attempts: 1}, fmt.Errorf("rocketmq: %w", tidegate.ErrClosed), stop(tidegate.ClassCancelled, StopClosed)},

		{"time for one more attempt", situation{limits: plain, attempts: 1, remaining: 100 * ms, floor: 100 * ms}, broken, transient},
		{"no time for one more attempt", situation{limits: plain, attempts: 1, remaining: 99 * ms, floor: 100 * ms}, broken,
			Decision{Class: tidegate.ClassTransient, Stop: StopDeadline, Needed: 100 * ms}},
		{"time for the wait and the attempt", situation{limits: plain, attempts: 1, throttles: 1, remaining: 1100 * ms, floor: 100 * ms}, throttled(0), wait(throttledClass, time.Second, BackoffDelay)},
		{"half message, transient", situation{limits: plain, attempts: 1, half: true}, broken, stop(tidegate.ClassTransient, StopHalfMessage)},
		{"half message, throttled", situation{limits: plain, attempts: 1, throttles: 1, half: true}, throttled(time.Second), stop(tidegate.ClassThrottled, StopHalfMessage)},
		{"half message, permanent", situation{limits: plain, attempts: 1, half: true}, codeError(tidegate.CodeForbidden), stop(tidegate.ClassPermanent, StopPermanent)},
		{"half message, accepted", situation{limits: plain, attempts: 1, half: true}, nil, Decision{}},
		{"no time for the wait", situation{limits: plain, attempts: 1, throttles: 1, remaining: 1099 * ms, floor: 100 * ms}, throttled(0),
			Decision{Class: tidegate.ClassThrottled, Stop: StopDeadline, Needed: 1100 * ms}},
		{"an endless push-back", situation{limits: plain, attempts: 1, throttles: 1, remaining: time.Hour, floor: 100 * ms}, throttled(math.MaxInt64),
			Decision{Class: tidegate.ClassThrottled, Stop: StopDeadline, Needed: math.MaxInt64}},
		{"exhausted before late", situation{limits: plain, attempts: 4, remaining: ms, floor: 100 * ms}, broken, stop(tidegate.ClassTransient, StopExhausted)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := tt.s.inputs(tt.err)
			if got := Decide(in); got != tt.want {
				t.Errorf("Decide(%+v)\n got %+v\nwant %+v", in, got, tt.want)
			}
		})
	}
}

// Every class of code has the number of attempts that its rule gives it (RocketMQ: sending retry
// and throttling).
func TestDecideEveryCode(t *testing.T) {
	permanent := map[tidegate.Code]bool{}
	for c := range tidegate.Code(70000) {
		if (c >= 40000 && c < 50000 && c != tidegate.CodeRequestTimeout && c != tidegate.CodeTooManyRequests) ||
			c == tidegate.CodeNotImplemented || c == protocol.CodeUnsupported || c == protocol.CodeVersionUnsupported ||
			c == protocol.CodeVerifyFIFOMessageUnsupported {
			permanent[c] = true
		}
	}
	for c := range tidegate.Code(70000) {
		if c == tidegate.CodeOK {
			continue
		}
		s := situation{limits: limits{maxAttempts: 3, backoff: ladder, bounds: &bounds{pacing: ladder, atOnce: retriesAtOnce}}, attempts: 1}
		if c == tidegate.CodeTooManyRequests {
			s.throttles = 1
		}
		d := Decide(s.inputs(codeError(c)))
		switch {
		case permanent[c] && d.Stop != StopPermanent:
			t.Errorf("%d: %+v, want it to be permanent", c, d)
		case c == tidegate.CodeTooManyRequests && (d.Stop != NotStopped || d.Delay != time.Second):
			t.Errorf("%d: %+v, want a retry after 1s", c, d)
		case !permanent[c] && c != tidegate.CodeTooManyRequests && d != Decision{Class: tidegate.ClassTransient}:
			t.Errorf("%d: %+v, want a retry at once", c, d)
		}
	}
}

// RocketMQ: sending retry and throttling: "the client does not know the processing result of the
// presumably failed message on the broker"
func TestMaybeStored(t *testing.T) {
	marked := codeError(tidegate.CodeInternalServerError)
	marked.MaybeStored = true
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("an error that says nothing"), true},
		{errAttemptTimeout, true},
		{codeError(0), false},
		{marked, true},
		{fmt.Errorf("wrapped: %w", marked), true},
		{throttled(0), false},
		{codeError(tidegate.CodeRequestTimeout), true},
		{codeError(protocol.CodeProxyTimeout), true},
		{codeError(protocol.CodeMasterPersistenceTimeout), true},
		{codeError(protocol.CodeSlavePersistenceTimeout), true},
		{codeError(tidegate.CodeInternalServerError), false},
		{codeError(tidegate.CodeTopicNotFound), false},
	} {
		if got := maybeStored(tt.err); got != tt.want {
			t.Errorf("maybeStored(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}

func TestAttemptShare(t *testing.T) {
	const floor = 100 * time.Millisecond
	for _, tt := range []struct {
		name               string
		attemptsLeft       int
		limit, floor, left time.Duration
		deadline           bool
		want               time.Duration
	}{
		{"no deadline", 3, 3 * time.Second, floor, 0, false, 3 * time.Second},
		{"a third", 3, 3 * time.Second, floor, 3 * time.Second, true, time.Second},
		{"a half of the rest", 2, 3 * time.Second, floor, 2 * time.Second, true, time.Second},
		{"nearly all of the rest", 1, 3 * time.Second, floor, 2 * time.Second, true, 1950 * time.Millisecond},
		{"a twentieth less", 1, 3 * time.Second, floor, 400 * time.Millisecond, true, 380 * time.Millisecond},
		{"never above the limit", 3, 3 * time.Second, floor, time.Hour, true, 3 * time.Second},
		{"floor", 3, 3 * time.Second, floor, 150 * time.Millisecond, true, 100 * time.Millisecond},
		{"a limit below the floor", 3, 10 * time.Millisecond, floor, time.Second, true, 10 * time.Millisecond},
		{"deadline passed", 3, 3 * time.Second, floor, -time.Second, true, 100 * time.Millisecond},
		{"settings lowered meanwhile", -4, 3 * time.Second, floor, 2 * time.Second, true, 1950 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := plan.AttemptShare(tt.attemptsLeft, tt.limit, tt.floor, tt.left, tt.deadline); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		reason StopReason
		last   error
		want   Fault
	}{
		{StopInvalid, nil, MessageFault},
		{StopPermanent, codeError(tidegate.CodeMessageBodyTooLarge), MessageFault},
		{StopPermanent, codeError(tidegate.CodeIllegalDeliveryTime), MessageFault},
		{StopPermanent, codeError(tidegate.CodeMessagePropertyConflict), MessageFault},
		{StopPermanent, codeError(tidegate.CodeMessagePropertiesTooLarge), MessageFault},
		{StopPermanent, fmt.Errorf("around: %w", codeError(protocol.CodeIllegalMessageTag)), MessageFault},
		{StopPermanent, tidegate.ErrInvalid, MessageFault},
		{StopPermanent, codeError(tidegate.CodeTopicNotFound), SetupFault},
		{StopPermanent, codeError(tidegate.CodeIllegalTopic), SetupFault},
		{StopPermanent, codeError(tidegate.CodeUnauthorized), SetupFault},
		{StopPermanent, codeError(tidegate.CodeForbidden), SetupFault},
		{StopPermanent, codeError(protocol.CodeUnsupported), SetupFault},
		{StopExhausted, codeError(tidegate.CodeInternalServerError), PassingFault},
		{StopExhausted, throttled(0), PassingFault},
		{StopThrottled, throttled(0), PassingFault},
		{StopDeadline, throttled(0), PassingFault},
		{StopContext, nil, PassingFault},
		{StopClosed, nil, PassingFault},
		{StopFull, nil, PassingFault},
	} {
		if got := (&SendError{Reason: tt.reason, Last: tt.last}).Fault(); got != tt.want {
			t.Errorf("%v, %v: %v, want %v", tt.reason, tt.last, got, tt.want)
		}
	}
}

// An outage before the attempt does not delay the retry of an attempt that had a connection: the
// first such failure is retried at once. Attempts without a connection are paced, up to a second.
func TestOutageDoesNotPaceConnectedAttempts(t *testing.T) {
	l := &limits{bounds: &bounds{pacing: defaultPacing, atOnce: retriesAtOnce}}
	decide := func(connected, unconnected int, last bool) time.Duration {
		in := Inputs{
			Class: tidegate.ClassTransient, Attempts: connected + unconnected, Unconnected: unconnected,
			MaxAttempts: 16, AtOnce: retriesAtOnce, NotConnected: last,
		}
		in.draw(l, new(draws))
		return Decide(in).Delay
	}
	for connected := 1; connected <= retriesAtOnce; connected++ {
		if d := decide(connected, 15, false); d != 0 {
			t.Errorf("failure %d with a connection after an outage is retried after %v", connected, d)
		}
	}
	if d := decide(retriesAtOnce+1, 15, false); d <= 0 || d > 200*time.Millisecond {
		t.Errorf("failure %d with a connection is retried after %v, want about 100 ms", retriesAtOnce+1, d)
	}
	if d := decide(0, 16, true); d <= 0 || d > time.Second {
		t.Errorf("an attempt without a connection is repeated after %v, want up to 1 s", d)
	}
}
