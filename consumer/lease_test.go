package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

func TestLeaseLost(t *testing.T) {
	invalid := &tidegate.Error{Code: tidegate.CodeInvalidReceiptHandle}
	lost := errors.New("connection lost")
	for _, tt := range []struct {
		name     string
		answer   error
		opts     consumer.PushOptions
		ran      time.Duration // of the invisible time, before the delivery came
		from, to time.Duration // when the handler sees it
		calls    int           // of ChangeInvisibleDuration, at least
	}{
		{"the server reports it", invalid, consumer.PushOptions{}, 0, 8 * time.Second, 10 * time.Second, 1},
		{"the server cannot be reached", lost, consumer.PushOptions{}, 0, 29 * time.Second, 30*time.Second - 1, 5},
		{"nor for the rest of a repeated response", lost, consumer.PushOptions{}, 24 * time.Second, 5500 * time.Millisecond, 6*time.Second - 1, 5},
		{"extended long enough", nil, consumer.PushOptions{MaxExtension: 25 * time.Second}, 0, 46 * time.Second, 50 * time.Second, 2},
		{"never extended", nil, consumer.PushOptions{MaxExtension: -1}, 0, 29 * time.Second, 30*time.Second - 1, 0},
	} {
		t.Run(tt.name, onBroker(func(t *testing.T, s *server) {
			s.ran = tt.ran
			s.fill(1)
			calls := 0
			s.onChange = func(*tidegate.Delivery) error { calls++; return tt.answer }
			s.onAck = func(*tidegate.Delivery) error { t.Error("acknowledged"); return nil }
			s.onRetry = func(*tidegate.Delivery) error { t.Error("retried"); return nil }
			seen := make(chan consumer.Outcome, 10)
			tt.opts.OnDelivery = func(o consumer.Outcome) { seen <- o }
			tt.opts.Concurrency = 1
			begin := time.Now()
			ctx, cancel := context.WithCancel(t.Context())
			var at time.Duration
			p := assert.Value(consumer.NewPush(s, consumer.Subscription{Group: "billing", Topic: "orders"}, func(hctx context.Context, _ *tidegate.Delivery) error {
				<-hctx.Done()
				cancel() // before the message comes again
				if at = time.Since(begin); at < tt.from || at > tt.to {
					t.Errorf("the handler's context ended after %v, want %v to %v: before the message is visible", at, tt.from, tt.to)
				}
				cause := context.Cause(hctx)
				assert.That(t, errors.Is(cause, consumer.ErrLeaseLost) && (tt.answer != invalid || errors.Is(cause, tidegate.ErrInvalidHandle)), "cause %v", cause)
				time.Sleep(time.Second) // a handler may be slow to notice
				return nil
			}, tt.opts))(t)
			assert.NoError(t, p.Run(ctx))
			if o := <-seen; o.Disposition != consumer.LeaseLost || o.Duration != at+time.Second || len(seen) != 0 {
				t.Errorf("outcome %+v and %d more", o, len(seen))
			}
			assert.That(t, calls >= tt.calls, "%d attempts to extend, want %d", calls, tt.calls)
		}))
	}
}

// The server has a maximum of its own for the time of a delivery. The consumer requests one
// extension beyond it: the lease then ends with the last accepted extension, and the handler's
// context before that.
func TestServersMaximumEndsTheLease(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.fill(1)
		refused := &tidegate.Error{Code: protocol.CodeIllegalInvisibleTime, Message: "the invisibleTime is too large"}
		begin := time.Now()
		var until time.Time // the end of the last extension that was granted
		refusals := 0
		s.onChange = func(*tidegate.Delivery) error {
			if end := time.Now().Add(30 * time.Second); end.Before(begin.Add(2 * time.Minute)) {
				until = end
				return nil
			}
			refusals++
			return refused
		}
		var seen outcomes
		runFor(t, 3*time.Minute, s, consumer.Subscription{}, func(ctx context.Context, d *tidegate.Delivery) error {
			if d.Attempt > 1 {
				return nil
			}
			<-ctx.Done()
			if now := time.Now(); !now.Before(until) || now.Before(until.Add(-time.Second)) {
				t.Errorf("the handler's context ended after %v, want just before %v", now.Sub(begin), until.Sub(begin))
			}
			cause := context.Cause(ctx)
			assert.That(t, errors.Is(cause, consumer.ErrLeaseLost) && errors.Is(cause, refused), "cause %v", cause)
			return nil
		}, consumer.PushOptions{OnDelivery: seen.add})
		if list := seen.all(); len(list) != 2 || list[0].Disposition != consumer.LeaseLost || !errors.Is(list[0].SettleErr, refused) || list[1].Disposition != consumer.Acked {
			t.Errorf("outcomes %+v", list)
		}
		assert.That(t, refusals == 1 && !until.IsZero(), "%d refused extensions, want 1 after some that were granted", refusals)
	})
}

