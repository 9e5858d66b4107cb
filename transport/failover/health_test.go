package failover_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/failover"
	"github.com/tidegate/tidegate/transport/rocketmq"
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

// A failover over two brokers passes the suite that every transport passes.
func TestSuite(t *testing.T) {
	s := transporttest.AllGuarantees()
	s.Virtual, s.Capabilities = true, transport.Capabilities{
		Batch: true, PushBack: true, Suspend: true, IdempotentDeadLetter: true, RetryResult: true, RepeatReceive: true, RepeatChange: true, Verdicts: transport.Snooze | transport.RetryTopic | transport.NegativeAck, Watch: true,
	}
	transporttest.Run(t, func(t *testing.T) transporttest.Fixture {
		brokers := []*brokertest.Broker{brokertest.New(t), brokertest.New(t)}
		x := assert.Value(failover.New([]failover.Endpoint{{Name: "primary", Transport: brokers[0].Client()}, {Name: "secondary", Transport: brokers[1].Client()}}, failover.Options{}))(t)
		both := func(f func(*brokertest.Broker) error) error { return errors.Join(f(brokers[0]), f(brokers[1])) }
		createGroup := func(ctx context.Context, name, lite string, s transport.ConsumerSettings) error {
			g := settings.Group{FIFO: s.FIFO, MaxAttempts: s.MaxAttempts, Retry: s.Retry.(backoff.Steps), Lite: settings.LiteGroup{Topic: lite}}
			if s.FIFO {
				g.FIFORetryInterval = settings.Duration(s.Retry.Delay(0))
			}
			return both(func(b *brokertest.Broker) error { _, err := b.PutGroup(ctx, name, g); return err })
		}
		return transporttest.Fixture{
			Transport: learned{x, brokers},
			CreateTopic: func(ctx context.Context, name string, kind settings.TopicType) error {
				return both(func(b *brokertest.Broker) error {
					_, err := b.PutTopic(ctx, name, settings.Topic{Type: kind})
					return err
				})
			},
			CreateGroup: func(ctx context.Context, name string, s transport.ConsumerSettings) error {
				return createGroup(ctx, name, "", s)
			},
			CreateLiteGroup: createGroup,
			Disconnect: func() {
				for _, b := range brokers {
					b.Disconnect()
				}
			},
		}
	}, s)
}

// learned is a failover that the suite may ask for its capabilities after one call.
type learned struct {
	*failover.Transport
	brokers []*brokertest.Broker
}

// ProducerSettings has every endpoint respond: the capabilities are those of all.
func (l learned) ProducerSettings(ctx context.Context, topic string) (transport.ProducerSettings, error) {
	_, _ = l.Queues(ctx, "billing", topic)
	return l.Transport.ProducerSettings(ctx, topic)
}

var (
	errDown      = &tidegate.Error{Op: "SendMessage", Err: tidegate.ErrUnavailable}
	errThrottled = &tidegate.Error{Op: "SendMessage", Code: tidegate.CodeTooManyRequests}
	errPermanent = &tidegate.Error{Op: "SendMessage", Code: tidegate.CodeMessageBodyTooLarge}
)

// run sends every 100 ms for d through a failover of two endpoints, of which the first fails by the
// function first. It returns the switches and the number of failed sends.
func run(t *testing.T, d time.Duration, o failover.Options, first, ping func(now time.Duration) error) (switches []string, failed int) {
	t.Helper()
	begin := time.Now()
	a := endpoint(func() error { return first(time.Since(begin)) }, func() error { return ping(time.Since(begin)) })
	var mu sync.Mutex
	o.OnSwitch = func(e failover.Event) {
		mu.Lock()
		defer mu.Unlock()
		switches = append(switches, fmt.Sprintf("%s→%s %s", e.From, e.To, e.Reason))
		assert.That(t, (e.Err == nil) == (e.Reason == failover.Recovered), "%+v", e)
	}
	x := assert.Value(failover.New([]failover.Endpoint{{Name: "a", Transport: a}, {Name: "b", Transport: endpoint(well, well)}}, o))(t)
	for time.Since(begin) < d {
		if r := x.Send(t.Context(), []*tidegate.Message{{ID: "1", Topic: "t"}}); r[0].Err != nil {
			failed++
		}
		time.Sleep(100 * time.Millisecond)
	}
	assert.NoError(t, x.Close())
	mu.Lock()
	defer mu.Unlock()
	return switches, failed
}

