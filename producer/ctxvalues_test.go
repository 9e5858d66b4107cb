package producer

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// The attempts of a message that is alone in its request have the values of its ctx, for example
// the trace, also on a goroutine of the producer.
func TestAttemptsHaveTheValuesOfTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		var attempts, traced atomic.Int64
		f := &laneFake{do: func(ctx context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			attempts.Add(1)
			if ctx.Value(key{}) == "trace" {
				traced.Add(1)
			}
			if n == 1 {
				return all(len(msgs), throttled(0))
			}
			return nil
		}}
		p := newProducer(t, f, Options{})
		done := make(chan error, 1)
		ctx := context.WithValue(t.Context(), key{}, "trace")
		if err := p.SendAsync(ctx, message(), func(_ tidegate.Receipt, err error) { done <- err }); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil || attempts.Load() != 2 || traced.Load() != 2 {
			t.Errorf("%v, %d of %d attempts have the values, want 2 of 2", err, traced.Load(), attempts.Load())
		}
	})
}
