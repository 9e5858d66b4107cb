package producer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// While two requests are under way, calls queue; the next request takes them all.
func TestCallsShareRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{OnSend: func(ctx context.Context, _ int, _ transport.Lane, _ []*tidegate.Message) []error {
			sleepFor(ctx, 10*time.Millisecond)
			return nil
		}}
		p := newProducer(t, f, producer.Options{})
		start := time.Now()
		noErrors(t, sendAll(t.Context(), p, numbered(64)))
		took := time.Since(start)
		assert.That(t, took <= 20*time.Millisecond, "64 sends took %v, want at most two round trips of 10ms", took)
		if sizes := sizes(f); len(sizes) > 4 {
			t.Errorf("requests of %v messages, want at most 4", sizes)
		}
	})
}

func TestRequestsKeepTheBoundsOfTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{
			OnLane: func(_ context.Context, _ int, r transport.LaneRequest) (transport.Lane, error) {
				return transport.Lane{Endpoint: "a:1", MaxMessages: 5, MaxBytes: 10_000}, nil
			},
			OnSend: func(ctx context.Context, _ int, lane transport.Lane, msgs []*tidegate.Message) []error {
				sleepFor(ctx, 10*time.Millisecond)
				size := 0
				for _, m := range msgs {
					size += len(m.Body)
				}
				assert.That(t, len(msgs) <= lane.MaxMessages && (len(msgs) <= 1 || size <= lane.MaxBytes),
					"a request of %d messages with %d bytes", len(msgs), size)
				return nil
			},
		}
		p := newProducer(t, f, producer.Options{})
		msgs := numbered(40)
		for i, m := range msgs {
			m.Body = make([]byte, 1+i%4*4000) // 12001 bytes travel alone
		}
		for i, r := range p.SendBatch(t.Context(), msgs) {
			assert.That(t, r.Err == nil && r.Receipt.MessageID == msgs[i].ID, "message %d: %+v", i, r)
		}
		sizes := sizes(f)
		n := len(slices.Compact(slices.Sorted(slices.Values(sizes))))
		assert.That(t, n >= 2 && len(sizes) != len(msgs), "requests of %v messages", sizes)
	})
}

// The server rejects a whole request for the fault of one message. The
// others are stored, and were not charged an attempt for it.
//
// One bad message does not fail its neighbours.
func TestOneBadMessageFailsAlone(t *testing.T) {
	for _, entry := range entryPoints {
		assert.Bubble(t, entry, func(t *testing.T) {
			f := &transporttest.Fake{OnSend: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
				sleepFor(ctx, 10*time.Millisecond)
				for _, m := range msgs {
					if m.ID == "0017" {
						return all(len(msgs), codeError(protocol.CodeIllegalDeliveryTime))
					}
				}
				return nil
			}}
			p := newProducer(t, f, producer.Options{})
			for i, r := range sendBy(t.Context(), p, entry, numbered(50)...) {
				assert.That(t, i == 17 || r.Err == nil && r.Receipt.Attempts == 1, "message %d: %+v", i, r)
				if i == 17 {
					if e := sendError(t, r.Err); e.Reason != producer.StopPermanent || e.Attempts != 1 || e.Fault() != producer.MessageFault {
						t.Errorf("the bad message: %+v", e)
					}
				}
			}
			n := len(f.Calls("Send"))
			assert.That(t, n <= 16, "%d requests to isolate one of 50 messages", n)
		})
	}
}

// A fault of the set-up is that of every message: nothing is gained by sending them again.
//
// An unknown topic is an error, and nothing is buffered.
func TestSetupFaultFailsTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := together(func(context.Context) error { return codeError(tidegate.CodeTopicNotFound) })
		p := newProducer(t, f, producer.Options{})
		for _, r := range p.SendBatch(t.Context(), numbered(50)) {
			e := sendError(t, r.Err)
			assert.That(t, e.Reason == producer.StopPermanent && e.Fault() == producer.SetupFault, "got %+v", e)
		}
		assert.Equal(t, "requests of messages", len(sizes(f)), 1)
	})
}

