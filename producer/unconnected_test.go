package producer

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// outage is a transport without a connection for a while. As the real ones, it fails a first
// attempt at once, and lets a retry wait for the connection.
func outage(d time.Duration) *laneFake {
	back := time.Now().Add(d)
	f := &laneFake{}
	f.lane = func(_ context.Context, r transport.LaneRequest) (transport.Lane, error) {
		return transport.Lane{Endpoint: "a:1", MaxMessages: 1}, nil
	}
	f.do = func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
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
		f := outage(d)
		start := time.Now()
		first := 0 // requests that end with the first responses
		connected := f.do
		f.do = func(ctx context.Context, n int, l transport.Lane, msgs []*tidegate.Message) []error {
			errs := connected(ctx, n, l, msgs)
			if after := time.Since(start); after >= d && after <= d+10*time.Millisecond {
				f.mu.Lock()
				first++
				f.mu.Unlock()
			}
			return errs
		}
		p := newProducer(t, f, Options{})
		for i, err := range sendAll(t.Context(), p, numbered(200)) {
			if err != nil {
				t.Errorf("message %d: %v", i, err)
			}
		}
		if took := time.Since(start); took > d+1500*time.Millisecond {
			t.Errorf("the last message was stored %v after the return of the connection", took-d)
		}
		if first < 20 {
			t.Errorf("%d requests were sent at the return of the connection, want most of a window of 32", first)
		}
	})
}

// Attempts without a connection leave all MaxAttempts to the server that is back.
func TestAttemptsAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := outage(10 * time.Second)
		connected := f.do
		failures := 0
		f.do = func(ctx context.Context, n int, l transport.Lane, msgs []*tidegate.Message) []error {
			errs := connected(ctx, n, l, msgs)
			if errs == nil && failures < 2 {
				failures++
				return all(len(msgs), tidegate.ErrUnavailable)
			}
			return errs
		}
		r, err := newProducer(t, f, Options{}).Send(t.Context(), message())
		if err != nil || r.Attempts < 5 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// Without a deadline a send without a connection ends after two minutes, with one at its deadline.
func TestSendsWithoutAConnectionEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		deadline, least, most time.Duration
		reason                StopReason
	}{
		"no deadline": {0, 118 * time.Second, 2*time.Minute + 5*time.Second, StopExhausted},
		"2 s":         {2 * time.Second, 1800 * time.Millisecond, 2 * time.Second, StopDeadline},
		"5 minutes":   {5 * time.Minute, 295 * time.Second, 5 * time.Minute, StopDeadline},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newProducer(t, outage(time.Hour), Options{})
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
				if tt.deadline == 0 && !strings.Contains(err.Error(), "no connection to the server for 2m") {
					t.Errorf("the error is %q", err)
				}
			})
		})
	}
}

// A fault that another attempt to connect does not cure counts.
func TestFaultsOfTheConnectionCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProducer(t, always(&tidegate.Error{Op: "SendMessage", Err: tidegate.ErrUnavailable, Message: "no such host"}), Options{})
		_, err := p.Send(t.Context(), message())
		if e := sendError(t, err); e.Reason != StopExhausted || e.Attempts != 3 {
			t.Errorf("%+v", e)
		}
	})
}

// With a spool a message without a connection moves there at once.
func TestSpoolTakesMessagesWithoutAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProducer(t, outage(time.Hour), Options{Spool: readySpool{}})
		start := time.Now()
		r, err := p.Send(t.Context(), message())
		if err != nil || !r.Spooled || r.Attempts != 1 || time.Since(start) != 0 {
			t.Errorf("%+v, %v after %v; want a spooled message after one attempt", r, err, time.Since(start))
		}
	})
}