func during(from, to time.Duration, err error) func(time.Duration) error {
	return func(now time.Duration) error {
		if now >= from && now < to {
			return err
		}
		return nil
	}
}

func never(time.Duration) error { return nil }

func TestSwitches(t *testing.T) {
	const there, back = "a→b failing", "b→a recovered"
	always := func(err error) func(time.Duration) error { return during(0, time.Hour, err) }
	for name, tt := range map[string]struct {
		sends, pings func(time.Duration) error
		o            failover.Options
		switches     []string
		failed       [2]int // at least, at most
	}{
		"works":              {never, never, failover.Options{}, nil, [2]int{0, 0}},
		"an outage":          {during(time.Minute, 2*time.Minute, errDown), during(time.Minute, 2*time.Minute, errDown), failover.Options{}, []string{there, back}, [2]int{1, 3}},
		"refuses messages":   {always(errPermanent), never, failover.Options{}, nil, [2]int{6000, 6000}},
		"throttles shortly":  {during(time.Minute, 89*time.Second, errThrottled), never, failover.Options{}, nil, [2]int{290, 290}},
		"throttles for long": {during(time.Minute, 2*time.Minute, errThrottled), never, failover.Options{}, []string{"a→b throttling", back}, [2]int{300, 310}},
		"throttles, ignored": {during(time.Minute, 3*time.Minute, errThrottled), never, failover.Options{ThrottleGrace: -1}, nil, [2]int{1200, 1200}},
		"one failure":        {during(time.Minute, time.Minute+200*time.Millisecond, errDown), never, failover.Options{}, nil, [2]int{2, 2}},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			got, failed := run(t, 10*time.Minute, tt.o, tt.sends, tt.pings)
			assert.That(t, slices.Equal(got, tt.switches) && failed >= tt.failed[0] && failed <= tt.failed[1], "%q with %d failures, want %q with %v", got, failed, tt.switches, tt.failed)
		})
	}
}

// A switch is a warning with the error behind it. The return to a better endpoint is good news, and
// has no error.
func TestSwitchesAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		down := during(10*time.Second, time.Minute, errDown)
		run(t, 5*time.Minute, failover.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, down, down)
		_, log1, _ := strings.Cut(log.String(), " ")
		left, back, _ := strings.Cut(log1, "\n")
		_, back, _ = strings.Cut(back, " ")
		left = strings.Replace(left, "probe: ", "", 1) // a send or a probe failed last
		want := `level=WARN msg="failover: switched" from=a to=b reason=failing error="SendMessage: unavailable"`
		assert.That(t, left == want, "logged\n%s\nwant\n%s", left, want)
		want = `level=INFO msg="failover: switched" from=b to=a reason=recovered` + "\n"
		assert.That(t, back == want, "logged\n%s\nwant\n%s", back, want)
	})
}

// A throttle without a second one is no reason to switch. Sends that are further apart than the
// grace leave an endpoint that throttles all of them.
func TestRareSendsLeaveAThrottlingEndpoint(t *testing.T) {
	for gap, most := range map[time.Duration]int{31 * time.Second: 20, time.Minute: 20, 5 * time.Minute: 30, 20 * time.Minute: 50} {
		synctest.Test(t, func(t *testing.T) {
			a := endpoint(func() error { return errThrottled }, well)
			x := pair(t, a, endpoint(well, well), failover.Options{})
			if !sent(x) {
				time.Sleep(gap)
			}
			assert.That(t, x.Active() == "a", "a switch after a single throttle")
			failed := 1
			for range 59 {
				if !sent(x) {
					failed++
				}
				time.Sleep(gap)
			}
			// After each return one send shows the throttling again, and a second one that it
			// lasts.
			assert.That(t, failed <= most, "%d of 60 sends %v apart failed, want at most %d", failed, gap, most)
		})
	}
}

