package producer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/spool"
	"github.com/tidegate/tidegate/transport"
)

// While no server responds, a send with a deadline ends in the spool at its deadline: during the
// lookup of a lane, during the request, and behind another message.
func TestSpoolAtTheDeadline(t *testing.T) {
	for name, f := range map[string]*laneFake{
		"lookup": {lane: func(ctx context.Context, _ transport.LaneRequest) (transport.Lane, error) {
			return transport.Lane{}, blackHole(ctx)
		}},
		"lookup after the switch": {lane: func() func(ctx context.Context, _ transport.LaneRequest) (transport.Lane, error) {
			n := 0
			return func(ctx context.Context, r transport.LaneRequest) (transport.Lane, error) {
				if n++; n%2 == 1 {
					return transport.Lane{Endpoint: "a:1", MaxMessages: 1, MaxBytes: 1 << 20}, nil
				}
				<-ctx.Done() // and the response comes in the last moment
				return transport.Lane{Endpoint: "b:2", MaxMessages: 1, MaxBytes: 1 << 20}, nil
			}
		}(), do: func(ctx context.Context, _ int, l transport.Lane, msgs []*tidegate.Message) []error {
			if l.Endpoint == "b:2" {
				<-ctx.Done()
			}
			return slices.Repeat([]error{codeError(tidegate.CodeInternalServerError)}, len(msgs))
		}},
		"request": {do: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			return slices.Repeat([]error{blackHole(ctx)}, len(msgs))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSpool(t, spool.Options{})
				p := newProducer(t, f, Options{Spool: s, MaxAttempts: 100})
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				var mu sync.Mutex
				spooled := 0
				check := func(r tidegate.Receipt, err error) {
					mu.Lock()
					defer mu.Unlock()
					if spooled++; err != nil || !r.Spooled || time.Since(start) > 2*time.Second {
						t.Errorf("%+v, %v after %v; want it in the spool within 2s", r, err, time.Since(start))
					}
				}
				var wg sync.WaitGroup
				for i := range 20 {
					m := named(fmt.Sprint(i))
					if i%2 == 0 {
						m.MessageGroup = fmt.Sprint("group ", i%4)
					}
					if i%3 == 0 {
						if err := p.SendAsync(ctx, m, check); err != nil {
							t.Error(err)
						}
						continue
					}
					wg.Go(func() { check(p.Send(ctx, m)) })
				}
				wg.Wait()
				if err := p.Flush(t.Context()); err != nil || spooled != 20 {
					t.Errorf("%v, %d of 20 results", err, spooled)
				}
			})
		})
	}
}

