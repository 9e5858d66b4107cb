package producer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

func TestSendAccepted(t *testing.T) {
	f := &fake{}
	p := newProducer(t, f, Options{})
	msg := message()
	want := *msg
	r, err := p.Send(t.Context(), msg)
	if err != nil {
		t.Fatal(err)
	}
	if r.MessageID == "" || r.MessageID != f.ids[0] || r.Attempts != 1 || r.Topic != "orders" || r.Offset != 7 || r.Endpoint != "b:2" {
		t.Errorf("receipt %+v, sent ID %q", r, f.ids[0])
	}
	if !reflect.DeepEqual(*msg, want) {
		t.Errorf("the caller's message was changed to %+v", *msg)
	}
	if f.asked.Load() != 0 {
		t.Error("an accepted send asked for settings")
	}
	msg.ID = "mine"
	if r, err = p.Send(t.Context(), msg); err != nil || r.MessageID != "mine" {
		t.Errorf("receipt %+v, error %v; want the caller's ID", r, err)
	}
}

// RocketMQ: sending retry and throttling: "If a retry is triggered by throttling, the message is
// retried at intervals specified in the exponential backoff protocol"
// RocketMQ: sending retry and throttling: "INITIAL_BACKOFF: specifies the interval between the
// first failure and the first retry. Default value: 1 second"
func TestThrottledGapsLieInRange(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			f := script(throttled(0), throttled(0), throttled(0), throttled(0))
			p := newProducer(t, f, Options{MaxAttempts: 5})
			r, err := p.Send(t.Context(), message())
			if err != nil || r.Attempts != 5 {
				t.Fatalf("receipt %+v, error %v", r, err)
			}
			for i, gap := range f.gaps() {
				if lo, hi := backoff.Default().Range(i); gap < lo || gap > hi {
					t.Errorf("gap %d is %v, not in [%v, %v]", i, gap, lo, hi)
				}
			}
			for _, id := range f.ids {
				if id != f.ids[0] || id == "" {
					t.Fatalf("the ID changed between attempts: %q", f.ids)
				}
			}
		})
	}
}

// Throttling has a policy of its own and does not use up the attempts.
func TestThrottlesOfTheirOwnLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		five := []error{throttled(0), throttled(0), throttled(0), throttled(0), throttled(0)}
		p := newProducer(t, script(five...), Options{MaxAttempts: 3, MaxThrottles: 5})
		if r, err := p.Send(t.Context(), message()); err != nil || r.Attempts != 6 {
			t.Errorf("receipt %+v, error %v; want success at attempt 6", r, err)
		}
		p = newProducer(t, script(append(five, throttled(0))...), Options{MaxAttempts: 3, MaxThrottles: 5})
		_, err := p.Send(t.Context(), message())
		if e := sendError(t, err); e.Reason != StopThrottled || e.Attempts != 6 || e.Throttles != 6 {
			t.Errorf("got %+v", e)
		}
	})
}

// The server decides when to return.
func TestPushBackIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := script(throttled(7 * time.Second))
		p := newProducer(t, f, Options{})
		if _, err := p.Send(t.Context(), message()); err != nil {
			t.Fatal(err)
		}
		if gaps := f.gaps(); gaps[0] != 7*time.Second {
			t.Errorf("gap %v, want 7s", gaps[0])
		}
	})
}

// RocketMQ: sending retry and throttling: "Messages are immediately retried upon failures, except
// when a retry is triggered by throttling"
// RocketMQ: sending retry and throttling: "If the failure persists on the last retry, a call error
// is returned"
// RocketMQ: sending retry and throttling: "If the last retry fails, the system returns an error
// code and an exception"
func TestTransientRetriesAreAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := always(codeError(tidegate.CodeInternalServerError))
		p := newProducer(t, f, Options{})
		start := time.Now()
		_, err := p.Send(t.Context(), message())
		if e := sendError(t, err); e.Reason != StopExhausted || e.Attempts != 3 || e.MaxAttempts != 3 || time.Since(start) != 0 {
			t.Errorf("got %+v after %v", e, time.Since(start))
		}
		const want = `send to "orders": attempt 3 of 3 at a:1: 50001 INTERNAL_SERVER_ERROR: from the server`
		if err.Error() != want {
			t.Errorf("text\n%s\nwant\n%s", err, want)
		}
	})
}

