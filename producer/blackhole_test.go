package producer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// One black-holed broker does not use up the whole timeout.
//
// RocketMQ: sending retry and throttling: "A network exception causes a connection failure or
// request timeout"
// RocketMQ: sending retry and throttling: "The call from the client fails or the request times out"
func TestBlackHoleLeavesTimeForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{send: func(ctx context.Context, n int, _ *tidegate.Message) error {
			if n == 1 {
				return blackHole(ctx)
			}
			return nil
		}}
		p := newProducer(t, f, Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		r, err := p.Send(ctx, message())
		if err != nil || r.Attempts != 2 || time.Since(start) != time.Second {
			t.Errorf("receipt %+v, error %v after %v; want success at attempt 2 after 1s", r, err, time.Since(start))
		}
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
		f := &fake{send: func(ctx context.Context, _ int, _ *tidegate.Message) error { return blackHole(ctx) }}
		// Not even a request for the settings gets a response.
		f.settings = func(ctx context.Context) (transport.ProducerSettings, error) {
			<-ctx.Done()
			return transport.ProducerSettings{}, context.Cause(ctx)
		}
		p := newProducer(t, f, Options{})
		start := time.Now()
		_, err := p.Send(t.Context(), message())
		e := sendError(t, err)
		if e.Attempts != 3 || !e.MaybeStored || !errors.Is(err, tidegate.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %+v: %v", e, err)
		}
		// Three attempts of 3s. Asking for the settings took no time of theirs.
		if d := time.Since(start); d != 9*time.Second || f.asked.Load() != 1 {
			t.Errorf("took %v and %d questions, want 9s and 1", d, f.asked.Load())
		}
	})
}

// Two of three servers never respond, and one of them has the settings: the third attempt still has
// its share of the deadline.
func TestBlackHolesLeaveTimeForTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{send: func(ctx context.Context, n int, _ *tidegate.Message) error {
			if n < 3 {
				return blackHole(ctx)
			}
			return nil
		}}
		f.settings = func(ctx context.Context) (transport.ProducerSettings, error) {
			<-ctx.Done()
			return transport.ProducerSettings{}, context.Cause(ctx)
		}
		var told []Attempt
		p := newProducer(t, f, Options{OnAttempt: func(a Attempt) { told = append(told, a) }})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		r, err := p.Send(ctx, message())
		if err != nil || r.Attempts != 3 || time.Since(start) != 2*time.Second {
			t.Errorf("receipt %+v, error %v after %v; want success at attempt 3 after 2s", r, err, time.Since(start))
		}
		for i, gap := range f.gaps() {
			if a := told[i]; a.Delay != 0 || a.DelayFrom != "" || gap != a.Duration {
				t.Errorf("attempt %d took %v and was followed %v after its start; OnAttempt has %v, %v", i+1, a.Duration, gap, a.Delay, a.DelayFrom)
			}
		}
		// The question is still open. Close ends it and waits for it.
		start = time.Now()
		p.Close()
		if time.Since(start) != 0 || len(p.topics["orders"].requesting) != 0 {
			t.Errorf("Close took %v, and the question is not over", time.Since(start))
		}
	})
}
