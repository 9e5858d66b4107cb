package producer_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/producer/spool"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

func committed(context.Context, transport.TransactionCheck) transport.Resolution {
	return transport.Commit
}

func TestTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{}
		f.OnEndTransaction = func(_ context.Context, n int, _ transport.Transaction, _ transport.Resolution) error {
			if n < 3 {
				return codeError(protocol.CodeProxyTimeout)
			}
			return nil
		}
		p := newProducer(t, f, producer.Options{Checker: committed})
		tx, err := p.Begin(t.Context(), message())
		if err != nil || tx.Receipt().TransactionID == "" || tx.Receipt().Attempts != 1 || calledWith(f, "SendHalf")[0].ID == "" {
			t.Fatalf("%+v, %v", tx, err)
		}
		for range 2 { // repeating it is harmless
			assert.NoError(t, tx.Commit(t.Context()))
		}
		assert.Is(t, "roll back after the commit", tx.Rollback(t.Context()), tidegate.ErrInvalid)
		if len(resolutions(f)) != 4 || slices.ContainsFunc(resolutions(f), func(r transport.Resolution) bool { return r != transport.Commit }) {
			t.Errorf("resolutions %v, want four commits: two responses were lost", resolutions(f))
		}
	})
}

// An observer can distinguish the attempts of a message's send, of its commit, and of a recall.
func TestAttemptsHaveTheirOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := codeError(protocol.CodeProxyTimeout)
		f := &transporttest.Fake{
			OnEndTransaction: func(_ context.Context, n int, _ transport.Transaction, _ transport.Resolution) error {
				if n == 1 {
					return lost
				}
				return nil
			},
			OnRecall: func(context.Context, int, string, string) (string, error) {
				return "", codeError(protocol.CodeMessageNotFound)
			},
		}
		var seen []string
		var log bytes.Buffer
		p := newProducer(t, f, producer.Options{
			Checker: committed,
			OnAttempt: func(a producer.Attempt) {
				seen = append(seen, fmt.Sprintf("%v %d %s", a.Operation, a.Number, a.MessageID))
			},
			Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
		for _, r := range []transport.Resolution{transport.Commit, transport.Rollback} {
			tx, err := p.Begin(t.Context(), named("m"))
			assert.Must(t, err)
			if r == transport.Commit {
				err = tx.Commit(t.Context())
			} else {
				err = tx.Rollback(t.Context())
			}
			assert.NoError(t, err)
		}
		assert.NoError(t, assert.Err(p.Send(t.Context(), named("n"))))
		assert.That(t, assert.Err(p.Recall(t.Context(), "orders", "handle")) != nil, "the recall succeeded")
		want := []string{"begin 1 m", "commit 1 m", "commit 2 m", "begin 1 m", "rollback 1 m", "send 1 n", "recall 1 "}
		assert.Slices(t, "observed", seen, want)
		n := strings.Count(log.String(), "attempt failed")
		assert.That(t, n == 2, "%d failed attempts are logged, want the first commit and the recall:\n%s", n, log.String())
		for _, line := range []string{`msg="attempt failed" operation=commit topic=orders message_id=m attempt=1`, `msg="attempt failed" operation=recall topic=orders`} {
			assert.That(t, strings.Contains(log.String(), line), "logged %q, want %q", log.String(), line)
		}
	})
}

