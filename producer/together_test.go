package producer

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// Messages that a server throttled in one request have the same wait, although the backoff has a
// jitter. They therefore share their next request too.
func TestThrottledTogetherRetriedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{do: func(_ context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			if n == 1 {
				return all(len(msgs), throttled(0))
			}
			return nil
		}}
		var mu sync.Mutex
		delays := map[time.Duration]int{}
		p := newProducer(t, f, Options{OnAttempt: func(a Attempt) {
			mu.Lock()
			defer mu.Unlock()
			if a.Err != nil {
				delays[a.Delay]++
			}
		}})
		const messages = 50
		var msgs []*tidegate.Message
		for range messages {
			msgs = append(msgs, message())
		}
		for i, r := range p.SendBatch(t.Context(), msgs) {
			if r.Err != nil {
				t.Errorf("message %d: %v", i, r.Err)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if len(delays) != 1 {
			t.Errorf("delays %v, want one for all messages", delays)
		}
		for d, n := range delays {
			if n != messages || d < 800*time.Millisecond || d > 1200*time.Millisecond {
				t.Errorf("%d messages wait for %v, want %d and a second with a jitter of a fifth", n, d, messages)
			}
		}
		if n := len(f.sent); n > 3 {
			t.Errorf("%d requests, want the throttled one, a probe and the rest", n)
		}
	})
}

// While many topics have requests under way, the messages of each topic share its next request. A
// single topic begins a second request instead.
func TestManyTopicsSendFewRequests(t *testing.T) {
	for _, c := range []struct{ topics, requests int }{{1, 3}, {40, 2}} {
		synctest.Test(t, func(t *testing.T) {
			f := &laneFake{do: func(context.Context, int, transport.Lane, []*tidegate.Message) []error {
				time.Sleep(10 * time.Millisecond)
				return nil
			}}
			p := newProducer(t, f, Options{})
			for range 20 {
				for topic := range c.topics {
					m := &tidegate.Message{Topic: fmt.Sprint("t", topic), Body: []byte("x")}
					err := p.SendAsync(t.Context(), m, func(_ tidegate.Receipt, err error) {
						if err != nil {
							t.Error(err)
						}
					})
					if err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
			}
			if err := p.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := len(f.requests()); n != c.requests*c.topics {
				t.Errorf("%d topics: %d requests, want %d for each topic", c.topics, n, c.requests)
			}
		})
	}
}

// A caller that waits for its message does not wait for a request of other callers first, for any
// number of topics with a request under way.
func TestManyTopicsDoNotDelaySend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &laneFake{do: func(context.Context, int, transport.Lane, []*tidegate.Message) []error {
			time.Sleep(10 * time.Millisecond)
			return nil
		}}
		p := newProducer(t, f, Options{})
		var callers sync.WaitGroup
		for topic := range 40 {
			for second := range 2 {
				callers.Go(func() {
					time.Sleep(time.Duration(second) * time.Millisecond)
					began := time.Now()
					m := &tidegate.Message{Topic: fmt.Sprint("t", topic), Body: []byte("x")}
					if _, err := p.Send(t.Context(), m); err != nil || time.Since(began) != 10*time.Millisecond {
						t.Errorf("%v after %v, want 10 ms", err, time.Since(began))
					}
				})
			}
		}
		callers.Wait()
	})
}
