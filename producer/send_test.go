package producer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// RocketMQ: sending retry and throttling: "If a retry is triggered by throttling, the message is
// retried at intervals specified in the exponential backoff protocol"
// RocketMQ: sending retry and throttling: "INITIAL_BACKOFF: specifies the interval between the
// first failure and the first retry. Default value: 1 second"
func TestThrottledGapsLieInRange(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			f := script(throttled(0), throttled(0), throttled(0), throttled(0))
			p := newProducer(t, f, producer.Options{MaxAttempts: 5})
			r, err := p.Send(t.Context(), message())
			assert.MustThat(t, err == nil && r.Attempts == 5, "receipt %+v, error %v", r, err)
			for i, gap := range gaps(f) {
				lo, hi := backoff.Default().Range(i)
				assert.That(t, gap >= lo && gap <= hi, "gap %d is %v, not in [%v, %v]", i, gap, lo, hi)
			}
			for _, id := range ids(f) {
				assert.MustThat(t, id == ids(f)[0] && id != "", "the ID changed between attempts: %q", ids(f))
			}
		})
	}
}

// RocketMQ: sending retry and throttling: "Messages are immediately retried upon failures, except
// when a retry is triggered by throttling"
// RocketMQ: sending retry and throttling: "If the failure persists on the last retry, a call error
// is returned"
// RocketMQ: sending retry and throttling: "If the last retry fails, the system returns an error
// code and an exception"
func TestTransientRetriesAreAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := always(codeError(tidegate.CodeInternalServerError))
		p := newProducer(t, f, producer.Options{})
		start := time.Now()
		_, err := p.Send(t.Context(), message())
		if e := sendError(t, err); e.Reason != producer.StopExhausted || e.Attempts != 3 || e.MaxAttempts != 3 || time.Since(start) != 0 {
			t.Errorf("got %+v after %v", e, time.Since(start))
		}
		const want = `send to "orders": attempt 3 of 3 at a:1: 50001 INTERNAL_SERVER_ERROR: from the server`
		assert.That(t, err.Error() == want, "text\n%s\nwant\n%s", err, want)
	})
}

func TestRouteThatWasGood(t *testing.T) {
	for _, code := range []tidegate.Code{tidegate.CodeTopicNotFound, protocol.CodeMessagePropertyConflict} {
		f := script(nil, codeError(code), codeError(code))
		p := newProducer(t, f, producer.Options{})
		for _, want := range []int{1, 3} {
			if r, err := p.Send(t.Context(), message()); err != nil || r.Attempts != want {
				t.Errorf("%d: receipt %+v, error %v; want success at attempt %d", code, r, err, want)
			}
		}
	}
}

// RocketMQ: sending retry and throttling: "you must evaluate the timeout duration and maximum
// number of retries for each call to prevent retries from blocking links"
func TestDeadlineIsHonouredExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := within(t, 10*time.Second+123*time.Microsecond)
		p := newProducer(t, always(throttled(time.Hour)), producer.Options{})
		start := time.Now()
		_, err := p.Send(ctx, message())
		// The requested wait does not begin, so the caller still has its time.
		assert.Equal(t, "returned after", time.Since(start), 0)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, tidegate.ErrThrottled) || tidegate.RetryAfter(err) != time.Hour {
			t.Errorf("got %v", err)
		}
		if e := sendError(t, err); e.Reason != producer.StopDeadline || e.Needed != time.Hour+100*time.Millisecond || e.Remaining != 10*time.Second+123*time.Microsecond || e.Attempts != 1 {
			t.Errorf("got %+v", e)
		}
		const want = `send to "orders": context deadline exceeded: the next attempt needs 1h0m0.1s, and 10s are left after attempt 1 of 3 at a:1: 530 TOO_MANY_REQUESTS: from the server`
		assert.That(t, err.Error() == want, "text\n%s\nwant\n%s", err, want)
	})
}

