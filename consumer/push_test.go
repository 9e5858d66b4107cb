package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

func TestHandledAndAcked(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.fill(100)
		var n atomic.Int64
		var seen outcomes
		type key struct{}
		p := assert.Value(consumer.NewPush(s, consumer.Subscription{Group: "billing", Topic: "orders"}, func(ctx context.Context, d *tidegate.Delivery) error {
			assert.That(t, ctx.Value(key{}) == "value", "the handler's context lacks the values of Run's")
			n.Add(1)
			time.Sleep(time.Second)
			return nil
		}, consumer.PushOptions{OnDelivery: seen.add}))(t)
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "value"), time.Minute)
		defer cancel()
		assert.NoError(t, p.Run(ctx), "Run")
		assert.That(t, n.Load() == 100 && s.left() == 0 && len(seen.list) == 100 && s.maxHand <= 30,
			"%d handled, %d left, %d outcomes, at most %d in hand", n.Load(), s.left(), len(seen.list), s.maxHand)
		got := seen.list[0]
		d := got.Delivery
		assert.That(t, d.Topic == "orders" && d.ConsumerGroup == "billing" && d.ID != "" && d.Attempt == 1 && len(d.Body) != 0, "delivery %+v", d)
		want := (consumer.Outcome{Delivery: d, Disposition: consumer.Acked, Duration: time.Second})
		assert.That(t, got == want, "outcome %+v, want %+v", got, want)
		r := s.requests[0]
		assert.That(t, r.Push && r.InvisibleDuration == 30*time.Second && r.Wait == 5*time.Second && r.AttemptID == "" && r.Max >= 1 && r.MaxBytes >= 1<<20, "request %+v", r)
	})
}

// A RocketMQ does not wake the waiting receive for a retry, and makes the retry ready up to 2.2 s
// late. The consumer fetches its own when they are ready, also one without a delay.
func TestRetriesAreFetchedWhenDue(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.deaf = true
		s.fill(1)
		delays := []time.Duration{7 * time.Second, time.Second, 11 * time.Second, 0}
		var at []time.Duration
		var failed time.Time
		runFor(t, time.Minute, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
			if !failed.IsZero() {
				at = append(at, time.Since(failed))
			}
			failed = time.Now()
			if len(at) == len(delays) {
				return nil
			}
			return consumer.RetryIn(delays[len(at)], errors.New("x"))
		}, consumer.PushOptions{})
		for i, delay := range delays {
			assert.MustThat(t, len(at) == len(delays) && at[i] >= delay && at[i] <= delay+2700*time.Millisecond, "delivered again after %v; want %v, each at most 2.7 s late", at, delays)
		}
	})
}

// RocketMQ: consumption retry: "If the message fails to be pulled due to throttling or other
// reasons, you must re-initiate the request to obtain the message"
func TestReceiveFailures(t *testing.T) {
	throttled := &tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: 40 * time.Second}
	transient := errors.New("connection lost")
	missing := &tidegate.Error{Code: tidegate.CodeTopicNotFound}
	withBroker(t, func(t *testing.T, s *server) {
		errs := []error{transient, missing, transient, nil, transient, throttled}
		n := 0
		s.onReceive = func() error {
			n++
			if n <= len(errs) {
				return errs[n-1]
			}
			return nil
		}
		runFor(t, 100*time.Second, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil },
			consumer.PushOptions{ReceiveBackoff: backoff.Steps{time.Second, 2 * time.Second, 4 * time.Second}})
		var gaps []time.Duration
		for i := range len(errs) {
			gaps = append(gaps, s.polls[i+1].Sub(s.polls[i]))
		}
		// After the success, which is a poll of 20 s, the backoff begins again.
		want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 20 * time.Second, time.Second, 40 * time.Second}
		assert.That(t, reflect.DeepEqual(gaps, want), "gaps %v, want %v", gaps, want)
	})
}

