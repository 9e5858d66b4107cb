package producer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// txFake is a transport with transactions. Its functions get the number of the call.
type txFake struct {
	fake
	half   func(ctx context.Context, n int) error
	end    func(ctx context.Context, n int, r transport.Resolution) error
	recall func(ctx context.Context, n int) (string, error)
	checks func(ctx context.Context, n int, check func(context.Context, transport.TransactionCheck) transport.Resolution) error

	mu           sync.Mutex
	halfMessages []*tidegate.Message
	ends         []transport.Resolution
	n            int
}

func (f *txFake) SendHalf(ctx context.Context, m *tidegate.Message) transport.SendResult {
	f.mu.Lock()
	f.halfMessages = append(f.halfMessages, m)
	n := len(f.halfMessages)
	f.mu.Unlock()
	if f.half != nil {
		if err := f.half(ctx, n); err != nil {
			return transport.SendResult{Err: err}
		}
	}
	return transport.SendResult{Receipt: tidegate.Receipt{MessageID: m.ID, Topic: m.Topic, Endpoint: "a:1", TransactionID: "tx-" + m.ID}}
}

func (f *txFake) EndTransaction(ctx context.Context, t transport.Transaction, r transport.Resolution) error {
	f.mu.Lock()
	f.ends = append(f.ends, r)
	n := len(f.ends)
	f.mu.Unlock()
	if t.ID != "tx-"+t.MessageID || t.Endpoint != "a:1" || t.Topic != "orders" {
		return fmt.Errorf("the transaction is %+v", t)
	}
	if f.end != nil {
		return f.end(ctx, n, r)
	}
	return nil
}

func (f *txFake) ServeChecks(ctx context.Context, topics []string, check func(context.Context, transport.TransactionCheck) transport.Resolution) error {
	f.mu.Lock()
	f.n++
	n := f.n
	f.mu.Unlock()
	return f.checks(ctx, n, check)
}

func (f *txFake) Recall(ctx context.Context, _, _ string) (string, error) {
	f.mu.Lock()
	f.n++
	n := f.n
	f.mu.Unlock()
	return f.recall(ctx, n)
}

func committed(context.Context, transport.TransactionCheck) transport.Resolution {
	return transport.Commit
}

func TestTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &txFake{}
		f.end = func(_ context.Context, n int, _ transport.Resolution) error {
			if n < 3 {
				return codeError(protocol.CodeProxyTimeout)
			}
			return nil
		}
		p := newProducer(t, f, Options{Checker: committed})
		tx, err := p.Begin(t.Context(), message())
		if err != nil || tx.Receipt().TransactionID == "" || tx.Receipt().Attempts != 1 || f.halfMessages[0].ID == "" {
			t.Fatalf("%+v, %v", tx, err)
		}
		for range 2 { // repeating it is harmless
			if err := tx.Commit(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := tx.Rollback(t.Context()); !errors.Is(err, tidegate.ErrInvalid) {
			t.Errorf("roll back after the commit: %v", err)
		}
		if len(f.ends) != 4 || slices.ContainsFunc(f.ends, func(r transport.Resolution) bool { return r != transport.Commit }) {
			t.Errorf("resolutions %v, want four commits: two responses were lost", f.ends)
		}
	})
}

// Half messages that may have reached a server are sent once.
// RocketMQ: sending retry and throttling: "No retries are performed in network exception or timeout
// scenarios"
func TestHalfMessagesAreNotRetried(t *testing.T) {
	for name, answer := range map[string]error{
		"throttled": throttled(0), "transient": codeError(protocol.CodeProxyTimeout), "connection": errors.New("reset"),
		"permanent": codeError(tidegate.CodeForbidden),
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &txFake{half: func(context.Context, int) error { return answer }}
			var seen []Attempt
			p := newProducer(t, f, Options{Checker: committed, MaxAttempts: 9, OnAttempt: func(a Attempt) { seen = append(seen, a) }})
			start := time.Now()
			_, err := p.Begin(t.Context(), message())
			want := StopHalfMessage
			if name == "permanent" {
				want = StopPermanent
			}
			if e := sendError(t, err); e.Reason != want || !errors.Is(err, answer) || len(f.halfMessages) != 1 || time.Since(start) != 0 {
				t.Errorf("%s: %+v after %d half messages", name, e, len(f.halfMessages))
			}
			if len(seen) != 1 || seen[0].Stop != want {
				t.Errorf("%s: observed %+v", name, seen)
			}
		})
	}
}

