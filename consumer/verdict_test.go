package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// Not now, without spending an attempt.
func TestSnooze(t *testing.T) {
	for name, caps := range map[string]transport.Capabilities{"a server that can": ours, "one that counts": {}} {
		t.Run(name, onServer(func(t *testing.T, s *server) {
			s.caps = caps
			s.settings.MaxAttempts = 2
			s.fill(1)
			var seen outcomes
			var attempts []int
			var at []time.Duration
			begin := time.Now()
			runFor(t, 10*time.Minute, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
				attempts, at = append(attempts, d.Attempt), append(at, time.Since(begin))
				if len(attempts) == 4 {
					return nil
				}
				return fmt.Errorf("order %s: %w", d.ID, errors.Join(errors.New("the shop is closed"), consumer.Snooze(time.Minute)))
			}, consumer.PushOptions{OnDelivery: seen.add})
			list := seen.all()
			assert.MustThat(t, len(list) == 4 && s.left() == 0 && len(s.dead) == 0, "%d deliveries, %d left, dead letters %v", len(list), s.left(), s.dead)
			for i, o := range list[:3] {
				attempt, want := 1, consumer.Outcome{Delivery: o.Delivery, Disposition: consumer.Snoozed, Delay: time.Minute, Err: o.Err}
				if !caps.Verdicts.Has(transport.Snooze) {
					attempt, want.Disposition, want.AttemptSpent = i+1, consumer.Retried, true
				}
				if o != want || o.Delivery.ID != "m0" || o.Delivery.Attempt != attempt || at[i+1]-at[i] != time.Minute {
					t.Errorf("delivery %d: %+v, the next came %v later; want %+v", i, o, at[i+1]-at[i], want)
				}
			}
		}))
	}
}

// A finality is the result of FinalAttempt.
type finality struct{ final, known bool }

var (
	finalityUnknown = finality{}
	notFinal        = finality{known: true}
	final           = finality{final: true, known: true}
)

func finalityOf(ctx context.Context) finality {
	final, known := consumer.FinalAttempt(ctx)
	return finality{final, known}
}

// A flag for the last attempt, and a callback for the dead letter.
func TestFinalAttemptAndDeadLetter(t *testing.T) {
	for _, tt := range []struct {
		most int
		caps transport.Capabilities
		want []finality
	}{
		{3, ours, []finality{notFinal, notFinal, final}},
		{-1, ours, []finality{notFinal, notFinal, notFinal, notFinal}},
		{0, ours, []finality{notFinal, notFinal, notFinal, notFinal}}, // 17 are the default of a tidegate broker
		{0, transport.Capabilities{}, make([]finality, 4)},
	} {
		withServer(t, func(t *testing.T, s *server) {
			s.caps = tt.caps
			s.settings.MaxAttempts, s.settings.Retry = tt.most, backoff.Steps{time.Second}
			s.fill(1)
			var got []finality
			broken := errors.New("broken")
			letters := 0
			runFor(t, time.Minute, s, consumer.Subscription{}, func(ctx context.Context, d *tidegate.Delivery) error {
				if got = append(got, finalityOf(ctx)); len(got) == 4 {
					return nil
				}
				d.ID = "changed by the handler"
				return broken
			}, consumer.PushOptions{OnDelivery: func(o consumer.Outcome) {
				if o.Disposition != consumer.DeadLettered {
					return
				}
				if letters++; o.Delivery.ID != "m0" || o.Delivery.Attempt != 3 || o.Err != broken {
					t.Errorf("dead letter %+v because of %v", o.Delivery, o.Err)
				}
			}})
			assert.That(t, slices.Equal(got, tt.want) && (letters == 1) == (tt.most == 3), "%d attempts: %v, %d dead letters; want %v", tt.most, got, letters, tt.want)
		})
	}
	assert.That(t, finalityOf(t.Context()) == finalityUnknown, "a context that is no handler's knows about attempts")
}

