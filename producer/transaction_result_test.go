package producer

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/spool"
	"github.com/tidegate/tidegate/transport"
)

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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &txFake{end: func(_ context.Context, n int, _ transport.Resolution) error {
					return tt.responses[min(n, len(tt.responses))-1]
				}}
				p := newProducer(t, f, Options{Checker: committed})
				tx, err := p.Begin(t.Context(), message())
				if err != nil {
					t.Fatal(err)
				}
				for i, want := range []error{tt.first, tt.second} {
					if err := tx.Commit(t.Context()); !errors.Is(err, want) || want == nil && err != nil {
						t.Errorf("commit %d: %v, want %v", i+1, err, want)
					}
				}
			})
		})
	}
}

// Two concurrent commits both succeed, although the server finds the transaction for one only.
func TestConcurrentCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &txFake{end: func(ctx context.Context, n int, _ transport.Resolution) error {
			if n == 1 {
				sleepFor(ctx, time.Second) // its response is slow
				return nil
			}
			return codeError(tidegate.CodeNotFound)
		}}
		p := newProducer(t, f, Options{Checker: committed})
		tx, err := p.Begin(t.Context(), message())
		if err != nil {
			t.Fatal(err)
		}
		first := make(chan error, 1)
		go func() { first <- tx.Commit(t.Context()) }()
		synctest.Wait()
		if err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

// Half messages are in the accounts of Shutdown, once each, for any resolution.
func TestAccountsHaveHalfMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &txFake{half: func(_ context.Context, n int) error {
			if n == 4 {
				return codeError(tidegate.CodeForbidden)
			}
			return nil
		}}
		p := newProducer(t, f, Options{Spool: newSpool(t, spool.Options{}), Checker: func(context.Context, transport.TransactionCheck) transport.Resolution {
			return transport.Rollback
		}})
		for _, result := range []error{nil, errBroken, nil, nil} {
			_, err := p.Transact(t.Context(), message(), func(context.Context, *tidegate.Message) error { return result })
			_ = err // the fourth half message is rejected
		}
		if _, err := p.Begin(t.Context(), message()); err != nil {
			t.Error(err)
		}
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
		f := &txFake{half: func(ctx context.Context, _ int) error { return blackHole(ctx) }}
		p := newProducer(t, f, Options{Checker: committed, Spool: newSpool(t, spool.Options{})})
		result := make(chan error, 1)
		go func() {
			_, err := p.Transact(t.Context(), message(), func(context.Context, *tidegate.Message) error {
				t.Error("the local transaction was called")
				return nil
			})
			result <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		a, err := p.Shutdown(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || a.Accepted != 1 || len(a.Undelivered) != 1 ||
			!a.Undelivered[0].MaybeStored || a.Undelivered[0].Message.ID == "" {
			t.Errorf("%+v, %v; want one undelivered message that may be stored", a, err)
		}
		if err := <-result; !errors.Is(err, tidegate.ErrClosed) {
			t.Errorf("%v, want ErrClosed", err)
		}
	})
}

// A full producer sends half messages: a function of SendAsync that waits for its transaction must
// not wait for itself.
func TestHalfMessagesDoNotWaitForAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		f := &txFake{fake: fake{send: func(context.Context, int, *tidegate.Message) error {
			<-release
			return nil
		}}}
		p := newProducer(t, f, Options{Checker: committed, MaxPending: 1, WhenFull: RejectWhenFull})
		if err := p.SendAsync(t.Context(), message(), func(tidegate.Receipt, error) {}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Begin(t.Context(), message()); err != nil {
			t.Error(err)
		}
		close(release)
		if err := p.Flush(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The wait after a failure of the checks grows with consecutive failures only: one that follows
// minutes of service is a first failure.
func TestServeChecksReturnsSoonAfterAService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const quick = 12 // failures at once, which take the wait to its maximum
		var ended time.Time
		var waits []time.Duration
		f := &txFake{checks: func(ctx context.Context, n int, _ func(context.Context, transport.TransactionCheck) transport.Resolution) error {
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
		p := newProducer(t, f, Options{Checker: committed})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := p.ServeChecks(ctx, "orders"); err != nil {
			t.Error(err)
		}
		if len(waits) != quick+1 || waits[quick-1] < 4*waits[0] || waits[quick] > 2*waits[0] {
			t.Errorf("waits %v; want that after the service like the first one, and less than those before it", waits)
		}
	})
}

// A half message that certainly did not reach a server is sent again, for example over a switch of
// the failover. One that may have reached a server is not.
func TestHalfMessageWithoutAServer(t *testing.T) {
	unconnected := &tidegate.Error{Op: "SendMessage", Endpoint: "a:1", Err: tidegate.ErrUnavailable}
	for name, tt := range map[string]struct {
		responses []error
		want      error
		attempts  int
	}{
		"a switch":                 {[]error{unconnected, unconnected}, nil, 3},
		"a long outage":            {slices.Repeat([]error{&tidegate.Error{Err: tidegate.ErrUnavailable, NotConnected: true}}, 10), nil, 11},
		"lost after the switch":    {[]error{unconnected, errLost}, errLost, 2},
		"throttled after a switch": {[]error{unconnected, throttled(0)}, tidegate.ErrThrottled, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &txFake{half: func(_ context.Context, n int) error {
					if n <= len(tt.responses) {
						return tt.responses[n-1]
					}
					return nil
				}}
				p := newProducer(t, f, Options{Checker: committed})
				called := false
				r, err := p.Transact(t.Context(), message(), func(context.Context, *tidegate.Message) error {
					called = true
					return nil
				})
				if !errors.Is(err, tt.want) || called != (tt.want == nil) || len(f.halfMessages) != tt.attempts {
					t.Errorf("%+v, %v after %d half messages; local transaction called: %v", r, err, len(f.halfMessages), called)
				}
				for _, m := range f.halfMessages {
					if m.ID != f.halfMessages[0].ID {
						t.Errorf("the attempts have the IDs %s and %s", f.halfMessages[0].ID, m.ID)
					}
				}
			})
		})
	}
}

// Before it serves the checks again, the producer waits at least as long as the server requests.
func TestServeChecksWaitsAsTheServerRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var again time.Duration
		f := &txFake{checks: func(ctx context.Context, n int, _ func(context.Context, transport.TransactionCheck) transport.Resolution) error {
			if n == 1 {
				return throttled(30 * time.Second)
			}
			again = time.Since(start)
			<-ctx.Done()
			return nil
		}}
		p := newProducer(t, f, Options{Checker: committed})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := p.ServeChecks(ctx, "orders"); err != nil || again != 30*time.Second {
			t.Errorf("%v, served again after %v, want 30s", err, again)
		}
	})
}