// The same without settings of the server.
// RocketMQ: sending retry and throttling: "Messages are immediately retried upon failures, except
// when a retry is triggered by throttling"
func TestFirstRetryIsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := script(codeError(protocol.CodeProxyTimeout))
		f.OnProducerSettings = func(ctx context.Context, _ int, _ string) (transport.ProducerSettings, error) {
			<-ctx.Done()
			return transport.ProducerSettings{}, context.Cause(ctx)
		}
		start := time.Now()
		r, err := newProducer(t, f, producer.Options{}).Send(t.Context(), message())
		assert.That(t, err == nil && r.Attempts == 2 && time.Since(start) == 0,
			"%+v, %v after %v; want success at the second attempt, at once", r, err, time.Since(start))
	})
}

func TestAttemptsAreObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []producer.Attempt
		lost := codeError(protocol.CodeProxyTimeout)
		f := script(throttled(0), throttled(5*time.Second), lost)
		p := newProducer(t, f, producer.Options{MaxAttempts: 4, Backoff: ladder, OnAttempt: func(a producer.Attempt) {
			got = append(got, a)
			time.Sleep(time.Millisecond) // no lock is held: a bubble would hang
		}})
		r := assert.Value(p.Send(t.Context(), message()))(t)
		want := []producer.Attempt{
			{Endpoint: "a:1", Err: throttled(0), Operation: "send", Class: tidegate.ClassThrottled, Delay: time.Second, DelayFrom: "backoff"},
			{Endpoint: "a:1", Err: throttled(5 * time.Second), Operation: "send", Class: tidegate.ClassThrottled, Delay: 5 * time.Second, DelayFrom: "push-back"},
			{Endpoint: "a:1", Err: lost, MaybeStored: true, Operation: "send", Class: tidegate.ClassTransient},
			{Endpoint: "a:1", Operation: "send", Class: tidegate.ClassOK},
		}
		for i := range want {
			want[i].Topic, want[i].MessageID, want[i].Number, want[i].Messages = "orders", r.MessageID, i+1, 1
			if i < len(got) {
				want[i].Began = got[i].Began
			}
		}
		assert.That(t, fmt.Sprintf("%+v", got) == fmt.Sprintf("%+v", want), "observed\n%+v\nwant\n%+v", got, want)
	})
}

func TestObserverThatPanics(t *testing.T) {
	var log bytes.Buffer
	p := newProducer(t, each(nil), producer.Options{
		OnAttempt: func(producer.Attempt) { panic("observer") },
		Logger:    slog.New(slog.NewTextHandler(&log, nil)),
	})
	assert.NoError(t, assert.Err(p.Send(t.Context(), message())))
	assert.That(t, strings.Contains(log.String(), "OnAttempt panicked") && strings.Contains(log.String(), "send_test.go"),
		"logged %q, want the panic and its stack", log.String())
}

func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := always(codeError(tidegate.CodeInternalServerError))
		p := newProducer(t, f, producer.Options{Limiter: rate.NewLimiter(1, 1)})
		if _, err := p.Send(t.Context(), message()); sendError(t, err).Reason != producer.StopExhausted {
			t.Error(err)
		}
		if got, want := gaps(f), []time.Duration{time.Second, time.Second}; !reflect.DeepEqual(got, want) {
			t.Errorf("gaps %v, want %v: the limiter is asked before every attempt", got, want)
		}
		ctx := within(t, 100*time.Millisecond)
		_, err := p.Send(ctx, message())
		if e := sendError(t, err); e.Reason != producer.StopLimiter || e.Attempts != 0 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