// Permanent errors of other packages are known to the classifier, and middleware wraps the handler
// in order.
func TestClassifyAndMiddleware(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.fill(3)
		var seen outcomes
		var mu sync.Mutex
		var order []string
		note := func(name string) consumer.Middleware {
			return func(next consumer.Handler) consumer.Handler {
				return func(ctx context.Context, d *tidegate.Delivery) error {
					mu.Lock()
					order = append(order, name)
					mu.Unlock()
					return next(ctx, d)
				}
			}
		}
		duplicate := errors.New("duplicate key")
		runFor(t, time.Second, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
			switch d.ID {
			case "m0":
				return fmt.Errorf("load: %w", sql.ErrNoRows)
			case "m1":
				return duplicate
			}
			return nil
		}, consumer.PushOptions{
			Concurrency: 1, Middleware: []consumer.Middleware{note("outer"), note("inner")}, OnDelivery: seen.add,
			Classify: func(err error) error {
				switch {
				case errors.Is(err, sql.ErrNoRows):
					return consumer.DeadLetterNow(err)
				case errors.Is(err, duplicate):
					return nil
				}
				return err
			},
		})
		got := map[string]consumer.Outcome{}
		for _, o := range seen.all() {
			got[o.Delivery.ID] = o
		}
		if got["m0"].Disposition != consumer.DeadLettered || !errors.Is(got["m0"].Err, sql.ErrNoRows) || s.dead["m0"] != "load: sql: no rows in result set" ||
			got["m1"].Disposition != consumer.Acked || got["m1"].Err != duplicate || got["m2"].Disposition != consumer.Acked {
			t.Errorf("outcomes %+v, dead letters %v", got, s.dead)
		}
		assert.That(t, fmt.Sprint(order) == "[outer inner outer inner outer inner]", "middleware ran as %v", order)
	})
}

func TestFilters(t *testing.T) {
	for _, tt := range []struct{ got, want tidegate.Filter }{
		{consumer.Tags(), tidegate.Filter{}},
		{consumer.Tags("a"), tidegate.Filter{Expression: "a"}},
		{consumer.Tags("a", "b"), tidegate.Filter{Expression: "a||b"}},
		{consumer.SQL("amount > 100"), tidegate.Filter{Expression: "amount > 100", SQL: true}},
	} {
		assert.That(t, tt.got == tt.want, "got %+v, want %+v", tt.got, tt.want)
	}
}

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
		{"snooze, negative", 1, consumer.Snooze(-time.Second), snoozing, verdict.Decision{Verdict: transport.Verdict{Kind: transport.Snooze}}},
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
			got := verdict.Judge(tt.attempt, verdict.Read(tt.err), tt.rules)
			assert.That(t, got == tt.want, "got %+v, want %+v", got, tt.want)
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
		withServer(t, func(t *testing.T, s *server) {
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
			assert.That(t, len(s.retries) == 1 && s.retries[0].delay == tt.want, "%s: retries %+v, want one after %v", tt.name, s.retries, tt.want)
		})
	}
}

// reconsumer is a server with retry topics.
type reconsumer struct {
	*server
	err      error // of the requests, after they took effect if lost
	lost     bool
	verdicts []transport.Verdict
}

func (r *reconsumer) Settle(ctx context.Context, d *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
	if v.Kind != transport.RetryTopic && v.Kind != transport.NegativeAck {
		return r.server.Settle(ctx, d, v)
	}
	r.mu.Lock()
	r.verdicts = append(r.verdicts, v)
	err := r.err
	if r.lost {
		r.err = nil
	}
	r.mu.Unlock()
	if err != nil && !r.lost {
		return transport.RetryResult{}, err
	}
	if serr := r.settle(ctx, d, nil, func(e *entry) { e.done = true; r.end(e, e.due) }); serr != nil {
		return transport.RetryResult{}, serr
	}
	return transport.RetryResult{Fate: transport.FateAgain, Delay: time.Minute}, err
}

