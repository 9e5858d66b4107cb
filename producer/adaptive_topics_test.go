package producer

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
)

// A server that throttles 200 topics for half a second, and then has no limit, does not fail their
// sends half a minute later: the messages that wait at the limiter follow its rate.
func TestTopicsShareALimiterAfterAShortThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter, err := ratelimit.NewAdaptive(ratelimit.AdaptiveOptions{})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		f := &laneFake{do: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			busy := time.Since(start) < 500*time.Millisecond
			sleepFor(ctx, time.Millisecond)
			errs := make([]error, len(msgs))
			for i := range msgs {
				if busy {
					errs[i] = throttled(0)
				}
			}
			return errs
		}}
		p := newProducer(t, f, Options{Limiter: limiter})
		var wg sync.WaitGroup
		for range 2 {
			for i := range 200 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
					defer cancel()
					msg := message()
					msg.Topic = fmt.Sprintf("topic-%d", i)
					if _, err := p.Send(ctx, msg); err != nil {
						t.Error(err)
					}
				})
			}
			time.Sleep(500 * time.Millisecond)
		}
		wg.Wait()
		if d := time.Since(start); d > 15*time.Second {
			t.Errorf("the last of 400 sends took %v, want at most 15s", d)
		}
	})
}