// Producers that are throttled at the same instant do not retry in lock-step: no 10 ms have more
// than a twentieth of the retries. About a fortieth is expected.
//
// Clients do not retry in lock-step.
func TestRetriesSpread(t *testing.T) {
	const clients = 2000
	synctest.Test(t, func(t *testing.T) {
		buckets := map[int64]int{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		start := time.Now()
		for range clients {
			p := newProducer(t, each(func(_ context.Context, n int, _ *tidegate.Message) error {
				if n == 1 {
					return throttled(0)
				}
				mu.Lock()
				buckets[int64(time.Since(start)/(10*time.Millisecond))]++
				mu.Unlock()
				return nil
			}), producer.Options{})
			wg.Go(func() { assert.NoError(t, assert.Err(p.Send(t.Context(), message()))) })
		}
		wg.Wait()
		for b, n := range buckets {
			assert.That(t, n <= clients/20, "%d of %d retries came within the 10 ms after %d ms", n, clients, b*10)
		}
	})
}

// With any outcomes a send ends within its limits, with one ID, and its error and its observations
// agree.
// RocketMQ: sending retry and throttling: "a producer client tries to send the message again until
// the message is sent or the maximum number of retries is reached"
// RocketMQ: sending retry and throttling: "Synchronous sending: The call thread is blocked until a
// retry succeeds or the last retry fails"
// RocketMQ: sending retry and throttling: "Message sending retries are supported in both the
// synchronous and asynchronous sending modes"
func TestSendProperties(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	codes := []tidegate.Code{
		0, 0, tidegate.CodeTooManyRequests, tidegate.CodeTooManyRequests, tidegate.CodeInternalServerError,
		protocol.CodeProxyTimeout, tidegate.CodeTopicNotFound, tidegate.CodeForbidden, protocol.CodeMessagePropertyConflict,
	}
	for range 300 {
		synctest.Test(t, func(t *testing.T) {
			respond := func(ctx context.Context, _ int, _ *tidegate.Message) error {
				switch c := codes[rnd.IntN(len(codes))]; {
				case c != 0:
					return pushedBack(c, time.Duration(rnd.Int64N(int64(20*time.Second))-int64(time.Second)))
				case rnd.IntN(3) == 0:
					return blackHole(ctx)
				}
				return nil
			}
			var seen []producer.Attempt
			opts := producer.Options{
				MaxAttempts: 1 + rnd.IntN(5), MaxThrottles: rnd.IntN(3),
				OnAttempt: func(a producer.Attempt) { seen = append(seen, a) },
			}
			for range 5 {
				f := each(respond)
				p := newProducer(t, f, opts) // a pause of the server's does not outlive it
				seen = nil
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rnd.IntN(60))*time.Second)
				deadline, _ := ctx.Deadline()
				r, err := p.Send(ctx, message())
				cancel()
				assert.MustThat(t, !time.Now().After(deadline), "returned %v after the deadline", time.Since(deadline))
				assert.MustThat(t, len(seen) == len(f.Calls("Send")) && len(seen) <= opts.MaxAttempts+opts.MaxThrottles,
					"%d attempts, %d observed, options %+v", len(f.Calls("Send")), len(seen), opts)
				maybe := false
				for i, a := range seen {
					maybe = maybe || a.MaybeStored
					if a.Number != i+1 || a.MessageID != ids(f)[0] || ids(f)[i] != ids(f)[0] || (a.Stop != producer.NotStopped && i < len(seen)-1) {
						t.Fatalf("observed %+v", seen)
					}
				}
				if err == nil {
					assert.MustThat(t, r.Attempts == len(seen) && seen[len(seen)-1].Err == nil,
						"receipt %+v, observed %+v", r, seen)
					continue
				}
				if e := sendError(t, err); e.Attempts != len(seen) || e.MaybeStored != maybe || e.Last != seen[len(seen)-1].Err ||
					e.Reason == producer.NotStopped || !strings.HasPrefix(err.Error(), `send to "orders": `) {
					t.Fatalf("error %+v, observed %+v", e, seen)
				}
			}
		})
	}
}

