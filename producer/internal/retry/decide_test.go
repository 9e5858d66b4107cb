package retry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
)

var ladder = backoff.Steps{1 * time.Second, 2 * time.Second, 4 * time.Second}

func codeError(c tidegate.Code) *tidegate.Error {
	return &tidegate.Error{Op: "SendMessage", Subject: "orders", Endpoint: "a:1", Code: c, Message: "from the server"}
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
	limits                                  Limits
	attempts, throttles, waited             int
	routeGood, ended, closed, half          bool
	throttledFor, elapsed, remaining, floor time.Duration
}

func (s situation) inputs(err error) Inputs {
	h := History{Attempts: s.attempts, Throttles: s.throttles, Waited: s.waited}
	ended := time.Unix(1000, 0)
	var deadline time.Time
	if s.remaining != 0 {
		deadline = ended.Add(s.remaining)
	}
	in := h.Inputs(&s.limits, err, ended, deadline)
	in.HalfMessage, in.RouteGood, in.ContextEnded, in.Closed = s.half, s.routeGood, s.ended, s.closed
	in.ThrottledFor, in.Elapsed, in.Floor = s.throttledFor, s.elapsed, s.floor
	in.Draw(&s.limits, new(Draws))
	return in
}

// errTimeout is the producer's error for an attempt without a response.
var errTimeout = fmt.Errorf("%w: no response", tidegate.ErrUnavailable)

