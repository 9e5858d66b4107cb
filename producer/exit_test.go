package producer

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer/spool"
	"github.com/tidegate/tidegate/transport"
)

// An OnAttempt may end its goroutine, as FailNow of package testing does, on a goroutine of a
// caller or of the producer. The producer still sends the other messages for the server.
func TestObserverThatEndsItsGoroutine(t *testing.T) {
	for name, send := range map[string]func(*testing.T, *Producer) bool{
		"Send": func(t *testing.T, p *Producer) (returned bool) {
			var wg sync.WaitGroup
			wg.Go(func() {
				_, _ = p.Send(t.Context(), message())
				returned = true
			})
			wg.Wait()
			return returned
		},
		"SendAsync": func(t *testing.T, p *Producer) bool {
			done := make(chan error)
			if err := p.SendAsync(t.Context(), message(), func(_ tidegate.Receipt, err error) { done <- err }); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &laneFake{do: func(_ context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
					if n == 1 {
						return all(len(msgs), throttled(0))
					}
					return nil
				}}
				var attempts atomic.Int64
				p := newProducer(t, f, Options{OnAttempt: func(Attempt) {
					if attempts.Add(1) == 1 {
						runtime.Goexit()
					}
				}})
				if send(t, p) {
					t.Error("Send has returned")
				}
				if _, err := p.Send(t.Context(), message()); err != nil {
					t.Error(err)
				}
				a, err := p.Shutdown(t.Context())
				if err != nil || a.Delivered != 2 {
					t.Errorf("%+v, %v", a, err)
				}
			})
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var lanes, sends atomic.Int64
				f := &laneFake{
					lane: func(_ context.Context, r transport.LaneRequest) (transport.Lane, error) {
						if tt.inLane && lanes.Add(1) <= panics {
							panic("by the test")
						}
						return transport.Lane{Endpoint: "a:1", MaxMessages: tt.most}, nil
					},
					do: func(context.Context, int, transport.Lane, []*tidegate.Message) []error {
						if tt.inSend && sends.Add(1) <= panics {
							panic("by the test")
						}
						return nil
					},
				}
				p := newProducer(t, f, Options{})
				for range panics {
					func() {
						defer func() {
							if recover() == nil {
								t.Error("the panic has not reached the caller of Send")
							}
						}()
						_, _ = p.Send(t.Context(), message())
					}()
				}
				start := time.Now()
				if _, err := p.Send(t.Context(), message()); err != nil || time.Since(start) > time.Second {
					t.Errorf("%v after %v", err, time.Since(start))
				}
				a, err := p.Shutdown(t.Context())
				if err != nil || a.Delivered != 1 || a.Failed != panics {
					t.Errorf("%+v, %v", a, err)
				}
			})
		})
	}
}

// An OnAttempt that ends the goroutine of a message at its deadline does not keep the place of the
// cancelled older message of its group, which leaves first on that goroutine.
func TestObserverThatEndsALeaver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{do: func(context.Context, int, transport.Lane, []*tidegate.Message) []error {
			time.Sleep(time.Minute) // the transport ignores the end of ctx
			return nil
		}}
		p := newProducer(t, f, Options{Spool: newSpool(t, spool.Options{}), OnAttempt: func(Attempt) { runtime.Goexit() }})
		older, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		go func() { _, _ = p.Send(older, grouped("1")) }()
		synctest.Wait()
		younger, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		go func() {
			_, _ = p.Send(younger, grouped("2"))
			t.Error("Send has returned")
		}()
		time.Sleep(time.Hour)
		if a, err := p.Shutdown(t.Context()); err != nil || a.Failed < 1 {
			t.Errorf("%+v, %v", a, err)
		}
	})
}

// An OnAttempt that ends its goroutine for one message at the end of a ctx, or in Close, does not
// keep the other messages.
func TestObserverThatEndsTheLeavingOfMany(t *testing.T) {
	for name, end := range map[string]func(p *Producer, cancel func()){
		"ctx":      func(_ *Producer, cancel func()) { cancel() },
		"Close":    func(p *Producer, _ func()) { go func() { _ = p.Close() }() },
		"Shutdown": func(p *Producer, _ func()) { go func() { _, _ = p.Shutdown(cancelled()) }() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &laneFake{do: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
					<-ctx.Done()
					return all(len(msgs), context.Cause(ctx))
				}}
				var observed atomic.Int64
				p := newProducer(t, f, Options{AttemptTimeout: time.Hour, OnAttempt: func(Attempt) {
					observed.Add(1)
					runtime.Goexit()
				}})
				ctx, cancel := context.WithCancel(t.Context())
				o := outcomes{errs: map[string]error{}}
				for _, m := range numbered(50) {
					if err := p.SendAsync(ctx, m, o.done(m.ID)); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				end(p, cancel)
				synctest.Wait()
				if ended := len(p.ledger.Pending()) == 0; !ended || len(o.errs) != 50 {
					t.Errorf("all messages have left: %v, %d functions of 50 were called", ended, len(o.errs))
				}
				if observed.Load() < 2 {
					t.Errorf("%d attempts were observed, want several", observed.Load())
				}
				cancel()
			})
		})
	}
}

// An OnAttempt that ends its goroutine for a message that waited for a throttled server does not
// keep the caller whose message was throttled.
func TestObserverThatEndsTheReportOfAWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{do: func(ctx context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			if n == 1 {
				time.Sleep(time.Millisecond)
				return all(len(msgs), throttled(10*time.Second))
			}
			<-ctx.Done()
			return all(len(msgs), context.Cause(ctx))
		}}
		var ends atomic.Int64
		p := newProducer(t, f, Options{MaxAttempts: 1, OnAttempt: func(a Attempt) {
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

// cancelled returns a ctx that has ended.
func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
