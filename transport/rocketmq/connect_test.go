package rocketmq_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq"
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
			c, err := rocketmq.New("broker.test:8081", rocketmq.Options{Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
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
			assert.Must(t, err)
			defer c.Close()
			for start := time.Now(); time.Since(start) < 30*time.Minute; time.Sleep(time.Second) {
				r := c.Send(t.Context(), []*tidegate.Message{{ID: "m", Topic: "orders", Body: []byte("x")}})[0]
				assert.MustThat(t, r.Err != nil, "it was sent")
			}
			c.Close()
			mu.Lock() // of a dialer that is still at work
			defer mu.Unlock()
			assert.MustThat(t, len(began) >= 10, "%d attempts in half an hour", len(began))
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
		c, err := rocketmq.New("broker.test:8081", rocketmq.Options{Dialer: func(context.Context, string) (net.Conn, error) {
			attempts.Add(1)
			return nil, errors.New("connection refused")
		}})
		assert.Must(t, err)
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
			n := attempts.Load()
			assert.That(t, n >= 1 && n <= 2, "%d attempts to connect for one question, want one, or one more after a second", n)
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
			servers := map[string]*fakeServer{testAddr: newServer(t, n, testAddr), otherAddr: newServer(t, n, otherAddr)}
			for _, s := range servers {
				s.route = routed(queues(both, "b", 1))
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
				c := assert.Value(rocketmq.New(both, rocketmq.Options{Dialer: n.dial, KeepOrder: keep}))(t)
				defer c.Close()
				for range 5 {
					sent(t, c, message("x"))
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
			assert.That(t, (!keep || began[testAddr] == clients) && (keep || began[testAddr] != 0 && began[otherAddr] != 0),
				"KeepOrder %t: the clients began with %v", keep, began)
			servers[testAddr].stop()
			synctest.Wait()
			c := assert.Value(rocketmq.New(both, rocketmq.Options{Dialer: n.dial, KeepOrder: keep}))(t)
			defer c.Close()
			_, err := sendOne(awaiting(t, time.Minute), c, message("x"))
			assert.That(t, err == nil, "without the first address: %v", err)
		})
	}
}

// An address with an IPv6 zone reaches the dialer as it was given.
func TestAddressWithZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const addr = "[fe80::1%eth0]:8081"
		n := newNetwork()
		newServer(t, n, addr)
		c := assert.Value(rocketmq.New(addr, rocketmq.Options{Dialer: n.dial}))(t)
		defer c.Close()
		r, err := sendOne(t.Context(), c, message("x"))
		assert.That(t, err == nil && r.Endpoint == addr, "%+v, %v", r, err)
	})
}

// New accepts both keys or none, and a session token only beside them. The error names the field.
func TestCredentials(t *testing.T) {
	for _, tt := range []struct {
		name  string
		keys  tidegate.Credentials
		valid bool
	}{
		{"none", tidegate.Credentials{}, true},
		{"both keys", tidegate.Credentials{AccessKey: "a", SecretKey: "s"}, true},
		{"temporary keys", tidegate.Credentials{AccessKey: "a", SecretKey: "s", SessionToken: "t"}, true},
		{"only the access key", tidegate.Credentials{AccessKey: "a"}, false},
		{"only the secret key", tidegate.Credentials{SecretKey: "s"}, false},
		{"only a session token", tidegate.Credentials{SessionToken: "t"}, false},
		{"a session token that is no header", tidegate.Credentials{AccessKey: "a", SecretKey: "s", SessionToken: "t t"}, false},
	} {
		c, err := rocketmq.New(testAddr, rocketmq.Options{Credentials: tt.keys})
		switch {
		case tt.valid && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case !tt.valid && (!errors.Is(err, tidegate.ErrInvalid) || !strings.Contains(err.Error(), "Options.Credentials")):
			t.Errorf("%s: error %v, want one that matches ErrInvalid and names Options.Credentials", tt.name, err)
		}
		if c != nil {
			c.Close()
		}
	}
}

func TestNewRejects(t *testing.T) {
	_, err := rocketmq.New("nowhere", rocketmq.Options{
		RequestTimeout: -1, HeartbeatInterval: -1, RouteRefresh: -1, SettingsSync: -1, MaxReceiveSize: -1, Compression: -1,
		Namespace: "a b", ClientID: "ü", Credentials: tidegate.Credentials{AccessKey: "x"},
	})
	for _, field := range []string{"nowhere", "RequestTimeout", "HeartbeatInterval", "RouteRefresh", "SettingsSync",
		"MaxReceiveSize", "Compression", "Namespace", "ClientID", "Credentials"} {
		assert.That(t, err != nil && strings.Contains(err.Error(), field), "%s is not named in: %v", field, err)
	}
	if _, err := rocketmq.New("host:1", rocketmq.Options{ConnectBackoff: backoff.Exponential{Initial: -1}}); !errors.Is(err, tidegate.ErrInvalid) ||
		!strings.Contains(err.Error(), "ConnectBackoff") {
		t.Errorf("ConnectBackoff alone: %v does not match ErrInvalid", err)
	}
	c, err := rocketmq.New("host:65536", rocketmq.Options{})
	assert.That(t, errors.Is(err, tidegate.ErrInvalid) && c == nil, "a bad address alone: %v", err)
}