// The responses to the first 32 requests are lost, which are as many as a topic has under way. The
// other callers do not wait for the end of those attempts, 3 s.
func TestLostResponsesDoNotHoldOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := each(func(ctx context.Context, n int, _ *tidegate.Message) error {
			if n <= 32 {
				return blackHole(ctx)
			}
			return nil
		})
		p := newProducer(t, f, producer.Options{})
		start := time.Now()
		var mu sync.Mutex
		var quick int
		var all sync.WaitGroup
		for range 96 {
			all.Go(func() {
				assert.NoError(t, assert.Err(p.Send(t.Context(), message())))
				mu.Lock()
				defer mu.Unlock()
				if time.Since(start) <= 20*time.Millisecond {
					quick++
				}
			})
		}
		all.Wait()
		if d := time.Since(start); quick != 64 || d != 3*time.Second {
			t.Errorf("%d sends ended within 20 ms and all within %v, want 64 and 3 s", quick, d)
		}
	})
}

// The attempts of a message that is alone in its request have the values of its ctx, for example
// the trace, also on a goroutine of the producer.
func TestAttemptsHaveTheValuesOfTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		var attempts, traced atomic.Int64
		f := &transporttest.Fake{OnSend: func(ctx context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			attempts.Add(1)
			if ctx.Value(key{}) == "trace" {
				traced.Add(1)
			}
			if n == 1 {
				return all(len(msgs), throttled(0))
			}
			return nil
		}}
		p := newProducer(t, f, producer.Options{})
		done := make(chan error, 1)
		ctx := context.WithValue(t.Context(), key{}, "trace")
		assert.Must(t, p.SendAsync(ctx, message(), func(_ tidegate.Receipt, err error) { done <- err }))
		if err := <-done; err != nil || attempts.Load() != 2 || traced.Load() != 2 {
			t.Errorf("%v, %d of %d attempts have the values, want 2 of 2", err, traced.Load(), attempts.Load())
		}
	})
}

// A message whose request the transport has ended by runtime.Goexit may have been stored; one
// without a request was not stored. Both fail, and their functions are called.
func TestEndedGoroutinesOfTheTransport(t *testing.T) {
	for _, tt := range []struct {
		name   string
		inLane bool
		maybe  bool
	}{
		{"while it sends", false, true},
		{"while it looks for a lane", true, false},
	} {
		assert.Bubble(t, tt.name, func(t *testing.T) {
			f := &transporttest.Fake{
				OnLane: func(context.Context, int, transport.LaneRequest) (transport.Lane, error) {
					if tt.inLane {
						runtime.Goexit()
					}
					return transport.Lane{Endpoint: "a:1", MaxMessages: 10}, nil
				},
				OnSend: func(context.Context, int, transport.Lane, []*tidegate.Message) []error {
					runtime.Goexit()
					return nil
				},
			}
			p := newProducer(t, f, producer.Options{})
			done := make(chan error, 1)
			assert.Must(t, p.SendAsync(t.Context(), message(), func(_ tidegate.Receipt, err error) { done <- err }))
			if e := sendError(t, <-done); e.Reason != producer.StopPermanent || e.MaybeStored != tt.maybe {
				t.Errorf("%v with MaybeStored %t, want a permanent failure with %t", e, e.MaybeStored, tt.maybe)
			}
		})
	}
}

// A receipt has the ID and the topic of the message, also if the transport returns neither.
func TestReceiptNamesTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProducer(t, bare{}, producer.Options{})
		r, err := p.Send(t.Context(), &tidegate.Message{ID: "1", Topic: "orders", Body: []byte("x")})
		assert.That(t, err == nil && r.MessageID == "1" && r.Topic == "orders" && r.Attempts == 1,
			"receipt %+v, %v; want that of message 1 of orders in one attempt", r, err)
	})
}

// A caller may leave, or the producer close, between the response and the result: for example while
// the result of another message of the request is awaited, or while a function observes an attempt.
// The server has stored the message, so the error must have MaybeStored.
func TestLeavingAfterTheResponse(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		f := &transporttest.Fake{OnSend: func(context.Context, int, transport.Lane, []*tidegate.Message) []error { return nil }}
		observing := make(chan struct{})
		p := newProducer(t, f, producer.Options{OnAttempt: func(producer.Attempt) { <-observing }})
		ctx, cancel := context.WithCancel(t.Context())
		var got []transport.SendResult
		var wg sync.WaitGroup
		wg.Go(func() { got = sendBy(ctx, p, entry, message(), message()) })
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(observing)
		wg.Wait()
		for i, r := range got {
			assert.That(t, r.Err == nil || sendError(t, r.Err).MaybeStored, "message %d was stored, but the error is %v", i, r.Err)
		}
	})
}