func TestDecide(t *testing.T) {
	const ms = time.Millisecond
	plain := Limits{MaxAttempts: 4, Backoff: ladder, Bounds: &Bounds{}}
	separate := Limits{MaxAttempts: 2, Backoff: ladder, Bounds: &Bounds{MaxThrottles: 5}}
	forever := Limits{MaxAttempts: 2, Backoff: ladder, Bounds: &Bounds{MaxThrottles: -1}}
	timed := Limits{MaxAttempts: 2, Backoff: ladder, Bounds: &Bounds{MaxThrottleTime: 10 * time.Second}}
	paced := Limits{MaxAttempts: 5, Backoff: ladder, Bounds: &Bounds{Pacing: backoff.Steps{70 * ms, 90 * ms}}}
	many := Limits{MaxAttempts: 16, Backoff: ladder, Bounds: &Bounds{}}
	broken := errors.New("connection reset by peer")
	throttledClass, transient := Decision{Class: tidegate.ClassThrottled}, Decision{Class: tidegate.ClassTransient}
	wait := func(d Decision, delay time.Duration, from Source) Decision {
		d.Delay, d.Source = delay, from
		return d
	}
	stop := func(class tidegate.Class, r Stop) Decision { return Decision{Class: class, Stop: r} }
	tests := []struct {
		name string
		s    situation
		err  error
		want Decision
	}{
		{"success", situation{limits: plain, attempts: 1}, nil, Decision{}},
		{"success although ctx ended", situation{limits: plain, attempts: 1, ended: true}, nil, Decision{}},

		{"throttled first", situation{limits: plain, attempts: 1, throttles: 1}, throttled(0), wait(throttledClass, time.Second, FromBackoff)},
		{"throttled second", situation{limits: plain, attempts: 2, throttles: 2}, throttled(0), wait(throttledClass, 2*time.Second, FromBackoff)},
		{"n counts throttles, not attempts", situation{limits: plain, attempts: 3, throttles: 1}, throttled(0), wait(throttledClass, time.Second, FromBackoff)},
		{"push-back longer", situation{limits: plain, attempts: 1, throttles: 1}, throttled(1500 * ms), wait(throttledClass, 1500*ms, FromPushBack)},
		{"push-back shorter", situation{limits: plain, attempts: 1, throttles: 1}, throttled(ms), wait(throttledClass, time.Second, FromBackoff)},
		{"push-back forbids it", situation{limits: plain, attempts: 1, throttles: 1}, throttled(-1), stop(tidegate.ClassThrottled, PushedBack)},
		{"the decision took longer than the delay", situation{limits: plain, attempts: 1, throttles: 1, elapsed: 1100 * ms}, throttled(0),
			wait(throttledClass, 1100*ms, FromBackoff)},
		{"throttled counts in MaxAttempts", situation{limits: plain, attempts: 4, throttles: 4}, throttled(0), stop(tidegate.ClassThrottled, Exhausted)},
		{"so do pauses that were waited for", situation{limits: plain, attempts: 1, throttles: 4, waited: 3}, throttled(0), stop(tidegate.ClassThrottled, Exhausted)},
		{"separate limit, not reached", situation{limits: separate, attempts: 6, throttles: 5}, throttled(0), wait(throttledClass, 4*time.Second, FromBackoff)},
		{"separate limit, reached", situation{limits: separate, attempts: 6, throttles: 6}, throttled(0), stop(tidegate.ClassThrottled, Throttled)},
		{"separate limit, reached by waiting", situation{limits: separate, throttles: 6, waited: 6}, throttled(0), stop(tidegate.ClassThrottled, Throttled)},
		{"separate limit leaves the other alone", situation{limits: separate, attempts: 5, throttles: 4}, broken, transient},
		{"separate limit, others used up", situation{limits: separate, attempts: 6, throttles: 4}, broken, stop(tidegate.ClassTransient, Exhausted)},
		{"throttled after the others were used up", situation{limits: separate, attempts: 4, throttles: 2}, throttled(0), stop(tidegate.ClassThrottled, Exhausted)},
		{"until the context ends", situation{limits: forever, attempts: 1_000_000, throttles: 1_000_000}, throttled(0), wait(throttledClass, 4*time.Second, FromBackoff)},
		{"until the context ends, others used up", situation{limits: forever, attempts: 12, throttles: 10}, broken, stop(tidegate.ClassTransient, Exhausted)},
		{"throttle time left", situation{limits: timed, attempts: 9, throttles: 9, throttledFor: 6 * time.Second}, throttled(0), wait(throttledClass, 4*time.Second, FromBackoff)},
		{"throttle time too short for the wait", situation{limits: timed, attempts: 9, throttles: 9, throttledFor: 6*time.Second + 1}, throttled(0), stop(tidegate.ClassThrottled, Throttled)},
		{"zero delay has no source", situation{limits: Limits{MaxAttempts: 3, Backoff: backoff.Steps{0}, Bounds: &Bounds{}}, attempts: 1, throttles: 1}, throttled(0), throttledClass},

		{"transient", situation{limits: plain, attempts: 1}, broken, transient},
		{"transient again", situation{limits: plain, attempts: 3}, broken, transient},
		{"transient at the end", situation{limits: plain, attempts: 4}, broken, stop(tidegate.ClassTransient, Exhausted)},
		{"attempt timed out", situation{limits: plain, attempts: 1}, fmt.Errorf("send: %w", errTimeout), transient},
		{"deadline below, not ours", situation{limits: plain, attempts: 1}, context.DeadlineExceeded, transient},
		{"cancelled below, not ours", situation{limits: plain, attempts: 1}, context.Canceled, transient},
		{"pacing spares the first", situation{limits: paced, attempts: 1}, broken, transient},
		{"pacing second", situation{limits: paced, attempts: 2}, broken, wait(transient, 70*ms, FromPacing)},
		{"pacing third", situation{limits: paced, attempts: 3}, broken, wait(transient, 90*ms, FromPacing)},
		{"pacing counts transients only", situation{limits: paced, attempts: 3, throttles: 2}, broken, transient},
		{"default pacing spares three", situation{limits: many, attempts: 3}, broken, transient},
		{"transient with push-back", situation{limits: plain, attempts: 1}, pushedBack(tidegate.CodeInternalServerError, time.Second), wait(transient, time.Second, FromPushBack)},
		{"transient, server forbids it", situation{limits: plain, attempts: 1}, pushedBack(tidegate.CodeInternalServerError, -1), stop(tidegate.ClassTransient, PushedBack)},

		{"topic not found", situation{limits: plain, attempts: 1}, codeError(tidegate.CodeTopicNotFound), stop(tidegate.ClassPermanent, Permanent)},
		{"topic not found, was good", situation{limits: plain, attempts: 1, routeGood: true}, codeError(tidegate.CodeTopicNotFound), transient},
		{"wrong type before the wire, was good", situation{limits: plain, attempts: 1, routeGood: true}, &tidegate.Error{Code: protocol.CodeMessagePropertyConflict}, stop(tidegate.ClassPermanent, Permanent)},
		{"property conflict, was good", situation{limits: plain, attempts: 1, routeGood: true}, codeError(protocol.CodeMessagePropertyConflict), transient},
		{"group not found, was good", situation{limits: plain, attempts: 1, routeGood: true}, codeError(protocol.CodeConsumerGroupNotFound), stop(tidegate.ClassPermanent, Permanent)},
		{"permanent beats push-back", situation{limits: plain, attempts: 1}, pushedBack(tidegate.CodeMessageBodyTooLarge, time.Second), stop(tidegate.ClassPermanent, Permanent)},

		{"ctx ended", situation{limits: plain, attempts: 1, ended: true}, context.Canceled, stop(tidegate.ClassCancelled, Context)},
		{"ctx ended, with a response", situation{limits: plain, attempts: 1, throttles: 1, ended: true}, throttled(0), stop(tidegate.ClassCancelled, Context)},
		{"producer closed", situation{limits: plain, attempts: 1, closed: true}, tidegate.ErrClosed, stop(tidegate.ClassCancelled, Closed)},
		{"transport closed", situation{limits: plain, attempts: 1}, fmt.Errorf("rocketmq: %w", tidegate.ErrClosed), stop(tidegate.ClassCancelled, Closed)},

		{"time for one more attempt", situation{limits: plain, attempts: 1, remaining: 100 * ms, floor: 100 * ms}, broken, transient},
		{"no time for one more attempt", situation{limits: plain, attempts: 1, remaining: 99 * ms, floor: 100 * ms}, broken,
			Decision{Class: tidegate.ClassTransient, Stop: Deadline, Needed: 100 * ms}},
		{"time for the wait and the attempt", situation{limits: plain, attempts: 1, throttles: 1, remaining: 1100 * ms, floor: 100 * ms}, throttled(0), wait(throttledClass, time.Second, FromBackoff)},
		{"half message, transient", situation{limits: plain, attempts: 1, half: true}, broken, stop(tidegate.ClassTransient, HalfMessage)},
		{"half message, throttled", situation{limits: plain, attempts: 1, throttles: 1, half: true}, throttled(time.Second), stop(tidegate.ClassThrottled, HalfMessage)},
		{"half message, permanent", situation{limits: plain, attempts: 1, half: true}, codeError(tidegate.CodeForbidden), stop(tidegate.ClassPermanent, Permanent)},
		{"half message, accepted", situation{limits: plain, attempts: 1, half: true}, nil, Decision{}},
		{"no time for the wait", situation{limits: plain, attempts: 1, throttles: 1, remaining: 1099 * ms, floor: 100 * ms}, throttled(0),
			Decision{Class: tidegate.ClassThrottled, Stop: Deadline, Needed: 1100 * ms}},
		{"an endless push-back", situation{limits: plain, attempts: 1, throttles: 1, remaining: time.Hour, floor: 100 * ms}, throttled(math.MaxInt64),
			Decision{Class: tidegate.ClassThrottled, Stop: Deadline, Needed: math.MaxInt64}},
		{"exhausted before late", situation{limits: plain, attempts: 4, remaining: ms, floor: 100 * ms}, broken, stop(tidegate.ClassTransient, Exhausted)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := tt.s.inputs(tt.err)
			got := Decide(in)
			assert.That(t, got == tt.want, "Decide(%+v)\n got %+v\nwant %+v", in, got, tt.want)
		})
	}
}