func TestPermanentIsOneAttempt(t *testing.T) {
	f := always(codeError(tidegate.CodeTopicNotFound))
	p := newProducer(t, f, Options{MaxAttempts: 9})
	_, err := p.Send(t.Context(), message())
	if e := sendError(t, err); len(f.calls) != 1 || e.Reason != StopPermanent || !errors.Is(err, tidegate.ErrTopicNotFound) {
		t.Errorf("%d attempts, %+v", len(f.calls), e)
	}
	if f.asked.Load() != 0 {
		t.Error("a permanent failure asked for settings")
	}
}

func TestRouteThatWasGood(t *testing.T) {
	for _, code := range []tidegate.Code{tidegate.CodeTopicNotFound, tidegate.CodeMessagePropertyConflict} {
		f := script(nil, codeError(code), codeError(code))
		p := newProducer(t, f, Options{})
		for _, want := range []int{1, 3} {
			if r, err := p.Send(t.Context(), message()); err != nil || r.Attempts != want {
				t.Errorf("%d: receipt %+v, error %v; want success at attempt %d", code, r, err, want)
			}
		}
	}
}

// A cancelled context ends the wait for a retry.
func TestCancelDuringBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("the user went home")
		ctx, cancel := context.WithCancelCause(t.Context())
		p := newProducer(t, always(throttled(0)), Options{MaxAttempts: 100})
		start := time.Now()
		time.AfterFunc(300*time.Millisecond, func() { cancel(cause) })
		_, err := p.Send(ctx, message())
		if d := time.Since(start); d != 300*time.Millisecond {
			t.Errorf("returned after %v, want 300ms", d)
		}
		for _, want := range []error{cause, context.Canceled, tidegate.ErrThrottled} {
			if !errors.Is(err, want) {
				t.Errorf("%v does not match %v", err, want)
			}
		}
		if e := sendError(t, err); e.Reason != StopContext || e.Attempts != 1 {
			t.Errorf("got %+v", e)
		}
	})
}

// RocketMQ: sending retry and throttling: "you must evaluate the timeout duration and maximum
// number of retries for each call to prevent retries from blocking links"
func TestDeadlineIsHonouredExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+123*time.Microsecond)
		defer cancel()
		p := newProducer(t, always(throttled(time.Hour)), Options{})
		start := time.Now()
		_, err := p.Send(ctx, message())
		// The requested wait does not begin, so the caller still has its time.
		if d := time.Since(start); d != 0 {
			t.Errorf("returned after %v, want at once", d)
		}
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, tidegate.ErrThrottled) || tidegate.RetryAfter(err) != time.Hour {
			t.Errorf("got %v", err)
		}
		if e := sendError(t, err); e.Reason != StopDeadline || e.Needed != time.Hour+attemptFloor || e.Remaining != 10*time.Second+123*time.Microsecond || e.Attempts != 1 {
			t.Errorf("got %+v", e)
		}
		const want = `send to "orders": context deadline exceeded: the next attempt needs 1h0m0.1s, and 10s are left after attempt 1 of 3 at a:1: 530 TOO_MANY_REQUESTS: from the server`
		if err.Error() != want {
			t.Errorf("text\n%s\nwant\n%s", err, want)
		}
	})
}

func TestDeadContextMakesNoAttempt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := &fake{}
	p := newProducer(t, f, Options{})
	_, err := p.Send(ctx, message())
	if e := sendError(t, err); len(f.calls) != 0 || e.Attempts != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d attempts, %v", len(f.calls), err)
	}
}

// The same without settings of the server.
// RocketMQ: sending retry and throttling: "Messages are immediately retried upon failures, except
// when a retry is triggered by throttling"
func TestFirstRetryIsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := script(codeError(protocol.CodeProxyTimeout))
		f.settings = func(ctx context.Context) (transport.ProducerSettings, error) {
			<-ctx.Done()
			return transport.ProducerSettings{}, context.Cause(ctx)
		}
		start := time.Now()
		r, err := newProducer(t, f, Options{}).Send(t.Context(), message())
		if err != nil || r.Attempts != 2 || time.Since(start) != 0 {
			t.Errorf("%+v, %v after %v; want success at the second attempt, at once", r, err, time.Since(start))
		}
	})
}

func TestAttemptsAreObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []Attempt
		lost := codeError(protocol.CodeProxyTimeout)
		f := script(throttled(0), throttled(5*time.Second), lost)
		p := newProducer(t, f, Options{MaxAttempts: 4, Backoff: ladder, OnAttempt: func(a Attempt) {
			got = append(got, a)
			time.Sleep(time.Millisecond) // no lock is held: a bubble would hang
		}})
		r, err := p.Send(t.Context(), message())
		if err != nil {
			t.Fatal(err)
		}
		want := []Attempt{
			{Endpoint: "a:1", Err: throttled(0), Operation: "send", Class: tidegate.ClassThrottled, Delay: time.Second, DelayFrom: "backoff"},
			{Endpoint: "a:1", Err: throttled(5 * time.Second), Operation: "send", Class: tidegate.ClassThrottled, Delay: 5 * time.Second, DelayFrom: "push-back"},
			{Endpoint: "a:1", Err: lost, MaybeStored: true, Operation: "send", Class: tidegate.ClassTransient},
			{Endpoint: "b:2", Operation: "send", Class: tidegate.ClassOK},
		}
		for i := range want {
			want[i].Topic, want[i].MessageID, want[i].Number, want[i].Messages = "orders", r.MessageID, i+1, 1
			if i < len(got) {
				want[i].Began = got[i].Began
			}
		}
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
			t.Errorf("observed\n%+v\nwant\n%+v", got, want)
		}
	})
}

func TestObserverThatPanics(t *testing.T) {
	var log bytes.Buffer
	p := newProducer(t, &fake{}, Options{
		OnAttempt: func(Attempt) { panic("observer") },
		Logger:    slog.New(slog.NewTextHandler(&log, nil)),
	})
	if _, err := p.Send(t.Context(), message()); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "OnAttempt panicked") || !strings.Contains(log.String(), "send_test.go") {
		t.Errorf("logged %q, want the panic and its stack", log.String())
	}
}

func TestValidationBeforeTheWire(t *testing.T) {
	f := &fake{}
	p := newProducer(t, f, Options{MaxBodySize: 4})
	for _, msg := range []*tidegate.Message{nil, {}, {Topic: "orders"}, {Topic: "orders", Body: []byte("12345")}, {Topic: "a b", Body: []byte("1")}} {
		_, err := p.Send(t.Context(), msg)
		if e := sendError(t, err); e.Reason != StopInvalid || !errors.Is(err, tidegate.ErrInvalid) || e.Attempts != 0 {
			t.Errorf("%+v: %v", msg, err)
		}
	}
	if len(f.calls) != 0 {
		t.Errorf("%d attempts", len(f.calls))
	}
}

func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := always(codeError(tidegate.CodeInternalServerError))
		p := newProducer(t, f, Options{Limiter: rate.NewLimiter(1, 1)})
		if _, err := p.Send(t.Context(), message()); sendError(t, err).Reason != StopExhausted {
			t.Error(err)
		}
		if got, want := f.gaps(), []time.Duration{time.Second, time.Second}; !reflect.DeepEqual(got, want) {
			t.Errorf("gaps %v, want %v: the limiter is asked before every attempt", got, want)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := p.Send(ctx, message())
		if e := sendError(t, err); e.Reason != StopLimiter || e.Attempts != 0 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestCloseEndsSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{send: func(ctx context.Context, n int, _ *tidegate.Message) error {
			if n%2 == 0 {
				return throttled(0)
			}
			return blackHole(ctx)
		}}
		p := newProducer(t, f, Options{AttemptTimeout: time.Hour})
		errs := make(chan error, 10)
		for range 10 {
			go func() {
				_, err := p.Send(t.Context(), message())
				errs <- err
			}()
		}
		synctest.Wait()
		start := time.Now()
		for range 2 {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait() // the results of Send are in errs a moment later
		if len(errs) != 10 || time.Since(start) != 0 {
			t.Errorf("after Close %d of 10 sends had returned, in %v", len(errs), time.Since(start))
		}
		for range 10 {
			err := <-errs
			if !errors.Is(err, tidegate.ErrClosed) || errors.Is(err, context.Canceled) || sendError(t, err).Reason != StopClosed {
				t.Errorf("got %v", err)
			}
		}
		if _, err := p.Send(t.Context(), message()); !errors.Is(err, tidegate.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// Closing while others send neither panics nor loses a result.
func TestSendersRacingClose(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			p := newProducer(t, script(throttled(0), codeError(protocol.CodeInternalError)), Options{Backoff: backoff.Steps{time.Microsecond}})
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					if _, err := p.Send(t.Context(), message()); err != nil && !errors.Is(err, tidegate.ErrClosed) {
						t.Error(err)
					}
				})
			}
			wg.Go(func() { p.Close() })
			p.Close()
			wg.Wait()
		}) // a goroutine that is left fails the bubble
	}
}

