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
	"github.com/tidegate/tidegate/internal/rmqpb"
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

// Clients with the same list begin with different addresses, and each keeps to its own while that
// works. After its end the client uses another one. KeepOrder begins with the first.
func TestOrderOfAddresses(t *testing.T) {
	const both = testAddr + ";" + otherAddr
	for _, keep := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			servers := map[string]*server{testAddr: newServer(t, n, testAddr), otherAddr: newServer(t, n, otherAddr)}
			for _, s := range servers {
				s.route = func() *rmqpb.QueryRouteResponse {
					return &rmqpb.QueryRouteResponse{Status: ok, MessageQueues: queues(both, "b", 1)}
				}
			}
			counts := func() map[string]int {
				c := map[string]int{}
				for addr, s := range servers {
					c[addr] = len(s.of("SendMessage"))
				}
				return c
			}
			const clients = 40 // all at one address by chance: once in 2^39 runs
			began := map[string]int{}
			for range clients {
				before := counts()
				c, err := New(both, Options{Dialer: n.dial, KeepOrder: keep})
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				for range 5 {
					if _, err := sendOne(t.Context(), c, message("x")); err != nil {
						t.Fatal(err)
					}
				}
				for addr, now := range counts() {
					switch now - before[addr] {
					case 0:
					case 5:
						began[addr]++
					default:
						t.Errorf("a client sent %d of 5 messages to %s", now-before[addr], addr)
					}
				}
			}
			if keep && began[testAddr] != clients || !keep && (began[testAddr] == 0 || began[otherAddr] == 0) {
				t.Errorf("KeepOrder %t: the clients began with %v", keep, began)
			}
			servers[testAddr].stop()
			synctest.Wait()
			c, err := New(both, Options{Dialer: n.dial, KeepOrder: keep})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := sendOne(awaiting(t, time.Minute), c, message("x")); err != nil {
				t.Errorf("without the first address: %v", err)
			}
		})
	}
}

// An address with an IPv6 zone reaches the dialer as it was given.
func TestAddressWithZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const addr = "[fe80::1%eth0]:8081"
		n := newNetwork()
		newServer(t, n, addr)
		c, err := New(addr, Options{Dialer: n.dial})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if r, err := sendOne(t.Context(), c, message("x")); err != nil || r.Endpoint != addr {
			t.Errorf("%+v, %v", r, err)
		}
	})
}