// A message that waits for a free handler longer than it is kept is the
// server's again: it is delivered again, and the old delivery is never handled.
//
// RocketMQ: consumption retry: "A timeout error occurs or a message stays in a push consumer queue
// for an excessive period of time"
func TestTooLongInTheQueueIsATimeout(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.fillQuick()
		var seen outcomes
		blocked := false
		stop := start(t, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
			if slow(d) && !blocked {
				blocked = true
				time.Sleep(2 * time.Minute) // with any state of its context
			}
			return nil
		}, consumer.PushOptions{Concurrency: 1, MaxExtension: 25 * time.Second, OnDelivery: seen.add})
		s.fillSlow(10)
		time.Sleep(10 * time.Minute)
		stop()
		handled, lost := 0, 0
		for _, o := range seen.list {
			switch {
			case o.Disposition == consumer.LeaseLost && o.Duration == 0:
				lost++
			case o.Disposition == consumer.Acked && o.Delivery.Attempt > 1:
				handled++
			}
		}
		assert.That(t, lost >= 9 && handled == 10 && s.left() == 0, "%d were lost in the queue, %d handled later, %d left; want 9 at least, 10 and 0", lost, handled, s.left())
	})
}

func TestAckIsRepeated(t *testing.T) {
	busy, gone := &tidegate.Error{Code: tidegate.CodeTooManyRequests}, &tidegate.Error{Code: tidegate.CodeInvalidReceiptHandle}
	for _, tt := range []struct {
		name string
		errs []error // of the first tries; the last one repeats
		want consumer.Disposition
		min  int
		max  int
	}{
		{"in the end it works", []error{busy, errors.New("lost"), nil}, consumer.Acked, 3, 3},
		{"the handle is gone", []error{gone}, consumer.LeaseLost, 1, 1},
		{"the handle is gone after a refusal", []error{busy, gone}, consumer.LeaseLost, 2, 2},
		{"the handle is gone after a lost response", []error{errors.New("lost"), busy, gone},
			consumer.PerhapsSettled, 3, 3},
		{"the handle is gone after a try that may have worked", []error{&tidegate.Error{Err: tidegate.ErrUnavailable, MaybeStored: true}, gone}, consumer.PerhapsSettled, 2, 2},
		{"the handle is gone after a try that reached no server", []error{&tidegate.Error{Err: tidegate.ErrUnavailable}, gone}, consumer.LeaseLost, 2, 2},
		{"the handle is gone after a failure with a response", []error{&tidegate.Error{Code: tidegate.CodeInternalServerError}, gone}, consumer.LeaseLost, 2, 2},
		{"refused", []error{&tidegate.Error{Code: tidegate.CodeForbidden}}, consumer.Unsettled, 1, 1},
		{"never, as long as the lease lasts", []error{errors.New("lost")}, consumer.Unsettled, 8, 15},
	} {
		t.Run(tt.name, onServer(func(t *testing.T, s *server) {
			s.fill(1)
			n := 0
			s.onAck = func(d *tidegate.Delivery) error {
				if d.Attempt > 1 {
					return nil
				}
				n++
				return tt.errs[min(n, len(tt.errs))-1]
			}
			var seen outcomes
			var after []time.Duration
			begin := time.Now()
			runFor(t, 35*time.Second, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil },
				consumer.PushOptions{Concurrency: 1, OnDelivery: func(o consumer.Outcome) { after = append(after, time.Since(begin)); seen.add(o) }})
			if first := seen.list[0]; first.Disposition != tt.want || n < tt.min || n > tt.max || after[0] > 30*time.Second {
				t.Errorf("%d tries in %v, outcome %+v", n, after[0], first)
			}
			assert.That(t, s.left() == 0, "the message was not delivered again")
		}))
	}
}

// A message whose dead letter no server keeps is delivered again.
func TestDeadLetterRejectedIsRetried(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.settings = transport.ConsumerSettings{MaxAttempts: 1}
		s.fill(1)
		s.onDead = func(*tidegate.Delivery) error { return &tidegate.Error{Code: tidegate.CodeNotImplemented} }
		var seen outcomes
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return errors.New("x") },
			consumer.PushOptions{OnDelivery: seen.add})
		synctest.Wait()
		stop()
		if list := seen.all(); len(list) != 1 || list[0].Disposition != consumer.Retried || len(s.retries) != 1 {
			t.Errorf("outcomes %+v, retries %v", list, s.retries)
		}
	})
}