// A response is no outage: the wait is that of the backoff, and there are no pings.
func TestDefaultReceiveBackoff(t *testing.T) {
	want := backoff.Exponential{Initial: time.Second, Multiplier: 1.6, Jitter: 0.2, Max: 30 * time.Second}
	synctest.Test(t, func(t *testing.T) {
		s := newReachable(t)
		s.onReceive = func() error { return &tidegate.Error{Code: protocol.CodeInternalError} }
		runFor(t, 10*time.Minute, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{})
		for i := 1; i < len(s.polls); i++ {
			gap := s.polls[i].Sub(s.polls[i-1])
			lo, hi := want.Range(i - 1)
			assert.That(t, gap >= lo && gap <= hi, "gap %d is %v, not in [%v, %v]", i, gap, lo, hi)
		}
		assert.Equal(t, "pings", s.pings.Load(), 0)
	})
}

// Close and bad arguments end Run at once, rejected credentials after a minute.
func TestErrorsThatEndRun(t *testing.T) {
	for _, tt := range []struct {
		err   error
		after time.Duration
	}{
		{&tidegate.Error{Op: "ReceiveMessage", Code: protocol.CodeIllegalFilterExpression, Message: "unbalanced"}, 0},
		{fmt.Errorf("transport: %w", tidegate.ErrClosed), 0},
		{&tidegate.Error{Op: "ReceiveMessage", Code: tidegate.CodeForbidden, Message: "no permission"}, verdict.CredentialsGrace},
		{&tidegate.Error{Op: "ReceiveMessage", Code: tidegate.CodeUnauthorized}, verdict.CredentialsGrace},
	} {
		for _, where := range []string{"receive", "settings"} {
			withBroker(t, func(t *testing.T, s *server) {
				s.fill(3)
				var handled atomic.Int64
				var refusedAt time.Time
				refuse := func() error {
					if where == "settings" || handled.Load() > 0 {
						if refusedAt.IsZero() {
							refusedAt = time.Now()
						}
						return tt.err
					}
					return nil
				}
				if where == "settings" {
					s.onSettings = func(context.Context) error { return refuse() }
				} else {
					s.onReceive = refuse
				}
				p, err := consumer.NewPush(s, consumer.Subscription{Group: "billing", Topic: "orders"}, func(context.Context, *tidegate.Delivery) error {
					time.Sleep(time.Second)
					handled.Add(1)
					return nil
				}, consumer.PushOptions{Concurrency: 1, ReceiveBackoff: backoff.Steps{time.Second}, LongPolling: time.Second})
				assert.Must(t, err)
				err = p.Run(t.Context())
				assert.That(t, errors.Is(err, tt.err) && strings.HasPrefix(err.Error(), `consume "orders" for "billing": `), "%s: Run: %v", where, err)
				if took := time.Since(refusedAt); took < tt.after || took > tt.after+2*time.Second {
					t.Errorf("%s: Run ended %v after the first refusal (%v), want %v", where, took, tt.err, tt.after)
				}
				assert.That(t, s.handed == 0, "%s: %d deliveries were neither settled nor released", where, s.handed)
			})
		}
	}
}

// Run returns the cause of its end, also if its ctx ends while the handlers finish.
func TestRejectionOutlivesTheEnd(t *testing.T) {
	refused := &tidegate.Error{Code: protocol.CodeIllegalFilterExpression}
	for refusedAt, want := range map[time.Duration]error{10 * time.Second: refused, 30 * time.Second: nil} {
		withBroker(t, func(t *testing.T, s *server) {
			s.fill(2)
			begin := time.Now()
			s.onReceive = func() error {
				if time.Since(begin) >= refusedAt {
					return refused
				}
				return nil
			}
			stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
				time.Sleep(25 * time.Second)
				return nil
			}, consumer.PushOptions{LongPolling: time.Second})
			time.Sleep(20 * time.Second)
			if err := stop(); !errors.Is(err, want) || (err == nil) != (want == nil) || s.left() != 0 {
				t.Errorf("refused after %v, stopped after 20s: %v, want %v; %d messages left", refusedAt, err, want, s.left())
			}
		})
	}
}

