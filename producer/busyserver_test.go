package producer

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// A server that throttles at random, as one does whose queue other clients keep full, accepts
// nearly as many messages as the backoff of each message allows: the pauses of the lane take little
// from them.
func TestBusyServerAcceptsWhatTheBackoffAllows(t *testing.T) {
	const (
		senders = 16
		pause   = 500 * time.Millisecond // of a sender, after each send
		length  = 5 * time.Minute
		trip    = 3 * time.Millisecond
	)
	for _, c := range []struct {
		accepts float64 // share of the attempts
		atLeast float64 // of what the backoff allows
	}{
		{accepts: .1, atLeast: .75},
		{accepts: .2, atLeast: .8},
		{accepts: .5, atLeast: .9},
		{accepts: .8, atLeast: .95},
	} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			random := rand.New(rand.NewPCG(1, 2))
			attempts, accepted, failed := 0, 0, 0
			f := &laneFake{do: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
				sleepFor(ctx, trip)
				mu.Lock()
				defer mu.Unlock()
				attempts++
				if random.Float64() < c.accepts {
					return nil
				}
				return all(len(msgs), throttled(0))
			}}
			f.lane = func(context.Context, transport.LaneRequest) (transport.Lane, error) {
				return transport.Lane{Endpoint: "a:1", MaxMessages: 1}, nil
			}
			p := newProducer(t, f, Options{})
			start := time.Now()
			var sending sync.WaitGroup
			for range senders {
				sending.Go(func() {
					for time.Since(start) < length {
						_, err := p.Send(context.Background(), &tidegate.Message{Topic: "orders", Body: []byte("x")})
						mu.Lock()
						if err == nil {
							accepted++
						} else {
							failed++
						}
						mu.Unlock()
						time.Sleep(pause)
					}
				})
			}
			sending.Wait()

			// A sender alone: three attempts at most, with 1 s and 1.6 s between them on average.
			refuses := 1 - c.accepts
			cycle := pause.Seconds() + trip.Seconds()*(1+refuses+refuses*refuses) + refuses*1 + refuses*refuses*1.6
			allowed := senders * length.Seconds() / cycle * (1 - refuses*refuses*refuses)
			t.Logf("accepts %.0f %%: %d messages accepted of %.0f, %d failed, %d attempts", 100*c.accepts, accepted, allowed, failed, attempts)
			if float64(accepted) < c.atLeast*allowed {
				t.Errorf("a server that accepts %.0f %% of the attempts accepted %d messages; the backoff allows %.0f", 100*c.accepts, accepted, allowed)
			}
		})
	}
}