// Every range of codes has the number of attempts that its rule gives it (RocketMQ: sending retry
// and throttling), also for codes that RocketMQ does not have yet.
func TestDecideEveryCode(t *testing.T) {
	for c := range tidegate.Code(70000) {
		if c/10000 == 2 { // success
			continue
		}
		quota := c == protocol.CodeLiteTopicQuotaExceeded || c == protocol.CodeLiteSubscriptionQuotaExceeded
		throttled := c/100 == 429 && !quota
		permanent := c/10000 == 4 && c/100 != 408 && !throttled || c/100 == 501 || c/100 == 505
		s := situation{limits: Limits{MaxAttempts: 3, Backoff: ladder, Bounds: &Bounds{}}, attempts: 1}
		if throttled {
			s.throttles = 1
		}
		d := Decide(s.inputs(codeError(c)))
		switch {
		case permanent && d.Stop != Permanent:
			t.Errorf("%d: %+v, want it to be permanent", c, d)
		case throttled && (d.Stop != Continue || d.Delay != time.Second):
			t.Errorf("%d: %+v, want a retry after 1s", c, d)
		case !permanent && !throttled && d != Decision{Class: tidegate.ClassTransient}:
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
		{errors.New("an error without a class"), true},
		{errTimeout, true},
		{codeError(0), false},
		{marked, true},
		{fmt.Errorf("wrapped: %w", marked), true},
		{throttled(0), false},
		{codeError(protocol.CodeRequestTimeout), true},
		{codeError(protocol.CodeProxyTimeout), true},
		{codeError(protocol.CodeMasterPersistenceTimeout), true},
		{codeError(protocol.CodeSlavePersistenceTimeout), true},
		{codeError(tidegate.CodeInternalServerError), false},
		{codeError(tidegate.CodeTopicNotFound), false},
	} {
		got := MaybeStored(tt.err)
		assert.That(t, got == tt.want, "MaybeStored(%v) = %v, want %v", tt.err, got, tt.want)
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
			assert.Equal(t, "got", AttemptShare(tt.attemptsLeft, tt.limit, tt.floor, tt.left, tt.deadline), tt.want)
		})
	}
}

