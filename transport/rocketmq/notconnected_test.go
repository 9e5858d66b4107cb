package rocketmq

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
)

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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, err := New(testAddr, Options{RequestTimeout: 5 * time.Second, Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
					if tt.dial == blackHole {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					return nil, tt.dial
				}})
				if err != nil {
					t.Fatal(err)
				}
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
					if !ok || e.NotConnected != tt.want || e.MaybeStored || tidegate.Classify(e) != tidegate.ClassTransient {
						t.Errorf("%s: %#v, want a transient error with NotConnected %t", what, e, tt.want)
					}
				}
				c.Close()
				if _, err := sendOne(t.Context(), c, message("x")); err.NotConnected {
					t.Errorf("after Close: %#v", err)
				}
			})
		})
	}
}

// A request that has a connection is an attempt, also if it gets no response or the server rejects
// it.
func TestConnectedAttemptsAreNotNotConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		c := newClient(t, n, nil)
		if _, err := sendOne(t.Context(), c, message("0")); err != nil {
			t.Fatal(err)
		}
		s.send = silent
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := sendOne(ctx, c, message("1")); err == nil || err.NotConnected || !err.MaybeStored {
			t.Errorf("without a response: %#v", err)
		}
		if _, err := sendOne(ctx, c, message("2")); err == nil || err.NotConnected {
			t.Errorf("with a ctx that has ended before: %#v", err)
		}
		time.AfterFunc(time.Second, s.stop)
		if _, err := sendOne(t.Context(), c, message("3")); err == nil || err.NotConnected || !err.MaybeStored {
			t.Errorf("with a connection that breaks: %#v", err)
		}
	})
}