// A throttled commit and a throttled recall wait as Options.Backoff demands.
func TestThrottledStepsFollowTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := func(n int) error {
			if n <= 2 {
				return throttled(0)
			}
			return nil
		}
		f := &transporttest.Fake{
			OnEndTransaction: func(_ context.Context, n int, _ transport.Transaction, _ transport.Resolution) error { return first(n) },
			OnRecall:         func(_ context.Context, n int, _, _ string) (string, error) { return "m", first(n) },
		}
		p := newProducer(t, f, producer.Options{Checker: committed, Backoff: backoff.Steps{time.Second, 3 * time.Second}})
		tx := assert.Value(p.Begin(t.Context(), named("m")))(t)
		for _, step := range []struct {
			name string
			do   func() error
		}{
			{"commit", func() error { return tx.Commit(t.Context()) }},
			{"recall", func() error { _, err := p.Recall(t.Context(), "orders", "handle"); return err }},
		} {
			start := time.Now()
			if err := step.do(); err != nil {
				t.Fatal(step.name, err)
			}
			took := time.Since(start)
			assert.That(t, took == 4*time.Second, "%s took %v, want the two waits of 1 s and 3 s", step.name, took)
		}
	})
}

func TestTransactionsNeedATransactorAndAChecker(t *testing.T) {
	_, err := newProducer(t, bare{}, producer.Options{Checker: committed}).Begin(t.Context(), message())
	if want := `send to "orders": 50500 UNSUPPORTED: this transport does not support transactions; use one that implements transport.Transactor`; sendError(t, err).Fault() != producer.SetupFault || err.Error() != want {
		t.Errorf("a transport without transactions: %v\nwant %s", err, want)
	}
	f := &transporttest.Fake{}
	p := newProducer(t, f, producer.Options{})
	_, err = p.Begin(t.Context(), message())
	if e := sendError(t, err); !errors.Is(err, tidegate.ErrInvalid) || e.Fault() != producer.SetupFault || e.Reason != producer.StopPermanent {
		t.Errorf("no checker: %v, %v, %v", err, e.Reason, e.Fault())
	}
	if _, err := newProducer(t, f, producer.Options{Checker: committed}).Transact(t.Context(), message(), nil); sendError(t, err).Reason != producer.StopInvalid {
		t.Errorf("no local transaction: %v", err)
	}
	assert.Is(t, "no checker", p.ServeChecks(t.Context(), "orders"), tidegate.ErrInvalid)
	p = newProducer(t, f, producer.Options{Checker: committed})
	assert.Is(t, "no topics", p.ServeChecks(t.Context()), tidegate.ErrInvalid)
	for _, m := range []*tidegate.Message{nil, {}, {Topic: "orders"}} {
		_, err := p.Begin(t.Context(), m)
		assert.That(t, sendError(t, err).Reason == producer.StopInvalid, "%+v: %v", m, err)
	}
	p.Close()
	assert.Is(t, "after Close", assert.Err(p.Begin(t.Context(), message())), tidegate.ErrClosed)
	assert.Equal(t, "half messages", len(calledWith(f, "SendHalf")), 0)
}

func TestTransact(t *testing.T) {
	broken := errors.New("the local commit broke")
	for name, tt := range map[string]struct {
		half    error
		local   error
		panics  bool
		checker transport.Resolution
		ends    string
		calls   int // of local
	}{
		"commits":            {ends: "[commit]", calls: 1},
		"begin fails":        {half: errors.New("reset"), ends: "[]"},
		"it did not happen":  {local: broken, checker: transport.Rollback, ends: "[rollback]", calls: 1},
		"it did happen":      {local: broken, checker: transport.Commit, ends: "[commit]", calls: 1},
		"it is not clear":    {local: broken, checker: transport.ResolutionUnknown, ends: "[]", calls: 1},
		"it panics":          {panics: true, ends: "[]", calls: 1},
		"the checker panics": {local: broken, checker: -1, ends: "[]", calls: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &transporttest.Fake{OnSendHalf: func(context.Context, int, *tidegate.Message) error { return tt.half }}
			p := newProducer(t, f, producer.Options{Checker: func(_ context.Context, c transport.TransactionCheck) transport.Resolution {
				if tt.checker < 0 {
					panic("the user's")
				}
				assert.That(t, c.Message.ID != "" && c.Transaction.ID == "tx-"+c.Message.ID, "%s: check %+v", name, c)
				return tt.checker
			}})
			calls := 0
			func() {
				defer func() {
					v := recover()
					assert.That(t, (v != nil) == tt.panics, "%s: panic %v", name, v)
				}()
				_, err := p.Transact(t.Context(), message(), func(_ context.Context, m *tidegate.Message) error {
					calls++
					assert.That(t, m.ID != "" && m.ID == calledWith(f, "SendHalf")[0].ID,
						"%s: the message has the ID %q", name, m.ID)
					if tt.panics {
						panic("the user's")
					}
					return tt.local
				})
				assert.That(t, errors.Is(err, cmp.Or(tt.half, tt.local)), "%s: %v", name, err)
			}()
			assert.That(t, calls == tt.calls && fmt.Sprint(resolutions(f)) == tt.ends,
				"%s: %d calls, ends %v; want %d, %v", name, calls, resolutions(f), tt.calls, tt.ends)
		})
	}
}