// An observer can distinguish the attempts of a message's send, of its commit, and of a recall.
func TestAttemptsHaveTheirOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := codeError(protocol.CodeProxyTimeout)
		f := &txFake{
			end: func(_ context.Context, n int, _ transport.Resolution) error {
				if n == 1 {
					return lost
				}
				return nil
			},
			recall: func(context.Context, int) (string, error) { return "", codeError(protocol.CodeMessageNotFound) },
		}
		var seen []string
		var log bytes.Buffer
		p := newProducer(t, f, Options{
			Checker:   committed,
			OnAttempt: func(a Attempt) { seen = append(seen, fmt.Sprintf("%v %d %s", a.Operation, a.Number, a.MessageID)) },
			Logger:    slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
		for _, r := range []transport.Resolution{transport.Commit, transport.Rollback} {
			tx, err := p.Begin(t.Context(), named("m"))
			if err != nil {
				t.Fatal(err)
			}
			if err := tx.end(t.Context(), r); err != nil {
				t.Error(err)
			}
		}
		if _, err := p.Send(t.Context(), named("n")); err != nil {
			t.Error(err)
		}
		if _, err := p.Recall(t.Context(), "orders", "handle"); err == nil {
			t.Error("the recall succeeded")
		}
		want := []string{"begin 1 m", "commit 1 m", "commit 2 m", "begin 1 m", "rollback 1 m", "send 1 n", "recall 1 "}
		if !slices.Equal(seen, want) {
			t.Errorf("observed %q, want %q", seen, want)
		}
		if n := strings.Count(log.String(), "attempt failed"); n != 2 {
			t.Errorf("%d failed attempts are logged, want the first commit and the recall:\n%s", n, log.String())
		}
		for _, line := range []string{`msg="attempt failed" operation=commit topic=orders message_id=m attempt=1`, `msg="attempt failed" operation=recall topic=orders`} {
			if !strings.Contains(log.String(), line) {
				t.Errorf("logged %q, want %q", log.String(), line)
			}
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
		f := &txFake{
			end:    func(_ context.Context, n int, _ transport.Resolution) error { return first(n) },
			recall: func(_ context.Context, n int) (string, error) { return "m", first(n) },
		}
		p := newProducer(t, f, Options{Checker: committed, Backoff: backoff.Steps{time.Second, 3 * time.Second}})
		tx, err := p.Begin(t.Context(), named("m"))
		if err != nil {
			t.Fatal(err)
		}
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
			if took := time.Since(start); took != 4*time.Second {
				t.Errorf("%s took %v, want the two waits of 1 s and 3 s", step.name, took)
			}
		}
	})
}

