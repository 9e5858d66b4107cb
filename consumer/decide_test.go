package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/transport"
)

func TestJudge(t *testing.T) {
	steps := backoff.Steps{time.Second, time.Minute, time.Hour}
	bounded := rules{maxAttempts: 3, ladder: steps}
	endless := rules{ladder: steps}
	snoozing := rules{maxAttempts: 3, ladder: steps, snooze: true}
	broken := errors.New("no connection")
	for _, tt := range []struct {
		name    string
		attempt int
		err     error
		rules   rules
		want    verdict
	}{
		{"success", 1, nil, bounded, verdict{action: ack}},
		{"success at the last attempt", 3, nil, bounded, verdict{action: ack}},
		{"first failure", 1, broken, bounded, verdict{action: retry, delay: time.Second}},
		{"second failure", 2, broken, bounded, verdict{action: retry, delay: time.Minute}},
		{"last attempt", 3, broken, bounded, verdict{action: deadLetterNow, reason: "no connection"}},
		{"more than the last", 9, broken, bounded, verdict{action: deadLetterNow, reason: "no connection"}},
		{"no limit known", 99, broken, endless, verdict{action: retry, delay: time.Hour}},
		{"an attempt that a server did not count", 0, broken, endless, verdict{action: retry, delay: time.Second}},
		{"retry after", 1, RetryAfter(7*time.Second, broken), bounded, verdict{action: retry, delay: 7 * time.Second}},
		{"retry after, wrapped", 1, fmt.Errorf("a: %w", fmt.Errorf("b: %w", RetryAfter(0, broken))), bounded, verdict{action: retry}},
		{"retry after, negative", 1, RetryAfter(-1, nil), bounded, verdict{action: retry}},
		{"retry after the last", 3, RetryAfter(time.Second, broken), bounded, verdict{action: deadLetterNow, reason: "no connection"}},
		{"retry after, longer than the server takes", 1, RetryAfter(time.Hour*13, broken), bounded, verdict{action: retry, delay: 12 * time.Hour}},
		{"dead letter", 1, DeadLetter(broken), bounded, verdict{action: deadLetterNow, reason: "no connection"}},
		{"dead letter, wrapped", 1, fmt.Errorf("order 7: %w", DeadLetter(broken)), endless,
			verdict{action: deadLetterNow, reason: "order 7: no connection"}},
		{"dead letter without a reason", 1, DeadLetter(nil), endless,
			verdict{action: deadLetterNow, reason: "dead letter requested by the handler"}},
		{"dead letter beats retry after", 1, DeadLetter(RetryAfter(time.Second, broken)), bounded,
			verdict{action: deadLetterNow, reason: "no connection"}},
		{"retry level", 1, RetryLevel(4, broken), bounded, verdict{action: retry, delay: 30 * time.Second}},
		{"retry level, too low and too high", 1, errors.Join(RetryLevel(0, nil), RetryLevel(99, nil)), bounded, verdict{action: retry, delay: time.Second}},
		{"retry after, joined", 1, errors.Join(broken, RetryAfter(7*time.Second, nil)), bounded, verdict{action: retry, delay: 7 * time.Second}},
		{"dead letter, joined", 1, errors.Join(broken, DeadLetter(nil)), bounded,
			verdict{action: deadLetterNow, reason: "no connection dead letter requested by the handler"}},
		{"snooze in the last attempt", 3, fmt.Errorf("not yet: %w", Snooze(time.Minute)), snoozing, verdict{action: snooze, delay: time.Minute}},
		{"snooze, longer than the server takes", 1, Snooze(13 * time.Hour), snoozing, verdict{action: snooze, delay: 12 * time.Hour}},
		{"snooze without the server's help", 3, Snooze(time.Minute), bounded, verdict{action: retry, delay: time.Minute, spent: true}},
		{"dead letter beats snooze", 1, DeadLetter(Snooze(time.Minute)), snoozing, verdict{action: deadLetterNow, reason: "postponed for 1m0s"}},
		{"panic", 2, &PanicError{Value: "boom"}, bounded, verdict{action: retry, delay: time.Minute}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.want.action == retry {
				tt.want.reason = reason(tt.err)
			}
			if got := judge(tt.attempt, readError(tt.err), tt.rules); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// A step of more than 12 h of a ladder is 12 h, where it is not the server that decides.
func TestLongRetryDelays(t *testing.T) {
	day := transport.ConsumerSettings{Retry: backoff.Steps{24 * time.Hour}}
	failed := readError(errors.New("no connection"))
	for _, r := range []rules{
		makeRules(nil, day, transport.Capabilities{}),
		makeRules(day.Retry.(backoff.Steps), transport.ConsumerSettings{}, transport.Capabilities{RetryResult: true}),
	} {
		if v := judge(1, failed, r); v.delay != 12*time.Hour || v.byServer {
			t.Errorf("%+v: got %+v", r, v)
		}
	}
}

// What a server that decides has told of its ladder may be old, or of another topic
// than the message's: it hears that its own holds, unless the program says how long.
func TestServerDecidesTheInterval(t *testing.T) {
	broken := errors.New("no connection")
	pushed := transport.ConsumerSettings{Retry: backoff.Steps{time.Minute}}
	ours := transport.Capabilities{RetryResult: true}
	for _, tt := range []struct {
		name string
		err  error
		own  backoff.Policy
		caps transport.Capabilities
		want time.Duration
	}{
		{"the server's ladder", broken, nil, ours, transport.ByLadder},
		{"the program's ladder", broken, backoff.Steps{time.Second}, ours, time.Second},
		{"the handler's wish", RetryAfter(time.Hour, broken), nil, ours, time.Hour},
		{"a server that does not decide", broken, nil, transport.Capabilities{Suspend: true}, time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			s.settings, s.caps = pushed, tt.caps
			s.fill(1)
			failed := false
			stop := start(t, s, Subscription{Retry: tt.own}, func(context.Context, *tidegate.Delivery) error {
				if failed {
					return nil
				}
				failed = true
				return tt.err
			}, PushOptions{})
			synctest.Wait()
			stop()
			if len(s.retries) != 1 || s.retries[0].delay != tt.want {
				t.Errorf("%s: retries %+v, want one after %v", tt.name, s.retries, tt.want)
			}
		})
	}
}

func TestMakeRules(t *testing.T) {
	own, pushed := backoff.Steps{time.Second}, backoff.Steps{time.Minute}
	ours := transport.Capabilities{Suspend: true}
	for _, tt := range []struct {
		name    string
		own     backoff.Policy
		pushed  transport.ConsumerSettings
		caps    transport.Capabilities
		attempt int
		delay   time.Duration
	}{
		{"nothing known", nil, transport.ConsumerSettings{}, transport.Capabilities{}, 0, 10 * time.Second},
		{"a silent server of ours", nil, transport.ConsumerSettings{}, ours, 17, 10 * time.Second},
		{"pushed", nil, transport.ConsumerSettings{MaxAttempts: 4, Retry: pushed}, transport.Capabilities{}, 4, time.Minute},
		{"for ever", nil, transport.ConsumerSettings{MaxAttempts: -1}, ours, 0, 10 * time.Second},
		{"a server that decides", nil, transport.ConsumerSettings{MaxAttempts: 4}, transport.Capabilities{RetryResult: true}, 0, 10 * time.Second},
		{"own ladder", own, transport.ConsumerSettings{MaxAttempts: 4, Retry: pushed}, ours, 4, time.Second},
	} {
		if r := makeRules(tt.own, tt.pushed, tt.caps); r.maxAttempts != tt.attempt || r.ladder.Delay(0) != tt.delay {
			t.Errorf("%s: got %+v, want %d attempts and a first delay of %v", tt.name, r, tt.attempt, tt.delay)
		}
	}
}

// Demand 48: the reason that travels with a dead letter does not grow with the error.
func TestReasonIsBounded(t *testing.T) {
	for _, text := range []string{
		"", "  \n ", "a\nb\tc\x00d", strings.Repeat("ü", 2000), strings.Repeat("x", 1<<20), "\xff\xfe", strings.Repeat("\xff", 5000),
		strings.Repeat("a", maxReason-1) + "ü",
	} {
		r := reason(errors.New(text))
		if r == "" || len(r) > maxReason || !utf8.ValidString(r) || strings.ContainsAny(r, "\n\t\x00") {
			t.Errorf("reason of %.20q… (%d bytes) is %.40q… (%d bytes)", text, len(text), r, len(r))
		}
	}
}

func FuzzReason(f *testing.F) {
	f.Add("a\nb")
	f.Add(strings.Repeat("ü", 600))
	// Never empty, bounded, valid UTF-8, without control characters.
	f.Fuzz(func(t *testing.T, text string) {
		r := reason(errors.New(text))
		if r == "" || len(r) > maxReason || !utf8.ValidString(r) || strings.ContainsFunc(r, func(r rune) bool { return r < ' ' }) {
			t.Errorf("%q", r)
		}
	})
}

func TestEndingAndRepeat(t *testing.T) {
	code := func(c tidegate.Code) error { return fmt.Errorf("wrapped: %w", &tidegate.Error{Code: c}) }
	for _, tt := range []struct {
		err            error
		ending         ending
		harmless, harm bool // repeated, where that is harmless, and where it is not?
	}{
		{errors.New("connection lost"), never, true, false},
		{code(tidegate.CodeInternalServerError), never, true, false},
		{code(tidegate.CodeTooManyRequests), never, true, true},
		{code(tidegate.CodeTopicNotFound), never, false, false},
		{code(tidegate.CodeConsumerGroupNotFound), never, false, false},
		{code(tidegate.CodeInvalidReceiptHandle), never, false, false},
		{code(tidegate.CodeIllegalPollingTime), never, true, false},    // of a proxy that was paused
		{code(tidegate.CodeUnrecognizedClientType), never, true, true}, // of a server that forgot the client
		{code(tidegate.CodeNotImplemented), never, false, false},       // of an ingress without a backend
		{code(tidegate.CodeUnsupported), never, false, false},
		{code(49999), never, false, false},
		{code(tidegate.CodeBadRequest), never, false, false},
		{code(tidegate.CodeIllegalConsumerGroup), atOnce, false, false},
		{code(tidegate.CodeIllegalFilterExpression), atOnce, false, false},
		{code(tidegate.CodeIllegalInvisibleTime), atOnce, false, false},
		{code(tidegate.CodeUnauthorized), graced, false, false},
		{code(tidegate.CodeForbidden), graced, false, false},
		{fmt.Errorf("transport %w", tidegate.ErrClosed), atOnce, false, false},
	} {
		if got := endingOf(tt.err); got != tt.ending {
			t.Errorf("endingOf(%v) = %v", tt.err, got)
		}
		if got := canRepeat(tt.err, true); got != tt.harmless {
			t.Errorf("canRepeat(%v) where it is harmless: %v", tt.err, got)
		}
		if got := canRepeat(tt.err, false); got != tt.harm {
			t.Errorf("canRepeat(%v) where it is not: %v", tt.err, got)
		}
	}
}