// If a server returns empty receives at once, the consumer does not receive in a hot loop.
func TestEmptyResponsesArePaced(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		runFor(t, 10*time.Second, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil },
			consumer.PushOptions{LongPolling: time.Nanosecond})
		n := len(s.polls)
		assert.That(t, n >= 90 && n <= 110, "%d receives in 10 s", n)
	})
}

func TestQueuesComeAndGo(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.queues = []int{0, 1}
		var got atomic.Int64
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { got.Add(1); return nil }, consumer.PushOptions{})
		add := func(q int) {
			s.add(q, &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte("x")})
		}
		add(0)
		add(1)
		add(2)
		time.Sleep(time.Second)
		assert.That(t, got.Load() == 2, "%d handled, want those of the queues 0 and 1", got.Load())
		s.mu.Lock()
		s.queues = []int{2}
		s.mu.Unlock()
		time.Sleep(20 * time.Second)
		add(0)
		add(2)
		time.Sleep(time.Second)
		assert.That(t, got.Load() == 4, "%d handled, want both of queue 2 besides", got.Load())
		stop()
	})
}

func TestNewPushReportsAllFaults(t *testing.T) {
	_, err := consumer.NewPush(nil, consumer.Subscription{Group: "a b", Topic: "", Retry: backoff.Steps{-1}}, nil, consumer.PushOptions{
		Concurrency: -1, InvisibleDuration: 13 * time.Hour, LongPolling: -1, ShutdownTimeout: -1,
		ReceiveBackoff: backoff.Exponential{Initial: -1},
	})
	assert.MustThat(t, err != nil, "no error")
	for _, want := range []string{
		"transport", "handler", "Subscription.Group", "Subscription.Topic", "Subscription.Retry",
		"Concurrency", "InvisibleDuration", "13h", "LongPolling", "ShutdownTimeout", "ReceiveBackoff",
	} {
		assert.That(t, strings.Contains(err.Error(), want), "%q lacks %q", err, want)
	}
	assert.That(t, errors.Is(err, tidegate.ErrInvalid), "%v does not match ErrInvalid", err)
	for name, bad := range map[string]struct {
		sub  consumer.Subscription
		opts consumer.PushOptions
	}{
		"Retry":          {sub: consumer.Subscription{Group: "billing", Topic: "orders", Retry: backoff.Steps{-1}}},
		"ReceiveBackoff": {consumer.Subscription{Group: "billing", Topic: "orders"}, consumer.PushOptions{ReceiveBackoff: backoff.Exponential{Initial: -1}}},
	} {
		_, err := consumer.NewPush(newServer(t), bad.sub, func(context.Context, *tidegate.Delivery) error { return nil }, bad.opts)
		assert.That(t, errors.Is(err, tidegate.ErrInvalid) && strings.Contains(err.Error(), name), "%s alone: %v does not match ErrInvalid", name, err)
	}
	p, err := consumer.NewPush(newServer(t), consumer.Subscription{Group: "billing", Topic: "orders"},
		func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{Concurrency: math.MaxInt})
	assert.That(t, p == nil && errors.Is(err, tidegate.ErrInvalid) && strings.Contains(err.Error(), "Concurrency"),
		"a concurrency without a limit: %v, want a fault: Run would never stop counting", err)
}

// MaxBuffered bounds the messages that wait for a handler, for handlers of any speed.
func TestMaxBufferedBoundsTheMessagesInHand(t *testing.T) {
	for buffered, want := range map[int]int{-1: 1, 5: 6, 0: 1 + 1024} {
		withBroker(t, func(t *testing.T, s *server) {
			s.fill(2000)
			runFor(t, 10*time.Second, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
				time.Sleep(100 * time.Microsecond) // 200 ms of it are 2000 messages, more than MaxBuffered
				return nil
			}, consumer.PushOptions{Concurrency: 1, MaxBuffered: buffered})
			s.mu.Lock()
			defer s.mu.Unlock()
			assert.That(t, s.maxHand == want, "MaxBuffered %d: at most %d messages in hand, want %d", buffered, s.maxHand, want)
		})
	}
}

