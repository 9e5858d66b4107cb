package simulation

import (
	"context"
	"sync"
)

// limited is the number of calls beside the sends that wait for the adaptive limiter in the theme
// waiting.
const limited = 300

// waitForLimiter makes calls that share the adaptive limiter with the producers, for example
// requests to another server. They begin at the end of the throttle, when the rate is low.
func (w *world) waitForLimiter(ctx context.Context) {
	if w.plan.theme != waiting {
		return
	}
	wait(ctx, w.plan.lastFault())
	var calls sync.WaitGroup
	for i := range limited {
		calls.Go(func() {
			defer w.book.begin("call %d of the limiter", i)()
			_ = w.adaptive.WaitN(ctx, 1) // an error is the end of ctx
		})
	}
	calls.Wait()
}