// A retry avoids the server that failed, and a server that does not respond holds
// up no more than the requests that it has.
//
// A retry goes to another server.
func TestRetryAvoidsTheFailedServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{}
		f.OnLane = func(_ context.Context, n int, r transport.LaneRequest) (transport.Lane, error) {
			for i := range 2 {
				if ep := []string{"a:1", "b:2"}[(n+i)%2]; !slices.Contains(r.Avoid, ep) {
					return transport.Lane{Endpoint: ep, MaxMessages: 10}, nil
				}
			}
			return transport.Lane{Endpoint: "a:1", MaxMessages: 10}, nil
		}
		f.OnSend = func(ctx context.Context, _ int, lane transport.Lane, msgs []*tidegate.Message) []error {
			if lane.Endpoint == "a:1" {
				return all(len(msgs), fmt.Errorf("send: %w", blackHole(ctx)))
			}
			sleepFor(ctx, time.Millisecond)
			return nil
		}
		p := newProducer(t, f, producer.Options{})
		start := time.Now()
		var slow atomic.Int64
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				began := time.Now()
				r, err := p.Send(t.Context(), message())
				assert.That(t, err == nil && r.Endpoint == "b:2", "%+v, %v", r, err)
				if time.Since(began) > 100*time.Millisecond {
					slow.Add(1)
				}
			})
		}
		wg.Wait()
		assert.That(t, slow.Load() <= 5 && time.Since(start) <= 5*time.Second,
			"%d of 200 sends were held up, %v in all", slow.Load(), time.Since(start))
	})
}

// A lane that changed is no attempt, also if the server does not support shared requests any more.
// A transport that reports nothing else is a fault.
func TestLaneChanged(t *testing.T) {
	for _, topics := range []int{1, 10} {
		synctest.Test(t, func(t *testing.T) {
			f := &transporttest.Fake{OnSend: func(_ context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
				if last := msgs[len(msgs)-1]; last != msgs[0] && (topics == 1 || last.Topic != msgs[0].Topic) {
					return all(len(msgs), fmt.Errorf("lane: %w", transport.ErrLaneChanged))
				}
				return nil
			}}
			f.OnLane = func(context.Context, int, transport.LaneRequest) (transport.Lane, error) {
				lane := transport.Lane{Endpoint: "a:1", MaxMessages: 100, Topics: topics > 1}
				if len(f.Calls("Send")) > 0 {
					lane = transport.Lane{Endpoint: "a:1", MaxMessages: topics}
				}
				return lane, nil
			}
			p := newProducer(t, f, producer.Options{})
			for _, r := range p.SendBatch(t.Context(), topicMessages(topics, 20)) {
				assert.That(t, r.Err == nil && r.Receipt.Attempts == 1, "%d topics: %+v", topics, r)
			}
			f.OnSend = func(_ context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
				return all(len(msgs), transport.ErrLaneChanged)
			}
			for _, r := range p.SendBatch(t.Context(), numbered(2)) {
				e := sendError(t, r.Err)
				assert.That(t, e.Reason == producer.StopExhausted && e.Attempts == 3, "got %+v", e)
			}
		})
	}
}

// From the second attempt on a send waits for the connection.
func TestRetriesAwaitTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := time.Now().Add(2 * time.Second)
		f := &transporttest.Fake{OnSend: func(ctx context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			down := &tidegate.Error{Op: "SendMessage", Err: tidegate.ErrUnavailable}
			if time.Now().Before(up) {
				if !transport.AwaitsConnection(ctx) {
					return all(len(msgs), down)
				}
				sleepFor(ctx, time.Until(up))
				if ctx.Err() != nil {
					return all(len(msgs), fmt.Errorf("waiting: %w", context.Cause(ctx)))
				}
			}
			return nil
		}}
		p := newProducer(t, f, producer.Options{})
		ctx := within(t, 30*time.Second)
		start := time.Now()
		noErrors(t, sendAll(ctx, p, numbered(100)))
		assert.Equal(t, "took, the server was back after 2s", time.Since(start), 2*time.Second)
	})
}

// If the transport has no lane, an attempt of every message that waits ends.
func TestNoLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{OnLane: func(ctx context.Context, _ int, _ transport.LaneRequest) (transport.Lane, error) {
			return transport.Lane{}, fmt.Errorf("route: %w", blackHole(ctx))
		}}
		p := newProducer(t, f, producer.Options{})
		start := time.Now()
		msgs := numbered(200)
		for i, m := range msgs {
			m.MessageGroup = []string{"", "a", "b"}[i%3]
		}
		for i, err := range sendAll(t.Context(), p, msgs) {
			e := sendError(t, err)
			assert.That(t, e.Reason == producer.StopExhausted && e.Attempts == 3, "message %d: %+v", i, e)
		}
		took := time.Since(start)
		assert.That(t, took <= 15*time.Second, "200 messages failed after %v, one alone needs 9s", took)
	})
}

