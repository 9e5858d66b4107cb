package failover_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/failover"
	"github.com/tidegate/tidegate/transport/transporttest"
)

func well() error { return nil }

// endpoint returns an endpoint whose sends and pings end with the errors of the functions.
func endpoint(send, ping func() error) *transporttest.Fake {
	return &transporttest.Fake{
		OnSend: func(_ context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			errs := make([]error, len(msgs))
			for i := range errs {
				errs[i] = send()
			}
			return errs
		},
		OnPing: func(context.Context, int, []string) error { return ping() },
	}
}

// pair returns a failover of the endpoints a and b that is closed with the test.
func pair(t *testing.T, a, b transport.Transport, o failover.Options) *failover.Transport {
	t.Helper()
	x := assert.Value(failover.New([]failover.Endpoint{{Name: "a", Transport: a}, {Name: "b", Transport: b}}, o))(t)
	t.Cleanup(func() { assert.NoError(t, x.Close()) })
	return x
}

// sent sends one message and reports whether it was accepted.
func sent(x *failover.Transport) bool {
	return x.Send(context.Background(), []*tidegate.Message{{ID: "1", Topic: "t"}})[0].Err == nil
}

// Pings that succeed between failed sends do not make the endpoint a working one: the sends are
// failures in a row.
func TestRareSendsLeaveAFailingEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := pair(t, endpoint(func() error { return errDown }, well), endpoint(well, well), failover.Options{})
		for n := range 3 {
			assert.That(t, x.Active() == "a", "left after %d failures, want 3", n)
			sent(x)
			time.Sleep(10 * time.Second)
		}
		assert.That(t, x.Active() == "b", "three failed sends in a row, and sends stay")
	})
}

// A send that its caller gave less than 250 ms shows nothing about the endpoint.
func TestShortDeadlinesDoNotSwitch(t *testing.T) {
	for deadline, want := range map[time.Duration]string{100 * time.Millisecond: "a", 300 * time.Millisecond: "b"} {
		synctest.Test(t, func(t *testing.T) {
			hanging := &transporttest.Fake{OnSend: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
				<-ctx.Done()
				return slices.Repeat([]error{&tidegate.Error{Op: "SendMessage", Err: context.Cause(ctx)}}, len(msgs))
			}}
			x := pair(t, hanging, endpoint(well, well), failover.Options{})
			for range 10 {
				ctx, cancel := context.WithTimeout(t.Context(), deadline)
				x.Send(ctx, []*tidegate.Message{{ID: "1", Topic: "t"}})
				cancel()
			}
			assert.That(t, x.Active() == want, "after 10 sends of %v without a response sends go to %s, want %s", deadline, x.Active(), want)
			// A caller that cancels does not wait for the endpoint.
			for range 10 {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, cancel)
				x.Send(ctx, []*tidegate.Message{{ID: "1", Topic: "t"}})
			}
			assert.That(t, x.Active() == want, "after cancelled sends they go to %s, want %s", x.Active(), want)
		})
	}
}

// The results of sends that began before a switch do not keep sends away from the endpoint.
func TestLateResultsDoNotCount(t *testing.T) {
	for _, late := range []error{errThrottled, errDown} {
		synctest.Test(t, func(t *testing.T) {
			begin, slow := time.Now(), []time.Duration{10 * time.Second, 30 * time.Second, 70 * time.Second}
			a := &transporttest.Fake{OnSend: func(_ context.Context, n int, _ transport.Lane, _ []*tidegate.Message) []error {
				if n <= len(slow) {
					time.Sleep(slow[n-1])
					return []error{late}
				}
				if time.Since(begin) < time.Minute {
					return []error{errDown}
				}
				return nil
			}}
			x := pair(t, a, endpoint(well, well), failover.Options{SwitchBack: 80 * time.Second})
			for range slow {
				go sent(x)
				time.Sleep(time.Millisecond)
			}
			for range 3 {
				sent(x)
			}
			assert.MustThat(t, x.Active() == "b", "sends did not leave the failing endpoint")
			time.Sleep(90 * time.Second)
			assert.That(t, x.Active() == "a", "late %v: sends do not return although the endpoint has worked for 80 s", late)
		})
	}
}

// A probe that is throttled had a response: the endpoint works.
func TestThrottledProbesSucceed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := during(0, 10*time.Second, errDown)
		begin := time.Now()
		a := endpoint(func() error { return down(time.Since(begin)) }, func() error { return errThrottled })
		x := pair(t, a, endpoint(well, well), failover.Options{})
		for range 3 {
			sent(x)
		}
		assert.MustThat(t, x.Active() == "b", "sends did not leave the failing endpoint")
		time.Sleep(2 * time.Minute)
		assert.That(t, x.Active() == "a", "sends do not return to an endpoint whose probes are throttled")
	})
}

