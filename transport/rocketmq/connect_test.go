package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
)

// Attempts to connect are given MIN_CONNECT_TIMEOUT, and more once the
// backoff is longer; between attempts that fail lies the backoff.
//
// RocketMQ: sending retry and throttling: "MIN_CONNECT_TIMEOUT: specifies the minimum interval.
// Default value: 20 seconds"
// RocketMQ: sending retry and throttling: "while (TryConnect(Max(current_deadline, now() +
// MIN_CONNECT_TIMEOUT))!= SUCCESS)"
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
				if gap := began[i+1].Sub(began[i]); gap < lo || gap > hi+5*time.Second { // the next send requests it
					t.Errorf("attempt %d came %v after the one before, want %v to %v", i+1, gap, lo, hi)
				}
			}
		})
	}
}

// Each consumer connects at its own pace. Many consumers together cause at most one attempt a
// second, and one more that gRPC makes after it.
func TestConsumersConnectAtTheirOwnPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempts atomic.Int64
		c, err := New("broker.test:8081", Options{Dialer: func(context.Context, string) (net.Conn, error) {
			attempts.Add(1)
			return nil, errors.New("connection refused")
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ask := func(group string) {
			r := request1
			r.Group = group
			begin := time.Now()
			if _, err := c.Receive(t.Context(), r); !errors.Is(err, tidegate.ErrUnavailable) || time.Since(begin) > time.Second {
				t.Errorf("%v after %v, want unavailable within a second", err, time.Since(begin))
			}
		}
		for range 20 { // gRPC's own backoff is two minutes at the end of this
			time.Sleep(30 * time.Second)
			attempts.Store(0)
			ask("g")
			if n := attempts.Load(); n < 1 || n > 2 {
				t.Errorf("%d attempts to connect for one question, want one, or one more after a second", n)
			}
		}
		time.Sleep(time.Minute)
		attempts.Store(0)
		var wg sync.WaitGroup
		for g := range 50 {
			wg.Go(func() {
				for range 20 {
					ask(fmt.Sprint("g", g))
				}
			})
		}
		start := time.Now()
		wg.Wait()
		c.Close()
		if n, took := attempts.Load(), int64(time.Since(start)/time.Second); n > 2*took+2 {
			t.Errorf("%d attempts to connect in %d s by 50 consumers", n, took)
		}
	})
}
