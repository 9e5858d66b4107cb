package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// orderWatch checks the promises for a FIFO group or lite topics: a message group has one message in
// a handler at a time, and no message is handled before its predecessors are finished.
type orderWatch struct {
	t       *testing.T
	mu      sync.Mutex
	next    map[string]int // message group or lite topic → the message that is due
	working map[string]bool
}

func (w *orderWatch) begin(d *tidegate.Delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.That(w.t, !w.working[d.OrderKey()], "%s: two messages are handled at the same time", d.OrderKey())
	w.working[d.OrderKey()] = true
	var i int
	fmt.Sscan(string(d.Body), &i)
	// At least once: a handled message may be redelivered, none may be delivered early.
	assert.That(w.t, i <= w.next[d.OrderKey()], "%s: message %d is handled, %d is not done", d.OrderKey(), i, w.next[d.OrderKey()])
}

func (w *orderWatch) end(d *tidegate.Delivery, done bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.working[d.OrderKey()] = false
	var i int
	fmt.Sscan(string(d.Body), &i)
	if done && i == w.next[d.OrderKey()] {
		w.next[d.OrderKey()]++
	}
}

// With failures, losses, panics and slow handlers the consumer keeps the order and the bounds. In
// the end each message is consumed or a dead letter.
func TestFIFOProperty(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 2))
	var mu sync.Mutex // of rnd
	chance := func(percent int) bool {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(100) < percent
	}
	upTo := func(d time.Duration) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(rnd.Int64N(int64(d)))
	}
	for range model.Rounds(40) {
		withServer(t, func(t *testing.T, s *server) {
			if chance(50) {
				s.caps = ours
			}
			lite := chance(40)
			s.settings = transport.ConsumerSettings{FIFO: !lite || chance(50), MaxAttempts: 5, Retry: backoff.Steps{time.Second}}
			if chance(50) {
				s.queues = []int{0, 1, 2}
			}
			const groups, each = 6, 10
			for i := range each {
				for g := range groups {
					m := &tidegate.Message{ID: fmt.Sprint(g, "/", i), Topic: "orders", MessageGroup: fmt.Sprint("g", g), Body: fmt.Append(nil, i)}
					if lite {
						m.LiteTopic, m.MessageGroup = m.MessageGroup, ""
					}
					s.add(g%3, m)
				}
			}
			if s.queues[0] == transport.AnyQueue {
				for _, e := range s.entries {
					e.queue = 0
				}
			}
			flaky := func(*tidegate.Delivery) error {
				if chance(10) {
					return errors.New("connection lost")
				}
				return nil
			}
			s.onAck, s.onRetry, s.onChange, s.onDead = flaky, flaky, flaky, flaky
			w := &orderWatch{t: t, next: map[string]int{}, working: map[string]bool{}}
			concurrency := 1 + int(upTo(12))
			// A delivery that could not be settled is in hand for the server, and
			// not for the consumer. The consumer's count has the bound.
			var inHand, most atomic.Int64
			s.onHandOut = func(n int) {
				if k := inHand.Add(int64(n)); k > most.Load() {
					most.Store(k)
				}
			}
			p := assert.Value(consumer.NewPush(newLiteServer(s), consumer.Subscription{Group: "billing", Topic: "orders", Lite: lite}, func(_ context.Context, d *tidegate.Delivery) (err error) {
				w.begin(d)
				done := true
				defer func() { w.end(d, done) }()
				time.Sleep(upTo(20 * time.Second))
				switch {
				case chance(20):
					done = d.Attempt >= 5
					return errors.New("failed")
				case chance(5):
					done = d.Attempt >= 5
					panic("failed")
				case chance(4):
					return consumer.DeadLetterNow(errors.New("hopeless"))
				}
				return nil
			}, consumer.PushOptions{Concurrency: concurrency, InvisibleDuration: 12 * time.Second, OnDelivery: func(consumer.Outcome) { inHand.Add(-1) }}))(t)
			for g := range groups {
				if lite {
					assert.Must(t, p.Subscribe(t.Context(), fmt.Sprint("g", g), transport.LiteStart{}))
				}
			}
			stop := runPush(t, p)
			time.Sleep(6 * time.Hour)
			stop()
			assert.Equal(t, "messages are left", s.left(), 0)
			// The handlers take 10 s, so messages wait only for those of parked receives.
			if q := len(s.queues); int(most.Load()) > 2*concurrency+q {
				t.Errorf("%d in hand, concurrency %d, %d queues", most.Load(), concurrency, q)
			}
		})
	}
}

