package producer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
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
			f := &transporttest.Fake{OnSend: func(ctx context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
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
			p, err := producer.New(f, producer.Options{MaxPending: 20, AttemptTimeout: time.Second})
			assert.Must(t, err)
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
			assert.That(t, accounts.Accepted == accounts.Delivered+accounts.Failed+len(accounts.Undelivered),
				"round %d: %+v do not add up", round, accounts)
			if err == nil && len(accounts.Undelivered) > 0 || err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("round %d: %v with %d undelivered", round, err, len(accounts.Undelivered))
			}
			wg.Wait()
			p.Close()
			again, err := p.Shutdown(t.Context())
			assert.That(t, err == nil && again.Accepted == accounts.Accepted && len(again.Undelivered) == len(accounts.Undelivered),
				"round %d: a second Shutdown returned %+v, %v", round, again, err)
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
		p := newProducer(t, f, producer.Options{})
		told := false
		assert.Must(t, p.SendAsync(t.Context(), message(), func(_ tidegate.Receipt, err error) { told = err == nil }))
		start := time.Now()
		a, err := p.Shutdown(t.Context())
		assert.That(t, err == nil && told && a.Accepted == 1 && a.Delivered == 1 && time.Since(start) == 3*time.Second,
			"%+v, %v after %v, called: %v", a, err, time.Since(start), told)
		assert.Is(t, "after Shutdown", assert.Err(p.Send(t.Context(), message())), tidegate.ErrClosed)
		start = time.Now()
		if a, err := newProducer(t, f, producer.Options{}).Shutdown(t.Context()); err != nil || a.Accepted != 0 || time.Since(start) != 0 {
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
		f := each(func(context.Context, int, *tidegate.Message) error {
			time.Sleep(stuck)
			return nil
		})
		p := newProducer(t, f, producer.Options{})
		results := 0
		for range 3 {
			assert.Must(t, p.SendAsync(t.Context(), message(), func(tidegate.Receipt, error) { results++ }))
		}
		synctest.Wait()
		ctx := within(t, patience)
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
		f := together(blackHole)
		var log bytes.Buffer
		p := newProducer(t, f, producer.Options{AttemptTimeout: time.Hour, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for i := range 3 {
			m := message()
			m.MessageGroup = "g"
			m.Body = fmt.Append(nil, i)
			assert.Must(t, p.SendAsync(t.Context(), m, func(tidegate.Receipt, error) {}))
			synctest.Wait()
		}
		ctx := within(t, time.Second)
		start := time.Now()
		a, err := p.Shutdown(ctx)
		assert.MustThat(t, errors.Is(err, context.DeadlineExceeded) && len(a.Undelivered) == 3 && time.Since(start) == time.Second,
			"%+v, %v after %v", a, err, time.Since(start))
		for _, u := range a.Undelivered {
			if sent := string(u.Message.Body) == "0"; u.MaybeStored != sent || u.Message.ID == "" || sent && u.Message.ID != f.Calls("Send")[0].Messages[0].ID {
				t.Errorf("got back %+v", u)
			}
		}
		assert.That(t, strings.Contains(log.String(), "messages aborted") && strings.Contains(log.String(), "messages=3"),
			"logged %q", log.String())
	})
}

// The log has the number of the messages that Close aborted, without one whose response arrived
// during Close.
func TestCloseLogsAbortedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		respond, delivered := make(chan struct{}), make(chan struct{})
		f := each(func(ctx context.Context, _ int, m *tidegate.Message) error {
			if m.ID == "lost" {
				return blackHole(ctx)
			}
			<-respond
			return nil
		})
		var log bytes.Buffer
		p := newProducer(t, f, producer.Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), OnAttempt: func(a producer.Attempt) {
			if a.MessageID == "lost" {
				close(respond)
				<-delivered
			}
		}})
		for _, id := range []string{"lost", "stored"} {
			assert.Must(t, p.SendAsync(t.Context(), named(id), func(_ tidegate.Receipt, err error) {
				if err == nil {
					close(delivered)
				}
			}))
		}
		synctest.Wait()
		p.Close()
		a, err := p.Shutdown(t.Context())
		assert.That(t, err == nil && a.Delivered == 1 && len(a.Undelivered) == 1 && strings.Contains(log.String(), "messages=1 "),
			"%+v, %v, logged %q; want one message delivered and one aborted", a, err, log.String())
	})
}