// On a server without retry topics, such as a RocketMQ, the message is retried in its own topic
// after the delay that the handler asked for, and the outcome has a typed error.
func TestReconsumeOnAPlainServer(t *testing.T) {
	away := errors.New("the database is away")
	for name, tt := range map[string]struct {
		err     error
		attempt int // that fails with it
		want    time.Duration
	}{
		"a delay":                        {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: 7 * time.Second}, away), 1, 7 * time.Second},
		"more than a server takes":       {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: 100 * time.Hour}, away), 1, 12 * time.Hour},
		"a level":                        {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Level: 3}, away), 1, 10 * time.Second},
		"a level above the last":         {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Level: 99}, away), 1, 2 * time.Hour},
		"the next level":                 {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, away), 1, time.Second},
		"the next level, second attempt": {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, away), 2, 5 * time.Second},
		"negative":                       {consumer.Reconsume(transport.Verdict{Kind: transport.NegativeAck}, away), 1, time.Minute},
		"negative, with a delay":         {consumer.Reconsume(transport.Verdict{Kind: transport.NegativeAck, Delay: 3 * time.Second}, away), 1, 3 * time.Second},
		"wrapped":                        {fmt.Errorf("pay: %w", consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: 7 * time.Second}, away)), 1, 7 * time.Second},
	} {
		t.Run(name, onServer(func(t *testing.T, s *server) {
			s.fill(1)
			var seen outcomes
			runFor(t, 10*time.Second, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
				if d.Attempt == tt.attempt {
					return tt.err
				}
				return consumer.RetryIn(time.Second, nil)
			}, consumer.PushOptions{OnDelivery: seen.add})
			o := seen.all()[tt.attempt-1]
			e, _ := errors.AsType[*tidegate.Error](o.SettleErr)
			if o.Disposition != consumer.Retried || o.Delay != tt.want || !errors.Is(o.Err, away) || e == nil || e.Code != tidegate.CodeNotImplemented {
				t.Errorf("outcome %+v, want a retry after %v", o, tt.want)
			}
			plain := seen.all()[len(seen.all())-1]
			assert.That(t, tt.want >= 10*time.Second || plain.SettleErr == nil, "an ordinary retry: %+v", plain)
		}))
	}
}

func TestReconsumeRequests(t *testing.T) {
	refused := &tidegate.Error{Op: "Reconsume", Code: tidegate.CodeBadRequest, Message: "the group has no retry topics"}
	lost := errors.New("the response was lost")
	for name, tt := range map[string]struct {
		fail        error
		err         error // of the server
		lost        bool
		verdict     transport.Verdict
		disposition consumer.Disposition
		delay       time.Duration
		is          error // the match of SettleErr
	}{
		"delay":    {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour}, nil), nil, false, transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour}, consumer.Reconsumed, time.Minute, nil},
		"level":    {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Level: 4}, nil), nil, false, transport.Verdict{Kind: transport.RetryTopic, Level: 4}, consumer.Reconsumed, time.Minute, nil},
		"next":     {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, nil), nil, false, transport.Verdict{Kind: transport.RetryTopic}, consumer.Reconsumed, time.Minute, nil},
		"negative": {consumer.Reconsume(transport.Verdict{Kind: transport.NegativeAck, Delay: time.Hour}, nil), nil, false, transport.Verdict{Kind: transport.NegativeAck, Delay: time.Hour}, consumer.Retried, time.Minute, nil},
		"refused":  {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour}, nil), refused, false, transport.Verdict{Kind: transport.RetryTopic, Delay: time.Hour}, consumer.Retried, time.Hour, refused},
		"lost":     {consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, nil), lost, true, transport.Verdict{Kind: transport.RetryTopic}, consumer.PerhapsSettled, 0, verdict.ErrPerhaps},
		// A dead letter is the stronger wish.
		"dead letter": {errors.Join(consumer.Reconsume(transport.Verdict{Kind: transport.RetryTopic}, nil), consumer.DeadLetterNow(nil)), nil, false, transport.Verdict{Kind: transport.RetryTopic}, consumer.DeadLettered, 0, nil},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			s := &reconsumer{server: newServer(t), err: tt.err, lost: tt.lost}
			s.caps = ours
			s.caps.Verdicts |= transport.RetryTopic | transport.NegativeAck
			s.fill(1)
			var seen outcomes
			runFor(t, time.Minute, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return tt.fail }, consumer.PushOptions{OnDelivery: seen.add})
			list := seen.all()
			if len(list) != 1 || list[0].Disposition != tt.disposition || list[0].Delay != tt.delay || !errors.Is(list[0].SettleErr, tt.is) {
				t.Errorf("outcomes %+v, want %v after %v, %v", list, tt.disposition, tt.delay, tt.is)
			}
			for i := range s.verdicts {
				s.verdicts[i].Reason = ""
			}
			assert.That(t, tt.disposition == consumer.DeadLettered || len(s.verdicts) != 0 && s.verdicts[0] == tt.verdict, "verdicts %+v, want %+v", s.verdicts, tt.verdict)
		})
	}
}