// The messages of a group that share a request move to the spool together, in their order, with any
// order of their deadlines.
func TestSpoolOfARequestAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{do: func(ctx context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			if n == 1 { // of the first message; the others wait for it
				sleepFor(ctx, time.Second)
				return nil
			}
			if len(msgs) != 3 {
				t.Errorf("request %d has %d messages, want 3", n, len(msgs))
			}
			time.Sleep(time.Minute) // the transport ignores the end of ctx
			return nil
		}}
		s := newSpool(t, spool.Options{})
		p := newProducer(t, f, Options{Spool: s, MaxAttempts: 1})
		if err := p.SendAsync(t.Context(), grouped("first"), func(tidegate.Receipt, error) {}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		var results []string
		for i, limit := range []time.Duration{2500 * time.Millisecond, 2 * time.Second, 2700 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			if err := p.SendAsync(ctx, grouped(fmt.Sprint(i)), func(r tidegate.Receipt, err error) {
				results = append(results, fmt.Sprint(r.MessageID, " ", r.Spooled, " ", err))
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want := []string{"0 true <nil>", "1 true <nil>", "2 true <nil>"}; !slices.Equal(results, want) {
			t.Errorf("results %v, want %v", results, want)
		}
		entries, err := s.Entries(false, 0, 10)
		if err != nil || len(entries) != 3 {
			t.Fatalf("%+v, %v; want 3 entries", entries, err)
		}
		for i, e := range entries {
			if e.Message.ID != fmt.Sprint(i) {
				t.Errorf("entry %d is message %s", i, e.Message.ID)
			}
		}
	})
}

// A message that reaches its deadline behind an older one of its group moves to the spool if the
// ctx of the older one has ended too. The goroutine of the older one need not have noticed that:
// here that goroutine is in a transport that ignores the end of ctx.
func TestDeadlineBehindAnEndedMessageOfTheGroup(t *testing.T) {
	const limit = 2 * time.Second
	for name, c := range map[string]struct {
		// older returns the ctx of the older message from that of the younger.
		older func(t *testing.T, ctx context.Context) context.Context
		want  []string // messages in the spool
	}{
		"with the same ctx": {func(_ *testing.T, ctx context.Context) context.Context { return ctx }, []string{"1", "2"}},
		"whose timer is late": {func(t *testing.T, ctx context.Context) context.Context {
			deadline, _ := ctx.Deadline()
			late, cancel := context.WithTimeout(t.Context(), limit+time.Second)
			t.Cleanup(cancel)
			return lateContext{late, deadline}
		}, []string{"1", "2"}},
		"that was cancelled": {func(_ *testing.T, ctx context.Context) context.Context {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Second, cancel)
			return ctx
		}, []string{"2"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &laneFake{do: func(context.Context, int, transport.Lane, []*tidegate.Message) []error {
					time.Sleep(time.Minute)
					return []error{codeError(tidegate.CodeInternalServerError)}
				}}
				s := newSpool(t, spool.Options{})
				p := newProducer(t, f, Options{Spool: s})
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				older := make(chan tidegate.Receipt, 1)
				go func() {
					r, _ := p.Send(c.older(t, ctx), grouped("1"))
					older <- r
				}()
				synctest.Wait()
				start := time.Now()
				if r, err := p.Send(ctx, grouped("2")); err != nil || !r.Spooled || time.Since(start) != limit {
					t.Errorf("%+v, %v after %v; want it in the spool after %v", r, err, time.Since(start), limit)
				}
				entries, err := s.Entries(false, 0, 10)
				var ids []string
				for _, e := range entries {
					ids = append(ids, e.Message.ID)
				}
				if err != nil || !slices.Equal(ids, c.want) {
					t.Errorf("messages %v, %v in the spool; want %v", ids, err, c.want)
				}
				if r := <-older; r.Spooled != slices.Contains(c.want, "1") {
					t.Errorf("receipt of the older message: %+v", r)
				}
			})
		})
	}
}

// A lateContext ends after its deadline.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

// A message that reaches its deadline behind an older one of its group, which a server is about to
// accept, is not spooled: the older one might follow it into the spool.
func TestDeadlineBehindARequestOfTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newStore()
		do := f.do
		f.do = func(ctx context.Context, n int, l transport.Lane, msgs []*tidegate.Message) []error {
			sleepFor(ctx, 5*time.Second)
			return do(ctx, n, l, msgs)
		}
		p := newProducer(t, f, Options{Spool: newSpool(t, spool.Options{})})
		first := make(chan error, 1)
		go func() {
			r, err := p.Send(t.Context(), grouped("1"))
			if r.Spooled {
				err = errors.New("it is in the spool")
			}
			first <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		if r, err := p.Send(ctx, grouped("2")); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 2*time.Second {
			t.Errorf("%+v, %v after %v; want the deadline after 2s", r, err, time.Since(start))
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

// A caller that cancels does not want its message to be sent later.
func TestCancelledSendIsNotSpooled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{do: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			return slices.Repeat([]error{blackHole(ctx)}, len(msgs))
		}}
		s := newSpool(t, spool.Options{})
		p := newProducer(t, f, Options{Spool: s})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		time.AfterFunc(time.Second, cancel)
		if r, err := p.Send(ctx, message()); !errors.Is(err, context.Canceled) || s.Stats().Pending != 0 {
			t.Errorf("%+v, %v, %+v; want context.Canceled and an empty spool", r, err, s.Stats())
		}
	})
}

func grouped(id string) *tidegate.Message {
	m := named(id)
	m.MessageGroup = "g"
	return m
}
