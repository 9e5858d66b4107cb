package producer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
)

// outcomes gathers the results of done, by message ID, in order.
type outcomes struct {
	mu    sync.Mutex
	order []string
	errs  map[string]error
}

func (o *outcomes) done(id string) func(tidegate.Receipt, error) {
	return func(r tidegate.Receipt, err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if _, twice := o.errs[id]; twice {
			panic("two results: " + id)
		}
		o.order, o.errs[id] = append(o.order, id), err
	}
}

// RocketMQ: sending retry and throttling: "Message sending retries are supported in both the
// synchronous and asynchronous sending modes"
// RocketMQ: sending retry and throttling: "Asynchronous sending: The call thread is not blocked.
// The call result is returned as an exception event or success event"
func TestSendAsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := script(throttled(7*time.Second), codeError(protocol.CodeProxyTimeout))
		p := newProducer(t, f, Options{})
		start := time.Now()
		told := make(chan time.Duration, 1)
		if err := p.SendAsync(t.Context(), message(), func(r tidegate.Receipt, err error) {
			if err != nil || r.Attempts != 3 {
				t.Errorf("result %+v, %v; want success at attempt 3", r, err)
			}
			told <- time.Since(start)
		}); err != nil || time.Since(start) != 0 {
			t.Errorf("SendAsync returned %v after %v", err, time.Since(start))
		}
		if took := <-told; took != 7*time.Second {
			t.Errorf("result after %v, want 7s", took)
		}

		lost := always(codeError(tidegate.CodeInternalServerError))
		failed := make(chan error, 1)
		if err := newProducer(t, lost, Options{}).SendAsync(t.Context(), message(), func(_ tidegate.Receipt, err error) { failed <- err }); err != nil {
			t.Fatal(err)
		}
		if e := sendError(t, <-failed); e.Reason != StopExhausted || e.Attempts != 3 {
			t.Errorf("result %+v", e)
		}
	})
}

func TestSendAsyncKeepsTheOrderOfMessageGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		sent := map[string][]string{}
		f := &fake{send: func(ctx context.Context, n int, m *tidegate.Message) error {
			time.Sleep(time.Duration(rand.IntN(1000)) * time.Millisecond)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if rand.IntN(4) == 0 {
				return codeError(protocol.CodeProxyTimeout)
			}
			mu.Lock()
			defer mu.Unlock()
			sent[m.MessageGroup] = append(sent[m.MessageGroup], m.ID)
			return nil
		}}
		p := newProducer(t, f, Options{MaxAttempts: 3})
		o := outcomes{errs: map[string]error{}}
		const n = 300
		for i := range n {
			m := message()
			m.ID, m.MessageGroup = fmt.Sprintf("%03d", i), []string{"", "a", "b"}[i%3]
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rand.IntN(100))*time.Second)
			defer cancel()
			if err := p.SendAsync(ctx, m, o.done(m.ID)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(o.order) != n {
			t.Errorf("%d outcomes of %d", len(o.order), n)
		}
		for _, group := range []string{"a", "b"} {
			if !slices.IsSorted(sent[group]) || len(sent[group]) == 0 {
				t.Errorf("message group %s was sent as %v", group, sent[group])
			}
		}
		if q := &p.topics["orders"].queue; len(p.ledger.Pending()) != 0 || !q.Empty() {
			t.Errorf("left behind: %d messages; the queue is empty: %v", len(p.ledger.Pending()), q.Empty())
		}
	})
}

func TestSendAsyncIsBoundedAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{send: func(ctx context.Context, _ int, _ *tidegate.Message) error { return blackHole(ctx) }}
		p := newProducer(t, f, Options{MaxPending: 3, WhenFull: RejectWhenFull})
		o := outcomes{errs: map[string]error{}}
		taken := 0
		for i := range 5 {
			m := message()
			m.ID, m.MessageGroup = fmt.Sprint(i), "a"
			err := p.SendAsync(t.Context(), m, o.done(m.ID))
			if err == nil {
				taken++
			} else if e := sendError(t, err); e.Reason != StopFull || i < 3 {
				t.Errorf("send %d: %v", i, err)
			}
		}
		p.Close()
		if taken != 3 || len(o.errs) != 3 {
			t.Errorf("%d accepted, %d results; want 3", taken, len(o.errs))
		}
		for id, err := range o.errs {
			if !errors.Is(err, tidegate.ErrClosed) {
				t.Errorf("send %s: %v", id, err)
			}
		}
		if err := p.SendAsync(t.Context(), message(), o.done("late")); !errors.Is(err, tidegate.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestSendAsyncRejectsNil(t *testing.T) {
	p := newProducer(t, script(), Options{})
	if err := p.SendAsync(t.Context(), nil, func(tidegate.Receipt, error) {}); sendError(t, err).Reason != StopInvalid {
		t.Errorf("nil message: %v", err)
	}
	if err := p.SendAsync(t.Context(), message(), nil); sendError(t, err).Reason != StopInvalid {
		t.Errorf("nil function: %v", err)
	}
}

// A function that panics or ends its goroutine costs no later function its call, and Close returns.
func TestFunctionsThatPanic(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("the user's") }, "FailNow": runtime.Goexit} {
		t.Run(name, func(t *testing.T) { testFunctionsThatEnd(t, end) })
	}
}

func testFunctionsThatEnd(t *testing.T, end func()) {
	synctest.Test(t, func(t *testing.T) {
		p := newProducer(t, script(), Options{})
		called := 0
		for i := range 6 {
			if err := p.SendAsync(t.Context(), message(), func(tidegate.Receipt, error) {
				if called++; i%2 == 0 {
					end()
				}
			}); err != nil {
				t.Error(err)
			}
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		p.Close()
		if called != 6 {
			t.Errorf("%d of 6 functions were called", called)
		}
	})
}