// The end of ctx is often why the local transaction failed. The checker and the resolution have
// their own time then.
func TestTransactResolvesAfterTheEndOfItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		f := &transporttest.Fake{OnEndTransaction: func(ctx context.Context, _ int, _ transport.Transaction, _ transport.Resolution) error {
			return ctx.Err()
		}}
		p := newProducer(t, f, producer.Options{Checker: func(ctx context.Context, _ transport.TransactionCheck) transport.Resolution {
			if at, ok := ctx.Deadline(); !ok || time.Until(at) != 3*time.Second || ctx.Value(key{}) != "trace" {
				t.Errorf("the checker's deadline is %v, want 3 s from now; the value of ctx is %v", at, ctx.Value(key{}))
			}
			if ctx.Err() != nil {
				return transport.ResolutionUnknown // as a database would fail
			}
			return transport.Rollback
		}})
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "trace"))
		_, err := p.Transact(ctx, message(), func(ctx context.Context, _ *tidegate.Message) error {
			cancel() // the user has left
			return ctx.Err()
		})
		assert.That(t, errors.Is(err, context.Canceled) && fmt.Sprint(resolutions(f)) == "[rollback]",
			"%v, resolutions %v; want one rollback", err, resolutions(f))
	})
}

// Shutdown lets a transaction under way finish, so that its message does not wait for a check.
// Close, and the end of Shutdown's ctx, abort it; the check of a later process resolves it.
func TestShutdownWaitsForTransactions(t *testing.T) {
	for name, tt := range map[string]struct {
		stop func(ctx context.Context, p *producer.Producer) error
		took time.Duration
		err  error
		ends string
	}{
		"Shutdown": {func(ctx context.Context, p *producer.Producer) error { _, err := p.Shutdown(ctx); return err }, 2 * time.Second, nil, "[commit commit]"},
		"Shutdown with too little time": {func(ctx context.Context, p *producer.Producer) error {
			ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			defer cancel()
			_, err := p.Shutdown(ctx)
			return err
		}, 500 * time.Millisecond, context.DeadlineExceeded, "[]"},
		"Close": {func(_ context.Context, p *producer.Producer) error { return p.Close() }, 0, nil, "[]"},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			f := &transporttest.Fake{OnEndTransaction: func(_ context.Context, n int, _ transport.Transaction, _ transport.Resolution) error {
				if n == 1 {
					return codeError(protocol.CodeProxyTimeout)
				}
				return nil
			}}
			p := newProducer(t, f, producer.Options{Checker: committed})
			local := make(chan struct{})
			result := make(chan error, 1)
			go func() {
				_, err := p.Transact(t.Context(), message(), func(context.Context, *tidegate.Message) error {
					close(local)
					time.Sleep(2 * time.Second)
					return nil
				})
				result <- err
			}()
			<-local
			start := time.Now()
			if err := tt.stop(t.Context(), p); !errors.Is(err, tt.err) || time.Since(start) != tt.took {
				t.Errorf("%v after %v, want %v after %v", err, time.Since(start), tt.err, tt.took)
			}
			_, err := p.Transact(t.Context(), message(), func(context.Context, *tidegate.Message) error { return nil })
			assert.That(t, sendError(t, err).Reason == producer.StopClosed, "a later transaction: %v", err)
			if err := <-result; err != nil || fmt.Sprint(resolutions(f)) != tt.ends {
				t.Errorf("the transaction: %v, resolutions %v; want %s", err, resolutions(f), tt.ends)
			}
		})
	}
}

