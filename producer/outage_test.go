package producer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/producer/spool"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// noConnection is a transport without a connection for a while. As the real ones, it fails a first
// attempt at once, and lets a retry wait for the connection.
func noConnection(d time.Duration) *transporttest.Fake {
	back := time.Now().Add(d)
	f := &transporttest.Fake{}
	f.OnLane = one
	f.OnSend = func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
		if transport.AwaitsConnection(ctx) {
			sleepFor(ctx, time.Until(back))
		}
		if time.Now().Before(back) {
			err := context.Cause(ctx)
			if err == nil {
				err = tidegate.ErrUnavailable
			}
			return all(len(msgs), &tidegate.Error{Op: "SendMessage", Endpoint: "a:1", NotConnected: true, Err: err, Message: "there was no connection"})
		}
		sleepFor(ctx, 10*time.Millisecond)
		return nil
	}
	return f
}

// Attempts without a connection do not count in MaxAttempts. They do not shrink the lane either:
// all messages go as soon as the connection is back.
func TestAttemptsWithoutAConnectionDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const d = 50 * time.Second
		f := noConnection(d)
		start := time.Now()
		var first atomic.Int64 // requests that end with the first responses
		connected := f.OnSend
		f.OnSend = func(ctx context.Context, n int, l transport.Lane, msgs []*tidegate.Message) []error {
			errs := connected(ctx, n, l, msgs)
			if after := time.Since(start); after >= d && after <= d+10*time.Millisecond {
				first.Add(1)
			}
			return errs
		}
		p := newProducer(t, f, producer.Options{})
		noErrors(t, sendAll(t.Context(), p, numbered(200)))
		took := time.Since(start)
		assert.That(t, took <= d+1500*time.Millisecond, "the last message was stored %v after the return of the connection", took-d)
		assert.That(t, first.Load() >= 20,
			"%d requests were sent at the return of the connection, want most of a window of 32", first.Load())
	})
}

// Without a deadline a send without a connection ends after two minutes, with one at its deadline.
func TestSendsWithoutAConnectionEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		deadline, least, most time.Duration
		reason                producer.StopReason
	}{
		"no deadline": {0, 118 * time.Second, 2*time.Minute + 5*time.Second, producer.StopExhausted},
		"2 s":         {2 * time.Second, 1800 * time.Millisecond, 2 * time.Second, producer.StopDeadline},
		"5 minutes":   {5 * time.Minute, 295 * time.Second, 5 * time.Minute, producer.StopDeadline},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			p := newProducer(t, noConnection(time.Hour), producer.Options{})
			ctx, cancel := t.Context(), context.CancelFunc(func() {})
			if tt.deadline > 0 {
				ctx, cancel = context.WithTimeout(ctx, tt.deadline)
			}
			defer cancel()
			start := time.Now()
			_, err := p.Send(ctx, message())
			took := time.Since(start)
			if e := sendError(t, err); e.Reason != tt.reason || e.MaybeStored || took < tt.least || took > tt.most {
				t.Errorf("%v (%v) after %v, want %v after %v to %v", err, e.Reason, took, tt.reason, tt.least, tt.most)
			}
			assert.That(t, tt.deadline != 0 || strings.Contains(err.Error(), "no connection to the server for 2m"),
				"the error is %q", err)
		})
	}
}

// With a spool a message without a connection moves there at once.
func TestSpoolTakesMessagesWithoutAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProducer(t, noConnection(time.Hour), producer.Options{Spool: readySpool{}})
		start := time.Now()
		r, err := p.Send(t.Context(), message())
		assert.That(t, err == nil && r.Spooled && r.Attempts == 1 && time.Since(start) == 0,
			"%+v, %v after %v; want a spooled message after one attempt", r, err, time.Since(start))
	})
}

// One black-holed broker does not use up the whole timeout.
//
// RocketMQ: sending retry and throttling: "A network exception causes a connection failure or
// request timeout"
// RocketMQ: sending retry and throttling: "The call from the client fails or the request times out"
func TestBlackHoleLeavesTimeForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := each(func(ctx context.Context, n int, _ *tidegate.Message) error {
			if n == 1 {
				return blackHole(ctx)
			}
			return nil
		})
		p := newProducer(t, f, producer.Options{})
		ctx := within(t, 3*time.Second)
		start := time.Now()
		r, err := p.Send(ctx, message())
		assert.That(t, err == nil && r.Attempts == 2 && time.Since(start) == time.Second,
			"receipt %+v, error %v after %v; want success at attempt 2 after 1s", r, err, time.Since(start))
	})
}