// Run of a paused consumer ends within ShutdownTimeout, also if messages wait that the server does
// not take back without counting an attempt.
func TestPausedRunEndsWithWaitingMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t) // without Suspend
		s.fillQuick()
		var report consumer.StopReport
		p := assert.Value(consumer.NewPush(s, consumer.Subscription{Group: "billing", Topic: "orders"}, func(_ context.Context, d *tidegate.Delivery) error {
			if slow(d) {
				time.Sleep(time.Second)
			}
			return nil
		}, consumer.PushOptions{Concurrency: 2, ShutdownTimeout: 10 * time.Second, OnStop: func(r consumer.StopReport) { report = r }}))(t)
		stop := runPush(t, p)
		s.fillSlow(50)
		time.Sleep(time.Second)
		p.Pause()
		time.Sleep(3 * time.Second)
		assert.MustThat(t, s.inHand() != 0, "no message waits for a handler")
		begin := time.Now()
		if err := stop(); err != nil || time.Since(begin) > 10*time.Second {
			t.Errorf("Run: %v after %v, want nil within 10s", err, time.Since(begin))
		}
		assert.That(t, s.inHand() == 0 && report.Released != 0, "%d deliveries in hand, report %+v; want the waiting messages released", s.inHand(), report)
	})
}

// A limiter delays receiving. The messages above the rate stay at the server, without a lease of
// this consumer, and none of them is retried.
//
// RocketMQ: consumption retry: "Obtain and consume messages at a later time if the current
// consumption rate is higher than limited"
func TestLimiterDelaysTheFetch(t *testing.T) {
	for name, tt := range map[string]struct {
		limiter *rate.Limiter
		queues  int
		atOnce  int // handled in any moment
	}{
		"one by one":        {rate.NewLimiter(10, 1), 1, 1},
		"in fives":          {rate.NewLimiter(10, 5), 1, 5},
		"more than a batch": {rate.NewLimiter(10, 50), 1, 50},
		"of four queues":    {rate.NewLimiter(10, 1), 4, 4},
	} {
		t.Run(name, onServer(func(t *testing.T, s *server) {
			s.caps, s.queues = ours, []int{0, 1, 2, 3}[:tt.queues]
			for i := range 400 {
				s.add(i%tt.queues, &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte("x")})
			}
			begin := time.Now()
			var handled atomic.Int64
			stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
				n := handled.Add(1)
				allowed := int64(tt.limiter.Burst()+tt.queues) + int64(10*time.Since(begin).Seconds())
				assert.That(t, n <= allowed, "%d messages after %v, at most %d are allowed", n, time.Since(begin), allowed)
				return nil
			}, consumer.PushOptions{Limiter: tt.limiter})
			time.Sleep(20 * time.Second)
			n := handled.Load()
			assert.That(t, n >= 190, "%d messages in 20 s, want 10 a second", n)
			stop()
			assert.That(t, s.maxHand <= tt.atOnce, "%d messages in hand", s.maxHand)
			assert.That(t, len(s.retries) == 0 && len(s.changes) == 0 && s.spent() <= 0,
				"%d retries, %d extensions, %d spent attempts", len(s.retries), len(s.changes), s.spent())
		}))
	}
}

// A receive that brings nothing keeps its permission: an idle consumer handles a new message at
// once. Run ends while the limiter holds it.
func TestLimiterDoesNotDelayAnIdleConsumer(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		var at time.Time
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { at = time.Now(); return nil },
			consumer.PushOptions{Limiter: rate.NewLimiter(rate.Every(time.Hour), 1)})
		time.Sleep(50 * time.Minute) // 150 polls that bring nothing
		added := time.Now()
		s.fill(1)
		time.Sleep(time.Second)
		begin := time.Now()
		if err := stop(); err != nil || time.Since(begin) > 6*time.Second {
			t.Errorf("Run: %v after %v", err, time.Since(begin))
		}
		assert.That(t, at.Equal(added), "it was handled %v after it came", at.Sub(added))
	})
}

// brokenLimiter rejects.
type brokenLimiter struct{ asked atomic.Int64 }

var errLimiter = errors.New("the limiter's store is away")