// Send does not keep the message after its return, also when the caller leaves and the request
// continues for other messages.
func TestLeaversMayReuseTheirMessage(t *testing.T) {
	everyEntry(t, func(t *testing.T, entry string) {
		var mu sync.Mutex
		var sent []string
		f := &transporttest.Fake{OnSend: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			sleepFor(ctx, 2*time.Second) // for example for a connection, before it encodes the request
			mu.Lock()
			defer mu.Unlock()
			for _, m := range msgs {
				sent = append(sent, m.ID+" "+string(m.Body)+" "+m.Keys[0]+" "+m.Properties["p"])
			}
			return all(len(msgs), ctx.Err()) // it ends early if nobody waits for its messages
		}}
		p := newProducer(t, f, producer.Options{})
		var wg sync.WaitGroup
		for _, m := range numbered(2) { // so that further messages share a request
			wg.Go(func() { p.Send(t.Context(), fill(m, "busy")) })
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel) // the request began after 100 ms
		msgs := []*tidegate.Message{named("a"), named("b"), named("c")}
		for _, m := range msgs {
			fill(m, "old")
		}
		wg.Go(func() { p.Send(t.Context(), fill(named("stays"), "old")) })
		for _, r := range sendBy(ctx, p, entry, msgs...) {
			assert.Is(t, "r.Err", r.Err, context.Canceled)
		}
		for _, m := range msgs {
			copy(m.Body, "new")
			m.Keys[0], m.Properties["p"] = "new", "new"
		}
		wg.Wait()
		synctest.Wait()
		for _, s := range sent {
			assert.That(t, !strings.Contains(s, "new"), "sent %q", s)
		}
		assert.That(t, len(sent) >= 6, "sent %q", sent)
	})
}

func fill(m *tidegate.Message, text string) *tidegate.Message {
	m.Body, m.Keys, m.Properties = []byte(text), []string{text}, map[string]string{"p": text}
	return m
}

// RocketMQ: sending retry and throttling: "Message sending retries are supported in both the
// synchronous and asynchronous sending modes"
// RocketMQ: sending retry and throttling: "Asynchronous sending: The call thread is not blocked.
// The call result is returned as an exception event or success event"
func TestSendAsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := script(throttled(7*time.Second), codeError(protocol.CodeProxyTimeout))
		p := newProducer(t, f, producer.Options{})
		start := time.Now()
		told := make(chan time.Duration, 1)
		if err := p.SendAsync(t.Context(), message(), func(r tidegate.Receipt, err error) {
			assert.That(t, err == nil && r.Attempts == 3, "result %+v, %v; want success at attempt 3", r, err)
			told <- time.Since(start)
		}); err != nil || time.Since(start) != 0 {
			t.Errorf("SendAsync returned %v after %v", err, time.Since(start))
		}
		assert.Equal(t, "result after", <-told, 7*time.Second)

		lost := always(codeError(tidegate.CodeInternalServerError))
		failed := make(chan error, 1)
		assert.Must(t, newProducer(t, lost, producer.Options{}).SendAsync(t.Context(), message(), func(_ tidegate.Receipt, err error) { failed <- err }))
		e := sendError(t, <-failed)
		assert.That(t, e.Reason == producer.StopExhausted && e.Attempts == 3, "result %+v", e)
		assert.Equal(t, "nil function", sendError(t, p.SendAsync(t.Context(), message(), nil)).Reason, producer.StopInvalid)
	})
}