func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := each(func(ctx context.Context, _ int, _ *tidegate.Message) error {
			sleepFor(ctx, time.Second)
			return nil
		})
		p := newProducer(t, f, producer.Options{})
		assert.NoError(t, p.Flush(t.Context()), "with nothing to flush")
		called := 0
		for range 3 {
			assert.Must(t, p.SendAsync(t.Context(), message(), func(tidegate.Receipt, error) { called++ }))
		}
		later := false
		time.AfterFunc(500*time.Millisecond, func() { // is not waited for
			p.Send(t.Context(), message())
			later = true
		})
		ctx := within(t, 100*time.Millisecond)
		assert.Is(t, "with too little time", p.Flush(ctx), context.DeadlineExceeded)
		err := p.Flush(t.Context())
		assert.That(t, err == nil && called == 3, "%v, %d of 3 called", err, called)
		synctest.Wait()
		sent := len(f.Calls("Send"))
		assert.That(t, sent == 4 && !later, "%d attempts, the later message was stored: %v; want it to be under way", sent, later)
	})
}

// All of it is legal in every state and order, and from every goroutine.
func TestLifecycleInAnyOrder(t *testing.T) {
	for round := range 200 {
		synctest.Test(t, func(t *testing.T) {
			f := script(throttled(0), codeError(tidegate.CodeInternalServerError))
			p := assert.Value(producer.New(f, producer.Options{}))(t)
			rnd := rand.New(rand.NewPCG(uint64(round), 4))
			var wg sync.WaitGroup
			for range 10 {
				op := rnd.IntN(5)
				wg.Go(func() {
					ctx := within(t, time.Duration(op)*time.Second)
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
		p := newProducer(t, each(nil), producer.Options{MaxPending: 1})
		var caller sync.Mutex // a function on the caller's goroutine would deadlock
		done := make(chan error, 1)
		caller.Lock()
		err := p.SendAsync(t.Context(), message(), func(tidegate.Receipt, error) {
			caller.Lock()
			_, err := p.Send(t.Context(), message()) // the place of the first message is free
			done <- err
		})
		caller.Unlock()
		assert.That(t, err == nil && <-done == nil, "%v", err)
	})
}

// Topics that are not in use are forgotten, also if they had an invalid message: the producer
// requests the settings of many of them again, although these are not old.
func TestTopicsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := each(nil)
		p := newProducer(t, f, producer.Options{})
		const topics, bound = 1500, 1000
		for range 2 {
			for i := range topics {
				m := message()
				m.Topic = fmt.Sprintf("t%d", i)
				assert.Must(t, assert.Err(p.Send(t.Context(), m)))
				m.MessageGroup = strings.Repeat("g", 1000)
				_, err := p.Send(t.Context(), m)
				assert.MustThat(t, errors.Is(err, tidegate.ErrInvalid), "%v", err)
				assert.Must(t, assert.Err(p.Effective(t.Context(), m.Topic)))
			}
		}
		n := len(f.Calls("ProducerSettings")) - topics
		assert.That(t, n >= topics-bound, "%d of %d topics were forgotten, want at least %d", n, topics, topics-bound)
	})
}

// A server cannot make a client hammer it.
func TestServerPolicyIsBounded(t *testing.T) {
	for name, answer := range map[string]error{
		"throttled": throttled(0), "failing": codeError(tidegate.CodeInternalServerError),
	} {
		synctest.Test(t, func(t *testing.T) {
			f := always(answer)
			f.OnProducerSettings = func(context.Context, int, string) (transport.ProducerSettings, error) {
				return transport.ProducerSettings{MaxAttempts: 1<<31 - 1, Backoff: constant(1)}, nil
			}
			p := newProducer(t, f, producer.Options{})
			assert.Must(t, assert.Err(p.Effective(t.Context(), "orders")))
			start := time.Now()
			_, err := p.Send(t.Context(), message())
			e := sendError(t, err)
			assert.That(t, e.Reason == producer.StopExhausted && e.Attempts == 16, "%s: %+v", name, e)
			took := time.Since(start)
			assert.That(t, took >= 15*10*time.Millisecond, "%s: %d attempts in %v", name, len(f.Calls("Send")), took)
		})
	}
}

type constant time.Duration

func (c constant) Delay(int) time.Duration { return time.Duration(c) }

// An OnAttempt may end its goroutine, as FailNow of package testing does, on a goroutine of a
// caller or of the producer. The producer still sends the other messages for the server.
func TestObserverThatEndsItsGoroutine(t *testing.T) {
	for name, send := range map[string]func(*testing.T, *producer.Producer) bool{
		"Send": func(t *testing.T, p *producer.Producer) (returned bool) {
			var wg sync.WaitGroup
			wg.Go(func() {
				_, _ = p.Send(t.Context(), message())
				returned = true
			})
			wg.Wait()
			return returned
		},
		"SendAsync": func(t *testing.T, p *producer.Producer) bool {
			done := make(chan error)
			assert.Must(t, p.SendAsync(t.Context(), message(), func(_ tidegate.Receipt, err error) { done <- err }))
			assert.NoError(t, <-done)
			return false
		},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			f := &transporttest.Fake{OnSend: func(_ context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
				if n == 1 {
					return all(len(msgs), throttled(0))
				}
				return nil
			}}
			var attempts atomic.Int64
			p := newProducer(t, f, producer.Options{OnAttempt: func(producer.Attempt) {
				if attempts.Add(1) == 1 {
					runtime.Goexit()
				}
			}})
			assert.That(t, !send(t, p), "Send has returned")
			assert.NoError(t, assert.Err(p.Send(t.Context(), message())))
			a, err := p.Shutdown(t.Context())
			assert.That(t, err == nil && a.Delivered == 2, "%+v, %v", a, err)
		})
	}
}