// Shutdown also waits for a recall, and rejects later ones.
func TestShutdownWaitsForRecalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{OnRecall: func(ctx context.Context, _ int, _, _ string) (string, error) {
			sleepFor(ctx, time.Second)
			return "the-id", ctx.Err()
		}}
		p := newProducer(t, f, producer.Options{})
		result := make(chan error, 1)
		go func() {
			_, err := p.Recall(t.Context(), "orders", "handle")
			result <- err
		}()
		synctest.Wait()
		start := time.Now()
		_, err := p.Shutdown(t.Context())
		assert.That(t, err == nil && time.Since(start) == time.Second, "%v after %v, want success after 1s", err, time.Since(start))
		assert.NoError(t, <-result)
		if _, err := p.Recall(t.Context(), "orders", "handle"); sendError(t, err).Reason != producer.StopClosed || !errors.Is(err, tidegate.ErrClosed) {
			t.Errorf("after Shutdown: %v", err)
		}
	})
}

// ServeChecks continues after temporary failures, not before the time that the server requests, and
// Close ends it.
func TestServeChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, start := 0, time.Now()
		f := &transporttest.Fake{OnServeChecks: func(ctx context.Context, n int, check func(context.Context, transport.TransactionCheck) transport.Resolution) error {
			switch {
			case n == 1:
				return throttled(30 * time.Second)
			case n < 5:
				return codeError(tidegate.CodeInternalServerError)
			}
			waited := time.Since(start)
			assert.That(t, waited >= 30*time.Second, "served again after %v, the server requested 30s", waited)
			r := check(ctx, transport.TransactionCheck{Message: message()})
			assert.That(t, r == transport.Commit, "the resolution is %v", r)
			asked++
			<-ctx.Done()
			return nil
		}}
		p := newProducer(t, f, producer.Options{Checker: committed})
		done := make(chan error, 1)
		go func() { done <- p.ServeChecks(t.Context(), "orders") }()
		time.Sleep(2 * time.Minute)
		p.Close()
		err := <-done
		assert.That(t, err == nil && asked == 1, "%v, asked %d times", err, asked)
		refused := &transporttest.Fake{OnServeChecks: func(context.Context, int, func(context.Context, transport.TransactionCheck) transport.Resolution) error {
			return codeError(tidegate.CodeUnauthorized)
		}}
		err = newProducer(t, refused, producer.Options{Checker: committed}).ServeChecks(t.Context(), "orders")
		assert.That(t, errors.Is(err, tidegate.ErrUnauthorized), "wrong credentials: %v", err)
	})
}