// RocketMQ: sending retry and throttling: "The request times out because the broker is running
// slowly"
// RocketMQ: sending retry and throttling: "The built-in sending retry mechanism of a Apache
// RocketMQ client does not ensure that the failed message is successfully sent"
// RocketMQ: sending retry and throttling: "the caller must capture the exception and provide
// redundancy protection to prevent inconsistency in message sending results"
func TestBlackHoleEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := each(func(ctx context.Context, _ int, _ *tidegate.Message) error { return blackHole(ctx) })
		// Not even a request for the settings gets a response.
		f.OnProducerSettings = func(ctx context.Context, _ int, _ string) (transport.ProducerSettings, error) {
			<-ctx.Done()
			return transport.ProducerSettings{}, context.Cause(ctx)
		}
		p := newProducer(t, f, producer.Options{})
		start := time.Now()
		_, err := p.Send(t.Context(), message())
		e := sendError(t, err)
		if e.Attempts != 3 || !e.MaybeStored || !errors.Is(err, tidegate.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %+v: %v", e, err)
		}
		// Three attempts of 3s. Asking for the settings took no time of theirs.
		if d := time.Since(start); d != 9*time.Second || len(f.Calls("ProducerSettings")) != 1 {
			t.Errorf("took %v and %d questions, want 9s and 1", d, len(f.Calls("ProducerSettings")))
		}
	})
}

// Two of three servers never respond, and one of them has the settings: the third attempt still has
// its share of the deadline.
func TestBlackHolesLeaveTimeForTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := each(func(ctx context.Context, n int, _ *tidegate.Message) error {
			if n < 3 {
				return blackHole(ctx)
			}
			return nil
		})
		asking := true
		f.OnProducerSettings = func(ctx context.Context, _ int, _ string) (transport.ProducerSettings, error) {
			<-ctx.Done()
			asking = false
			return transport.ProducerSettings{}, context.Cause(ctx)
		}
		var told []producer.Attempt
		p := newProducer(t, f, producer.Options{OnAttempt: func(a producer.Attempt) { told = append(told, a) }})
		ctx := within(t, 3*time.Second)
		start := time.Now()
		r, err := p.Send(ctx, message())
		assert.That(t, err == nil && r.Attempts == 3 && time.Since(start) == 2*time.Second,
			"receipt %+v, error %v after %v; want success at attempt 3 after 2s", r, err, time.Since(start))
		for i, gap := range gaps(f) {
			if a := told[i]; a.Delay != 0 || a.DelayFrom != "" || gap != a.Duration {
				t.Errorf("attempt %d took %v and was followed %v after its start; OnAttempt has %v, %v", i+1, a.Duration, gap, a.Delay, a.DelayFrom)
			}
		}
		// The question is still open. Close ends it and waits for it.
		start = time.Now()
		p.Close()
		assert.That(t, time.Since(start) == 0 && !asking,
			"Close took %v, and the question is still open: %v", time.Since(start), asking)
	})
}

// While no server responds, a send with a deadline ends in the spool at its deadline: during the
// lookup of a lane, during the request, and behind another message.
func TestSpoolAtTheDeadline(t *testing.T) {
	for name, f := range map[string]*transporttest.Fake{
		"lookup": {OnLane: func(ctx context.Context, _ int, _ transport.LaneRequest) (transport.Lane, error) {
			return transport.Lane{}, blackHole(ctx)
		}},
		"lookup after the switch": {OnLane: func() func(ctx context.Context, _ int, _ transport.LaneRequest) (transport.Lane, error) {
			n := 0
			return func(ctx context.Context, _ int, r transport.LaneRequest) (transport.Lane, error) {
				if n++; n%2 == 1 {
					return transport.Lane{Endpoint: "a:1", MaxMessages: 1, MaxBytes: 1 << 20}, nil
				}
				<-ctx.Done() // and the response comes in the last moment
				return transport.Lane{Endpoint: "b:2", MaxMessages: 1, MaxBytes: 1 << 20}, nil
			}
		}(), OnSend: func(ctx context.Context, _ int, l transport.Lane, msgs []*tidegate.Message) []error {
			if l.Endpoint == "b:2" {
				<-ctx.Done()
			}
			return slices.Repeat([]error{codeError(tidegate.CodeInternalServerError)}, len(msgs))
		}},
		"request": together(blackHole),
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			s := newSpool(t, spool.Options{})
			p := newProducer(t, f, producer.Options{Spool: s, MaxAttempts: 100})
			start := time.Now()
			ctx := within(t, 2*time.Second)
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
					assert.NoError(t, p.SendAsync(ctx, m, check))
					continue
				}
				wg.Go(func() { check(p.Send(ctx, m)) })
			}
			wg.Wait()
			err := p.Flush(t.Context())
			assert.That(t, err == nil && spooled == 20, "%v, %d of 20 results", err, spooled)
		})
	}
}