// A producer that gets no lane sends nothing: the failed lookups count as failed sends.
func TestFailedLanesSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &transporttest.Fake{OnLane: func(context.Context, int, transport.LaneRequest) (transport.Lane, error) {
			return transport.Lane{}, errDown
		}}
		x := pair(t, a, endpoint(well, well), failover.Options{})
		for range 3 {
			_, err := x.Lane(t.Context(), transport.LaneRequest{Topic: "t"})
			assert.That(t, err != nil, "a lane of an endpoint that fails")
		}
		assert.That(t, x.Active() == "b", "sends stay at an endpoint without lanes")
	})
	synctest.Test(t, func(t *testing.T) { // a caller that gives up shows nothing
		a := &transporttest.Fake{OnLane: func(ctx context.Context, _ int, _ transport.LaneRequest) (transport.Lane, error) {
			<-ctx.Done()
			return transport.Lane{}, context.Cause(ctx)
		}}
		x := pair(t, a, endpoint(well, well), failover.Options{})
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			x.Lane(ctx, transport.LaneRequest{Topic: "t"})
			cancel()
		}
		assert.That(t, x.Active() == "a", "sends left an endpoint whose callers gave up")
	})
}

// Attempts that wait for a connection end when sends leave a failing endpoint. They do not end when
// sends return to an earlier one: the endpoint that they use works, and their requests may be under
// way.
func TestOnlyAFailingEndpointEndsWaitingAttempts(t *testing.T) {
	waits := func(ctx context.Context, _ int, _ *tidegate.Message) error {
		select {
		case <-ctx.Done():
			return &tidegate.Error{Err: context.Cause(ctx), NotConnected: true}
		case <-time.After(5 * time.Minute):
			return nil
		}
	}
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		down := during(time.Second, 2*time.Second, errDown)
		a, b := endpoint(func() error { return down(time.Since(begin)) }, well), endpoint(well, well)
		a.OnSendHalf, b.OnSendHalf = waits, waits
		x := pair(t, a, b, failover.Options{})
		ends := map[string]error{}
		await := func(name string) func() {
			done := make(chan error, 1)
			go func() {
				done <- x.SendHalf(transport.AwaitConnection(context.Background()), &tidegate.Message{ID: "1", Topic: "t"}).Err
			}()
			return func() { ends[name] = <-done }
		}
		endA := await("a")
		time.Sleep(time.Second)
		for range 3 {
			sent(x)
		}
		endB := await("b")
		endA()
		assert.That(t, errors.Is(ends["a"], tidegate.ErrUnavailable) && time.Since(begin) <= 2*time.Second, "the attempt at the failing endpoint ended with %v after %v", ends["a"], time.Since(begin))
		endB()
		assert.That(t, ends["b"] == nil && x.Active() == "a", "the attempt at the working endpoint ended with %v; sends go to %s, want a", ends["b"], x.Active())
	})
}

// Sends follow the health of the endpoints while OnSwitch blocks.
func TestOnSwitchBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		down := during(time.Second, 10*time.Second, errDown)
		a := endpoint(func() error { return down(time.Since(begin)) }, func() error { return down(time.Since(begin)) })
		x := pair(t, a, endpoint(well, well), failover.Options{OnSwitch: func(failover.Event) { time.Sleep(time.Hour) }})
		time.Sleep(time.Second)
		for range 3 {
			sent(x)
		}
		assert.MustThat(t, x.Active() == "b", "sends did not leave the failing endpoint")
		time.Sleep(2 * time.Minute) // without sends
		assert.That(t, x.Active() == "a", "sends do not return while OnSwitch blocks")
	})
}

// serving returns an endpoint that serves checks by a function.
func serving(serve func(context.Context) error) *transporttest.Fake {
	return &transporttest.Fake{OnServeChecks: func(ctx context.Context, _ int, _ func(context.Context, transport.TransactionCheck) transport.Resolution) error {
		return serve(ctx)
	}}
}

func TestServeChecks(t *testing.T) {
	forbidden := &tidegate.Error{Code: tidegate.CodeForbidden}
	waits := func(ctx context.Context) error { <-ctx.Done(); return nil }
	fails := func(err error) func(context.Context) error {
		return func(context.Context) error { <-time.After(time.Second); return err }
	}
	for name, tt := range map[string]struct {
		a, b func(context.Context) error
		took time.Duration // until it returns; ctx ends after a minute
		want error
	}{
		"both serve":                       {waits, waits, time.Minute, nil},
		"one fails":                        {fails(errDown), waits, time.Second, tidegate.ErrUnavailable},
		"the other fails":                  {waits, fails(errDown), time.Second, tidegate.ErrUnavailable},
		"one is forbidden":                 {fails(forbidden), waits, time.Minute, nil},
		"one is forbidden, then one fails": {fails(forbidden), func(context.Context) error { <-time.After(2 * time.Second); return errDown }, 2 * time.Second, tidegate.ErrUnavailable},
		"both are forbidden":               {fails(forbidden), fails(forbidden), time.Second, tidegate.ErrForbidden},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			var log bytes.Buffer
			x := pair(t, serving(tt.a), serving(tt.b),
				failover.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			begin := time.Now()
			err := x.ServeChecks(ctx, []string{"t"}, nil)
			assert.That(t, errors.Is(err, tt.want) && (tt.want != nil || err == nil) && time.Since(begin) == tt.took, "%v after %v, want %v after %v", err, time.Since(begin), tt.want, tt.took)
			// The producer repeats transient errors, and ends with permanent ones.
			if tt.want != nil && (tidegate.Classify(err) == tidegate.ClassPermanent) != (tt.want == tidegate.ErrForbidden) {
				t.Errorf("class %v of %v", tidegate.Classify(err), err)
			}
			assert.That(t, strings.Contains(log.String(), "FORBIDDEN") == strings.Contains(name, "forbidden"), "logged %q", log.String())
		})
	}
}