// If two endpoints throttle all the time, sends do not switch between them.
func TestThrottlesEverywhereDoNotFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := func() error { return errThrottled }
		var switches atomic.Int64
		x := assert.Value(failover.New([]failover.Endpoint{{Name: "a", Transport: endpoint(busy, well)}, {Name: "b", Transport: endpoint(busy, well)}},
			failover.Options{OnSwitch: func(failover.Event) { switches.Add(1) }}))(t)
		t.Cleanup(func() { x.Close() })
		for begin := time.Now(); time.Since(begin) < time.Hour; time.Sleep(100 * time.Millisecond) {
			x.Send(t.Context(), []*tidegate.Message{{ID: "1", Topic: "t"}})
		}
		n := switches.Load()
		assert.That(t, n >= 1 && n <= 12, "%d switches in an hour, want 1 to 12", n)
	})
}

// One sender, whose primary is gone: the attempt that waits for a connection ends with
// the switch, and the next one succeeds.
func TestAwaitingSendIsNotKeptByADeadEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := brokertest.New(t)
		b.CreateTopic("orders", settings.Topic{})
		dead := assert.Value(rocketmq.New("dead.test:8081", rocketmq.Options{Dialer: func(context.Context, string) (net.Conn, error) {
			return nil, errors.New("connection refused")
		}}))(t)
		x := assert.Value(failover.New([]failover.Endpoint{{Name: "primary", Transport: dead}, {Name: "secondary", Transport: b.Client()}}, failover.Options{}))(t)
		t.Cleanup(func() { x.Close() })
		begin := time.Now()
		waiting, cancel := context.WithTimeout(transport.AwaitConnection(t.Context()), time.Minute)
		defer cancel()
		for attempt := 1; ; attempt++ {
			ctx := waiting
			if attempt == 1 {
				ctx = t.Context()
			}
			r := x.Send(ctx, []*tidegate.Message{{ID: "1", Topic: "orders", Body: []byte("x")}})[0]
			if r.Err == nil {
				assert.That(t, attempt == 3 && time.Since(begin) <= 3*time.Second, "sent by attempt %d after %v, want the third within 3s", attempt, time.Since(begin))
				return
			}
			assert.MustThat(t, attempt != 3 && tidegate.Classify(r.Err) == tidegate.ClassTransient, "attempt %d: %v", attempt, r.Err)
		}
	})
}

func TestNewRejects(t *testing.T) {
	client := func() transport.Transport {
		c := assert.Value(rocketmq.New("a:1", rocketmq.Options{}))(t)
		t.Cleanup(func() { c.Close() })
		return c
	}
	two := []failover.Endpoint{{Name: "primary", Transport: client()}, {Name: "secondary", Transport: client()}}
	for name, c := range map[string]struct {
		endpoints []failover.Endpoint
		options   failover.Options
	}{
		"one endpoint":    {two[:1], failover.Options{}},
		"the same name":   {[]failover.Endpoint{two[0], {Name: "primary", Transport: client()}}, failover.Options{}},
		"negative":        {two, failover.Options{Failures: -1}},
		"negative return": {two, failover.Options{SwitchBack: -1}},
		"no name":         {[]failover.Endpoint{{}, {}}, failover.Options{}},
	} {
		x, err := failover.New(c.endpoints, c.options)
		assert.That(t, errors.Is(err, tidegate.ErrInvalid) && x == nil, "%s: %v, %v", name, x, err)
	}
	x, err := failover.New(append(two, failover.Endpoint{Name: "third", Transport: client()}), failover.Options{})
	assert.MustThat(t, err == nil && x.Active() == "primary", "%v", err)
	assert.NoError(t, x.Close())
}
