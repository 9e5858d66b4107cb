package producer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
)

// foreign is a ctx that package context does not recognise as its own.
type foreign struct {
	context.Context

	asked *atomic.Int64 // calls of AfterFunc
}

func (foreign) Value(any) any { return nil }

func (f foreign) AfterFunc(fn func()) func() bool {
	f.asked.Add(1)
	return context.AfterFunc(f.Context, fn)
}

func TestMessagesWithOneContextShareItsWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{send: func(ctx context.Context, _ int, _ *tidegate.Message) error { return blackHole(ctx) }}
		p := newProducer(t, f, Options{})
		began := time.Now()
		o := outcomes{errs: map[string]error{}}
		var asked [2]atomic.Int64
		var cancels [2]context.CancelFunc
		var ctxs [2]context.Context
		for i := range ctxs {
			ctx, cancel := context.WithCancel(t.Context())
			ctxs[i], cancels[i] = foreign{ctx, &asked[i]}, cancel //nolint:fatcontext // each is that of the test
		}
		send := func(ctx context.Context, id string) error { return p.SendAsync(ctx, named(id), o.done(id)) }
		for i := range 20 {
			if err := send(ctxs[i%2], fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		if n := asked[0].Load(); n != 1 {
			t.Errorf("the ctx of ten messages has %d functions, want 1", n)
		}
		cancels[0]()
		synctest.Wait()
		for i := range 20 {
			err, ended := o.errs[fmt.Sprint(i)]
			switch {
			case i%2 == 1 && ended:
				t.Errorf("message %d ended with another's ctx: %v", i, err)
			case i%2 == 0 && (!ended || sendError(t, err).Reason != StopContext):
				t.Errorf("message %d: ended %v with %v; want the end of its ctx", i, ended, err)
			}
		}
		if err := send(ctxs[0], "late"); sendError(t, err).Reason != StopContext {
			t.Errorf("a message with an ended ctx: %v", err)
		}
		p.Close()
		if n := p.topics["orders"].watches.Len(); n != 0 || time.Since(began) != 0 {
			t.Errorf("%d watches are left after %v", n, time.Since(began))
		}
		if n := asked[1].Load(); n != 1 || !errors.Is(o.errs["1"], tidegate.ErrClosed) {
			t.Errorf("the other ctx has %d functions; its message ended with %v", n, o.errs["1"])
		}
		cancels[1]()
	})
}

// Results, ends of ctxs and new messages with the same ctxs meet at random.
func TestWatchesEndEachMessageOnce(t *testing.T) {
	for range 30 {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{send: func(ctx context.Context, n int, _ *tidegate.Message) error {
				if n%3 > 0 {
					return nil
				}
				return blackHole(ctx)
			}}
			p := newProducer(t, f, Options{AttemptTimeout: time.Second})
			var accepted, called atomic.Int64
			var wg sync.WaitGroup
			for range 3 { // for each ctx, three goroutines send
				after := time.Duration(rand.IntN(3)) * time.Second
				ctx, cancel := context.WithTimeout(t.Context(), after)
				defer cancel()
				for range 3 {
					wg.Go(func() {
						for range 20 {
							if p.SendAsync(ctx, message(), func(tidegate.Receipt, error) { called.Add(1) }) == nil {
								accepted.Add(1)
							}
							time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
						}
					})
				}
			}
			wg.Wait()
			time.Sleep(5 * time.Second) // every ctx has ended
			synctest.Wait()
			if a, c := accepted.Load(), called.Load(); a != c {
				t.Errorf("%d messages accepted, %d results at the end of all ctxs", a, c)
			}
			if n := p.topics["orders"].watches.Len(); n != 0 {
				t.Errorf("%d watches are left", n)
			}
		})
	}
}
