package rocketmq

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
)

// Attempts to connect are given MIN_CONNECT_TIMEOUT, and more once the
// backoff is longer; between attempts that fail lies the backoff.
//
// Seed 004: "MIN_CONNECT_TIMEOUT: specifies the minimum interval. Default value: 20 seconds"
// Seed 004: "while (TryConnect(Max(current_deadline, now() + MIN_CONNECT_TIMEOUT))!= SUCCESS)"
func TestConnectBackoff(t *testing.T) {
	for _, silent := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var began []time.Time
			var given []time.Duration
			c, err := New("broker.test:8081", Options{Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
				deadline, _ := ctx.Deadline()
				mu.Lock()
				began, given = append(began, time.Now()), append(given, time.Until(deadline))
				mu.Unlock()
				if silent {
					<-ctx.Done()
					return nil, context.Cause(ctx)
				}
				return nil, errors.New("connection refused")
			}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for start := time.Now(); time.Since(start) < 30*time.Minute; time.Sleep(time.Second) {
				if r := c.Send(t.Context(), []*tidegate.Message{{ID: "m", Topic: "orders", Body: []byte("x")}})[0]; r.Err == nil {
					t.Fatal("it was sent")
				}
			}
			c.Close()
			mu.Lock() // of a dialer that is still at work
			defer mu.Unlock()
			if len(began) < 10 {
				t.Fatalf("%d attempts in half an hour", len(began))
			}
			for i := range began {
				lo, hi := backoff.Default().Range(i)
				if i == 0 {
					lo, hi = time.Second, time.Second // gRPC's first delay has no jitter
				}
				if least, most := max(lo, 20*time.Second), max(hi, 20*time.Second); given[i] < least || given[i] > most {
					t.Errorf("silent %t: attempt %d is given %v, want %v to %v", silent, i, given[i], least, most)
				}
				if i+1 == len(began) || silent {
					continue
				}
				if gap := began[i+1].Sub(began[i]); gap < lo || gap > hi+5*time.Second { // the next send asks for it
					t.Errorf("attempt %d came %v after the one before, want %v to %v", i+1, gap, lo, hi)
				}
			}
		})
	}
}
