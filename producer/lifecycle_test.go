package producer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// In every interleaving accepted = delivered + failed + undelivered, and each message has exactly
// one result.
//
// The producer reports the messages that it did not send.
func TestAccountsAddUp(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 3))
	for round := range 200 {
		synctest.Test(t, func(t *testing.T) {
			f := &laneFake{do: func(ctx context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
				sleepFor(ctx, time.Duration(n%7)*100*time.Millisecond)
				errs := make([]error, len(msgs))
				for i, m := range msgs {
					switch (n + len(m.ID) + i) % 9 {
					case 1, 2:
						errs[i] = codeError(tidegate.CodeInternalServerError)
					case 3:
						errs[i] = throttled(0)
					case 4:
						errs[i] = codeError(protocol.CodeIllegalMessageTag)
					}
				}
				return errs
			}}
			p, err := New(f, Options{MaxPending: 20, AttemptTimeout: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			var accepted, ok, closed, failed, twice atomic.Int64
			result := func(err error) {
				switch {
				case err == nil:
					ok.Add(1)
				case errors.Is(err, tidegate.ErrClosed):
					closed.Add(1)
				default:
					failed.Add(1)
				}
			}
			var wg sync.WaitGroup
			for g := range 8 {
				pause, leave := time.Duration(rnd.IntN(300))*time.Millisecond, time.Duration(rnd.IntN(5000))*time.Millisecond
				wg.Go(func() {
					for i := range 10 {
						time.Sleep(pause)
						ctx, cancel := context.WithTimeout(t.Context(), leave)
						m := named(fmt.Sprintf("%d-%d", g, i*i*i))
						m.MessageGroup = []string{"", "a", "b"}[g%3]
						if g%2 == 0 {
							var calls atomic.Int64
							if err := p.SendAsync(ctx, m, func(_ tidegate.Receipt, err error) {
								twice.Add(calls.Add(1) - 1)
								result(err)
							}); err == nil {
								accepted.Add(1)
							}
							defer cancel()
							continue
						}
						if _, err := p.Send(ctx, m); err == nil || sendError(t, err).Attempts > 0 {
							result(err)
							accepted.Add(1)
						}
						cancel()
					}
				})
			}
			time.Sleep(time.Duration(rnd.IntN(2000)) * time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(3000))*time.Millisecond)
			accounts, err := p.Shutdown(ctx)
			cancel()
			if accounts.Accepted != accounts.Delivered+accounts.Failed+len(accounts.Undelivered) {
				t.Errorf("round %d: %+v do not add up", round, accounts)
			}
			if err == nil && len(accounts.Undelivered) > 0 || err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("round %d: %v with %d undelivered", round, err, len(accounts.Undelivered))
			}
			wg.Wait()
			p.Close()
			again, err := p.Shutdown(t.Context())
			if err != nil || again.Accepted != accounts.Accepted || len(again.Undelivered) != len(accounts.Undelivered) {
				t.Errorf("round %d: a second Shutdown returned %+v, %v", round, again, err)
			}
			if int(ok.Load()) != again.Delivered || int(accepted.Load()) > again.Accepted || twice.Load() != 0 {
				t.Errorf("round %d: callers saw %d accepted and %d delivered, %d results twice; the accounts are %+v", round, accepted.Load(), ok.Load(), twice.Load(), again)
			}
		})
	}
}

// Closing flushes. An idle producer stops at once.
func TestShutdownWaitsForAcceptedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := script(throttled(3 * time.Second))
		p := newProducer(t, f, Options{})
		told := false
		if err := p.SendAsync(t.Context(), message(), func(_ tidegate.Receipt, err error) { told = err == nil }); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		a, err := p.Shutdown(t.Context())
		if err != nil || !told || a.Accepted != 1 || a.Delivered != 1 || time.Since(start) != 3*time.Second {
			t.Errorf("%+v, %v after %v, called: %v", a, err, time.Since(start), told)
		}
		if _, err := p.Send(t.Context(), message()); !errors.Is(err, tidegate.ErrClosed) {
			t.Errorf("after Shutdown: %v", err)
		}
		start = time.Now()
		if a, err := newProducer(t, f, Options{}).Shutdown(t.Context()); err != nil || a.Accepted != 0 || time.Since(start) != 0 {
			t.Errorf("of an idle producer: %+v, %v after %v", a, err, time.Since(start))
		}
	})
}

