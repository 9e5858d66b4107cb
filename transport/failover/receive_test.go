package failover_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// A store is an endpoint with messages by topic, none of which has a tag. Its queues and errors are
// those of the test.
type store struct {
	transporttest.Fake

	mu       sync.Mutex
	messages map[string]int
	queues   func(topic string) ([]int, error)
	fail     func() error // of receives
}

func newStore() *store {
	s := &store{messages: map[string]int{}, fail: well}
	s.OnReceive = s.receive
	return s
}

// receive returns one message of the topic, or none after r.Wait.
func (s *store) receive(ctx context.Context, _ int, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	s.mu.Lock()
	some, err := s.messages[r.Topic] > 0 && r.Filter.Expression == "", s.fail()
	if some && err == nil {
		s.messages[r.Topic]--
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if some {
		return []*tidegate.Delivery{{Message: tidegate.Message{ID: "m", Topic: r.Topic}, Endpoint: "server"}}, nil
	}
	select {
	case <-time.After(r.Wait):
		return nil, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *store) Queues(_ context.Context, _, topic string) ([]int, error) { return s.queues(topic) }

func (s *store) set(topic string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages[topic] = n
}

func (s *store) left(topic string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.messages[topic]
}

func from(topic string, wait time.Duration) transport.ReceiveRequest {
	return transport.ReceiveRequest{Group: "g", Topic: topic, Queue: transport.AnyQueue, Max: 1, Wait: wait, InvisibleDuration: time.Minute}
}

// Receives of one topic do not keep those of another topic, of another group or with another filter
// from the messages of an inactive endpoint.
func TestEmptyTopicsStarveNoOtherReceive(t *testing.T) {
	for name, other := range map[string]transport.ReceiveRequest{
		"topic":  from("empty", time.Second),
		"group":  {Group: "other", Topic: "none", Queue: transport.AnyQueue, Wait: time.Second},
		"filter": {Group: "g", Topic: "full", Queue: transport.AnyQueue, Wait: time.Second, Filter: tidegate.Filter{Expression: "x"}},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			a, b := newStore(), newStore()
			x := pair(t, a, b, failover.Options{})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				for ctx.Err() == nil {
					x.Receive(ctx, other)
				}
			}()
			time.Sleep(10 * time.Second)
			b.set("full", 5)
			for begin := time.Now(); b.left("full") > 0; {
				assert.Must(t, assert.Err(x.Receive(t.Context(), from("full", time.Second))))
				assert.MustThat(t, time.Since(begin) <= 30*time.Second, "%d of 5 messages of the inactive endpoint were not received", b.left("full"))
			}
			cancel()
			<-done
		})
	}
}

// An endpoint that always has messages keeps no consumer from those of the others.
func TestNoEndpointStarvesAnother(t *testing.T) {
	for full := range 3 {
		synctest.Test(t, func(t *testing.T) {
			stores := []*store{newStore(), newStore(), newStore()}
			var ends []failover.Endpoint
			for i, s := range stores {
				s.set("t", 10)
				ends = append(ends, failover.Endpoint{Name: fmt.Sprint(i), Transport: s})
			}
			stores[full].set("t", 1000)
			x := assert.Value(failover.New(ends, failover.Options{}))(t)
			defer x.Close()
			for range 31 { // each of the three in turn
				ds, err := x.Receive(t.Context(), from("t", time.Second))
				assert.MustThat(t, err == nil && len(ds) == 1, "%v, %v", ds, err)
			}
			for i, s := range stores {
				assert.That(t, i == full || s.left("t") <= 0, "%d messages of endpoint %d wait while endpoint %d has some", s.left("t"), i, full)
			}
		})
	}
}

// A repeated receive returns the deliveries of the first one, which any endpoint may have.
func TestRepeatQueriesAllEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newStore(), newStore()
		x := pair(t, a, b, failover.Options{})
		if _, err := x.Receive(t.Context(), from("t", 0)); err != nil { // b is empty now
			t.Fatal(err)
		}
		b.set("t", 1)
		r := from("t", 0)
		r.Repeat, r.AttemptID = true, "1"
		ds, err := x.Receive(t.Context(), r)
		assert.That(t, err == nil && len(ds) == 1 && ds[0].Endpoint == "b/server", "%v, %v; want the delivery of b", ds, err)
		a.fail = func() error { return errDown }
		_, err = x.Receive(t.Context(), r)
		assert.That(t, err == nil, "%v, although b responded", err)
		b.fail = func() error { return errPermanent }
		assert.Is(t, "err", assert.Err(x.Receive(t.Context(), r)), tidegate.ErrUnavailable)
	})
}

// An endpoint that fails to list its queues keeps them; the error that the topic does not exist
// removes them.
func TestQueuesOfAnEndpointThatFailsToListThem(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want []int
	}{
		"responds":    {nil, []int{0, 1, 2, 3}},
		"throttles":   {errThrottled, []int{0, 1, 2, 3}},
		"is down":     {errDown, []int{0, 1, 2, 3}},
		"has no such": {&tidegate.Error{Code: tidegate.CodeTopicNotFound}, []int{1, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newStore(), newStore()
			two := func(string) ([]int, error) { return []int{0, 1}, nil }
			a.queues, b.queues = two, two
			x := pair(t, a, b, failover.Options{})
			assert.Must(t, assert.Err(x.Queues(t.Context(), "g", "t")))
			if tt.err != nil {
				a.queues = func(string) ([]int, error) { return nil, tt.err }
			}
			for range 3 {
				got, err := x.Queues(t.Context(), "g", "t")
				assert.That(t, err == nil && slices.Equal(got, tt.want), "%v, %v; want %v", got, err, tt.want)
			}
		})
	}
}

// After the active endpoint had its turn, a receive begins with the inactive one again.
func TestInactiveEndpointComesFirstAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newStore(), newStore()
		b.set("t", 1)
		x := pair(t, a, b, failover.Options{})
		receive := func() {
			t.Helper()
			ds, err := x.Receive(t.Context(), from("t", time.Second))
			assert.MustThat(t, err == nil && len(ds) == 1, "%v, %v", ds, err)
		}
		receive() // from b
		calls := 0
		a.fail = func() error { // a message arrives after the first look
			if calls++; calls == 1 {
				a.messages["t"] = 1
			}
			return nil
		}
		receive()
		assert.MustThat(t, a.left("t") == 0 && calls == 2, "the active endpoint was queried %d times, and has %d messages", calls, a.left("t"))
		time.Sleep(6 * time.Second) // the inactive one may be queried again
		a.set("t", 1)
		b.set("t", 1)
		receive()
		assert.That(t, a.left("t") == 1 && b.left("t") == 0, "%d and %d messages are left, want the one of the active endpoint", a.left("t"), b.left("t"))
	})
}

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