// The server may redeliver a failed message before the response to its settlement has come. The
// redelivery is handled at once, and the messages that were received behind the failed delivery are
// released.
func TestRedeliveryBeforeTheResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &transporttest.Fake{Announces: transport.Capabilities{Suspend: true}}
		fake.OnConsumerSettings = func(context.Context, int, string, string) (transport.ConsumerSettings, error) {
			return transport.ConsumerSettings{FIFO: true, MaxAttempts: 5}, nil
		}
		message := func(id string, attempt int) *tidegate.Delivery {
			return &tidegate.Delivery{Message: tidegate.Message{ID: id, Topic: "orders", MessageGroup: "a"}, Attempt: attempt}
		}
		fake.OnSettle = func(_ context.Context, _ int, _ *tidegate.Delivery, v transport.Verdict) (transport.RetryResult, error) {
			if v.Kind == transport.Retry {
				fake.Deliver(message("0", 2))
				time.Sleep(2 * time.Second) // of the response
			}
			return transport.RetryResult{}, nil
		}
		fake.Deliver(message("0", 1), message("1", 1))
		var seen outcomes
		stop := start(t, fake, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
			if d.Attempt == 1 {
				return errors.New("failed")
			}
			return nil
		}, consumer.PushOptions{OnDelivery: seen.add})
		time.Sleep(time.Minute)
		stop()
		var ends []string
		for _, o := range seen.all() {
			ends = append(ends, fmt.Sprintf("%s#%d %v", o.Delivery.ID, o.Delivery.Attempt, o.Disposition))
		}
		if got, want := fmt.Sprint(ends), "[0#2 acked 0#1 retried 1#1 released]"; got != want {
			t.Errorf("the deliveries ended as %s, want %s", got, want)
		}
	})
}

// Without Suspend, a released message loses an attempt. A message that fails does not make dead
// letters of its successors.
func TestFIFOFailureCostsOthersNothing(t *testing.T) {
	for _, suspend := range []bool{false, true} {
		withServer(t, func(t *testing.T, s *server) {
			s.caps.Suspend = suspend
			s.settings = transport.ConsumerSettings{FIFO: true, MaxAttempts: 3, Retry: backoff.Steps{time.Second}}
			for i := range 4 {
				s.add(0, &tidegate.Message{ID: fmt.Sprint(i), Topic: "orders", MessageGroup: "g", Body: []byte("x")})
			}
			runFor(t, time.Minute, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
				if d.ID == "0" {
					return errors.New("poison")
				}
				assert.That(t, d.Attempt == 1, "suspend %v: message %s has attempt %d", suspend, d.ID, d.Attempt)
				return nil
			}, consumer.PushOptions{})
			assert.That(t, s.left() == 0 && len(s.dead) == 1 && s.dead["0"] == "poison", "suspend %v: %d left, dead letters %v", suspend, s.left(), s.dead)
		})
	}
}

// Where a released message loses an attempt, a failed one is retried in the process: after its delay, with the next attempt number and the same lease, up to its last attempt.
// The others wait, and keep their attempts.
func TestFIFORetryInTheProcess(t *testing.T) {
	for name, tt := range map[string]struct {
		delay     time.Duration // of the schedule
		others    int           // behind the failing message
		extension time.Duration
		server    int    // retries that the server makes
		want      string // handler calls with their times in seconds
	}{
		"in the process":                     {delay: 3 * time.Second, others: 2, want: "0#1@0 0#2@3 0#3@6 1#1@6 2#1@6"},
		"at once":                            {delay: 0, others: 1, want: "0#1@0 0#2@0 0#3@0 1#1@0"},
		"longer than the invisible duration": {delay: 2 * time.Minute, others: 1, want: "0#1@0 0#2@120 0#3@240 1#1@240"},
		"alone":                              {delay: 3 * time.Second, others: 0, want: "0#1@0 0#2@3 0#3@6"},
		"longer than MaxExtension":           {delay: 2 * time.Hour, others: 1, want: "0#1@0 0#2@7200 0#3@14400 1#1@14400"},
		// The release costs the other message an attempt.
		"without extensions": {delay: 3 * time.Minute, others: 1, extension: -1, server: 2, want: "0#1@0 0#2@180 0#3@360 1#3@360"},
	} {
		withServer(t, func(t *testing.T, s *server) {
			s.settings = transport.ConsumerSettings{FIFO: true, MaxAttempts: 3, Retry: backoff.Steps{tt.delay}}
			for i := range 1 + tt.others {
				s.add(0, &tidegate.Message{ID: fmt.Sprint(i), Topic: "orders", MessageGroup: "g", Properties: map[string]string{"k": "v"}, Body: []byte("x")})
			}
			begin := time.Now()
			var calls []string
			var seen outcomes
			runFor(t, 6*time.Hour, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
				calls = append(calls, fmt.Sprintf("%s#%d@%.0f", d.ID, d.Attempt, time.Since(begin).Seconds()))
				if d.ID == "0" {
					return errors.New("poison")
				}
				return nil
			}, consumer.PushOptions{Concurrency: 4, MaxExtension: tt.extension, OnDelivery: seen.add})
			assert.Equal(t, name+": the handler calls", strings.Join(calls, " "), tt.want)
			assert.That(t, s.left() == 0 && s.dead["0"] == "poison" && len(s.retries) == tt.server, "%s: %d left, dead letters %v, %d retries of the server, want %d", name, s.left(), s.dead, len(s.retries), tt.server)
			retried := 0
			for _, o := range seen.all() {
				if o.Disposition == consumer.Retried {
					retried++
					assert.That(t, o.Delay == tt.delay && o.Err != nil && o.Delivery.Attempt == retried, "%s: retry %d is reported as %+v", name, retried, o)
				}
			}
			assert.Equal(t, name+": reported retries", retried, 2)
		})
	}
}