// Shutdown returns at the end of its ctx, also if the transport ignores the cancellation of its
// requests. Close waits for them.
//
// The stop is bounded by its ctx.
func TestShutdownIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const stuck, patience = time.Hour, 2 * time.Second
		f := &fake{send: func(context.Context, int, *tidegate.Message) error {
			time.Sleep(stuck)
			return nil
		}}
		p := newProducer(t, f, Options{})
		results := 0
		for range 3 {
			if err := p.SendAsync(t.Context(), message(), func(tidegate.Receipt, error) { results++ }); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		start := time.Now()
		a, err := p.Shutdown(ctx)
		if took := time.Since(start); took != patience || !errors.Is(err, context.DeadlineExceeded) || len(a.Undelivered) != 3 {
			t.Errorf("%+v, %v after %v, want 3 undelivered messages after %v", a, err, took, patience)
		}
		p.Close()
		if took := time.Since(start); took != stuck || results != 3 {
			t.Errorf("Close returned %v after the requests began, with %d of 3 results; want %v", took, results, stuck)
		}
	})
}

// Shutdown returns the messages that it aborts, with the ID of their attempts.
func TestShutdownReturnsTheUndelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{do: func(ctx context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			return all(len(msgs), blackHole(ctx))
		}}
		var log bytes.Buffer
		p := newProducer(t, f, Options{AttemptTimeout: time.Hour, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for i := range 3 {
			m := message()
			m.MessageGroup = "g"
			m.Body = fmt.Append(nil, i)
			if err := p.SendAsync(t.Context(), m, func(tidegate.Receipt, error) {}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		a, err := p.Shutdown(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || len(a.Undelivered) != 3 || time.Since(start) != time.Second {
			t.Fatalf("%+v, %v after %v", a, err, time.Since(start))
		}
		for _, u := range a.Undelivered {
			if sent := string(u.Message.Body) == "0"; u.MaybeStored != sent || u.Message.ID == "" || sent && u.Message.ID != f.sent[0].ids[0] {
				t.Errorf("got back %+v", u)
			}
		}
		if !strings.Contains(log.String(), "messages aborted") || !strings.Contains(log.String(), "messages=3") {
			t.Errorf("logged %q", log.String())
		}
	})
}

// The log has the number of the messages that Close aborted, without one whose response arrived
// during Close.
func TestCloseLogsAbortedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		respond, delivered := make(chan struct{}), make(chan struct{})
		f := &fake{send: func(ctx context.Context, _ int, m *tidegate.Message) error {
			if m.ID == "lost" {
				return blackHole(ctx)
			}
			<-respond
			return nil
		}}
		var log bytes.Buffer
		p := newProducer(t, f, Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), OnAttempt: func(a Attempt) {
			if a.MessageID == "lost" {
				close(respond)
				<-delivered
			}
		}})
		for _, id := range []string{"lost", "stored"} {
			if err := p.SendAsync(t.Context(), named(id), func(_ tidegate.Receipt, err error) {
				if err == nil {
					close(delivered)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		p.Close()
		a, err := p.Shutdown(t.Context())
		if err != nil || a.Delivered != 1 || len(a.Undelivered) != 1 || !strings.Contains(log.String(), "messages=1 ") {
			t.Errorf("%+v, %v, logged %q; want one message delivered and one aborted", a, err, log.String())
		}
	})
}

func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{send: func(ctx context.Context, _ int, _ *tidegate.Message) error {
			sleepFor(ctx, time.Second)
			return nil
		}}
		p := newProducer(t, f, Options{})
		if err := p.Flush(t.Context()); err != nil {
			t.Errorf("with nothing to flush: %v", err)
		}
		called := 0
		for range 3 {
			if err := p.SendAsync(t.Context(), message(), func(tidegate.Receipt, error) { called++ }); err != nil {
				t.Fatal(err)
			}
		}
		time.AfterFunc(500*time.Millisecond, func() { p.Send(t.Context(), message()) }) // is not waited for
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := p.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with too little time: %v", err)
		}
		if err := p.Flush(t.Context()); err != nil || called != 3 {
			t.Errorf("%v, %d of 3 called", err, called)
		}
		synctest.Wait()
		if sent := 1 + len(f.gaps()); sent != 4 || len(p.ledger.Pending()) != 1 {
			t.Errorf("%d attempts, %d messages pending; want the later message to be under way", sent, len(p.ledger.Pending()))
		}
	})
}