// An outage before the attempt does not delay the retry of an attempt that had a connection: the
// first such failure is retried at once. Attempts without a connection are paced, up to a second.
func TestOutageDoesNotPaceConnectedAttempts(t *testing.T) {
	l := &Limits{Bounds: &Bounds{}}
	decide := func(connected, unconnected int, last bool) time.Duration {
		in := Inputs{
			Class: tidegate.ClassTransient, Attempts: connected + unconnected, Unconnected: unconnected,
			MaxAttempts: 16, AtOnce: retriesAtOnce, NotConnected: last,
		}
		in.Draw(l, new(Draws))
		return Decide(in).Delay
	}
	for connected := 1; connected <= retriesAtOnce; connected++ {
		d := decide(connected, 15, false)
		assert.That(t, d == 0, "failure %d with a connection after an outage is retried after %v", connected, d)
	}
	if d := decide(retriesAtOnce+1, 15, false); d <= 0 || d > 200*time.Millisecond {
		t.Errorf("failure %d with a connection is retried after %v, want about 100 ms", retriesAtOnce+1, d)
	}
	d := decide(0, 16, true)
	assert.That(t, d > 0 && d <= time.Second, "an attempt without a connection is repeated after %v, want up to 1 s", d)
}

// Attempts that reached no server that could store the message: without a connection, through a
// proxy that lost its broker, and with credentials or permissions that worked before.
func TestOutages(t *testing.T) {
	l := Limits{MaxAttempts: 3, Backoff: ladder, Bounds: &Bounds{}}
	refused := &tidegate.Error{Err: tidegate.ErrUnavailable, NotConnected: true}
	proxy := &tidegate.Error{Code: tidegate.CodeInternalServerError, NotConnected: true}
	lapsed := &tidegate.Error{Code: tidegate.CodeUnauthorized, Lapsed: true}
	wrong := codeError(tidegate.CodeUnauthorized)
	forbidden := codeError(tidegate.CodeForbidden)
	transient, permanent := tidegate.ClassTransient, tidegate.ClassPermanent
	for _, tt := range []struct {
		name              string
		err               error
		attempts          int // all of them ended with err
		spools, permitted bool
		spent             time.Duration // since the first attempt
		class             tidegate.Class
		stop              Stop
		delayed           bool
	}{
		{"refused, again", refused, 1, false, false, 0, transient, Continue, false},
		{"refused, far beyond MaxAttempts", refused, 50, false, false, time.Minute, transient, Continue, true},
		{"refused for two minutes", refused, 50, false, false, 2 * time.Minute, transient, Exhausted, false},
		{"refused, with a spool", refused, 1, true, false, 0, transient, Exhausted, false},

		{"the proxy has no broker, again", proxy, 1, false, false, 0, transient, Continue, false},
		{"the proxy has no broker, far beyond MaxAttempts", proxy, 50, false, false, time.Minute, transient, Continue, true},
		{"the proxy has no broker for two minutes", proxy, 50, false, false, 2 * time.Minute, transient, Exhausted, false},
		{"the proxy has no broker, with a spool: another broker may have the topic", proxy, 2, true, false, time.Second, transient, Continue, false},
		{"the proxy has no broker, with a spool, three times", proxy, 3, true, false, time.Second, transient, Exhausted, false},

		{"the credentials lapsed, again", lapsed, 1, false, false, 0, transient, Continue, false},
		{"the credentials lapsed, far beyond MaxAttempts", lapsed, 50, false, false, time.Minute, transient, Continue, true},
		{"the credentials lapsed for two minutes", lapsed, 50, false, false, 2 * time.Minute, transient, Exhausted, false},
		{"the credentials lapsed, with a spool", lapsed, 1, true, false, 0, transient, Exhausted, false},
		{"the credentials never worked", wrong, 1, true, true, 0, permanent, Permanent, false},

		{"forbidden, never permitted", forbidden, 1, true, false, 0, permanent, Permanent, false},
		{"forbidden, permitted before, without a spool", forbidden, 1, false, true, 0, permanent, Permanent, false},
		{"forbidden, permitted before, with a spool", forbidden, 1, true, true, 0, permanent, Spool, false},
	} {
		var h History
		began := time.Unix(1000, 0)
		ended := began.Add(tt.spent)
		for range tt.attempts {
			h.Record(tt.err, began, ended, false)
		}
		in := h.Inputs(&l, tt.err, ended, time.Time{})
		in.Spools, in.Permitted = tt.spools, tt.permitted
		in.Draw(&l, new(Draws))
		got := Decide(in)
		if got.Class != tt.class || got.Stop != tt.stop || got.Delay > unconnectedPacing || (got.Delay > 0) != tt.delayed || h.Maybe {
			t.Errorf("%s: %+v, may be stored %t; want %v, stop %v, delayed %t", tt.name, got, h.Maybe, tt.class, tt.stop, tt.delayed)
		}
	}
	// An earlier attempt that may be stored stays so, and counts.
	var h History
	h.Record(tidegate.ErrUnavailable, time.Unix(1000, 0), time.Unix(1001, 0), false)
	h.Record(proxy, time.Unix(1001, 0), time.Unix(1002, 0), false)
	if in := h.Inputs(&l, proxy, time.Unix(1002, 0), time.Time{}); !h.Maybe || in.Attempts-in.Unconnected != 1 {
		t.Errorf("after a lost response: may be stored %t, %d attempts count", h.Maybe, in.Attempts-in.Unconnected)
	}
}

