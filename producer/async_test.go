package producer_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

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
