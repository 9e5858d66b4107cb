package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/transport"
)

// Not now, without spending an attempt.
func TestSnooze(t *testing.T) {
	for name, caps := range map[string]transport.Capabilities{"a server that can": ours, "one that counts": {}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				s.caps = caps
				s.settings.MaxAttempts = 2
				s.fill(1)
				var seen outcomes
				var attempts []int
				var at []time.Duration
				begin := time.Now()
				stop := start(t, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
					attempts, at = append(attempts, d.Attempt), append(at, time.Since(begin))
					if len(attempts) == 4 {
						return nil
					}
					return fmt.Errorf("order %s: %w", d.ID, errors.Join(errors.New("the shop is closed"), consumer.Snooze(time.Minute)))
				}, consumer.PushOptions{OnDelivery: seen.add})
				time.Sleep(10 * time.Minute)
				stop()
				list := seen.all()
				if len(list) != 4 || s.left() != 0 || len(s.dead) != 0 {
					t.Fatalf("%d deliveries, %d left, dead letters %v", len(list), s.left(), s.dead)
				}
				for i, o := range list[:3] {
					attempt, want := 1, consumer.Outcome{Delivery: o.Delivery, Disposition: consumer.Snoozed, Delay: time.Minute, Err: o.Err}
					if !caps.Verdicts.Has(transport.Snooze) {
						attempt, want.Disposition, want.AttemptSpent = i+1, consumer.Retried, true
					}
					if o != want || o.Delivery.ID != "m0" || o.Delivery.Attempt != attempt || at[i+1]-at[i] != time.Minute {
						t.Errorf("delivery %d: %+v, the next came %v later; want %+v", i, o, at[i+1]-at[i], want)
					}
				}
			})
		})
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
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			s.caps = tt.caps
			s.settings.MaxAttempts, s.settings.Retry = tt.most, backoff.Steps{time.Second}
			s.fill(1)
			var got []finality
			broken := errors.New("broken")
			letters := 0
			stop := start(t, s, consumer.Subscription{}, func(ctx context.Context, d *tidegate.Delivery) error {
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
			time.Sleep(time.Minute)
			stop()
			if !slices.Equal(got, tt.want) || (letters == 1) != (tt.most == 3) {
				t.Errorf("%d attempts: %v, %d dead letters; want %v", tt.most, got, letters, tt.want)
			}
		})
	}
	if finalityOf(t.Context()) != finalityUnknown {
		t.Error("a context that is no handler's knows about attempts")
	}
}

// Permanent errors of other packages are known to the classifier, and middleware wraps the handler
// in order.
func TestClassifyAndMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
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
		stop := start(t, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
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
		time.Sleep(time.Second)
		stop()
		got := map[string]consumer.Outcome{}
		for _, o := range seen.all() {
			got[o.Delivery.ID] = o
		}
		if got["m0"].Disposition != consumer.DeadLettered || !errors.Is(got["m0"].Err, sql.ErrNoRows) || s.dead["m0"] != "load: sql: no rows in result set" ||
			got["m1"].Disposition != consumer.Acked || got["m1"].Err != duplicate || got["m2"].Disposition != consumer.Acked {
			t.Errorf("outcomes %+v, dead letters %v", got, s.dead)
		}
		if fmt.Sprint(order) != "[outer inner outer inner outer inner]" {
			t.Errorf("middleware ran as %v", order)
		}
	})
}

func TestFilters(t *testing.T) {
	for _, tt := range []struct{ got, want tidegate.Filter }{
		{consumer.Tags(), tidegate.Filter{}},
		{consumer.Tags("a"), tidegate.Filter{Expression: "a"}},
		{consumer.Tags("a", "b"), tidegate.Filter{Expression: "a||b"}},
		{consumer.SQL("amount > 100"), tidegate.Filter{Expression: "amount > 100", SQL: true}},
	} {
		if tt.got != tt.want {
			t.Errorf("got %+v, want %+v", tt.got, tt.want)
		}
	}
}
