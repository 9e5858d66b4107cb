package held_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/held"
)

// Consumers receive, cancel, forget, settle and close at random while the system loses links and
// settlements. When the faults end, each message is consumed or a dead letter within the leases,
// and nothing is in flight.
func TestRandomConsumers(t *testing.T) {
	model.Run(t, 20, func(t *testing.T, r *rand.Rand) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) { runConsumers(t, r) })
	})
}

const stressMessages = 300

func runConsumers(t *testing.T, r *rand.Rand) {
	t.Helper()
	f := newFake(held.Options{MaxHeld: 5 + r.IntN(100)})
	defer f.Close()
	f.topics["orders"] = settings.TopicNormal
	f.groups["billing"] = transport.ConsumerSettings{MaxAttempts: 5, FIFO: r.IntN(2) == 0}
	f.faults = faults{
		openDelay: time.Duration(r.IntN(50)) * time.Millisecond, deliverDelay: time.Duration(r.IntN(20)) * time.Millisecond, excess: r.IntN(3),
		gap:        time.Duration(r.IntN(2000)) * time.Microsecond,
		settle:     refuse(8),
		carriedOut: func(held.Settlement) bool { return rand.IntN(2) == 0 },
		slow:       func(held.Settlement) time.Duration { return time.Duration(rand.IntN(3000)) * time.Millisecond },
	}
	f.fill(stressMessages)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var wg sync.WaitGroup
	for range 1 + r.IntN(6) {
		seed := r.Uint64()
		wg.Go(func() { f.consume(ctx, rand.New(rand.NewPCG(seed, 0))) })
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(r.IntN(20)) * time.Second):
			f.disconnect(false)
		}
	}
	wg.Wait()
	f.mu.Lock()
	f.faults = faults{}
	f.mu.Unlock()
	for range stressMessages { // a FIFO group gives one of each message group
		q := request("billing")
		q.Max, q.Wait = 32, 90*time.Second
		ds := receive(t, f, q)
		if len(ds) == 0 {
			break
		}
		ack(t, f, ds...)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.queue("billing", "orders").entries {
		if !e.done {
			t.Errorf("message %s is not consumed, %d failed deliveries, in flight %v", e.msg.ID, e.count, e.link != nil)
		}
	}
}

// refuse returns a function that refuses one of n settlements.
func refuse(n int) func(held.Settlement) error {
	return func(held.Settlement) error {
		if rand.IntN(n) == 0 {
			return errRefused
		}
		return nil
	}
}

// consume receives and settles until ctx ends.
func (f *fake) consume(ctx context.Context, r *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		q := request("billing")
		q.Max, q.Push = 1+r.IntN(16), r.IntN(2) == 0
		q.Wait = time.Duration(r.IntN(3000)) * time.Millisecond
		q.InvisibleDuration = time.Duration(100+r.IntN(10_000)) * time.Millisecond
		q.AttemptID = fmt.Sprint(n)
		receiving, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(5000))*time.Millisecond)
		ds, err := f.Receive(receiving, q)
		cancel()
		if err != nil {
			q.Repeat = true
			ds, _ = f.Receive(ctx, q)
		}
		for _, d := range ds {
			f.end(ctx, d, r)
		}
	}
}

// end settles a delivery, or forgets it.
func (f *fake) end(ctx context.Context, d *tidegate.Delivery, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(4000))*time.Millisecond)
	defer cancel()
	for range 3 {
		var err error
		delay := time.Duration(r.IntN(2000)) * time.Millisecond
		switch r.IntN(8) {
		case 0:
			return
		case 1:
			_, err = f.Settle(ctx, d, transport.Verdict{Kind: transport.Retry, Delay: delay})
		case 2:
			_, err = f.Settle(ctx, d, transport.Verdict{Kind: transport.DeadLetter})
		case 3:
			_, err = f.Settle(ctx, d, transport.Verdict{Kind: transport.Snooze, Delay: delay})
		case 4:
			_, err = f.Settle(ctx, d, transport.Verdict{Kind: transport.Release})
		case 5:
			var handle string
			if handle, err = f.Extend(ctx, d, delay, false); err == nil && delay > 0 {
				d.Handle = handle
				continue
			}
		default:
			err = f.Ack(ctx, []*tidegate.Delivery{d})[0]
		}
		if err == nil {
			return
		}
	}
}
