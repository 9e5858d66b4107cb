package rest_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rest"
)

// Only a missing connection sets NotConnected: a host name that DNS does not have needs a change of
// the configuration.
func TestNotConnected(t *testing.T) {
	blackHole := errors.New("no response")
	for name, tt := range map[string]struct {
		dial error
		want bool
	}{
		"refused":                {errors.New("connection refused"), true},
		"no response to connect": {blackHole, true},
		"no such host":           {&net.DNSError{Err: "no such host", Name: "broker.test", IsNotFound: true}, false},
		"DNS does not respond":   {&net.DNSError{Err: "server misbehaving", Name: "broker.test", IsTemporary: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, err := rest.New("broker.test", rest.Options{RequestTimeout: 5 * time.Second, Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
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
				short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				for what, ctx := range []context.Context{transport.AwaitConnection(short), t.Context()} {
					e, ok := errors.AsType[*tidegate.Error](c.Send(ctx, []*tidegate.Message{message("1")})[0].Err)
					if !ok || e.NotConnected != tt.want || e.MaybeStored || tidegate.Classify(e) != tidegate.ClassTransient {
						t.Errorf("%d: %#v, want a transient error with NotConnected %t", what, e, tt.want)
					}
				}
				time.AfterFunc(time.Second, func() { c.Close() })
				e, _ := errors.AsType[*tidegate.Error](c.Send(transport.AwaitConnection(t.Context()), []*tidegate.Message{message("2")})[0].Err)
				if !errors.Is(e, tidegate.ErrClosed) || e.NotConnected {
					t.Errorf("during Close: %#v", e)
				}
			})
		})
	}
}