func (l *brokenLimiter) WaitN(context.Context, int) error {
	if l.asked.Add(1) > 3 {
		return nil
	}
	return errLimiter
}

// A limiter that fails stops receiving until it permits it again, and is reported.
func TestLimiterThatFails(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		s.fill(1)
		var reported []consumer.ReceiveFailure
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil },
			consumer.PushOptions{Limiter: &brokenLimiter{}, OnReceiveFailure: func(f consumer.ReceiveFailure) { reported = append(reported, f) }})
		time.Sleep(500 * time.Millisecond)
		s.mu.Lock()
		assert.That(t, len(s.polls) == 0, "it received without permission")
		s.mu.Unlock()
		time.Sleep(time.Minute)
		stop()
		assert.That(t, s.left() == 0 && len(reported) == 3 && errors.Is(reported[2].Err, errLimiter) && reported[2].Failures == 3, "%d messages left, reported %+v", s.left(), reported)
	})
}

// A reachable server responds to pings, except while it is away.
type reachable struct {
	*server
	away   time.Time   // until then; zero means that it is not
	broken atomic.Bool // afterwards it only fails receives
	pings  atomic.Int64
}

func (r *reachable) Ping(ctx context.Context, _ ...string) error {
	r.pings.Add(1)
	return backoff.Sleep(ctx, time.Until(r.away))
}

// received returns the number of receives.
func (r *reachable) received() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.polls)
}

func newReachable(t *testing.T) *reachable {
	r := &reachable{server: newServer(t)}
	r.onReceive = func() error {
		if r.broken.Load() || time.Now().Before(r.away) {
			return &tidegate.Error{Op: "ReceiveMessage", Message: "connection refused"}
		}
		return nil
	}
	return r
}

// The first receive after an outage follows at once when the server responds to a ping, and
// otherwise at most 5 s later. A server that responds only to pings gets a receive every 5 s, and
// one ping. If one of several servers is down, a response of another one to a ping is no proof that
// the first one works.
func TestReceivesFollowTheReturnOfAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReachable(t)
		begin := time.Now()
		r.away = begin.Add(90*time.Second + 10*time.Millisecond)
		r.fill(1)
		var late time.Duration
		var failures []consumer.ReceiveFailure
		stop := start(t, r, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error {
			late = time.Since(r.away)
			return nil
		}, consumer.PushOptions{OnReceiveFailure: func(f consumer.ReceiveFailure) { failures = append(failures, f) }, LongPolling: time.Second})
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		assert.That(t, late >= 0 && late <= time.Second && r.left() == 0, "the first message was handled %v after the return", late)
		for _, f := range failures {
			assert.That(t, f.RetryIn <= 5*time.Second, "a receive without a response is repeated after %v, want 5 s at most", f.RetryIn)
		}
		polls, pings := r.received(), r.pings.Load()
		r.broken.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n, p := r.received()-polls, r.pings.Load()-pings; n < 10 || n > 20 || p > 1 {
			t.Errorf("%d receives and %d pings in a minute from a server that only responds to pings, want 10 to 20 and 1", n, p)
		}
		stop()

		s := newServer(t) // without pings
		s.fill(1)
		back := time.Now().Add(time.Minute)
		s.onReceive = func() error {
			if time.Now().Before(back) {
				return &tidegate.Error{Op: "ReceiveMessage", Message: "connection refused"}
			}
			return nil
		}
		stop = start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{})
		time.Sleep(time.Minute + 5*time.Second)
		synctest.Wait()
		assert.That(t, s.left() == 0, "the message is not handled 5 s after the return")
		stop()
	})
}