func TestRecall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{OnRecall: func(_ context.Context, n int, _, _ string) (string, error) {
			if n == 1 {
				return "", codeError(protocol.CodeProxyTimeout)
			}
			return "the-id", nil
		}}
		p := newProducer(t, f, producer.Options{})
		if id, err := p.Recall(t.Context(), "orders", "handle"); err != nil || id != "the-id" || len(f.Calls("Recall")) != 2 {
			t.Errorf("%q, %v after %d attempts", id, err, len(f.Calls("Recall")))
		}
		f.OnRecall = func(context.Context, int, string, string) (string, error) {
			return "", codeError(protocol.CodeMessageNotFound)
		}
		_, err := p.Recall(t.Context(), "orders", "handle")
		e := sendError(t, err)
		assert.That(t, errors.Is(err, tidegate.ErrNotFound) && e.Attempts == 1, "delivered before: %v", err)
		const want = `recall from "orders": attempt 1 of 3 at a:1: 40401 MESSAGE_NOT_FOUND: from the server`
		assert.That(t, err.Error() == want, "text\n%v\nwant\n%s", err, want)
		for _, in := range [][2]string{{"a b", "handle"}, {"orders", ""}} {
			_, err := p.Recall(t.Context(), in[0], in[1])
			assert.That(t, sendError(t, err).Reason == producer.StopInvalid, "%q: %v", in, err)
		}
		_, err = newProducer(t, bare{}, producer.Options{}).Recall(t.Context(), "orders", "handle")
		if want := `recall from "orders": 50500 UNSUPPORTED: this transport does not support recalling messages; use one that implements transport.Recaller`; sendError(t, err).Fault() != producer.SetupFault || err.Error() != want {
			t.Errorf("a transport without recall: %v\nwant %s", err, want)
		}
	})
}

var errLost = &tidegate.Error{Op: "EndTransaction", Endpoint: "a:1", MaybeStored: true, Message: "the response was lost"}

// A server that has ended a transaction does not find it again. After a lost response that is the
// success of the lost request; without one it is an error.
func TestCommitAfterALostResponse(t *testing.T) {
	notFound := codeError(tidegate.CodeNotFound)
	for name, tt := range map[string]struct {
		responses []error // of the first Commit and its repetition; the last one repeats
		first     error
		second    error
	}{
		"the response is lost":             {responses: []error{errLost, notFound}},
		"it timed out":                     {responses: []error{context.DeadlineExceeded, notFound}},
		"the commit is repeated":           {responses: []error{nil, notFound}},
		"all responses are lost":           {responses: []error{errLost, errLost, errLost, notFound}, first: errLost},
		"the server discarded it":          {responses: []error{notFound}, first: notFound, second: notFound},
		"the server throttled it before":   {responses: []error{throttled(0), notFound}, first: notFound, second: notFound},
		"the topic is gone after the loss": {responses: []error{errLost, codeError(tidegate.CodeTopicNotFound)}, first: tidegate.ErrTopicNotFound, second: tidegate.ErrTopicNotFound},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			f := &transporttest.Fake{OnEndTransaction: func(_ context.Context, n int, _ transport.Transaction, _ transport.Resolution) error {
				return tt.responses[min(n, len(tt.responses))-1]
			}}
			p := newProducer(t, f, producer.Options{Checker: committed})
			tx := assert.Value(p.Begin(t.Context(), message()))(t)
			for i, want := range []error{tt.first, tt.second} {
				err := tx.Commit(t.Context())
				assert.That(t, errors.Is(err, want) && (want != nil || err == nil), "commit %d: %v, want %v", i+1, err, want)
			}
		})
	}
}

// Two concurrent commits both succeed, although the server finds the transaction for one only.
func TestConcurrentCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{OnEndTransaction: func(ctx context.Context, n int, _ transport.Transaction, _ transport.Resolution) error {
			if n == 1 {
				sleepFor(ctx, time.Second) // its response is slow
				return nil
			}
			return codeError(tidegate.CodeNotFound)
		}}
		p := newProducer(t, f, producer.Options{Checker: committed})
		tx := assert.Value(p.Begin(t.Context(), message()))(t)
		first := make(chan error, 1)
		go func() { first <- tx.Commit(t.Context()) }()
		synctest.Wait()
		assert.NoError(t, tx.Commit(t.Context()))
		assert.NoError(t, <-first)
	})
}