// The messages of a group that share a request move to the spool together, in their order, with any
// order of their deadlines.
func TestSpoolOfARequestAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{OnSend: func(ctx context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			if n == 1 { // of the first message; the others wait for it
				sleepFor(ctx, time.Second)
				return nil
			}
			assert.That(t, len(msgs) == 3, "request %d has %d messages, want 3", n, len(msgs))
			time.Sleep(time.Minute) // the transport ignores the end of ctx
			return nil
		}}
		s := newSpool(t, spool.Options{})
		p := newProducer(t, f, producer.Options{Spool: s, MaxAttempts: 1})
		assert.Must(t, p.SendAsync(t.Context(), grouped("first"), func(tidegate.Receipt, error) {}))
		synctest.Wait()
		var results []string
		for i, limit := range []time.Duration{2500 * time.Millisecond, 2 * time.Second, 2700 * time.Millisecond} {
			ctx := within(t, limit)
			assert.Must(t, p.SendAsync(ctx, grouped(fmt.Sprint(i)), func(r tidegate.Receipt, err error) {
				results = append(results, fmt.Sprint(r.MessageID, " ", r.Spooled, " ", err))
			}))
		}
		assert.Must(t, p.Flush(t.Context()))
		want := []string{"0 true <nil>", "1 true <nil>", "2 true <nil>"}
		assert.That(t, slices.Equal(results, want), "results %v, want %v", results, want)
		entries, err := s.Entries(false, 0, 10)
		assert.MustThat(t, err == nil && len(entries) == 3, "%+v, %v; want 3 entries", entries, err)
		for i, e := range entries {
			assert.That(t, e.Message.ID == fmt.Sprint(i), "entry %d is message %s", i, e.Message.ID)
		}
	})
}

// A message that reaches its deadline behind an older one of its group, which a server is about to
// accept, is not spooled: the older one might follow it into the spool.
func TestDeadlineBehindARequestOfTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newStore()
		do := f.OnSend
		f.OnSend = func(ctx context.Context, n int, l transport.Lane, msgs []*tidegate.Message) []error {
			sleepFor(ctx, 5*time.Second)
			return do(ctx, n, l, msgs)
		}
		p := newProducer(t, f, producer.Options{Spool: newSpool(t, spool.Options{})})
		first := make(chan error, 1)
		go func() {
			r, err := p.Send(t.Context(), grouped("1"))
			if r.Spooled {
				err = errors.New("it is in the spool")
			}
			first <- err
		}()
		synctest.Wait()
		ctx := within(t, 2*time.Second)
		start := time.Now()
		if r, err := p.Send(ctx, grouped("2")); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 2*time.Second {
			t.Errorf("%+v, %v after %v; want the deadline after 2s", r, err, time.Since(start))
		}
		assert.NoError(t, <-first)
	})
}

// A caller that cancels does not want its message to be sent later.
func TestCancelledSendIsNotSpooled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := together(blackHole)
		s := newSpool(t, spool.Options{})
		p := newProducer(t, f, producer.Options{Spool: s})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		time.AfterFunc(time.Second, cancel)
		if r, err := p.Send(ctx, message()); !errors.Is(err, context.Canceled) || s.Stats().Pending != 0 {
			t.Errorf("%+v, %v, %+v; want context.Canceled and an empty spool", r, err, s.Stats())
		}
	})
}