// A throttled attempt counts as a throttle, unless the caller's ctx has ended.
func TestRecordCountsThrottles(t *testing.T) {
	began := time.Unix(1000, 0)
	for _, tt := range []struct {
		name      string
		err       error
		ctxEnded  bool
		throttles int
	}{
		{"throttled", throttled(0), false, 1},
		{"throttled at the end of ctx", throttled(0), true, 0},
		{"another failure", errors.New("connection reset by peer"), false, 0},
	} {
		var h History
		h.Record(tt.err, began, began.Add(time.Second), tt.ctxEnded)
		assert.That(t, h.Attempts == 1 && h.Throttles == tt.throttles && errors.Is(h.Last, tt.err),
			"%s: %+v, want one attempt and %d throttles", tt.name, h, tt.throttles)
	}
}

// The attempts of a send share the time until its deadline. Throttled attempts with a limit of
// their own, attempts without a connection and pauses count as the limits count them.
func TestShareOfTheRemainingTime(t *testing.T) {
	const left = 3 * time.Second
	began := time.Unix(1000, 0)
	together := &Bounds{Attempt: time.Minute, Floor: 100 * time.Millisecond}
	separate := &Bounds{Attempt: time.Minute, Floor: 100 * time.Millisecond, MaxThrottles: 5}
	for _, tt := range []struct {
		name   string
		bounds *Bounds
		h      History
		want   time.Duration
	}{
		{"no attempt of 3", together, History{}, time.Second},
		{"one of 3", together, History{Attempts: 1}, 1500 * time.Millisecond},
		{"one of 3, throttled", together, History{Attempts: 1, Throttles: 1}, 1500 * time.Millisecond},
		{"one of 3, with a limit of its own", separate, History{Attempts: 1, Throttles: 1}, time.Second},
		{"two of 3, one of them with a limit of its own", separate, History{Attempts: 2, Throttles: 1}, 1500 * time.Millisecond},
		{"a pause", together, History{Waited: 1, Throttles: 1}, 1500 * time.Millisecond},
		{"a pause with a limit of its own", separate, History{Waited: 1, Throttles: 1}, time.Second},
		{"an attempt without a connection", together, History{Attempts: 1, Unconnected: 1}, time.Second},
		{"the last of 3", together, History{Attempts: 2}, left - 50*time.Millisecond},
	} {
		l := &Limits{Bounds: tt.bounds, MaxAttempts: 3}
		got := tt.h.Share(l, began, began.Add(left))
		assert.That(t, got == tt.want, "%s: %v of %v, want %v", tt.name, got, left, tt.want)
	}
}

// Pauses do not count for a message that has had no attempt in the first two minutes of pauses.
func TestUntriedForTwoMinutes(t *testing.T) {
	begin := time.Unix(1000, 0)
	for _, tt := range []struct {
		name  string
		h     History
		after time.Duration // of the pause in question, since the first one
		want  bool
	}{
		{"the first pause", History{}, 0, true},
		{"just before two minutes", History{}, 2*time.Minute - 1, true},
		{"after two minutes", History{}, 2 * time.Minute, false},
		{"after an attempt", History{Attempts: 1}, 0, false},
	} {
		assert.That(t, tt.h.Attempts != 0 || tt.h.Untried(begin), "%s: the first pause counts", tt.name)
		got := tt.h.Untried(begin.Add(tt.after))
		assert.That(t, got == tt.want, "%s: %t, want %t", tt.name, got, tt.want)
	}
}