// An acknowledgement whose response was lost is repeated, and the server reports an invalid handle:
// the message was most likely consumed, which needs no warning.
func TestLostResponseIsNoWarning(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.fill(1)
		var log bytes.Buffer
		tries := 0
		s.afterAck = func() error {
			if tries++; tries == 1 {
				return errors.New("the answer was lost")
			}
			return nil
		}
		var seen outcomes
		runFor(t, time.Minute, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil },
			consumer.PushOptions{OnDelivery: seen.add, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if o := seen.all()[0]; tries != 2 || o.Disposition != consumer.PerhapsSettled || !errors.Is(o.SettleErr, tidegate.ErrInvalidHandle) || s.left() != 0 {
			t.Errorf("%d tries, outcome %+v", tries, o)
		}
		text := log.String()
		assert.That(t, !strings.Contains(text, "WARN") && !strings.Contains(text, "delivered again"), "logged %s", text)
	})
}

// With a backlog, receives of one queue overlap.
func TestReceivesOverlapWithABacklog(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.fill(3000)
		var underWay, most atomic.Int64
		s.onReceive = func() error {
			most.Store(max(most.Load(), underWay.Add(1)))
			defer underWay.Add(-1)
			time.Sleep(time.Second)
			return nil
		}
		runFor(t, 20*time.Second, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{})
		assert.That(t, most.Load() >= 4, "%d receives at a time with a backlog, want several", most.Load())
	})
}

// A server that does not respond to the request for settings does not hold up the consumer, which
// receives after a later response.
func TestSettingsHaveATimeLimit(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.fill(1)
		asked, begin := 0, time.Now()
		s.onSettings = func(ctx context.Context) error {
			if asked++; asked > 1 {
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}
		runFor(t, 20*time.Second, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil },
			consumer.PushOptions{OnReceiveFailure: func(consumer.ReceiveFailure) {}})
		assert.That(t, s.left() == 0 && asked > 1 && s.polls[0].After(begin), "%d messages left, %d requests for settings and %d receives; want 0, more than 1, and the first one later", s.left(), asked, len(s.polls))
	})
}

// A distant server takes extensions 10 s after they were sent, and its responses need 10 s too.
type distant struct{ *server }

func (d distant) Extend(ctx context.Context, x *tidegate.Delivery, dur time.Duration, repeat bool) (string, error) {
	<-time.After(10 * time.Second)
	h, err := d.server.Extend(context.WithoutCancel(ctx), x, dur, repeat)
	<-time.After(10 * time.Second)
	return h, err
}

// Extensions that take 20 s have a longer invisible duration asked for, and after that no message
// is lost.
func TestSlowExtensions(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		var lost atomic.Int64
		work := func(context.Context, *tidegate.Delivery) error { time.Sleep(5 * time.Minute); return nil }
		stop := start(t, distant{s}, consumer.Subscription{}, work, consumer.PushOptions{Concurrency: 3, OnDelivery: func(o consumer.Outcome) {
			if o.Disposition != consumer.Acked {
				lost.Add(1)
			}
		}})
		s.fill(3)
		time.Sleep(20 * time.Minute)
		before := lost.Load()
		s.add(0, &tidegate.Message{ID: "a", Topic: "orders", Body: []byte("x")}, &tidegate.Message{ID: "b", Topic: "orders", Body: []byte("x")})
		time.Sleep(20 * time.Minute)
		stop()
		assert.That(t, lost.Load() == before && s.left() == 0, "%d leases were lost, of these %d after the first messages; %d messages left", lost.Load(), lost.Load()-before, s.left())
	})
}

// A handler that works ten times as long as the lease has one delivery, and no message in the
// buffer expires. The extensions are a third of the lease apart, and change no handler's delivery.
func TestBufferedMessagesKeepTheirLeases(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.fillQuick()
		var seen outcomes
		stop := start(t, s, consumer.Subscription{}, func(ctx context.Context, d *tidegate.Delivery) error {
			if handle := d.Handle; slow(d) {
				time.Sleep(5 * time.Minute)
				assert.That(t, ctx.Err() == nil && d.Handle == handle, "ctx %v; the handle changed from %q to %q", ctx.Err(), handle, d.Handle)
			}
			return nil
		}, consumer.PushOptions{Concurrency: 2, OnDelivery: seen.add})
		s.fillSlow(20)
		time.Sleep(time.Hour)
		stop()
		for _, o := range seen.all() {
			assert.That(t, o.Disposition == consumer.Acked && o.Delivery.Attempt == 1, "%+v", o)
		}
		assert.That(t, s.left() == 0, "%d messages left", s.left())
		for _, d := range s.changes {
			assert.That(t, d == 30*time.Second, "extended by %v", d)
		}
		// Two messages at a time are in hand for 5, 10, 15 to 50 min, and extended every 9 to 10 s.
		if n, most := len(s.changes), 2*275*60/9; n > most || n < 2*50*60/10 {
			t.Errorf("%d extensions, want at most %d", n, most)
		}
	})
}