// Producers that are throttled at the same instant do not retry in lock-step: no 10 ms have more
// than a twentieth of the retries. About a fortieth is expected.
//
// Clients do not retry in lock-step.
func TestRetriesSpread(t *testing.T) {
	const clients = 2000
	synctest.Test(t, func(t *testing.T) {
		buckets := map[int64]int{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		start := time.Now()
		for range clients {
			p := newProducer(t, &fake{send: func(_ context.Context, n int, _ *tidegate.Message) error {
				if n == 1 {
					return throttled(0)
				}
				mu.Lock()
				buckets[int64(time.Since(start)/(10*time.Millisecond))]++
				mu.Unlock()
				return nil
			}}, Options{})
			wg.Go(func() {
				if _, err := p.Send(t.Context(), message()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for b, n := range buckets {
			if n > clients/20 {
				t.Errorf("%d of %d retries came within the 10 ms after %d ms", n, clients, b*10)
			}
		}
	})
}

// With any outcomes a send ends within its limits, with one ID, and its error and its observations
// agree.
// RocketMQ: sending retry and throttling: "a producer client tries to send the message again until
// the message is sent or the maximum number of retries is reached"
// RocketMQ: sending retry and throttling: "Synchronous sending: The call thread is blocked until a
// retry succeeds or the last retry fails"
// RocketMQ: sending retry and throttling: "Message sending retries are supported in both the
// synchronous and asynchronous sending modes"
func TestSendProperties(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	codes := []tidegate.Code{
		0, 0, tidegate.CodeTooManyRequests, tidegate.CodeTooManyRequests, tidegate.CodeInternalServerError,
		protocol.CodeProxyTimeout, tidegate.CodeTopicNotFound, tidegate.CodeForbidden, tidegate.CodeMessagePropertyConflict,
	}
	for range 300 {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{send: func(ctx context.Context, _ int, _ *tidegate.Message) error {
				switch c := codes[rnd.IntN(len(codes))]; {
				case c != 0:
					return pushedBack(c, time.Duration(rnd.Int64N(int64(20*time.Second))-int64(time.Second)))
				case rnd.IntN(3) == 0:
					return blackHole(ctx)
				}
				return nil
			}}
			var seen []Attempt
			opts := Options{
				MaxAttempts: 1 + rnd.IntN(5), MaxThrottles: rnd.IntN(3),
				OnAttempt: func(a Attempt) { seen = append(seen, a) },
			}
			for range 5 {
				p := newProducer(t, f, opts) // a pause of the server's does not outlive it
				seen, f.ids, f.calls = nil, nil, nil
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rnd.IntN(60))*time.Second)
				deadline, _ := ctx.Deadline()
				r, err := p.Send(ctx, message())
				cancel()
				if time.Now().After(deadline) {
					t.Fatalf("returned %v after the deadline", time.Since(deadline))
				}
				if len(seen) != len(f.calls) || len(seen) > opts.MaxAttempts+opts.MaxThrottles {
					t.Fatalf("%d attempts, %d observed, options %+v", len(f.calls), len(seen), opts)
				}
				maybe := false
				for i, a := range seen {
					maybe = maybe || a.MaybeStored
					if a.Number != i+1 || a.MessageID != f.ids[0] || f.ids[i] != f.ids[0] || (a.Stop != NotStopped && i < len(seen)-1) {
						t.Fatalf("observed %+v", seen)
					}
				}
				if err == nil {
					if r.Attempts != len(seen) || seen[len(seen)-1].Err != nil {
						t.Fatalf("receipt %+v, observed %+v", r, seen)
					}
					continue
				}
				if e := sendError(t, err); e.Attempts != len(seen) || e.MaybeStored != maybe || e.Last != seen[len(seen)-1].Err ||
					e.Reason == NotStopped || !strings.HasPrefix(err.Error(), `send to "orders": `) {
					t.Fatalf("error %+v, observed %+v", e, seen)
				}
			}
		})
	}
}