// A simple consumer's transport that cannot do it is not asked.
func TestSimpleReconsumeNeedsTheTransport(t *testing.T) {
	s, err := consumer.NewSimple(newServer(t), consumer.Subscription{Group: "billing", Topic: "orders"}, consumer.SimpleOptions{})
	assert.Must(t, err)
	_, err = s.Settle(t.Context(), &tidegate.Delivery{}, transport.Verdict{Kind: transport.RetryTopic})
	e, _ := errors.AsType[*tidegate.Error](err)
	assert.That(t, e != nil && e.Code == tidegate.CodeNotImplemented, "%v", err)
}

// Outcome.AttemptSpent is false if the handler returned Snooze and the server did not count the
// attempt, because no retry reached it.
func TestAttemptNotSpent(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.fill(1)
		s.onRetry = func(*tidegate.Delivery) error { return errors.New("connection refused") }
		var seen outcomes
		runFor(t, time.Minute, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return consumer.Snooze(time.Hour) },
			consumer.PushOptions{InvisibleDuration: 10 * time.Second, OnDelivery: seen.add})
		got := seen.all()
		assert.That(t, len(got) != 0 && got[0].Disposition == consumer.Unsettled && !got[0].AttemptSpent, "outcomes %+v, want it unsettled and not spent", got)
	})
}

// tries counts the deliveries of each message, with the times between them.
type tries struct {
	mu    sync.Mutex
	at    map[string][]time.Time
	final map[string][]finality
}

func (c *tries) fail(ctx context.Context, d *tidegate.Delivery) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at[d.Tag] = append(c.at[d.Tag], time.Now())
	c.final[d.Tag] = append(c.final[d.Tag], finalityOf(ctx))
	d.Tag = "changed by the handler"
	clear(d.Properties)
	return errors.New("no connection")
}

func (c *tries) gaps(tag string) (gaps []time.Duration) {
	for i, at := range c.at[tag][1:] {
		gaps = append(gaps, at.Sub(c.at[tag][i]))
	}
	return gaps
}