// A consumer without Logger and OnReceiveFailure reports failures to slog's default, for each topic
// at intervals that double from a minute to an hour. One of the two is enough to end that.
func TestDefaultLogOfFailures(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	for name, tt := range map[string]struct {
		opts consumer.PushOptions
		want int
	}{
		"neither":          {consumer.PushOptions{}, 2 * (6 + 24)}, // after 0, 1, 3, 7, 15, 31 and 63 min, and then each hour
		"Logger":           {consumer.PushOptions{Logger: slog.New(slog.DiscardHandler)}, 0},
		"OnReceiveFailure": {consumer.PushOptions{OnReceiveFailure: func(consumer.ReceiveFailure) {}}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			log.Reset()
			s := newServer(t)
			s.onSettings = func(context.Context) error {
				return &tidegate.Error{Op: "QueryAssignment", Code: tidegate.CodeInternalServerError}
			}
			runFor(t, 25*time.Hour, s, consumer.Subscription{Group: "billing", Topic: "orders", Topics: map[string]tidegate.Filter{"returns": {}}},
				func(context.Context, *tidegate.Delivery) error { return nil }, tt.opts)
			n := strings.Count(log.String(), "cannot receive")
			// The first failure after each interval is logged. Failures are up to 36 s apart, which
			// is 30 s and jitter.
			if n > tt.want || n < tt.want-2*2 || tt.want > 0 && !strings.Contains(log.String(), "topic=returns group=billing") {
				t.Errorf("%s: %d lines in 25 hours, want %d: %.300s", name, n, tt.want, log.String())
			}
		})
	}
}

// A switched server delivers all messages as those of another system, whose settings differ from
// the result of ConsumerSettings.
type switched struct {
	*server
	other transport.ConsumerSettings
}

func (s switched) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	ds, err := s.server.Receive(ctx, r)
	for _, d := range ds {
		d.Endpoint = "other"
	}
	return ds, err
}

func (s switched) EndpointSettings(endpoint, _, _ string) (transport.ConsumerSettings, bool) {
	return s.other, endpoint == "other"
}

// The maximum of attempts, the retry schedule and the order are those of the server that delivered
// the message.
func TestSettingsOfTheDeliveringServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := switched{newServer(t), transport.ConsumerSettings{MaxAttempts: 2, Retry: backoff.Steps{7 * time.Second}, FIFO: true}}
		s.caps = ours
		s.settings = transport.ConsumerSettings{MaxAttempts: 9, Retry: backoff.Steps{time.Minute}}
		s.add(0, &tidegate.Message{ID: "first", Topic: "orders", MessageGroup: "g"}, &tidegate.Message{ID: "second", Topic: "orders", MessageGroup: "g"})
		var running atomic.Int32
		p := assert.Value(consumer.NewPush(s, consumer.Subscription{Group: "billing", Topic: "orders"}, func(ctx context.Context, d *tidegate.Delivery) error {
			assert.That(t, running.Add(1) <= 1, "two messages of a message group are handled at the same time")
			time.Sleep(time.Second)
			running.Add(-1)
			final, known := consumer.FinalAttempt(ctx)
			assert.That(t, known && final == (d.Attempt == 2), "attempt %d: final %v, known %v", d.Attempt, final, known)
			if d.ID == "first" {
				return errors.New("no such customer")
			}
			return nil
		}, consumer.PushOptions{Concurrency: 2}))(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		for s.left() > 0 && ctx.Err() == nil {
			time.Sleep(time.Second)
		}
		cancel()
		assert.NoError(t, <-done)
		assert.That(t, len(s.retries) == 1 && s.retries[0].delay == 7*time.Second, "retries %+v, want one after 7 s", s.retries)
		assert.That(t, len(s.dead) == 1 && s.dead["first"] != "", "dead letters %v, want the first message after two attempts", s.dead)
	})
}

// An outage between two rejections of the credentials does not end Run.
func TestRejectionsBesideAnOutage(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		var receives atomic.Int64
		s.onReceive = func() error {
			n := receives.Add(1)
			if n == 1 || n == 60 {
				return &tidegate.Error{Code: tidegate.CodeUnauthorized}
			}
			if n < 60 {
				return &tidegate.Error{Message: "connection refused"}
			}
			return nil
		}
		stop := start(t, s, consumer.Subscription{}, func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{})
		time.Sleep(10 * time.Minute)
		n := receives.Load()
		assert.That(t, n >= 61, "%d receives, want the one after the second rejection", n)
		assert.NoError(t, stop(), "Run ended")
	})
}
