package rocketmq

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
)

// awaiting returns a ctx that waits for a connection for as long as d.
func awaiting(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(transport.AwaitConnection(t.Context()), d)
	t.Cleanup(cancel)
	return ctx
}

// A call that waits for a connection gets it soon after the return of the server, after an outage
// of any length. Meanwhile the client tries to connect about once a second.
func TestAwaitConnection(t *testing.T) {
	for _, known := range []bool{true, false} {
		for _, outage := range []time.Duration{2 * time.Second, 18 * time.Second, 168 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				s := newServer(t, n, testAddr)
				var dials atomic.Int64
				c := newClient(t, n, func(o *Options) {
					o.Dialer = func(ctx context.Context, addr string) (net.Conn, error) {
						dials.Add(1)
						return n.dial(ctx, addr)
					}
				})
				if known { // the route, and a connection
					if _, err := sendOne(t.Context(), c, message("0")); err != nil {
						t.Fatal(err)
					}
				}
				s.stop()
				synctest.Wait()
				dials.Store(0)
				var back time.Time
				time.AfterFunc(outage, func() {
					back = time.Now()
					s.start()
				})
				// One caller waits from the start, another one begins late, when gRPC's own backoff
				// is long. Many more callers share their attempts.
				for range 20 {
					go c.Send(awaiting(t, outage+time.Minute), several(1))
				}
				late := make(chan time.Time, 1)
				time.AfterFunc(outage*9/10, func() {
					if r := c.Send(awaiting(t, time.Minute), several(1))[0]; r.Err != nil {
						t.Errorf("known %t, %v: the late send: %v", known, outage, r.Err)
					}
					late <- time.Now()
				})
				if _, err := sendOne(awaiting(t, outage+time.Minute), c, message("1")); err != nil {
					t.Fatalf("known %t, %v: %v", known, outage, err)
				}
				for _, at := range []time.Time{time.Now(), <-late} {
					if took := at.Sub(back); took < 0 || took > 2*time.Second {
						t.Errorf("known %t, outage of %v: sent %v after its end, want at most 2s", known, outage, took)
					}
				}
				if got, most := dials.Load(), int64(outage/time.Second)+3; got > most {
					t.Errorf("known %t: %d attempts to connect in %v, want at most %d", known, got, outage, most)
				}
			})
		}
	}
}

// Without a connection a call fails at once, unless it asked to wait; then it fails
// when its ctx ends, with the cause, and the message was not stored.
func TestAwaitConnectionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		c := newClient(t, n, nil)
		if _, err := sendOne(t.Context(), c, message("0")); err != nil {
			t.Fatal(err)
		}
		s.stop()
		synctest.Wait()
		begin := time.Now()
		if _, err := sendOne(t.Context(), c, message("1")); err == nil || time.Since(begin) > 0 {
			t.Errorf("%v after %v, want a failure at once", err, time.Since(begin))
		}
		ctx, cancel := context.WithTimeoutCause(transport.AwaitConnection(t.Context()), 7*time.Second, errGone)
		defer cancel()
		_, err := sendOne(ctx, c, message("2"))
		if !errors.Is(err, errGone) || err.MaybeStored || time.Since(begin) != 7*time.Second || tidegate.Classify(err) != tidegate.ClassTransient {
			t.Errorf("%+v after %v, want the cause after 7s", err, time.Since(begin))
		}
		if err != nil && (err.Op != opSend || err.Subject != "t" || err.Endpoint != testAddr) {
			t.Errorf("%+v lacks the operation, the topic or the endpoint", err)
		}
		time.AfterFunc(time.Second, func() { c.Close() })
		if _, err := sendOne(transport.AwaitConnection(t.Context()), c, message("3")); !errors.Is(err, tidegate.ErrClosed) {
			t.Errorf("%v of a client that was closed, want ErrClosed", err)
		}
		const want = `SendMessage "t": transport closed`
		if _, err := sendOne(t.Context(), c, message("4")); err == nil || err.Error() != want {
			t.Errorf("%v after Close, want %s", err, want)
		}
	})
}

// A request that waits for the server's response does not wait for a connection, and has its own
// timeout.
func TestAwaitConnectionIsNoPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		s.send = silent
		c := newClient(t, n, nil)
		begin := time.Now()
		_, err := sendOne(transport.AwaitConnection(t.Context()), c, message("1"))
		if err == nil || !err.MaybeStored || !errors.Is(err, tidegate.ErrUnavailable) || time.Since(begin) != 3*time.Second {
			t.Errorf("%+v after %v, want unavailable after the request timeout", err, time.Since(begin))
		}
	})
}

// A call that awaits a connection repeats only requests that were never written.
func TestAwaitConnectionMakesOneAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		s.send = func(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			go s.stop()
			return silent(ctx, r)
		}
		c := newClient(t, n, nil)
		_, err := sendOne(awaiting(t, time.Minute), c, message("1"))
		if err == nil || !err.MaybeStored || len(s.of("SendMessage")) != 1 {
			t.Errorf("%+v after %d requests, want a failure after one", err, len(s.of("SendMessage")))
		}
	})
}