// Half messages are in the accounts of Shutdown, once each, for any resolution.
func TestAccountsHaveHalfMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{OnSendHalf: func(_ context.Context, n int, _ *tidegate.Message) error {
			if n == 4 {
				return codeError(tidegate.CodeForbidden)
			}
			return nil
		}}
		p := newProducer(t, f, producer.Options{Spool: newSpool(t, spool.Options{}), Checker: func(context.Context, transport.TransactionCheck) transport.Resolution {
			return transport.Rollback
		}})
		for _, result := range []error{nil, errBroken, nil, nil} {
			_, err := p.Transact(t.Context(), message(), func(context.Context, *tidegate.Message) error { return result })
			_ = err // the fourth half message is rejected
		}
		assert.NoError(t, assert.Err(p.Begin(t.Context(), message())))
		a, err := p.Shutdown(t.Context())
		if err != nil || a.Accepted != 5 || a.Delivered != 4 || a.Failed != 1 || a.Spooled != 0 || len(a.Undelivered) != 0 {
			t.Errorf("%+v, %v; want 5 accepted, 4 delivered and 1 failed", a, err)
		}
	})
}

var errBroken = errors.New("the local transaction broke")

// Shutdown reports a half message that it aborted, although a producer with a spool moves others
// there: nothing could resolve a half message of a spool.
func TestShutdownReportsAHalfMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{OnSendHalf: func(ctx context.Context, _ int, _ *tidegate.Message) error { return blackHole(ctx) }}
		p := newProducer(t, f, producer.Options{Checker: committed, Spool: newSpool(t, spool.Options{})})
		result := make(chan error, 1)
		go func() {
			_, err := p.Transact(t.Context(), message(), func(context.Context, *tidegate.Message) error {
				t.Error("the local transaction was called")
				return nil
			})
			result <- err
		}()
		synctest.Wait()
		ctx := within(t, time.Second)
		a, err := p.Shutdown(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || a.Accepted != 1 || len(a.Undelivered) != 1 ||
			!a.Undelivered[0].MaybeStored || a.Undelivered[0].Message.ID == "" {
			t.Errorf("%+v, %v; want one undelivered message that may be stored", a, err)
		}
		assert.Is(t, "err", <-result, tidegate.ErrClosed)
	})
}

// A full producer sends half messages: a function of SendAsync that waits for its transaction must
// not wait for itself.
func TestHalfMessagesDoNotWaitForAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		f := &transporttest.Fake{OnSend: func(context.Context, int, transport.Lane, []*tidegate.Message) []error {
			<-release
			return nil
		}}
		p := newProducer(t, f, producer.Options{Checker: committed, MaxPending: 1, WhenFull: producer.RejectWhenFull})
		assert.Must(t, p.SendAsync(t.Context(), message(), func(tidegate.Receipt, error) {}))
		assert.NoError(t, assert.Err(p.Begin(t.Context(), message())))
		close(release)
		assert.NoError(t, p.Flush(t.Context()))
	})
}

// The wait after a failure of the checks grows with consecutive failures only: one that follows
// minutes of service is a first failure.
func TestServeChecksReturnsSoonAfterAService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const quick = 12 // failures at once, which take the wait to its maximum
		var ended time.Time
		var waits []time.Duration
		f := &transporttest.Fake{OnServeChecks: func(ctx context.Context, n int, _ func(context.Context, transport.TransactionCheck) transport.Resolution) error {
			if n > 1 {
				waits = append(waits, time.Since(ended))
			}
			if n == quick+1 {
				sleepFor(ctx, 2*time.Minute)
			} else if n > quick+1 {
				<-ctx.Done()
			}
			ended = time.Now()
			return codeError(tidegate.CodeInternalServerError)
		}}
		p := newProducer(t, f, producer.Options{Checker: committed})
		ctx := within(t, time.Hour)
		assert.NoError(t, p.ServeChecks(ctx, "orders"))
		assert.That(t, len(waits) == quick+1 && waits[quick-1] >= 4*waits[0] && waits[quick] <= 2*waits[0],
			"waits %v; want that after the service like the first one, and less than those before it", waits)
	})
}

