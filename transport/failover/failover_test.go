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
		return transporttest.Fixture{
			Transport: learned{x, brokers},
			CreateTopic: func(ctx context.Context, name string, kind settings.TopicType) error {
				return both(func(b *brokertest.Broker) error {
					_, err := b.PutTopic(ctx, name, settings.Topic{Type: kind})
					return err
				})
			},
			CreateGroup: func(ctx context.Context, name string, s transport.ConsumerSettings) error {
				g := settings.Group{FIFO: s.FIFO, MaxAttempts: s.MaxAttempts, Retry: s.Retry.(backoff.Steps)}
				if s.FIFO {
					g.FIFORetryInterval = settings.Duration(s.Retry.Delay(0))
				}
				return both(func(b *brokertest.Broker) error { _, err := b.PutGroup(ctx, name, g); return err })
			},
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