// Each message has the schedule, the attempts and the end of its policy, also if its handler
// changes the delivery.
func TestPolicies(t *testing.T) {
	for name, caps := range map[string]transport.Capabilities{
		"a server that decides": {Suspend: true, IdempotentDeadLetter: true, RepeatReceive: true, RepeatChange: true, RetryResult: true}, "a RocketMQ": {},
	} {
		t.Run(name, onServer(func(t *testing.T, s *server) {
			s.caps = caps
			s.settings = transport.ConsumerSettings{MaxAttempts: 6, Retry: backoff.Steps{time.Hour}}
			for _, tag := range []string{"plain", "invoice", "acme", "noise", "many"} {
				props := map[string]string{"tenant": tag}
				s.add(0, &tidegate.Message{ID: tag, Topic: "orders", Tag: tag, Properties: props, Body: []byte("x")})
			}
			c := &tries{at: map[string][]time.Time{}, final: map[string][]finality{}}
			var seen outcomes
			stop := start(t, s, consumer.Subscription{}, c.fail, consumer.PushOptions{OnDelivery: seen.add, Policies: []policy.Policy{
				{MaxAttempts: 4, Retry: backoff.Steps{time.Second}},
				{Tag: "invoice", Retry: backoff.Steps{time.Minute, time.Hour}},
				{Tag: "noise", Exhausted: policy.Discard},
				{Tag: "many", MaxAttempts: 30},
				{Properties: map[string]string{"tenant": "acme"}, MaxAttempts: 2},
			}})
			time.Sleep(10 * time.Second)
			synctest.Wait()
			c.mu.Lock()
			if n := len(c.at["many"]); caps == (transport.Capabilities{}) && n != 6 {
				t.Errorf("a message has %d attempts, want the server's maximum of 6", n)
			}
			c.mu.Unlock()
			time.Sleep(24 * time.Hour)
			stop()
			for tag, want := range map[string][]time.Duration{
				"plain":   {time.Second, time.Second, time.Second},
				"invoice": {time.Minute, time.Hour, time.Hour},
				"acme":    {time.Second},
				"noise":   {time.Second, time.Second, time.Second},
			} {
				got := c.gaps(tag)
				assert.That(t, slices.Equal(got, want), "%s: delivered again after %v, want %v", tag, got, want)
				for i, f := range c.final[tag] {
					assert.That(t, (f == final) == (i == len(want)), "%s: attempt %d is %v", tag, i+1, f)
				}
				end := consumer.DeadLettered
				if tag == "noise" {
					end = consumer.Discarded
				}
				list := seen.all()
				o := list[slices.IndexFunc(list, func(o consumer.Outcome) bool { return o.Delivery.ID == tag && o.Disposition != consumer.Retried })]
				if _, dead := s.dead[tag]; o.Disposition != end || o.Delivery.Attempt != len(want)+1 || dead != (end == consumer.DeadLettered) || o.SettleErr != nil {
					t.Errorf("%s: %+v, dead letter %v, want %v", tag, o, dead, end)
				}
			}
		}))
	}
}

// The consumer reports the values in effect, with their sources.
func TestEffectivePolicy(t *testing.T) {
	s := newServer(t)
	s.settings = transport.ConsumerSettings{MaxAttempts: 6, Retry: backoff.Steps{time.Minute}}
	p, err := consumer.NewPush(s, consumer.Subscription{Group: "billing", Topic: "orders", Retry: backoff.Steps{time.Second}},
		func(context.Context, *tidegate.Delivery) error { return nil },
		consumer.PushOptions{Policies: []policy.Policy{{Topic: "orders", Tag: "invoice", MaxAttempts: 3}}})
	assert.Must(t, err)
	e, err := p.EffectivePolicy(t.Context(), &tidegate.Message{Tag: "invoice"})
	if err != nil || e.MaxAttempts != 3 || e.MaxAttemptsFrom != `PushOptions.Policies[0] (tag "invoice", topic "orders")` ||
		e.RetryFrom != "Subscription.Retry" || e.Retry.Delay(0) != time.Second {
		t.Errorf("got\n%v\n%v", e, err)
	}
	e, err = p.EffectivePolicy(t.Context(), &tidegate.Message{})
	assert.That(t, err == nil && e.MaxAttempts == 6 && e.MaxAttemptsFrom == "server: settings of the group", "got\n%v\n%v", e, err)
	broken := errors.New("connection lost")
	s.onSettings = func(context.Context) error { return broken }
	e, err = p.EffectivePolicy(t.Context(), &tidegate.Message{Tag: "invoice"})
	assert.That(t, errors.Is(err, broken) && e.MaxAttempts == 3 && e.RetryFrom == "Subscription.Retry", "without the server's settings: got\n%v\n%v", e, err)
	if _, err = p.EffectivePolicy(t.Context(), &tidegate.Message{Topic: "no topic"}); err == nil || !strings.Contains(err.Error(), `"no topic"`) {
		t.Errorf("of a topic that cannot exist: %v", err)
	}
}