// A panic of the transport on the goroutine of a Send reaches the caller, which may recover, as
// HTTP servers do. Its message fails, and keeps no place.
func TestPanicOnTheCallersGoroutine(t *testing.T) {
	const panics = 40 // more than the requests that a lane has at the same time
	for name, tt := range map[string]struct {
		inLane, inSend bool
		most           int
	}{
		"Lane":             {inLane: true, most: 100},
		"SendLane":         {inSend: true, most: 100},
		"SendLane, single": {inSend: true, most: 1},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			var lanes, sends atomic.Int64
			f := &transporttest.Fake{
				OnLane: func(_ context.Context, _ int, r transport.LaneRequest) (transport.Lane, error) {
					if tt.inLane && lanes.Add(1) <= panics {
						panic("by the test")
					}
					return transport.Lane{Endpoint: "a:1", MaxMessages: tt.most}, nil
				},
				OnSend: func(context.Context, int, transport.Lane, []*tidegate.Message) []error {
					if tt.inSend && sends.Add(1) <= panics {
						panic("by the test")
					}
					return nil
				},
			}
			p := newProducer(t, f, producer.Options{})
			for range panics {
				func() {
					defer func() {
						assert.That(t, recover() != nil, "the panic has not reached the caller of Send")
					}()
					_, _ = p.Send(t.Context(), message())
				}()
			}
			start := time.Now()
			if _, err := p.Send(t.Context(), message()); err != nil || time.Since(start) > time.Second {
				t.Errorf("%v after %v", err, time.Since(start))
			}
			a, err := p.Shutdown(t.Context())
			assert.That(t, err == nil && a.Delivered == 1 && a.Failed == panics, "%+v, %v", a, err)
		})
	}
}

// An OnAttempt that ends its goroutine for one message at the end of a ctx, or in Close, does not
// keep the other messages.
func TestObserverThatEndsTheLeavingOfMany(t *testing.T) {
	for name, end := range map[string]func(p *producer.Producer, cancel func()){
		"ctx":      func(_ *producer.Producer, cancel func()) { cancel() },
		"Close":    func(p *producer.Producer, _ func()) { go func() { _ = p.Close() }() },
		"Shutdown": func(p *producer.Producer, _ func()) { go func() { _, _ = p.Shutdown(cancelled()) }() },
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			f := &transporttest.Fake{OnSend: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
				<-ctx.Done()
				return all(len(msgs), context.Cause(ctx))
			}}
			var observed atomic.Int64
			p := newProducer(t, f, producer.Options{AttemptTimeout: time.Hour, OnAttempt: func(producer.Attempt) {
				observed.Add(1)
				runtime.Goexit()
			}})
			ctx, cancel := context.WithCancel(t.Context())
			o := outcomes{errs: map[string]error{}}
			for _, m := range numbered(50) {
				assert.Must(t, p.SendAsync(ctx, m, o.done(m.ID)))
			}
			synctest.Wait()
			end(p, cancel)
			synctest.Wait()
			assert.Equal(t, "functions of 50 were called", len(o.errs), 50)
			assert.That(t, observed.Load() >= 2, "%d attempts were observed, want several", observed.Load())
			cancel()
		})
	}
}

