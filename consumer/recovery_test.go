package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/protocol"
)

// A reachable server responds to pings, except while it is away.
type reachable struct {
	*server
	away   time.Time   // until then; zero means that it is not
	broken atomic.Bool // afterwards it only fails receives
	pings  atomic.Int64
}

func (r *reachable) Ping(ctx context.Context, _ ...string) error {
	r.pings.Add(1)
	return backoff.Sleep(ctx, time.Until(r.away))
}

// received returns the number of receives.
func (r *reachable) received() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.polls)
}

func newReachable(t *testing.T) *reachable {
	r := &reachable{server: newServer(t)}
	r.onReceive = func() error {
		if r.broken.Load() || time.Now().Before(r.away) {
			return &tidegate.Error{Op: "ReceiveMessage", Message: "connection refused"}
		}
		return nil
	}
	return r
}

// The first receive after an outage follows at once when the server responds to a ping, and
// otherwise at most 5 s later. A server that responds only to pings gets a receive every 5 s, and
// one ping. If one of several servers is down, a response of another one to a ping is no proof that
// the first one works.
func TestReceivesFollowTheReturnOfAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReachable(t)
		begin := time.Now()
		r.away = begin.Add(90*time.Second + 10*time.Millisecond)
		r.fill(1)
		var late time.Duration
		var failures []consumer.ReceiveFailure
		stop := start(t, r, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
			late = time.Since(r.away)
			return nil
		}, consumer.PushOptions{OnReceiveFailure: func(f consumer.ReceiveFailure) { failures = append(failures, f) }, LongPolling: time.Second})
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if late < 0 || late > time.Second || r.left() != 0 {
			t.Errorf("the first message was handled %v after the return", late)
		}
		for _, f := range failures {
			if f.RetryIn > 5*time.Second {
				t.Errorf("a receive without a response is repeated after %v, want 5 s at most", f.RetryIn)
			}
		}
		polls, pings := r.received(), r.pings.Load()
		r.broken.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n, p := r.received()-polls, r.pings.Load()-pings; n < 10 || n > 20 || p > 1 {
			t.Errorf("%d receives and %d pings in a minute from a server that only responds to pings, want 10 to 20 and 1", n, p)
		}
		stop()

		s := newServer(t) // without pings
		s.fill(1)
		back := time.Now().Add(time.Minute)
		s.onReceive = func() error {
			if time.Now().Before(back) {
				return &tidegate.Error{Op: "ReceiveMessage", Message: "connection refused"}
			}
			return nil
		}
		stop = start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{})
		time.Sleep(time.Minute + 5*time.Second)
		synctest.Wait()
		if s.left() != 0 {
			t.Error("the message is not handled 5 s after the return")
		}
		stop()
	})
}

// A response is no outage: the wait is that of ReceiveBackoff, and there are no pings.
func TestReceiveBackoffAfterAResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReachable(t)
		r.onReceive = func() error { return &tidegate.Error{Code: protocol.CodeInternalError} }
		stop := start(t, r, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil },
			consumer.PushOptions{ReceiveBackoff: backoff.Steps{20 * time.Second}})
		time.Sleep(time.Minute + time.Second)
		stop()
		if len(r.polls) != 4 || r.pings.Load() != 0 {
			t.Errorf("%d receives and %d pings in a minute, want 4 and none", len(r.polls), r.pings.Load())
		}
	})
}

// An outage between two rejections of the credentials does not end Run; rejections for a minute do.
func TestRejectionsBesideAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		var receives atomic.Int64
		s.onReceive = func() error {
			n := receives.Add(1)
			if n == 1 || n == 60 {
				return &tidegate.Error{Code: tidegate.CodeUnauthorized}
			}
			if n < 60 {
				return &tidegate.Error{Message: "connection refused"}
			}
			return nil
		}
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{})
		time.Sleep(10 * time.Minute)
		if n := receives.Load(); n < 61 {
			t.Errorf("%d receives, want the one after the second rejection", n)
		}
		if err := stop(); err != nil {
			t.Errorf("Run ended: %v", err)
		}
		s.onReceive = func() error { return &tidegate.Error{Code: tidegate.CodeUnauthorized} }
		begin := time.Now()
		p, err := consumer.NewPush(s, consumer.Subscription{Group: "billing", Topic: "orders"}, func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); !errors.Is(err, tidegate.ErrUnauthorized) || time.Since(begin) < time.Minute || time.Since(begin) > 2*time.Minute {
			t.Errorf("Run returned %v after %v of rejections", err, time.Since(begin))
		}
	})
}

// A consumer without Logger and OnReceiveFailure reports failures to slog's default, for each topic
// at intervals that double from a minute to an hour. One of the two is enough to end that.
func TestDefaultLogOfFailures(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	for name, tt := range map[string]struct {
		opts consumer.PushOptions
		want int
	}{
		"neither":          {consumer.PushOptions{}, 2 * (6 + 24)}, // after 0, 1, 3, 7, 15, 31 and 63 min, and then each hour
		"Logger":           {consumer.PushOptions{Logger: slog.New(slog.DiscardHandler)}, 0},
		"OnReceiveFailure": {consumer.PushOptions{OnReceiveFailure: func(consumer.ReceiveFailure) {}}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			log.Reset()
			s := newServer(t)
			s.onSettings = func() error { return &tidegate.Error{Op: "QueryAssignment", Code: tidegate.CodeInternalServerError} }
			stop := start(t, s, consumer.Subscription{Group: "billing", Topic: "orders", Topics: map[string]tidegate.Filter{"returns": {}}},
				func(context.Context, *tidegate.Delivery) error { return nil }, tt.opts)
			time.Sleep(25 * time.Hour)
			stop()
			n := strings.Count(log.String(), "cannot receive")
			// The first failure after each interval is logged. Failures are up to 36 s apart, which
			// is 30 s and jitter.
			if n > tt.want || n < tt.want-2*2 || tt.want > 0 && !strings.Contains(log.String(), "topic=returns group=billing") {
				t.Errorf("%s: %d lines in 25 hours, want %d: %.300s", name, n, tt.want, log.String())
			}
		})
	}
}