func TestTransactionsNeedATransactorAndAChecker(t *testing.T) {
	_, err := newProducer(t, &fake{}, Options{Checker: committed}).Begin(t.Context(), message())
	if want := `send to "orders": 50500 UNSUPPORTED: this transport does not support transactions; use one that implements transport.Transactor`; sendError(t, err).Fault() != SetupFault || err.Error() != want {
		t.Errorf("a transport without transactions: %v\nwant %s", err, want)
	}
	f := &txFake{}
	p := newProducer(t, f, Options{})
	_, err = p.Begin(t.Context(), message())
	if e := sendError(t, err); !errors.Is(err, tidegate.ErrInvalid) || e.Fault() != SetupFault || e.Reason != StopPermanent {
		t.Errorf("no checker: %v, %v, %v", err, e.Reason, e.Fault())
	}
	if _, err := newProducer(t, f, Options{Checker: committed}).Transact(t.Context(), message(), nil); sendError(t, err).Reason != StopInvalid {
		t.Errorf("no local transaction: %v", err)
	}
	if err := p.ServeChecks(t.Context(), "orders"); !errors.Is(err, tidegate.ErrInvalid) {
		t.Errorf("no checker: %v", err)
	}
	p = newProducer(t, f, Options{Checker: committed})
	if err := p.ServeChecks(t.Context()); !errors.Is(err, tidegate.ErrInvalid) {
		t.Errorf("no topics: %v", err)
	}
	for _, m := range []*tidegate.Message{nil, {}, {Topic: "orders"}} {
		if _, err := p.Begin(t.Context(), m); sendError(t, err).Reason != StopInvalid {
			t.Errorf("%+v: %v", m, err)
		}
	}
	p.Close()
	if _, err := p.Begin(t.Context(), message()); !errors.Is(err, tidegate.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if len(f.halfMessages) != 0 {
		t.Errorf("%d half messages", len(f.halfMessages))
	}
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
			f := &txFake{half: func(context.Context, int) error { return tt.half }}
			p := newProducer(t, f, Options{Checker: func(_ context.Context, c transport.TransactionCheck) transport.Resolution {
				if tt.checker < 0 {
					panic("the user's")
				}
				if c.Message.ID == "" || c.Transaction.ID != "tx-"+c.Message.ID {
					t.Errorf("%s: check %+v", name, c)
				}
				return tt.checker
			}})
			calls := 0
			func() {
				defer func() {
					if v := recover(); (v != nil) != tt.panics {
						t.Errorf("%s: panic %v", name, v)
					}
				}()
				_, err := p.Transact(t.Context(), message(), func(_ context.Context, m *tidegate.Message) error {
					calls++
					if m.ID == "" || m.ID != f.halfMessages[0].ID {
						t.Errorf("%s: the message has the ID %q", name, m.ID)
					}
					if tt.panics {
						panic("the user's")
					}
					return tt.local
				})
				if want := cmp.Or(tt.half, tt.local); !errors.Is(err, want) {
					t.Errorf("%s: %v", name, err)
				}
			}()
			if calls != tt.calls || fmt.Sprint(f.ends) != tt.ends {
				t.Errorf("%s: %d calls, ends %v; want %d, %v", name, calls, f.ends, tt.calls, tt.ends)
			}
		})
	}
}

// The end of ctx is often why the local transaction failed. The checker and the resolution have
// their own time then.
func TestTransactResolvesAfterTheEndOfItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		f := &txFake{end: func(ctx context.Context, _ int, _ transport.Resolution) error { return ctx.Err() }}
		p := newProducer(t, f, Options{Checker: func(ctx context.Context, _ transport.TransactionCheck) transport.Resolution {
			if at, ok := ctx.Deadline(); !ok || time.Until(at) != defaultAttemptTimeout || ctx.Value(key{}) != "trace" {
				t.Errorf("the checker's deadline is %v, want %v from now; the value of ctx is %v", at, defaultAttemptTimeout, ctx.Value(key{}))
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
		if !errors.Is(err, context.Canceled) || fmt.Sprint(f.ends) != "[rollback]" {
			t.Errorf("%v, resolutions %v; want one rollback", err, f.ends)
		}
	})
}

// Shutdown lets a transaction under way finish, so that its message does not wait for a check.
// Close, and the end of Shutdown's ctx, abort it; the check of a later process resolves it.
func TestShutdownWaitsForTransactions(t *testing.T) {
	for name, tt := range map[string]struct {
		stop func(ctx context.Context, p *Producer) error
		took time.Duration
		err  error
		ends string
	}{
		"Shutdown": {func(ctx context.Context, p *Producer) error { _, err := p.Shutdown(ctx); return err }, 2 * time.Second, nil, "[commit commit]"},
		"Shutdown with too little time": {func(ctx context.Context, p *Producer) error {
			ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			defer cancel()
			_, err := p.Shutdown(ctx)
			return err
		}, 500 * time.Millisecond, context.DeadlineExceeded, "[]"},
		"Close": {func(_ context.Context, p *Producer) error { return p.Close() }, 0, nil, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &txFake{end: func(_ context.Context, n int, _ transport.Resolution) error {
					if n == 1 {
						return codeError(protocol.CodeProxyTimeout)
					}
					return nil
				}}
				p := newProducer(t, f, Options{Checker: committed})
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
				if _, err := p.Transact(t.Context(), message(), func(context.Context, *tidegate.Message) error { return nil }); sendError(t, err).Reason != StopClosed {
					t.Errorf("a later transaction: %v", err)
				}
				if err := <-result; err != nil || fmt.Sprint(f.ends) != tt.ends {
					t.Errorf("the transaction: %v, resolutions %v; want %s", err, f.ends, tt.ends)
				}
			})
		})
	}
}