// All of it is legal in every state and order, and from every goroutine.
func TestLifecycleInAnyOrder(t *testing.T) {
	for round := range 200 {
		synctest.Test(t, func(t *testing.T) {
			f := script(throttled(0), codeError(tidegate.CodeInternalServerError))
			p, err := New(f, Options{})
			if err != nil {
				t.Fatal(err)
			}
			rnd := rand.New(rand.NewPCG(uint64(round), 4))
			var wg sync.WaitGroup
			for range 10 {
				op := rnd.IntN(5)
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(op)*time.Second)
					defer cancel()
					switch op {
					case 0:
						p.Close()
					case 1:
						p.Shutdown(ctx)
					case 2:
						p.Flush(ctx)
					case 3:
						p.Send(ctx, message())
					case 4:
						p.SendAsync(t.Context(), message(), func(tidegate.Receipt, error) { p.Flush(ctx) })
					}
				})
			}
			wg.Wait()
			p.Close()
		}) // a goroutine that is left fails the bubble
	}
}

// The function is called without a lock and not by the caller, and may send.
func TestFunctionsMaySend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProducer(t, &fake{}, Options{MaxPending: 1})
		var caller sync.Mutex // a function on the caller's goroutine would deadlock
		done := make(chan error, 1)
		caller.Lock()
		err := p.SendAsync(t.Context(), message(), func(tidegate.Receipt, error) {
			caller.Lock()
			_, err := p.Send(t.Context(), message()) // the place of the first message is free
			done <- err
		})
		caller.Unlock()
		if err != nil || <-done != nil {
			t.Error(err)
		}
	})
}

// A slow function fills the producer up; it does not let memory grow.
func TestSlowFunctionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProducer(t, &fake{}, Options{MaxPending: 10, WhenFull: RejectWhenFull})
		release := make(chan struct{})
		taken := 0
		for range 100 {
			if p.SendAsync(t.Context(), message(), func(tidegate.Receipt, error) { <-release }) == nil {
				taken++
			}
			synctest.Wait()
		}
		if taken != 11 { // one is being called, ten wait
			t.Errorf("%d messages were accepted, want 11", taken)
		}
		close(release)
	})
}

// Topics that are not in use are forgotten.
func TestTopicsAreBounded(t *testing.T) {
	p := newProducer(t, &fake{}, Options{})
	for i := range maxTopics + 500 {
		m := message()
		m.Topic = fmt.Sprintf("t%d", i)
		if _, err := p.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Effective(t.Context(), m.Topic); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(p.topics); n > maxTopics {
		t.Errorf("%d topics are remembered, want at most %d", n, maxTopics)
	}
}

// A server cannot make a client hammer it.
func TestServerPolicyIsBounded(t *testing.T) {
	for name, answer := range map[string]error{
		"throttled": throttled(0), "failing": codeError(tidegate.CodeInternalServerError),
	} {
		synctest.Test(t, func(t *testing.T) {
			f := always(answer)
			f.settings = func(context.Context) (transport.ProducerSettings, error) {
				return transport.ProducerSettings{MaxAttempts: 1<<31 - 1, Backoff: constant(1)}, nil
			}
			p := newProducer(t, f, Options{})
			if _, err := p.Effective(t.Context(), "orders"); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			_, err := p.Send(t.Context(), message())
			if e := sendError(t, err); e.Reason != StopExhausted || e.Attempts != maxServerAttempts {
				t.Errorf("%s: %+v", name, e)
			}
			if took := time.Since(start); took < 15*minServerDelay {
				t.Errorf("%s: %d attempts in %v", name, len(f.calls), took)
			}
		})
	}
}

type constant time.Duration

func (c constant) Delay(int) time.Duration { return time.Duration(c) }
