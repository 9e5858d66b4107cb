package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/transport"
)

func TestJudge(t *testing.T) {
	steps := backoff.Steps{time.Second, time.Minute, time.Hour}
	bounded := verdict.Rules{MaxAttempts: 3, Schedule: steps}
	endless := verdict.Rules{Schedule: steps}
	snoozing := verdict.Rules{MaxAttempts: 3, Schedule: steps, Takes: transport.Snooze}
	policied := verdict.Rules{MaxAttempts: 3, ServerAttempts: 3, OwnAttempts: 2, Schedule: steps}
	discarding := verdict.Rules{OwnAttempts: 2, Discard: true, Schedule: steps}
	broken := errors.New("no connection")
	for _, tt := range []struct {
		name    string
		attempt int
		err     error
		rules   verdict.Rules
		want    verdict.Decision
	}{
		{"success", 1, nil, bounded, verdict.Decision{Act: verdict.Ack}},
		{"success at the last attempt", 3, nil, bounded, verdict.Decision{Act: verdict.Ack}},
		{"first failure", 1, broken, bounded, verdict.Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: time.Second}}},
		{"second failure", 2, broken, bounded, verdict.Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: time.Minute}}},
		{"last attempt", 3, broken, bounded, verdict.Decision{Verdict: transport.Verdict{Kind: transport.DeadLetter, Reason: "no connection"}}},
		{"more than the last", 9, broken, bounded, verdict.Decision{Verdict: transport.Verdict{Kind: transport.DeadLetter, Reason: "no connection"}}},
		{"no limit known", 99, broken, endless, verdict.Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: time.Hour}}},
		{"an attempt that a server did not count", 0, broken, endless, verdict.Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: time.Second}}},
		{"retry after", 1, consumer.RetryIn(7*time.Second, broken), bounded, verdict.Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: 7 * time.Second}}},
		{"retry after, wrapped", 1, fmt.Errorf("a: %w", fmt.Errorf("b: %w", consumer.RetryIn(0, broken))), bounded, verdict.Decision{Verdict: transport.Verdict{Kind: transport.Retry}}},
		{"retry after, negative", 1, consumer.RetryIn(-1, nil), bounded, verdict.Decision{Verdict: transport.Verdict{Kind: transport.Retry}}},
		{"retry after the last", 3, consumer.RetryIn(time.Second, broken), bounded, verdict.Decision{Verdict: transport.Verdict{Kind: transport.DeadLetter, Reason: "no connection"}}},
		{"retry after, longer than the server takes", 1, consumer.RetryIn(time.Hour*13, broken), bounded, verdict.Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: 12 * time.Hour}}},
		{"dead letter", 1, consumer.DeadLetterNow(broken), bounded, verdict.Decision{Verdict: transport.Verdict{Kind: transport.DeadLetter, Reason: "no connection"}}},
		{"dead letter, wrapped", 1, fmt.Errorf("order 7: %w", consumer.DeadLetterNow(broken)), endless,
			verdict.Decision{Verdict: transport.Verdict{Kind: transport.DeadLetter, Reason: "order 7: no connection"}}},
		{"dead letter without a reason", 1, consumer.DeadLetterNow(nil), endless,
			verdict.Decision{Verdict: transport.Verdict{Kind: transport.DeadLetter, Reason: "dead letter requested by the handler"}}},
		{"dead letter beats retry after", 1, consumer.DeadLetterNow(consumer.RetryIn(time.Second, broken)), bounded,
			verdict.Decision{Verdict: transport.Verdict{Kind: transport.DeadLetter, Reason: "no connection"}}},
		{"retry after, joined", 1, errors.Join(broken, consumer.RetryIn(7*time.Second, nil)), bounded, verdict.Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: 7 * time.Second}}},
		{"dead letter, joined", 1, errors.Join(broken, consumer.DeadLetterNow(nil)), bounded,
			verdict.Decision{Verdict: transport.Verdict{Kind: transport.DeadLetter, Reason: "no connection dead letter requested by the handler"}}},
		{"snooze in the last attempt", 3, fmt.Errorf("not yet: %w", consumer.Snooze(time.Minute)), snoozing, verdict.Decision{Verdict: transport.Verdict{Kind: transport.Snooze, Delay: time.Minute}}},
		{"snooze, longer than the server takes", 1, consumer.Snooze(13 * time.Hour), snoozing, verdict.Decision{Verdict: transport.Verdict{Kind: transport.Snooze, Delay: 12 * time.Hour}}},
		{"snooze without the server's help", 3, consumer.Snooze(time.Minute), bounded, verdict.Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: time.Minute}, Spent: true}},
		{"dead letter beats snooze", 1, consumer.DeadLetterNow(consumer.Snooze(time.Minute)), snoozing, verdict.Decision{Verdict: transport.Verdict{Kind: transport.DeadLetter, Reason: "postponed for 1m0s"}}},
		{"before the policy's last attempt", 1, broken, policied, verdict.Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: time.Second}}},
		{"the policy's last attempt", 2, broken, policied, verdict.Decision{Verdict: transport.Verdict{Kind: transport.DeadLetter, Reason: "no connection"}}},
		{"the policy discards", 2, broken, discarding, verdict.Decision{Verdict: transport.Verdict{Reason: "no connection"}, Act: verdict.Discard}},
		{"the policy discards, as late as the server", 3, broken, verdict.Rules{MaxAttempts: 3, ServerAttempts: 3, OwnAttempts: 3, Discard: true, Schedule: steps},
			verdict.Decision{Verdict: transport.Verdict{Reason: "no connection"}, Act: verdict.Discard}},
		{"the policy would discard later than the server", 3, broken, verdict.Rules{MaxAttempts: 3, ServerAttempts: 3, OwnAttempts: 4, Discard: true, Schedule: steps},
			verdict.Decision{Verdict: transport.Verdict{Kind: transport.DeadLetter, Reason: "no connection"}}},
		{"after both maximums, the lower one decides", 9, broken, verdict.Rules{MaxAttempts: 3, ServerAttempts: 3, OwnAttempts: 4, Discard: true, Schedule: steps},
			verdict.Decision{Verdict: transport.Verdict{Kind: transport.DeadLetter, Reason: "no connection"}}},
		{"a server that decides has the lower maximum", 5, broken, verdict.Rules{ServerAttempts: 2, OwnAttempts: 5, Discard: true, Schedule: steps},
			verdict.Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: time.Hour}}},
		{"a server that decides has the lower maximum, without discard", 5, broken, verdict.Rules{ServerAttempts: 2, OwnAttempts: 5, Schedule: steps},
			verdict.Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: time.Hour}}},
		{"a server that decides has the higher maximum", 5, broken, verdict.Rules{ServerAttempts: 5, OwnAttempts: 5, Discard: true, Schedule: steps},
			verdict.Decision{Verdict: transport.Verdict{Reason: "no connection"}, Act: verdict.Discard}},
		{"discard without a maximum", 9, broken, verdict.Rules{Discard: true, Schedule: steps}, verdict.Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: time.Hour}}},
		{"dead letter beats discard", 2, consumer.DeadLetterNow(broken), discarding, verdict.Decision{Verdict: transport.Verdict{Kind: transport.DeadLetter, Reason: "no connection"}}},
		{"snooze in the policy's last attempt", 2, consumer.Snooze(time.Minute), verdict.Rules{OwnAttempts: 2, Takes: transport.Snooze, Schedule: steps},
			verdict.Decision{Verdict: transport.Verdict{Kind: transport.Snooze, Delay: time.Minute}}},
		{"panic", 2, &consumer.PanicError{Value: "boom"}, bounded, verdict.Decision{Verdict: transport.Verdict{Kind: transport.Retry, Delay: time.Minute}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.want.Is(transport.Retry) {
				tt.want.Reason = verdict.Read(tt.err).Reason
			}
			if got := verdict.Judge(tt.attempt, verdict.Read(tt.err), tt.rules); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// The consumer's copy of a deciding server's retry schedule may be old, or of another topic. So the
// consumer requests a retry by the server's schedule, unless the program sets a delay.
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
		{"the server's ladder", broken, nil, ours, transport.BySchedule},
		{"the program's ladder", broken, backoff.Steps{time.Second}, ours, time.Second},
		{"the handler's wish", consumer.RetryIn(time.Hour, broken), nil, ours, time.Hour},
		{"a server that does not decide", broken, nil, transport.Capabilities{Suspend: true}, time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			s.settings, s.caps = pushed, tt.caps
			s.fill(1)
			failed := false
			stop := start(t, s, consumer.Subscription{Retry: tt.own}, func(context.Context, *tidegate.Delivery) error {
				if failed {
					return nil
				}
				failed = true
				return tt.err
			}, consumer.PushOptions{})
			synctest.Wait()
			stop()
			if len(s.retries) != 1 || s.retries[0].delay != tt.want {
				t.Errorf("%s: retries %+v, want one after %v", tt.name, s.retries, tt.want)
			}
		})
	}
}
