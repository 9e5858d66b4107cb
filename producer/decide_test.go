package producer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
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

func TestDecide(t *testing.T) {
	plain := limits{maxAttempts: 4, backoff: ladder}
	separate := limits{maxAttempts: 2, maxThrottles: 5, backoff: ladder}
	paced := limits{maxAttempts: 5, backoff: ladder, pacing: backoff.Steps{70 * time.Millisecond, 90 * time.Millisecond}}
	broken := errors.New("connection reset by peer")
	tests := []struct {
		name string
		s    state
		err  error
		want decision
	}{
		{"success", state{limits: plain, attempts: 1}, nil, decision{class: transport.OK}},
		{"success although ctx ended", state{limits: plain, attempts: 1, ended: true}, nil, decision{class: transport.OK}},

		{"throttled first", state{limits: plain, attempts: 1, throttles: 1}, throttled(0),
			decision{transport.Throttled, NotStopped, time.Second, FromBackoff}},
		{"throttled second", state{limits: plain, attempts: 2, throttles: 2}, throttled(0),
			decision{transport.Throttled, NotStopped, 2 * time.Second, FromBackoff}},
		{"n counts throttles, not attempts", state{limits: plain, attempts: 3, throttles: 1}, throttled(0),
			decision{transport.Throttled, NotStopped, time.Second, FromBackoff}},
		{"push-back longer", state{limits: plain, attempts: 1, throttles: 1}, throttled(1500 * time.Millisecond),
			decision{transport.Throttled, NotStopped, 1500 * time.Millisecond, FromPushBack}},
		{"push-back shorter", state{limits: plain, attempts: 1, throttles: 1}, throttled(time.Millisecond),
			decision{transport.Throttled, NotStopped, time.Second, FromBackoff}},
		{"push-back says no", state{limits: plain, attempts: 1, throttles: 1}, throttled(-1),
			decision{class: transport.Throttled, reason: PushedBack}},
		{"throttled counts in MaxAttempts", state{limits: plain, attempts: 4, throttles: 4}, throttled(0),
			decision{class: transport.Throttled, reason: Exhausted}},
		{"separate limit, not reached", state{limits: separate, attempts: 6, throttles: 5}, throttled(0),
			decision{transport.Throttled, NotStopped, 4 * time.Second, FromBackoff}},
		{"separate limit, reached", state{limits: separate, attempts: 6, throttles: 6}, throttled(0),
			decision{class: transport.Throttled, reason: ThrottledOut}},
		{"separate limit leaves the other alone", state{limits: separate, attempts: 5, throttles: 4}, broken,
			decision{class: transport.Transient}},
		{"separate limit, others used up", state{limits: separate, attempts: 6, throttles: 4}, broken,
			decision{class: transport.Transient, reason: Exhausted}},
		{"throttled after the others were used up", state{limits: separate, attempts: 4, throttles: 2}, throttled(0),
			decision{class: transport.Throttled, reason: Exhausted}},
		{"zero delay has no source", state{limits: limits{maxAttempts: 3, backoff: backoff.Steps{0}}, attempts: 1, throttles: 1},
			throttled(0), decision{class: transport.Throttled}},

		{"transient", state{limits: plain, attempts: 1}, broken, decision{class: transport.Transient}},
		{"transient again", state{limits: plain, attempts: 3}, broken, decision{class: transport.Transient}},
		{"transient at the end", state{limits: plain, attempts: 4}, broken,
			decision{class: transport.Transient, reason: Exhausted}},
		{"attempt timed out", state{limits: plain, attempts: 1}, fmt.Errorf("send: %w", errAttemptTimeout),
			decision{class: transport.Transient}},
		{"deadline below, not ours", state{limits: plain, attempts: 1}, context.DeadlineExceeded,
			decision{class: transport.Transient}},
		{"cancelled below, not ours", state{limits: plain, attempts: 1}, context.Canceled,
			decision{class: transport.Transient}},
		{"pacing spares the first", state{limits: paced, attempts: 1}, broken, decision{class: transport.Transient}},
		{"pacing second", state{limits: paced, attempts: 2}, broken,
			decision{transport.Transient, NotStopped, 70 * time.Millisecond, FromPacing}},
		{"pacing third", state{limits: paced, attempts: 3}, broken,
			decision{transport.Transient, NotStopped, 90 * time.Millisecond, FromPacing}},
		{"pacing counts transients only", state{limits: paced, attempts: 3, throttles: 2}, broken,
			decision{class: transport.Transient}},
		{"transient with push-back", state{limits: plain, attempts: 1}, pushedBack(tidegate.CodeInternalServerError, time.Second),
			decision{transport.Transient, NotStopped, time.Second, FromPushBack}},
		{"transient, server says no", state{limits: plain, attempts: 1}, pushedBack(tidegate.CodeInternalServerError, -1),
			decision{class: transport.Transient, reason: PushedBack}},

		{"topic not found", state{limits: plain, attempts: 1}, codeError(tidegate.CodeTopicNotFound),
			decision{class: transport.Permanent, reason: Permanent}},
		{"topic not found, was good", state{limits: plain, attempts: 1, routeGood: true}, codeError(tidegate.CodeTopicNotFound),
			decision{class: transport.Transient}},
		{"property conflict, was good", state{limits: plain, attempts: 1, routeGood: true}, codeError(tidegate.CodeMessagePropertyConflict),
			decision{class: transport.Transient}},
		{"group not found, was good", state{limits: plain, attempts: 1, routeGood: true}, codeError(tidegate.CodeConsumerGroupNotFound),
			decision{class: transport.Permanent, reason: Permanent}},
		{"permanent beats push-back", state{limits: plain, attempts: 1}, pushedBack(tidegate.CodeMessageBodyTooLarge, time.Second),
			decision{class: transport.Permanent, reason: Permanent}},

		{"ctx ended", state{limits: plain, attempts: 1, ended: true}, context.Canceled,
			decision{class: transport.Cancelled, reason: Ended}},
		{"ctx ended, whatever the answer", state{limits: plain, attempts: 1, throttles: 1, ended: true}, throttled(0),
			decision{class: transport.Cancelled, reason: Ended}},
		{"producer closed", state{limits: plain, attempts: 1, ended: true, closed: true}, tidegate.ErrClosed,
			decision{class: transport.Cancelled, reason: Closed}},
		{"transport closed", state{limits: plain, attempts: 1}, fmt.Errorf("rocketmq: %w", tidegate.ErrClosed),
			decision{class: transport.Cancelled, reason: Closed}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := decide(tt.s, tt.err); got != tt.want {
				t.Errorf("decide(%+v, %v)\n got %+v\nwant %+v", tt.s, tt.err, got, tt.want)
			}
		})
	}
}