// Messages that a server throttled in one request have the same wait, although the backoff has a
// jitter. They therefore share their next request too.
func TestThrottledTogetherRetriedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{OnSend: func(_ context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			if n == 1 {
				return all(len(msgs), throttled(0))
			}
			return nil
		}}
		var mu sync.Mutex
		delays := map[time.Duration]int{}
		p := newProducer(t, f, producer.Options{OnAttempt: func(a producer.Attempt) {
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
			assert.That(t, r.Err == nil, "message %d: %v", i, r.Err)
		}
		mu.Lock()
		defer mu.Unlock()
		assert.That(t, len(delays) == 1, "delays %v, want one for all messages", delays)
		for d, n := range delays {
			assert.That(t, n == messages && d >= 800*time.Millisecond && d <= 1200*time.Millisecond,
				"%d messages wait for %v, want %d and a second with a jitter of a fifth", n, d, messages)
		}
		n := len(f.Calls("Send"))
		assert.That(t, n <= 3, "%d requests, want the throttled one, a probe and the rest", n)
	})
}

// ownRequests returns a lane whose requests have one topic.
func ownRequests(context.Context, int, transport.LaneRequest) (transport.Lane, error) {
	return transport.Lane{Endpoint: "a:1", MaxMessages: 100}, nil
}

// While many topics have requests under way, the messages of each topic share its next request. A
// single topic begins a second request instead.
func TestManyTopicsSendFewRequests(t *testing.T) {
	for _, c := range []struct{ topics, requests int }{{1, 3}, {40, 2}} {
		synctest.Test(t, func(t *testing.T) {
			f := &transporttest.Fake{OnSend: func(context.Context, int, transport.Lane, []*tidegate.Message) []error {
				time.Sleep(10 * time.Millisecond)
				return nil
			}, OnLane: ownRequests}
			p := newProducer(t, f, producer.Options{})
			for range 20 {
				for topic := range c.topics {
					m := &tidegate.Message{Topic: fmt.Sprint("t", topic), Body: []byte("x")}
					err := p.SendAsync(t.Context(), m, func(_ tidegate.Receipt, err error) {
						assert.NoError(t, err)
					})
					assert.Must(t, err)
				}
				synctest.Wait()
			}
			assert.Must(t, p.Flush(t.Context()))
			n := len(f.Calls("Send"))
			assert.That(t, n == c.requests*c.topics, "%d topics: %d requests, want %d for each topic", c.topics, n, c.requests)
		})
	}
}

// A caller that waits for its message does not wait for a request of other callers first, for any
// number of topics with a request under way.
func TestManyTopicsDoNotDelaySend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{OnSend: func(context.Context, int, transport.Lane, []*tidegate.Message) []error {
			time.Sleep(10 * time.Millisecond)
			return nil
		}, OnLane: ownRequests}
		p := newProducer(t, f, producer.Options{})
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

// topicMessages returns n messages for each topic, in turn.
func topicMessages(topics, n int) (msgs []*tidegate.Message) {
	for i := range topics * n {
		msgs = append(msgs, &tidegate.Message{ID: fmt.Sprint(i), Topic: fmt.Sprint("t", i%topics), Body: []byte("x")})
	}
	return msgs
}

// Topics share requests over a lane that permits it. The messages of a topic are next to each
// other, a request has at most 256 topics and the messages of the lane, and each message has its
// own result.
func TestTopicsShareRequests(t *testing.T) {
	for _, entry := range entryPoints {
		assert.Bubble(t, entry, func(t *testing.T) {
			f := &transporttest.Fake{OnSend: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
				sleepFor(ctx, 10*time.Millisecond)
				topics := map[string]bool{}
				for i, m := range msgs {
					assert.That(t, i <= 0 || m.Topic == msgs[i-1].Topic || !topics[m.Topic],
						"the messages of %s are not next to each other", m.Topic)
					topics[m.Topic] = true
				}
				assert.That(t, len(msgs) <= 1000 && len(topics) <= 256,
					"a request of %d messages and %d topics", len(msgs), len(topics))
				return nil
			}, OnLane: func(context.Context, int, transport.LaneRequest) (transport.Lane, error) {
				return transport.Lane{Endpoint: "a:1", MaxMessages: 1000, MaxBytes: 1 << 20, Topics: true}, nil
			}}
			p := newProducer(t, f, producer.Options{})
			msgs := topicMessages(600, 3)
			for i, r := range sendBy(t.Context(), p, entry, msgs...) {
				if r.Err != nil || r.Receipt.MessageID != msgs[i].ID || r.Receipt.Topic != msgs[i].Topic || r.Receipt.Attempts != 1 {
					t.Fatalf("message %d: %+v", i, r)
				}
			}
			n := len(f.Calls("Send"))
			assert.That(t, n <= 20, "%d requests for 600 topics", n)
		})
	}
}

