package producer

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/transport"
)

// A server throttles at random, for example because other clients keep its queue full. It accepts
// nearly as many messages as the backoff of each message allows: the pauses of the lane cost
// little.
func TestBusyServerAcceptsWhatTheBackoffAllows(t *testing.T) {
	length := time.Duration(min(5, 2*model.Rounds(5))) * time.Minute
	const (
		senders = 16
		pause   = 500 * time.Millisecond // of a sender, after each send
		trip    = 3 * time.Millisecond   // of a throttled attempt
	)
	short := backoff.Exponential{Initial: 10 * time.Millisecond, Multiplier: 2, Max: time.Second}
	for _, c := range []struct {
		accepts float64        // share of the attempts
		takes   time.Duration  // of an accepted attempt
		policy  backoff.Policy // of the messages
		first   float64        // its first delay in seconds
		second  float64
		atLeast float64 // of the rate that the backoff allows
	}{
		{accepts: .1, takes: trip, first: 1, second: 1.6, atLeast: .75},
		{accepts: .2, takes: trip, first: 1, second: 1.6, atLeast: .8},
		{accepts: .5, takes: trip, first: 1, second: 1.6, atLeast: .9},
		{accepts: .8, takes: trip, first: 1, second: 1.6, atLeast: .95},
		// The queue of the server is full, so an accepted message waits in it.
		{accepts: .2, takes: 100 * time.Millisecond, first: 1, second: 1.6, atLeast: .7},
		{accepts: .2, takes: 100 * time.Millisecond, policy: short, first: .01, second: .02, atLeast: .7},
		{accepts: .2, takes: 500 * time.Millisecond, policy: short, first: .01, second: .02, atLeast: .7},
	} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			random := rand.New(rand.NewPCG(1, 2))
			attempts, accepted, failed := 0, 0, 0
			f := &laneFake{do: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
				mu.Lock()
				attempts++
				accept := random.Float64() < c.accepts
				mu.Unlock()
				if accept {
					sleepFor(ctx, c.takes)
					return nil
				}
				sleepFor(ctx, trip)
				return all(len(msgs), throttled(0))
			}}
			f.lane = func(context.Context, transport.LaneRequest) (transport.Lane, error) {
				return transport.Lane{Endpoint: "a:1", MaxMessages: 1}, nil
			}
			p := newProducer(t, f, Options{Backoff: c.policy})
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

			// A sender alone: three attempts at most, and the delays between them.
			refuses := 1 - c.accepts
			succeeds := 1 - refuses*refuses*refuses
			cycle := pause.Seconds() + trip.Seconds()*(refuses+refuses*refuses+refuses*refuses*refuses) + c.takes.Seconds()*succeeds +
				refuses*c.first + refuses*refuses*c.second
			allowed := senders * length.Seconds() / cycle * succeeds
			t.Logf("accepts %.0f %% in %v: %d messages accepted of %.0f, %d failed, %d attempts", 100*c.accepts, c.takes, accepted, allowed, failed, attempts)
			if float64(accepted) < c.atLeast*allowed {
				t.Errorf("a server that accepts %.0f %% of the attempts accepted %d messages; the backoff allows %.0f", 100*c.accepts, accepted, allowed)
			}
		})
	}
}
