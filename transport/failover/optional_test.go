package failover_test

import (
	"context"
	"errors"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/failover"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// A lane of an endpoint that sends have left takes no message.
func TestLanesEndWithASwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := endpoint(func() error { return errDown }, well)
		x := pair(t, a, endpoint(well, well), failover.Options{})
		lane := assert.Value(x.Lane(t.Context(), transport.LaneRequest{Topic: "t"}))(t)
		msgs := []*tidegate.Message{{ID: "1", Topic: "t"}}
		for range 3 {
			if r := x.SendLane(t.Context(), lane, msgs); r[0].Err == nil || errors.Is(r[0].Err, transport.ErrLaneChanged) {
				t.Errorf("%v of a failing endpoint", r[0].Err)
			}
		}
		before := len(a.Calls("Send"))
		if r := x.SendLane(t.Context(), lane, msgs); !errors.Is(r[0].Err, transport.ErrLaneChanged) || len(a.Calls("Send")) != before {
			t.Errorf("%v and %d sends to the endpoint after the switch, want ErrLaneChanged and none", r[0].Err, len(a.Calls("Send"))-before)
		}
	})
}

// The settings of each endpoint are known with its queues, and kept while it does not respond.
func TestSettingsOfEachEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts, fault := 5, errDown
		first := &transporttest.Fake{OnConsumerSettings: func(context.Context, int, string, string) (transport.ConsumerSettings, error) {
			return transport.ConsumerSettings{MaxAttempts: 3}, nil
		}}
		second := &transporttest.Fake{OnConsumerSettings: func(context.Context, int, string, string) (transport.ConsumerSettings, error) {
			if fault != nil {
				return transport.ConsumerSettings{}, fault
			}
			return transport.ConsumerSettings{MaxAttempts: attempts, FIFO: true}, nil
		}}
		x := pair(t, first, second, failover.Options{})
		read := func(queues int) {
			t.Helper()
			list, err := x.Queues(t.Context(), "g", "t")
			assert.That(t, err == nil && len(list) == queues, "the queues are %v, %v; want %d", list, err, queues)
		}
		want := func(endpoint string, n int, known bool) {
			t.Helper()
			if s, ok := x.EndpointSettings(endpoint, "g", "t"); ok != known || s.MaxAttempts != n || s.FIFO != (n > 3) {
				t.Errorf("%s has %+v, %v; want %d attempts, %v", endpoint, s, ok, n, known)
			}
		}
		want("a/server", 0, false)
		read(1) // the order of the second endpoint is unknown
		want("a/server", 3, true)
		want("b/server", 0, false)
		fault = nil
		read(2)
		want("b/server", 5, true)
		attempts = 6
		read(2)
		want("b/server", 6, true)
		fault = errDown
		read(2)
		want("b/server", 6, true)
		want("elsewhere/server", 0, false)
		_, ok := x.EndpointSettings("a/server", "g", "other")
		assert.That(t, !ok, "there are settings of a topic whose queues were not read")
	})
}

func TestConsumerSettingsOfAnotherEndpoint(t *testing.T) {
	has := func(n int, err error) *transporttest.Fake {
		return &transporttest.Fake{OnConsumerSettings: func(context.Context, int, string, string) (transport.ConsumerSettings, error) {
			return transport.ConsumerSettings{MaxAttempts: n}, err
		}}
	}
	for name, tt := range map[string]struct {
		a, b *transporttest.Fake
		want int
		err  error
	}{
		"the active one responds":      {has(3, nil), has(5, nil), 3, nil},
		"the active one is down":       {has(0, errDown), has(5, nil), 5, nil},
		"the active one rejects":       {has(0, errPermanent), has(5, nil), 0, tidegate.ErrInvalid},
		"the active one throttles":     {has(0, errThrottled), has(5, nil), 0, tidegate.ErrThrottled},
		"the active one is closed":     {has(0, tidegate.ErrClosed), has(5, nil), 0, tidegate.ErrClosed},
		"none responds":                {has(0, errDown), has(0, errPermanent), 0, tidegate.ErrUnavailable},
		"the other one is not queried": {has(3, nil), has(0, errDown), 3, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			x := pair(t, tt.a, tt.b, failover.Options{})
			s, err := x.ConsumerSettings(t.Context(), "g", "t")
			assert.That(t, s.MaxAttempts == tt.want && errors.Is(err, tt.err) && (err == nil) == (tt.err == nil), "%s: %d, %v; want %d, %v", name, s.MaxAttempts, err, tt.want, tt.err)
		})
	}
}