// The functions of the messages of one message group are called in the order of the messages,
// also while other goroutines send and finish requests of the same topic.
func TestFunctionsOfAGroupAreCalledInOrder(t *testing.T) {
	p := newProducer(t, script(), producer.Options{})
	const groups, messages = 8, 2000
	var mu sync.Mutex
	next := map[string]int{}
	wrong := 0
	var senders, done sync.WaitGroup
	for g := range groups {
		group := fmt.Sprint("group", g)
		senders.Go(func() {
			for n := range messages {
				done.Add(1)
				m := &tidegate.Message{Topic: "orders", MessageGroup: group, Body: []byte("x")}
				if err := p.SendAsync(context.Background(), m, func(_ tidegate.Receipt, err error) {
					defer done.Done()
					mu.Lock()
					defer mu.Unlock()
					if err != nil || next[group] != n {
						wrong++
					}
					next[group] = n + 1
				}); err != nil {
					t.Error(err)
					done.Done()
				}
			}
		})
	}
	senders.Wait()
	done.Wait()
	assert.That(t, wrong <= 0, "%d of %d functions were called in the wrong order", wrong, groups*messages)
}

// Messages of a request fail, and another one is throttled. The pause outlasts the deadline of all,
// so they fail early.
func TestMessageBesideAThrottledOneFailsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{OnSend: func(_ context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			errs := all(len(msgs), tidegate.ErrUnavailable)
			errs[1] = throttled(time.Minute)
			return errs
		}}
		p := newProducer(t, f, producer.Options{})
		start := time.Now()
		for i, r := range p.SendBatch(within(t, 10*time.Second), numbered(4)) {
			if e := sendError(t, r.Err); e.Reason != producer.StopDeadline || time.Since(start) != 0 {
				t.Errorf("message %d: %v after %v", i, e, time.Since(start))
			}
		}
	})
}

// A lane pauses for the shortest wait that the server requested for a message of the request.
func TestLanePausesForTheShortestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{OnSend: func(_ context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			if n > 1 {
				return nil
			}
			errs := make([]error, len(msgs))
			for i := range msgs {
				errs[i] = throttled([]time.Duration{time.Minute, 2 * time.Second}[i])
			}
			return errs
		}}
		p := newProducer(t, f, producer.Options{})
		start := time.Now()
		go p.SendBatch(t.Context(), numbered(2))
		synctest.Wait()
		if _, err := p.Send(t.Context(), message()); err != nil || time.Since(start) != 2*time.Second {
			t.Errorf("%v after %v; want a success after the shorter of 2 s and 1 min", err, time.Since(start))
		}
	})
}

// The first message of a message group leaves while it waits for its retry. The next one goes at
// once.
func TestMessageGroupContinuesWhenAMessageLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{OnSend: func(_ context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			errs := make([]error, len(msgs))
			for i, m := range msgs {
				if m.ID == "first" {
					errs[i] = throttled(time.Hour)
				}
			}
			return errs
		}}
		// Another lane is free from the start, so that only the order holds the second message.
		f.OnLane = func(_ context.Context, _ int, r transport.LaneRequest) (transport.Lane, error) {
			return transport.Lane{Endpoint: []string{"a:1", "b:2"}[min(1, len(f.Calls("Send")))], MaxMessages: 1}, nil
		}
		p := newProducer(t, f, producer.Options{MaxThrottles: producer.UntilContextEnds, Limiter: quiet{}})
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		first, second := named("first"), named("second")
		first.MessageGroup, second.MessageGroup = "g", "g"
		assert.Must(t, p.SendAsync(ctx, first, func(tidegate.Receipt, error) {}))
		synctest.Wait()
		stored := make(chan time.Duration, 1)
		assert.Must(t, p.SendAsync(t.Context(), second, func(tidegate.Receipt, error) { stored <- time.Since(start) }))
		time.Sleep(100 * time.Millisecond) // before the wait of the policy is over
		cancel()
		at := <-stored
		assert.That(t, at == 100*time.Millisecond, "the second message was stored after %v, the first one left after 100 ms", at)
	})
}

// quiet is a limiter that observes and permits everything.
type quiet struct{}

func (quiet) WaitN(context.Context, int) error { return nil }
func (quiet) Observe(error)                    {}
