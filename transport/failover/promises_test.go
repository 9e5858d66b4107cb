package failover_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/failover"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// A receipt has a recall handle only if the endpoint returned one. It names the endpoint.
func TestRecallHandleNamesTheEndpoint(t *testing.T) {
	for _, tt := range []struct {
		name string
		at   time.Time
		want string
	}{
		{"a delayed message", time.Unix(1, 0), "a/1"},
		{"a message without a delivery time", time.Time{}, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			x := pair(t, &transporttest.Fake{}, &transporttest.Fake{}, failover.Options{})
			r := x.Send(t.Context(), []*tidegate.Message{{ID: "1", Topic: "orders", DeliverAt: tt.at}})[0]
			assert.That(t, r.Err == nil && r.Receipt.RecallHandle == tt.want, "%s: recall handle %q, %v; want %q", tt.name, r.Receipt.RecallHandle, r.Err, tt.want)
		})
	}
}

// A repeated receive that fails at all endpoints has the error of the active one.
func TestRepeatHasTheErrorOfTheActiveEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := errors.New("the first"), errors.New("the second")
		a, b := newStore(), newStore()
		down := endpoint(func() error { return errDown }, func() error { return errDown })
		a.OnSend, a.OnPing = down.OnSend, down.OnPing
		a.fail, b.fail = func() error { return first }, func() error { return second }
		x := pair(t, a, b, failover.Options{Failures: 1})
		sent(x)
		time.Sleep(2 * time.Second)
		assert.MustThat(t, x.Active() == "b", "%s is active", x.Active())
		r := from("orders", 0)
		r.Repeat = true
		assert.Is(t, "error", assert.Err(x.Receive(t.Context(), r)), second)
	})
}

// A receive from any queue returns the error of a closed transport at once, and that of no other
// endpoint that failed.
func TestReceiveFromAClosedEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			name string
			err  error // of the inactive endpoint
			fail bool
		}{
			{"closed", tidegate.ErrClosed, true},
			{"unavailable", errDown, false},
		} {
			a, b := newStore(), newStore()
			b.fail = func() error { return tt.err }
			x := pair(t, a, b, failover.Options{})
			begin := time.Now()
			_, err := x.Receive(t.Context(), from("orders", 10*time.Second))
			waited := time.Since(begin)
			assert.That(t, (!tt.fail || errors.Is(err, tidegate.ErrClosed) && waited == 0) && (tt.fail || err == nil && waited == 10*time.Second), "%s: error %v after %v", tt.name, err, waited)
		}
	})
}

// An endpoint that accepts a message of a request works, even if it rejects all others.
func TestPartlyAcceptedRequestsKeepTheEndpoint(t *testing.T) {
	for _, tt := range []struct{ name, accept, active string }{
		{"the first one", "1", "a"},
		{"the last one", "3", "a"},
		{"none", "", "b"},
	} {
		synctest.Test(t, func(t *testing.T) {
			partial := &transporttest.Fake{OnSend: func(_ context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
				errs := make([]error, len(msgs))
				for i, m := range msgs {
					if m.ID != tt.accept {
						errs[i] = errDown
					}
				}
				return errs
			}}
			x := pair(t, partial, endpoint(well, well), failover.Options{})
			for range 3 { // Options.Failures
				x.Send(t.Context(), []*tidegate.Message{{ID: "1"}, {ID: "2"}, {ID: "3"}})
			}
			assert.That(t, x.Active() == tt.active, "%s is accepted: %s is active, want %s", tt.name, x.Active(), tt.active)
		})
	}
}

// The results of half messages count for switching.
func TestFailedHalfMessagesSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := func(context.Context, int, *tidegate.Message) error { return errDown }
		x := pair(t, &transporttest.Fake{OnSendHalf: fails}, &transporttest.Fake{OnSendHalf: fails}, failover.Options{})
		for range 3 { // Options.Failures
			x.SendHalf(t.Context(), &tidegate.Message{ID: "1", Topic: "t"})
		}
		assert.That(t, x.Active() == "b", "%s is active after three failed half messages", x.Active())
	})
}

// While OnSwitch blocks, up to 64 further events wait for it. Then sends switch no more.
func TestSwitchesEndWith64WaitingEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		events := 0
		release := make(chan struct{})
		bad := func() error { return errDown }
		x := pair(t, endpoint(bad, well), endpoint(bad, well), failover.Options{
			Failures: 1, SwitchBack: time.Hour,
			OnSwitch: func(failover.Event) {
				<-release
				mu.Lock()
				defer mu.Unlock()
				events++
			},
		})
		for range 200 { // a switch a second, after a probe of the other endpoint
			sent(x)
			time.Sleep(time.Second)
		}
		time.Sleep(500 * time.Millisecond) // between two probes
		close(release)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		assert.That(t, events == 65, "%d events, want the one that blocked and 64 that waited", events)
	})
}

// A changed lane is no failure of the endpoint: nothing was sent.
func TestChangedLanesDoNotSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changing := endpoint(func() error { return &tidegate.Error{Op: "SendMessage", Err: transport.ErrLaneChanged} }, well)
		x := pair(t, changing, endpoint(well, well), failover.Options{Failures: 1})
		for range 10 {
			lane := assert.Value(x.Lane(t.Context(), transport.LaneRequest{Topic: "t"}))(t)
			assert.MustIs(t, "r", x.SendLane(t.Context(), lane, []*tidegate.Message{{ID: "1", Topic: "t"}})[0].Err, transport.ErrLaneChanged)
		}
		assert.That(t, x.Active() == "a", "sends left an endpoint whose lanes changed")
	})
}