// Shutdown also waits for a recall, and rejects later ones.
func TestShutdownWaitsForRecalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &txFake{recall: func(ctx context.Context, _ int) (string, error) {
			sleepFor(ctx, time.Second)
			return "the-id", ctx.Err()
		}}
		p := newProducer(t, f, Options{})
		result := make(chan error, 1)
		go func() {
			_, err := p.Recall(t.Context(), "orders", "handle")
			result <- err
		}()
		synctest.Wait()
		start := time.Now()
		if _, err := p.Shutdown(t.Context()); err != nil || time.Since(start) != time.Second {
			t.Errorf("%v after %v, want success after 1s", err, time.Since(start))
		}
		if err := <-result; err != nil {
			t.Error(err)
		}
		if _, err := p.Recall(t.Context(), "orders", "handle"); sendError(t, err).Reason != StopClosed || !errors.Is(err, tidegate.ErrClosed) {
			t.Errorf("after Shutdown: %v", err)
		}
	})
}

// ServeChecks continues after temporary failures, and Close ends it.
func TestServeChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		f := &txFake{checks: func(ctx context.Context, n int, check func(context.Context, transport.TransactionCheck) transport.Resolution) error {
			if n < 5 {
				return codeError(tidegate.CodeInternalServerError)
			}
			if r := check(ctx, transport.TransactionCheck{Message: message()}); r != transport.Commit {
				t.Errorf("the resolution is %v", r)
			}
			asked++
			<-ctx.Done()
			return nil
		}}
		p := newProducer(t, f, Options{Checker: committed})
		done := make(chan error, 1)
		go func() { done <- p.ServeChecks(t.Context(), "orders") }()
		time.Sleep(time.Minute)
		p.Close()
		if err := <-done; err != nil || asked != 1 {
			t.Errorf("%v, asked %d times", err, asked)
		}
		refused := &txFake{checks: func(context.Context, int, func(context.Context, transport.TransactionCheck) transport.Resolution) error {
			return codeError(tidegate.CodeUnauthorized)
		}}
		if err := newProducer(t, refused, Options{Checker: committed}).ServeChecks(t.Context(), "orders"); !errors.Is(err, tidegate.ErrUnauthorized) {
			t.Errorf("wrong credentials: %v", err)
		}
	})
}

func TestRecall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &txFake{recall: func(_ context.Context, n int) (string, error) {
			if n == 1 {
				return "", codeError(protocol.CodeProxyTimeout)
			}
			return "the-id", nil
		}}
		p := newProducer(t, f, Options{})
		if id, err := p.Recall(t.Context(), "orders", "handle"); err != nil || id != "the-id" || f.n != 2 {
			t.Errorf("%q, %v after %d attempts", id, err, f.n)
		}
		f.recall = func(context.Context, int) (string, error) { return "", codeError(protocol.CodeMessageNotFound) }
		_, err := p.Recall(t.Context(), "orders", "handle")
		if e := sendError(t, err); !errors.Is(err, tidegate.ErrNotFound) || e.Attempts != 1 {
			t.Errorf("delivered before: %v", err)
		}
		const want = `recall from "orders": attempt 1 of 3 at a:1: 40401 MESSAGE_NOT_FOUND: from the server`
		if err.Error() != want {
			t.Errorf("text\n%v\nwant\n%s", err, want)
		}
		for _, in := range [][2]string{{"a b", "handle"}, {"orders", ""}} {
			if _, err := p.Recall(t.Context(), in[0], in[1]); sendError(t, err).Reason != StopInvalid {
				t.Errorf("%q: %v", in, err)
			}
		}
		_, err = newProducer(t, &fake{}, Options{}).Recall(t.Context(), "orders", "handle")
		if want := `recall from "orders": 50500 UNSUPPORTED: this transport does not support recalling messages; use one that implements transport.Recaller`; sendError(t, err).Fault() != SetupFault || err.Error() != want {
			t.Errorf("a transport without recall: %v\nwant %s", err, want)
		}
	})
}