// Every class of code has the number of attempts that design and seed 004 give it.
func TestDecideEveryCode(t *testing.T) {
	permanent := map[tidegate.Code]bool{}
	for c := range tidegate.Code(70000) {
		if (c >= 40000 && c < 50000 && c != tidegate.CodeRequestTimeout && c != tidegate.CodeTooManyRequests) ||
			c == tidegate.CodeNotImplemented || c == tidegate.CodeUnsupported || c == tidegate.CodeVersionUnsupported ||
			c == tidegate.CodeVerifyFIFOMessageUnsupported {
			permanent[c] = true
		}
	}
	for c := range tidegate.Code(70000) {
		if c == tidegate.CodeOK {
			continue
		}
		s := state{limits: limits{maxAttempts: 3, backoff: ladder}, attempts: 1}
		if c == tidegate.CodeTooManyRequests {
			s.throttles = 1
		}
		d := decide(s, codeError(c))
		switch {
		case permanent[c] && d.reason != Permanent:
			t.Errorf("%d: %+v, want it to be permanent", c, d)
		case c == tidegate.CodeTooManyRequests && (d.reason != NotStopped || d.delay != time.Second):
			t.Errorf("%d: %+v, want a retry after 1s", c, d)
		case !permanent[c] && c != tidegate.CodeTooManyRequests && d != decision{class: transport.Transient}:
			t.Errorf("%d: %+v, want a retry at once", c, d)
		}
	}
}

// Seed 004: "the client does not know the processing result of the presumably failed message on the broker"
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
		{codeError(tidegate.CodeProxyTimeout), true},
		{codeError(tidegate.CodeMasterPersistenceTimeout), true},
		{codeError(tidegate.CodeSlavePersistenceTimeout), true},
		{codeError(tidegate.CodeInternalServerError), false},
		{codeError(tidegate.CodeTopicNotFound), false},
	} {
		if got := maybeStored(tt.err); got != tt.want {
			t.Errorf("maybeStored(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}

func TestAttemptTimeout(t *testing.T) {
	l := limits{maxAttempts: 3}
	for _, tt := range []struct {
		name        string
		s           state
		limit, left time.Duration
		deadline    bool
		want        time.Duration
	}{
		{"no deadline", state{limits: l}, 3 * time.Second, 0, false, 3 * time.Second},
		{"a third", state{limits: l}, 3 * time.Second, 3 * time.Second, true, time.Second},
		{"a half of the rest", state{limits: l, attempts: 1}, 3 * time.Second, 2 * time.Second, true, time.Second},
		{"all of the rest", state{limits: l, attempts: 2}, 3 * time.Second, 2 * time.Second, true, 2 * time.Second},
		{"never above the limit", state{limits: l}, 3 * time.Second, time.Hour, true, 3 * time.Second},
		{"floor", state{limits: l}, 3 * time.Second, 150 * time.Millisecond, true, 100 * time.Millisecond},
		{"a limit below the floor", state{limits: l}, 10 * time.Millisecond, time.Second, true, 10 * time.Millisecond},
		{"deadline passed", state{limits: l}, 3 * time.Second, -time.Second, true, 100 * time.Millisecond},
		{"separate throttles do not count", state{limits: limits{maxAttempts: 3, maxThrottles: 9}, attempts: 5, throttles: 5},
			3 * time.Second, 3 * time.Second, true, time.Second},
		{"settings lowered meanwhile", state{limits: l, attempts: 7}, 3 * time.Second, 2 * time.Second, true, 2 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := attemptTimeout(tt.s, tt.limit, tt.left, tt.deadline); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