// An OnAttempt that ends its goroutine for a message that waited for a throttled server does not
// keep the caller whose message was throttled.
func TestObserverThatEndsTheReportOfAWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{OnSend: func(ctx context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			if n == 1 {
				time.Sleep(time.Millisecond)
				return all(len(msgs), throttled(10*time.Second))
			}
			<-ctx.Done()
			return all(len(msgs), context.Cause(ctx))
		}}
		var ends atomic.Int64
		p := newProducer(t, f, producer.Options{MaxAttempts: 1, OnAttempt: func(a producer.Attempt) {
			if a.Messages == 0 { // it waited
				ends.Add(1)
				runtime.Goexit()
			}
		}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // ends before the pause
		defer cancel()
		var returned [3]atomic.Bool
		for i, m := range numbered(3) { // two requests are under way, and the third message waits
			of := []context.Context{t.Context(), t.Context(), ctx}[i]
			go func() {
				p.SendBatch(of, []*tidegate.Message{m})
				returned[i].Store(true)
			}()
			synctest.Wait()
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if ends.Load() != 1 || !returned[0].Load() || !returned[2].Load() {
			t.Errorf("OnAttempt ended %d goroutines, the throttled call returned: %t, the call that waited: %t; want 1, and both",
				ends.Load(), returned[0].Load(), returned[2].Load())
		}
	})
}

// A logBuffer collects lines of several goroutines.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// count returns the number of lines, and of those with a text.
func (b *logBuffer) count(text string) (lines, with int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.text.String(), "\n"), strings.Count(b.text.String(), text)
}

// Repeated events, for example of every message, are logged in one line at once and then in one
// line a minute. The end of the producer logs the last of them.
func TestLinesAreBounded(t *testing.T) {
	const messages = 500
	panics := func(context.Context, transport.TransactionCheck) transport.Resolution { panic("by the test") }
	for text, tt := range map[string]struct {
		opts producer.Options
		step func(t *testing.T, p *producer.Producer)
	}{
		"transaction not resolved": {producer.Options{Checker: panics, MaxAttempts: 1}, func(t *testing.T, p *producer.Producer) {
			_, err := p.Transact(t.Context(), message(), func(context.Context, *tidegate.Message) error { return nil })
			assert.That(t, err == nil, "%v", err)
		}},
		"Options.Checker panicked": {producer.Options{Checker: panics}, func(t *testing.T, p *producer.Producer) {
			_, _ = p.Transact(t.Context(), message(), func(context.Context, *tidegate.Message) error { return errors.New("rolled back") })
		}},
		"OnAttempt panicked": {producer.Options{OnAttempt: func(producer.Attempt) { panic("by the test") }}, func(t *testing.T, p *producer.Producer) {
			_, _ = p.Send(t.Context(), message())
		}},
		"the function given to SendAsync panicked": {producer.Options{}, func(t *testing.T, p *producer.Producer) {
			_ = p.SendAsync(t.Context(), message(), func(tidegate.Receipt, error) { panic("by the test") })
		}},
		"draining the spool failed": {producer.Options{Spool: brokenSpool{}}, func(*testing.T, *producer.Producer) {}},
	} {
		for name, end := range map[string]func(p *producer.Producer){
			"Close":    func(p *producer.Producer) { _ = p.Close() },
			"Shutdown": func(p *producer.Producer) { _, _ = p.Shutdown(context.Background()) },
		} {
			assert.Bubble(t, text+", "+name, func(t *testing.T) {
				var log logBuffer
				tt.opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
				f := &transporttest.Fake{OnEndTransaction: func(context.Context, int, transport.Transaction, transport.Resolution) error {
					return codeError(tidegate.CodeBadRequest)
				}}
				p := newProducer(t, f, tt.opts)
				for range messages {
					tt.step(t, p)
					time.Sleep(time.Second / 2)
				}
				_, minutes := log.count(text)
				end(p)
				lines, with := log.count(text)
				if lines != with || with > 6 || with != minutes+1 {
					t.Errorf("%d of %d lines are about %d events in 250 s, and %d before the end; want at most 6, and the last at the end", with, lines, messages, minutes)
				}
			})
		}
	}
}

// The lines of the debug level about throttled sends are bounded too: a throttled producer sends
// on, and its server may not have settings for as long.
func TestThrottledSendsWithoutSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := always(throttled(0))
		f.OnProducerSettings = func(context.Context, int, string) (transport.ProducerSettings, error) {
			return transport.ProducerSettings{}, errors.New("none")
		}
		var log logBuffer
		p := newProducer(t, f, producer.Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		for range 100 {
			_, _ = p.Send(t.Context(), message())
		}
		_ = p.Close()
		sends, minutes := len(f.Calls("Send")), int(time.Since(f.Calls("Send")[0].At)/time.Minute)
		if _, with := log.count("continues without the settings"); with < 2 || with > minutes+2 {
			t.Errorf("%d lines about %d throttled sends within %d minutes, want one a minute", with, sends, minutes)
		}
	})
}

// A brokenSpool cannot be drained.
type brokenSpool struct{ readySpool }

func (brokenSpool) Drain(context.Context, func(context.Context, []*tidegate.Message) []error) error {
	return errors.New("by the test")
}