// Only a missing connection sets NotConnected. A host name that DNS does not have needs a change of
// the configuration. A request that a server may have read is a failed attempt.
func TestNotConnected(t *testing.T) {
	noHost := &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "broker.test", IsNotFound: true}}
	noDNS := &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "server misbehaving", Name: "broker.test", IsTemporary: true}}
	refused := errors.New("connection refused")
	blackHole := errors.New("no response")
	for name, tt := range map[string]struct {
		dial error
		want bool
	}{
		"refused":                {refused, true},
		"no response to connect": {blackHole, true},
		"no such host":           {noHost, false},
		"DNS does not respond":   {noDNS, true},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			c, err := rocketmq.New(testAddr, rocketmq.Options{RequestTimeout: 5 * time.Second, Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
				if tt.dial == blackHole {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return nil, tt.dial
			}})
			assert.Must(t, err)
			defer c.Close()
			short, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			for what, call := range map[string]func() error{
				"Send":                   func() error { _, err := sendOne(t.Context(), c, message("x")); return err },
				"Send with a deadline":   func() error { _, err := sendOne(short, c, message("x")); return err },
				"Send that waits":        func() error { _, err := sendOne(awaiting(t, 3*time.Second), c, message("x")); return err },
				"Send that waits longer": func() error { _, err := sendOne(awaiting(t, time.Minute), c, message("x")); return err },
				"Receive":                func() error { _, err := c.Receive(t.Context(), request1); return err },
				"ProducerSettings":       func() error { _, err := c.ProducerSettings(t.Context(), "orders"); return err },
				"Ping":                   func() error { return c.Ping(awaiting(t, time.Second)) },
				"Ack, by the address of the delivery": func() error {
					return c.Ack(t.Context(), []*tidegate.Delivery{{Message: tidegate.Message{ID: "m", Topic: "t"}, ConsumerGroup: "g", Handle: "h", Endpoint: testAddr}})[0]
				},
			} {
				e, ok := errors.AsType[*tidegate.Error](call())
				assert.That(t, ok && e.NotConnected == tt.want && !e.MaybeStored && tidegate.Classify(e) == tidegate.ClassTransient,
					"%s: %#v, want a transient error with NotConnected %t", what, e, tt.want)
			}
			c.Close()
			if _, err := sendOne(t.Context(), c, message("x")); err.NotConnected {
				t.Errorf("after Close: %#v", err)
			}
		})
	}
}

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
			serving(t, func(t *testing.T, s *fakeServer) {
				var dials atomic.Int64
				c := newClient(t, s.net, func(o *rocketmq.Options) {
					o.Dialer = func(ctx context.Context, addr string) (net.Conn, error) {
						dials.Add(1)
						return s.net.dial(ctx, addr)
					}
				})
				if known { // the route, and a connection
					sent(t, c, message("0"))
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
					r := c.Send(awaiting(t, time.Minute), several(1))[0]
					assert.That(t, r.Err == nil, "known %t, %v: the late send: %v", known, outage, r.Err)
					late <- time.Now()
				})
				_, err := sendOne(awaiting(t, outage+time.Minute), c, message("1"))
				assert.MustThat(t, err == nil, "known %t, %v: %v", known, outage, err)
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
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		sent(t, c, message("0"))
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
		assert.That(t, err == nil || err.Op == "SendMessage" && err.Subject == "t" && err.Endpoint == testAddr,
			"%+v lacks the operation, the topic or the endpoint", err)
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

// A call that awaits a connection repeats only requests that were never written.
func TestAwaitConnectionMakesOneAttempt(t *testing.T) {
	served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
		s.send = func(ctx context.Context, r *rmqpb.SendMessageRequest) (*rmqpb.SendMessageResponse, error) {
			go s.stop()
			return silent(ctx, r)
		}
		_, err := sendOne(awaiting(t, time.Minute), c, message("1"))
		assert.That(t, err != nil && err.MaybeStored && len(s.of("SendMessage")) == 1,
			"%+v after %d requests, want a failure after one", err, len(s.of("SendMessage")))
	})
}

// A receive that waits for a connection gets its message soon after the return of the server, after
// an outage of any length.
func TestReceiveAwaitsConnection(t *testing.T) {
	for _, outage := range []time.Duration{3 * time.Second, 20 * time.Second, 3 * time.Minute} {
		served(t, func(t *testing.T, s *fakeServer, c *rocketmq.Client) {
			s.receive = func(_ *rmqpb.ReceiveMessageRequest, st rmqpb.MessagingService_ReceiveMessageServer) error {
				st.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Status{Status: ok}})
				return st.Send(&rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Message{Message: delivered(nil)}})
			}
			assert.Must(t, assert.Err(c.Receive(t.Context(), request1)))
			s.stop()
			time.Sleep(outage / 2)
			short, cancel := context.WithTimeoutCause(transport.AwaitConnection(t.Context()), time.Second, errGone)
			defer cancel()
			_, err := c.Receive(short, request1)
			if e, ok := errors.AsType[*tidegate.Error](err); !ok || !e.NotConnected || !errors.Is(err, errGone) {
				t.Errorf("%#v during the outage, want the cause of ctx and NotConnected", err)
			}
			time.Sleep(outage/2 - time.Second)
			back := time.Now().Add(time.Second)
			time.AfterFunc(time.Second, s.start)
			if ds, err := c.Receive(awaiting(t, time.Minute), request1); err != nil || len(ds) != 1 || time.Since(back) > 2500*time.Millisecond {
				t.Errorf("outage of %v: %d deliveries, %v, %v after its end; want one within 2.5s", outage, len(ds), err, time.Since(back))
			}
		})
	}
}