// After the end of ctx no other endpoint is queried.
func TestConsumerSettingsEndWithCtx(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		active := &transporttest.Fake{OnConsumerSettings: func(context.Context, int, string, string) (transport.ConsumerSettings, error) {
			cancel()
			return transport.ConsumerSettings{}, errDown
		}}
		other := &transporttest.Fake{OnConsumerSettings: func(context.Context, int, string, string) (transport.ConsumerSettings, error) {
			t.Error("the other endpoint is queried")
			return transport.ConsumerSettings{}, nil
		}}
		_, err := pair(t, active, other, failover.Options{}).ConsumerSettings(ctx, "g", "t")
		assert.That(t, errors.Is(err, tidegate.ErrUnavailable), "it returned %v", err)
	})
}

// The failover has a capability only if all endpoints have it.
func TestCapabilitiesOfAllEndpoints(t *testing.T) {
	for i := range reflect.TypeFor[transport.Capabilities]().NumField() {
		var one transport.Capabilities
		if f := reflect.ValueOf(&one).Elem().Field(i); f.Kind() == reflect.Bool {
			f.SetBool(true)
		} else {
			f.SetUint(uint64(transport.Snooze))
		}
		for _, tt := range []struct{ a, b, want transport.Capabilities }{
			{one, one, one}, {one, transport.Capabilities{}, transport.Capabilities{}}, {transport.Capabilities{}, one, transport.Capabilities{}},
		} {
			x := pair(t, &transporttest.Fake{Announces: tt.a}, &transporttest.Fake{Announces: tt.b}, failover.Options{})
			got := x.Capabilities("")
			assert.That(t, got == tt.want, "%+v of %+v and %+v", got, tt.a, tt.b)
		}
	}
}

// Ping returns with the first success. Without one it returns the error of the first endpoint.
func TestPingOfSeveralEndpoints(t *testing.T) {
	waits := func(ctx context.Context, _ int, _ []string) error { <-ctx.Done(); return context.Cause(ctx) }
	fails := func(err error) func(context.Context, int, []string) error {
		return func(context.Context, int, []string) error { return err }
	}
	for name, tt := range map[string]struct {
		a, b func(context.Context, int, []string) error
		want error
	}{
		"both respond":               {fails(nil), fails(nil), nil},
		"the first does not respond": {waits, fails(nil), nil},
		"the second is down":         {fails(nil), fails(errDown), nil},
		"both fail":                  {fails(errPermanent), fails(errDown), tidegate.ErrInvalid},
	} {
		synctest.Test(t, func(t *testing.T) {
			x := pair(t, &transporttest.Fake{OnPing: tt.a}, &transporttest.Fake{OnPing: tt.b}, failover.Options{ProbeInterval: time.Hour})
			begin := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := x.Ping(ctx); !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) || time.Since(begin) > 0 {
				t.Errorf("%s: %v after %v, want %v at once", name, err, time.Since(begin), tt.want)
			}
		})
	}
}

// Close waits for OnSwitch.
func TestCloseWaitsForOnSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var done atomic.Bool
		x := pair(t, endpoint(func() error { return errDown }, well), endpoint(well, well), failover.Options{
			OnSwitch: func(failover.Event) {
				time.Sleep(time.Minute)
				done.Store(true)
			},
		})
		for range 3 {
			sent(x)
		}
		synctest.Wait()
		err := x.Close()
		assert.That(t, err == nil && done.Load(), "%v; OnSwitch has returned: %t", err, done.Load())
	})
}

// A check names the server as EndTransaction expects it.
func TestChecksNameTheEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asking := &transporttest.Fake{OnServeChecks: func(ctx context.Context, _ int, check func(context.Context, transport.TransactionCheck) transport.Resolution) error {
			check(ctx, transport.TransactionCheck{Transaction: transport.Transaction{ID: "1", Endpoint: "server"}})
			<-ctx.Done()
			return nil
		}}
		x := pair(t, asking, endpoint(well, well), failover.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		assert.NoError(t, x.ServeChecks(ctx, []string{"t"}, func(_ context.Context, c transport.TransactionCheck) transport.Resolution {
			defer cancel()
			assert.That(t, c.Transaction.Endpoint == "a/server", "the check names %q, want a/server", c.Transaction.Endpoint)
			return transport.Commit
		}))
		err := x.EndTransaction(t.Context(), transport.Transaction{Endpoint: "other/server"}, transport.Commit)
		assert.That(t, errors.Is(err, tidegate.ErrInvalid), "%v of a transaction at none of the endpoints", err)
	})
}