// A message that waits for its retry in the process counts as unread: a stopping consumer handles
// it if the retry begins within the shutdown time, and releases it otherwise.
func TestFIFORetryInTheProcessAndStop(t *testing.T) {
	for _, tt := range []struct {
		delay    time.Duration
		want     string
		released int
	}{{3 * time.Second, "0#1 0#2 1#1", 0}, {time.Minute, "0#1", 2}} {
		withServer(t, func(t *testing.T, s *server) {
			s.settings = transport.ConsumerSettings{FIFO: true, MaxAttempts: 3, Retry: backoff.Steps{tt.delay}}
			for i := range 2 {
				s.add(0, &tidegate.Message{ID: fmt.Sprint(i), Topic: "orders", MessageGroup: "g", Body: []byte("x")})
			}
			var calls []string
			var report consumer.StopReport
			runFor(t, time.Second, s, consumer.Subscription{}, func(_ context.Context, d *tidegate.Delivery) error {
				if calls = append(calls, fmt.Sprintf("%s#%d", d.ID, d.Attempt)); len(calls) == 1 {
					return errors.New("fails once")
				}
				return nil
			}, consumer.PushOptions{ShutdownTimeout: 20 * time.Second, OnStop: func(r consumer.StopReport) { report = r }})
			assert.Equal(t, "the handler calls", strings.Join(calls, " "), tt.want)
			assert.That(t, len(s.released) == tt.released && report.Released == tt.released && report.Unsettled == 0, "released %v, want %d; the report is %+v", s.released, tt.released, report)
		})
	}
}

// After a receive whose response may be lost, the same attempt ID requests the same response. After
// a response a new one is used, also if the response was unreadable.
func TestFIFOAttemptIDs(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.settings = transport.ConsumerSettings{FIFO: true}
		n := 0
		s.onReceive = func() error {
			switch n++; n {
			case 2, 3:
				return errors.New("connection lost")
			case 5:
				return &tidegate.Error{Err: transport.ErrUnreadable}
			}
			return nil
		}
		runFor(t, 2*time.Minute, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{})
		a := s.attempts
		assert.That(t, len(a) >= 6 && a[0] != "" && a[1] != a[0] && a[2] == a[1] && a[3] == a[1] && a[4] != a[3] && a[5] != a[4], "attempt IDs %q", a)
	})
}

func TestNoOrderWithoutFIFO(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		for i := range 5 {
			s.add(0, &tidegate.Message{ID: fmt.Sprint(i), Topic: "orders", MessageGroup: "g", Body: []byte("x")})
		}
		begin := time.Now()
		var last atomic.Int64
		runFor(t, 10*time.Second, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
			time.Sleep(time.Second)
			return nil
		}, consumer.PushOptions{OnDelivery: func(consumer.Outcome) { last.Store(int64(time.Since(begin))) }, Concurrency: 5})
		took := time.Duration(last.Load())
		assert.That(t, took >= time.Second && took < 2*time.Second, "took %v, want 1 s and the wait of acknowledgements", took)
	})
}