// A half message that certainly did not reach a server is sent again, for example over a switch of
// the failover. One that may have reached a server is sent once.
// RocketMQ: sending retry and throttling: "No retries are performed in network exception or timeout
// scenarios"
func TestHalfMessagesAreNotRetried(t *testing.T) {
	unconnected := &tidegate.Error{Op: "SendMessage", Endpoint: "a:1", Err: tidegate.ErrUnavailable}
	busy, reset, forbidden := codeError(protocol.CodeProxyTimeout), errors.New("reset"), codeError(tidegate.CodeForbidden)
	for name, tt := range map[string]struct {
		responses []error
		want      error
		attempts  int
		reason    producer.StopReason
	}{
		"a switch":                 {[]error{unconnected, unconnected}, nil, 3, producer.NotStopped},
		"a long outage":            {slices.Repeat([]error{&tidegate.Error{Err: tidegate.ErrUnavailable, NotConnected: true}}, 10), nil, 11, producer.NotStopped},
		"lost after the switch":    {[]error{unconnected, errLost}, errLost, 2, producer.StopHalfMessage},
		"throttled after a switch": {[]error{unconnected, throttled(0)}, tidegate.ErrThrottled, 2, producer.StopHalfMessage},
		"throttled":                {[]error{throttled(0)}, tidegate.ErrThrottled, 1, producer.StopHalfMessage},
		"transient":                {[]error{busy}, busy, 1, producer.StopHalfMessage},
		"connection":               {[]error{reset}, reset, 1, producer.StopHalfMessage},
		"permanent":                {[]error{forbidden}, forbidden, 1, producer.StopPermanent},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			f := &transporttest.Fake{OnSendHalf: func(_ context.Context, n int, _ *tidegate.Message) error {
				if n <= len(tt.responses) {
					return tt.responses[n-1]
				}
				return nil
			}}
			var last producer.Attempt
			p := newProducer(t, f, producer.Options{Checker: committed, MaxAttempts: 9, OnAttempt: func(a producer.Attempt) {
				if a.Operation == "begin" {
					last = a
				}
			}})
			called := false
			r, err := p.Transact(t.Context(), message(), func(context.Context, *tidegate.Message) error {
				called = true
				return nil
			})
			assert.That(t, last.Stop == tt.reason && (err == nil || sendError(t, err).Reason == tt.reason), "%v; the last attempt was %+v, want %v", err, last, tt.reason)
			assert.That(t, errors.Is(err, tt.want) && called == (tt.want == nil) && (!called || r.Attempts == tt.attempts) && len(calledWith(f, "SendHalf")) == tt.attempts,
				"%+v, %v after %d half messages; local transaction called: %v", r, err, len(calledWith(f, "SendHalf")), called)
			for _, m := range calledWith(f, "SendHalf") {
				assert.Equal(t, "the attempts have the IDs and", m.ID, calledWith(f, "SendHalf")[0].ID)
			}
		})
	}
}

// unnamed is a transport whose half messages have no transaction ID.
type unnamed struct{ *transporttest.Fake }

func (u unnamed) SendHalf(ctx context.Context, m *tidegate.Message) transport.SendResult {
	r := u.Fake.SendHalf(ctx, m)
	r.Receipt.TransactionID = ""
	return r
}

// Begin fails if the response has no transaction ID, because no request could end the
// transaction. The server may have stored the message.
func TestHalfMessageWithoutATransactionID(t *testing.T) {
	f := &transporttest.Fake{}
	p := newProducer(t, unnamed{f}, producer.Options{Checker: committed})
	tx, err := p.Begin(t.Context(), message())
	if e := sendError(t, err); tx != nil || e.Reason != producer.StopPermanent || !e.MaybeStored || len(calledWith(f, "SendHalf")) != 1 {
		t.Errorf("%+v, %v after %d half messages; want a permanent failure of one that may be stored", tx, e, len(calledWith(f, "SendHalf")))
	}
}
