package producer

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"github.com/tidegate/tidegate"
)

// A readySpool takes every message at once.
type readySpool struct{}

func (readySpool) PutBatch(_ context.Context, msgs []*tidegate.Message) []error {
	return make([]error, len(msgs))
}
func (readySpool) Holds(string, string) bool { return false }
func (readySpool) Drain(ctx context.Context, _ func(context.Context, []*tidegate.Message) []error) error {
	<-ctx.Done()
	return nil
}

// Close ends sends that a full producer admits for the spool at the same time. Without its result a
// send would never return.
func TestCloseMeetsSendsForTheSpool(t *testing.T) {
	for round := range 600 {
		f := &fake{send: func(ctx context.Context, _ int, _ *tidegate.Message) error { return blackHole(ctx) }}
		p := newProducer(t, f, Options{MaxPending: 1, WhenFull: SpoolWhenFull, Spool: readySpool{}})
		if err := p.SendAsync(context.Background(), named("first"), func(tidegate.Receipt, error) {}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { p.Send(context.Background(), named("second")) })
		}
		for range round % 20 { // Close comes at different times
			runtime.Gosched()
		}
		p.Close()
		wg.Wait()
	}
}