// With bodies of 4 MiB the consumer stays within its byte bound if the server supports the bound.
// Otherwise it exceeds the bound by at most one batch.
func TestLargeBodiesAreBounded(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		body := make([]byte, 4<<20)
		for i := range 60 {
			s.add(0, &tidegate.Message{ID: fmt.Sprint(i), Topic: "orders", Body: body})
		}
		var most atomic.Int64
		s.onHandOut = func(int) { most.Store(max(most.Load(), int64(s.handed))) }
		runFor(t, time.Minute, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { time.Sleep(10 * time.Millisecond); return nil },
			consumer.PushOptions{Concurrency: 64, MaxBytes: 40 << 20})
		assert.That(t, most.Load() <= 10 && s.left() == 0, "%d bodies of 4 MiB in hand, %d messages left", most.Load(), s.left())
	})
}

// Acknowledgements share requests, and one that fails does not fail the others.
func TestAcknowledgementsShareRequests(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.fillQuick()
		var mu sync.Mutex
		poor := map[string]int{}
		s.onAck = func(d *tidegate.Delivery) error {
			time.Sleep(time.Millisecond / 10) // so requests take a while
			mu.Lock()
			defer mu.Unlock()
			if poor[d.ID]++; len(d.ID) == len("quick0") && poor[d.ID] == 1 {
				return &tidegate.Error{Code: tidegate.CodeInternalServerError}
			}
			return nil
		}
		var seen outcomes
		runFor(t, 10*time.Second, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{Concurrency: 64, OnDelivery: seen.add})
		for _, o := range seen.all() {
			assert.That(t, o.Disposition == consumer.Acked && o.Delivery.Attempt == 1, "%+v", o)
		}
		assert.That(t, len(seen.all()) == 300 && len(s.acks) <= 30,
			"%d outcomes in %d requests: %v", len(seen.all()), len(s.acks), s.acks)
	})
}

// An acknowledgement waits for others until 5 ms after the request before it, unless a message of
// its message group or a receive waits for it.
func TestWhenAcknowledgementsWait(t *testing.T) {
	for name, c := range map[string]struct {
		group   string
		workers int
		gap     time.Duration // between the messages
		want    string        // times of the acknowledgements
	}{
		"alone":              {"", 64, time.Second, "[0s 1s 2s]"},
		"with others":        {"", 64, time.Millisecond, "[0s 5ms 5ms]"},
		"of a message group": {"g", 64, time.Millisecond, "[0s 1ms 2ms]"},
		"no free worker":     {"", 1, time.Millisecond, "[0s 1ms 2ms]"},
	} {
		t.Run(name, onBroker(func(t *testing.T, s *server) {
			s.settings.FIFO = c.group != ""
			var begin time.Time
			var mu sync.Mutex
			var at []time.Duration
			s.onAck = func(*tidegate.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Since(begin))
				return nil
			}
			stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil },
				consumer.PushOptions{Concurrency: c.workers, MaxBuffered: -1})
			time.Sleep(time.Second)
			begin = time.Now()
			for i := range 3 {
				s.add(0, &tidegate.Message{ID: fmt.Sprint(i), Topic: "orders", MessageGroup: c.group, Body: []byte("x")})
				time.Sleep(c.gap)
			}
			time.Sleep(time.Second)
			assert.NoError(t, stop())
			assert.Equal(t, "acknowledged after", fmt.Sprint(at), c.want)
		}))
	}
}

// 32 acknowledgements do not wait.
func TestManyAcknowledgementsDoNotWait(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		begin := time.Now()
		var last time.Duration
		for i := range 40 {
			s.add(0, &tidegate.Message{ID: fmt.Sprint(i), Topic: "orders", Body: []byte("x")})
		}
		s.afterAck = func() error { last = max(last, time.Since(begin)); return nil }
		release := make(chan struct{})
		stop := start(t, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
			if d.ID != "0" {
				<-release
			}
			return nil
		}, consumer.PushOptions{Concurrency: 64})
		synctest.Wait() // the first one is acknowledged
		close(release)
		synctest.Wait()
		assert.That(t, len(s.acks) >= 2 && s.acks[1] >= 32 && last == 0, "requests with %v acknowledgements, the last after %v", s.acks, last)
		assert.NoError(t, stop())
	})
}