// A topic that the server throttles, and one that it rejects, do not delay the topics that share
// their requests, although the server does not respond to a request for its settings.
func TestThrottledTopicDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var from atomic.Pointer[time.Time] // of the throttle
		f := &transporttest.Fake{OnSend: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			began, throttledAt := time.Now(), from.Load()
			sleepFor(ctx, 10*time.Millisecond)
			errs := make([]error, len(msgs))
			for i, m := range msgs {
				now := time.Now()
				switch {
				case m.Topic == "t0" && from.CompareAndSwap(nil, &now):
					errs[i] = throttled(2 * time.Second)
				case m.Topic == "t0" && throttledAt != nil && began.Sub(*throttledAt) < 2*time.Second:
					t.Errorf("a request of the throttled topic after %v", began.Sub(*throttledAt))
				case m.Topic == "t1":
					errs[i] = codeError(tidegate.CodeForbidden)
				}
			}
			return errs
		}, OnProducerSettings: func(ctx context.Context, _ int, _ string) (transport.ProducerSettings, error) {
			return transport.ProducerSettings{}, fmt.Errorf("settings: %w", blackHole(ctx))
		}}
		p := newProducer(t, f, producer.Options{})
		var wg sync.WaitGroup
		for range 20 {
			for _, m := range topicMessages(10, 1) {
				wg.Go(func() {
					start := time.Now()
					r, err := p.Send(t.Context(), m)
					switch took := time.Since(start); m.Topic {
					case "t0":
						assert.That(t, err == nil && (took >= 2*time.Second || r.Attempts <= 1),
							"the throttled topic: %+v, %v after %v", r, err, took)
					case "t1":
						if e := sendError(t, err); e.Reason != producer.StopPermanent || !errors.Is(err, tidegate.ErrForbidden) {
							t.Errorf("the rejected topic: %v", err)
						}
					default:
						assert.That(t, err == nil && r.Attempts == 1 && took <= 40*time.Millisecond,
							"%s: %+v, %v after %v", m.Topic, r, err, took)
					}
				})
			}
			time.Sleep(7 * time.Millisecond)
		}
		wg.Wait()
	})
}

// Messages leave a shared request at the end of their own ctx. The request is cancelled when all of
// them have left.
func TestLeavingASharedRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var cancelled []time.Duration
		start := time.Now()
		f := &transporttest.Fake{OnSend: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
			err := blackHole(ctx)
			mu.Lock()
			cancelled = append(cancelled, time.Since(start))
			mu.Unlock()
			return all(len(msgs), fmt.Errorf("send: %w", err))
		}}
		p := newProducer(t, f, producer.Options{AttemptTimeout: time.Hour})
		var wg sync.WaitGroup
		for i, m := range topicMessages(10, 2) {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				ends := time.Duration(1+i%10) * time.Second // of both messages of a topic
				defer time.AfterFunc(ends, cancel).Stop()
				_, err := p.Send(ctx, m)
				if e := sendError(t, err); e.Reason != producer.StopContext || !e.MaybeStored || time.Since(start) != ends {
					t.Errorf("message %d: %+v after %v, want the end of its ctx after %v", i, e, time.Since(start), ends)
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		if last := slices.Max(cancelled); last != 10*time.Second || len(f.Calls("Send")) > 4 {
			t.Errorf("%d requests were cancelled after %v", len(f.Calls("Send")), cancelled)
		}
	})
}

