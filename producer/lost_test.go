package producer

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
)

// The responses to the first 32 requests are lost, which are as many as a topic has under way. The
// other callers do not wait for the end of those attempts, 3 s.
func TestLostResponsesDoNotHoldOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{send: func(ctx context.Context, n int, _ *tidegate.Message) error {
			if n <= 32 {
				return blackHole(ctx)
			}
			return nil
		}}
		p := newProducer(t, f, Options{})
		start := time.Now()
		var mu sync.Mutex
		var quick int
		var all sync.WaitGroup
		for range 96 {
			all.Go(func() {
				if _, err := p.Send(t.Context(), message()); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if time.Since(start) <= 20*time.Millisecond {
					quick++
				}
			})
		}
		all.Wait()
		if d := time.Since(start); quick != 64 || d != 3*time.Second {
			t.Errorf("%d sends ended within 20 ms and all within %v, want 64 and 3 s", quick, d)
		}
	})
}