// Lost responses of a server delay the messages of other topics by at most 100 ms.
func TestLostResponsesDelayOtherTopicsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transporttest.Fake{OnSend: func(ctx context.Context, n int, _ transport.Lane, msgs []*tidegate.Message) []error {
			if n <= 2 {
				return all(len(msgs), fmt.Errorf("send: %w", blackHole(ctx)))
			}
			sleepFor(ctx, time.Millisecond)
			return nil
		}}
		p := newProducer(t, f, producer.Options{MaxAttempts: 1})
		var wg sync.WaitGroup
		for i, m := range topicMessages(100, 1) {
			wg.Go(func() {
				start := time.Now()
				_, err := p.Send(t.Context(), m)
				if took := time.Since(start); i < 2 != (err != nil) || i >= 2 && took > 102*time.Millisecond {
					t.Errorf("%s: %v after %v", m.Topic, err, took)
				}
			})
			time.Sleep(10 * time.Millisecond)
		}
		wg.Wait()
	})
}

// A server throttles at random, for example because other clients keep its queue full. It accepts
// nearly as many messages as the backoff of each message allows: the pauses of the lane cost
// little.
func TestBusyServerAcceptsWhatTheBackoffAllows(t *testing.T) {
	length := time.Duration(min(5, 2*model.Rounds(5))) * time.Minute
	const (
		senders = 16
		pause   = 500 * time.Millisecond // of a sender, after each send
		trip    = 3 * time.Millisecond   // of a throttled attempt
	)
	short := backoff.Exponential{Initial: 10 * time.Millisecond, Multiplier: 2, Max: time.Second}
	for _, c := range []struct {
		accepts float64        // share of the attempts
		takes   time.Duration  // of an accepted attempt
		policy  backoff.Policy // of the messages
		first   float64        // its first delay in seconds
		second  float64
		atLeast float64 // of the rate that the backoff allows
	}{
		{accepts: .1, takes: trip, first: 1, second: 1.6, atLeast: .75},
		{accepts: .2, takes: trip, first: 1, second: 1.6, atLeast: .8},
		{accepts: .5, takes: trip, first: 1, second: 1.6, atLeast: .9},
		{accepts: .8, takes: trip, first: 1, second: 1.6, atLeast: .95},
		// The queue of the server is full, so an accepted message waits in it.
		{accepts: .2, takes: 100 * time.Millisecond, first: 1, second: 1.6, atLeast: .7},
		{accepts: .2, takes: 100 * time.Millisecond, policy: short, first: .01, second: .02, atLeast: .7},
		{accepts: .2, takes: 500 * time.Millisecond, policy: short, first: .01, second: .02, atLeast: .7},
	} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			random := rand.New(rand.NewPCG(1, 2))
			attempts, accepted, failed := 0, 0, 0
			f := &transporttest.Fake{OnSend: func(ctx context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
				mu.Lock()
				attempts++
				accept := random.Float64() < c.accepts
				mu.Unlock()
				if accept {
					sleepFor(ctx, c.takes)
					return nil
				}
				sleepFor(ctx, trip)
				return all(len(msgs), throttled(0))
			}}
			f.OnLane = one
			p := newProducer(t, f, producer.Options{Backoff: c.policy})
			start := time.Now()
			var sending sync.WaitGroup
			for range senders {
				sending.Go(func() {
					for time.Since(start) < length {
						_, err := p.Send(context.Background(), &tidegate.Message{Topic: "orders", Body: []byte("x")})
						mu.Lock()
						if err == nil {
							accepted++
						} else {
							failed++
						}
						mu.Unlock()
						time.Sleep(pause)
					}
				})
			}
			sending.Wait()

			// A sender alone: three attempts at most, and the delays between them.
			refuses := 1 - c.accepts
			succeeds := 1 - refuses*refuses*refuses
			cycle := pause.Seconds() + trip.Seconds()*(refuses+refuses*refuses+refuses*refuses*refuses) + c.takes.Seconds()*succeeds +
				refuses*c.first + refuses*refuses*c.second
			allowed := senders * length.Seconds() / cycle * succeeds
			t.Logf("accepts %.0f %% in %v: %d messages accepted of %.0f, %d failed, %d attempts", 100*c.accepts, c.takes, accepted, allowed, failed, attempts)
			if float64(accepted) < c.atLeast*allowed {
				t.Errorf("a server that accepts %.0f %% of the attempts accepted %d messages; the backoff allows %.0f", 100*c.accepts, accepted, allowed)
			}
		})
	}
}
