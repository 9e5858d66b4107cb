package pulsar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

// inBubble runs a test in virtual time, with a topic orders that has the subscription billing. At
// its end the transport is closed and has neither producers, consumers nor goroutines.
func inBubble(t *testing.T, o Options, run func(t *testing.T, s *fakeServer, c *Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer(t)
		s.subscribe("orders", "billing")
		c := newFakeTransport(t, s, o)
		t.Cleanup(func() {
			assert.NoError(t, c.Close())
			s.mustBeIdle()
		})
		run(t, s, c)
	})
}

func message(body string) *tidegate.Message {
	return &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "orders", Body: []byte(body)}
}

func ordered(group, body string) *tidegate.Message {
	m := message(body)
	m.MessageGroup = group
	return m
}

func send(ctx context.Context, c *Client, body string) error {
	return c.Send(ctx, []*tidegate.Message{message(body)})[0].Err
}

func mustSend(t *testing.T, c *Client, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		assert.Must(t, send(t.Context(), c, body), "send %s", body)
	}
}

// An expected is the expectation for an error of the transport.
type expected struct {
	class        tidegate.Class
	code         tidegate.Code
	maybeStored  bool
	notConnected bool
}

// observed returns the values of an error, and whether it is a *tidegate.Error.
func observed(err error) (expected, bool) {
	e, ok := errors.AsType[*tidegate.Error](err)
	if !ok {
		return expected{}, false
	}
	return expected{tidegate.Classify(err), e.Code, e.MaybeStored, e.NotConnected}, true
}

func (want expected) matches(err error) bool {
	got, ok := observed(err)
	return ok && got == want
}

func (want expected) check(t *testing.T, what string, err error) {
	t.Helper()
	got, ok := observed(err)
	assert.That(t, ok && got == want, "%s: %+v, want %+v: %v", what, got, want, err)
}

func wantBodies(t *testing.T, s *fakeServer, want ...string) {
	t.Helper()
	assert.Slices(t, "stored bodies", s.bodies("orders"), want)
}

// A backlog quota throttles sends within 1.2 s, and lets them through within 1.5 s after it has
// room again, with attempts every 200 ms and with the client's longest interval between two
// attempts to connect.
func TestQuotaThrottles(t *testing.T) {
	for _, policy := range []string{blocked, onHold} {
		for _, interval := range []time.Duration{100 * time.Millisecond, time.Minute} {
			inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
				s.policy, s.reconnect = policy, interval
				mustSend(t, c, "0", "1")
				s.with(func(s *fakeServer) { s.quota = 2 })
				s.checkQuota()
				start := time.Now()
				err := send(t.Context(), c, "x")
				for !errors.Is(err, tidegate.ErrThrottled) && time.Since(start) < 1200*time.Millisecond {
					time.Sleep(200 * time.Millisecond)
					err = send(t.Context(), c, "x")
				}
				assert.MustThat(t, time.Since(start) < 1200*time.Millisecond, "%s, %v: throttled after %v: %v", policy, interval, time.Since(start), err)
				for range 10 {
					err := send(t.Context(), c, "y")
					expected{class: tidegate.ClassThrottled, code: tidegate.CodeTooManyRequests}.check(t, "send at the quota", err)
					assert.MustIs(t, "send at the quota", err, tidegate.ErrThrottled)
					e, _ := errors.AsType[*tidegate.Error](err)
					assert.Equal(t, "reply code", e.ReplyCode(), 530)
					time.Sleep(200 * time.Millisecond)
				}
				s.clear("orders")
				start = time.Now()
				for send(t.Context(), c, "z") != nil {
					assert.MustThat(t, time.Since(start) < 1500*time.Millisecond, "no recovery after %v", time.Since(start))
					time.Sleep(200 * time.Millisecond)
				}
				time.Sleep(time.Hour)
				wantBodies(t, s, "0", "1", "z")
			})
		}
	}
}

// A quota that is reached before the first send throttles it. A crowd of sends asks the server once
// every 200 ms, and not once each.
func TestQuotaBeforeTheFirstSend(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		s.put("orders", toPulsar(message("0"), "", time.Now()))
		s.with(func(s *fakeServer) { s.quota = 1 })
		start := time.Now()
		for range 100 {
			expected{class: tidegate.ClassThrottled, code: tidegate.CodeTooManyRequests}.check(t, "first send", send(t.Context(), c, "x"))
			time.Sleep(10 * time.Millisecond)
		}
		most := int(time.Since(start)/(200*time.Millisecond)) + 1
		assert.That(t, s.number(&s.asked) <= most, "asked for %d producers in %v, want at most %d", s.number(&s.asked), time.Since(start), most)
		assert.That(t, s.number(&s.asked) >= 4, "asked for %d producers in %v, which delays the recovery", s.number(&s.asked), time.Since(start))
		s.clear("orders")
		time.Sleep(200 * time.Millisecond)
		mustSend(t, c, "1")
		wantBodies(t, s, "0", "1")
	})
}

// A send in flight may be stored when the quota closes the producer. The server has then not
// refused it.
func TestQuotaDuringASend(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		mustSend(t, c, "0")
		s.with(func(s *fakeServer) { s.response, s.quota = 500*time.Millisecond, 1 })
		time.AfterFunc(200*time.Millisecond, s.checkQuota)
		start := time.Now()
		err := send(t.Context(), c, "1")
		assert.Equal(t, "time of the send", time.Since(start), 300*time.Millisecond) // 100 ms for a late response
		expected{class: tidegate.ClassTransient, maybeStored: true}.check(t, "send in flight", err)
		assert.That(t, !errors.Is(err, tidegate.ErrThrottled), "the send in flight is throttled, which promises that it is not stored: %v", err)
		expected{class: tidegate.ClassThrottled, code: tidegate.CodeTooManyRequests}.check(t, "next send", send(t.Context(), c, "2"))
	})
}

// The response to a send whose ctx has ended may come for 100 ms. Then the producer is closed, and
// the message is not stored later, whatever the client has done with it.
func TestEndedContext(t *testing.T) {
	for _, unwritten := range []bool{false, true} {
		for _, closeTime := range []time.Duration{0, 3 * time.Second} {
			inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
				mustSend(t, c, "0")
				s.with(func(s *fakeServer) { s.response, s.unwritten, s.closeTime = 5*time.Second, unwritten, closeTime })
				enough := errors.New("enough")
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, enough)
				defer cancel()
				start := time.Now()
				err := send(ctx, c, "1")
				took := time.Since(start)
				assert.That(t, took >= time.Second && took <= 1100*time.Millisecond, "the attempt ended after %v, want 1 s to 1.1 s", took)
				expected{class: tidegate.ClassTransient, maybeStored: true}.check(t, "ended send", err)
				assert.Is(t, "ended send", err, enough)
				time.Sleep(time.Hour)
				wantBodies(t, s, "0")
				s.with(func(s *fakeServer) { s.response, s.unwritten = 0, false })
				mustSend(t, c, "2")
				wantBodies(t, s, "0", "2")
			})
		}
	}
}

// A rejection that the client only logs is in the error of a send that gets no response, if it came
// meanwhile.
func TestLoggedRejection(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		mustSend(t, c, "0")
		s.with(func(s *fakeServer) { s.response = time.Hour })
		reject := func(text string) {
			clientLogger{faults: c.faults}.Warnf("Received send error from server: [%v] : [%s]", "NotAllowedError", text)
		}
		reject("of another send")
		time.Sleep(time.Millisecond)
		time.AfterFunc(time.Second, func() { reject("Exceed maximum message size") })
		err := send(t.Context(), c, "1")
		expected{class: tidegate.ClassTransient, maybeStored: true}.check(t, "rejected send", err)
		assert.Contains(t, "rejected send", err.Error(), "did not respond in time", "Exceed maximum message size")
		err = send(t.Context(), c, "2")
		assert.That(t, !strings.Contains(err.Error(), "Exceed"), "a later send: %v", err)
	})
}

// A send without a deadline ends after RequestTimeout, and one with a later deadline does not.
func TestRequestTimeout(t *testing.T) {
	inBubble(t, Options{RequestTimeout: 2 * time.Second}, func(t *testing.T, s *fakeServer, c *Client) {
		mustSend(t, c, "0")
		s.with(func(s *fakeServer) { s.response = 10 * time.Second })
		start := time.Now()
		err := send(t.Context(), c, "1")
		assert.Equal(t, "time of the attempt", time.Since(start), 2100*time.Millisecond)
		expected{class: tidegate.ClassTransient, maybeStored: true}.check(t, "send", err)
		assert.Is(t, "send", err, tidegate.ErrUnavailable)
		ctx, cancel := context.WithTimeout(t.Context(), 11*time.Second)
		defer cancel()
		assert.NoError(t, send(ctx, c, "2"), "send with a deadline")
		wantBodies(t, s, "0", "2")
	})
}

// The end of one ctx does not harm the other sends of a producer whose server responds.
func TestEndedContextHarmsNoOther(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		mustSend(t, c, "0")
		s.with(func(s *fakeServer) { s.response = 80 * time.Millisecond })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				ctx := ctx
				if i > 0 {
					ctx = t.Context()
				}
				assert.NoError(t, send(ctx, c, "x"), "send %d", i)
			})
		}
		wg.Wait()
		assert.Equal(t, "producers", s.number(&s.created), 1)
		assert.Equal(t, "stored messages", len(s.bodies("orders")), 11)
	})
}

// The sends in flight of a producer without responses end with it: a written one may be stored, and
// one that the client has not written is not.
func TestEndedContextEndsTheGeneration(t *testing.T) {
	for _, unwritten := range []bool{false, true} {
		inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
			mustSend(t, c, "0")
			s.with(func(s *fakeServer) { s.response, s.unwritten = time.Hour, unwritten })
			var wg sync.WaitGroup
			wg.Go(func() {
				start := time.Now()
				err := send(t.Context(), c, "1")
				assert.Equal(t, "end of the other send", time.Since(start), 600*time.Millisecond)
				expected{class: tidegate.ClassTransient, maybeStored: !unwritten, notConnected: unwritten}.check(t, "other send", err)
			})
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			expected{class: tidegate.ClassTransient, maybeStored: true}.check(t, "ended send", send(ctx, c, "2"))
			wg.Wait()
			wantBodies(t, s, "0")
		})
	}
}

// While the server is away, sends fail with NotConnected, and those that wait for a connection
// succeed at its return, each stored once.
func TestServerAway(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		s.away = true
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				assert.NoError(t, send(transport.AwaitConnection(t.Context()), c, fmt.Sprint(i)), "waiting send")
			})
		}
		for range 60 {
			start := time.Now()
			expected{class: tidegate.ClassTransient, notConnected: true}.check(t, "send without a server", send(t.Context(), c, "x"))
			assert.That(t, time.Since(start) <= 3100*time.Millisecond, "send without a server took %v", time.Since(start))
			time.Sleep(time.Minute - time.Since(start))
		}
		assert.That(t, s.number(&s.asked) <= 3600, "asked for %d producers in an hour", s.number(&s.asked))
		s.comeBack()
		start := time.Now()
		wg.Wait()
		assert.That(t, time.Since(start) <= 1500*time.Millisecond, "the waiting sends took %v", time.Since(start))
		got := s.bodies("orders")
		slices.Sort(got)
		var want []string
		for i := range 20 {
			want = append(want, fmt.Sprint(i))
		}
		slices.Sort(want)
		assert.Slices(t, "stored bodies", got, want)
		expected{class: tidegate.ClassCancelled}.check(t, "cancelled send", func() error {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return send(ctx, c, "x")
		}())
	})
}

// A producer and a consumer outlive an hour without a server: each message is stored once, and
// handled.
func TestProgramsOutliveAnHour(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		p := assert.Value(producer.New(c, producer.Options{}))(t)
		handled := make(chan string, 100)
		push := assert.Value(consumer.NewPush(c, consumer.Subscription{Group: "billing", Topic: "orders"}, func(_ context.Context, d *tidegate.Delivery) error {
			handled <- string(d.Body)
			return nil
		}, consumer.PushOptions{}))(t)
		ctx, stop := context.WithCancel(t.Context())
		var programs, sends sync.WaitGroup
		programs.Go(func() { assert.NoError(t, push.Run(ctx)) })
		send := func(body string) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
			defer cancel()
			assert.NoError(t, assert.Err(p.Send(ctx, message(body))), "send %s", body)
		}
		want := []string{"0"}
		send("0")
		assert.Equal(t, "handled", <-handled, "0")
		synctest.Wait() // for its acknowledgement
		s.disconnect(true)
		for i := 1; i <= 9; i++ {
			want = append(want, fmt.Sprint(i))
			sends.Go(func() { send(fmt.Sprint(i)) })
		}
		time.Sleep(time.Hour)
		s.comeBack()
		back := time.Now()
		sends.Wait()
		got := []string{"0"}
		for range 9 {
			got = append(got, <-handled)
		}
		assert.That(t, time.Since(back) <= 15*time.Second, "the programs went on %v after the return of the server", time.Since(back))
		slices.Sort(got)
		assert.Slices(t, "handled bodies", got, want)
		got = s.bodies("orders")
		slices.Sort(got)
		assert.Slices(t, "stored bodies", got, want)
		stop()
		programs.Wait()
		assert.NoError(t, p.Close())
		assert.Equal(t, "messages that are not acknowledged", len(s.kept("orders", "billing")), 0)
	})
}

// At whatever time the server returns, the waiting sends go on within 1.5 s.
func TestWaitingSendsResume(t *testing.T) {
	for i := range 20 {
		inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
			s.away = true
			var back time.Time
			time.AfterFunc(time.Minute+time.Duration(i)*500*time.Millisecond, func() {
				back = time.Now()
				s.comeBack()
			})
			assert.NoError(t, send(transport.AwaitConnection(t.Context()), c, "x"))
			assert.That(t, time.Since(back) <= 1500*time.Millisecond, "the send took %v after the return of the server", time.Since(back))
		})
	}
}

// A send that comes too late for its producer does not reach the client, which would panic.
func TestSendAfterTheEnd(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		for i := range 100 {
			g, e := c.sender(namespace + "orders").generation(t.Context())
			assert.MustThat(t, e == nil, "generation: %v", e)
			var wg sync.WaitGroup
			wg.Go(g.retire)
			var result *tidegate.Error
			wg.Go(func() {
				if i%2 == 0 {
					synctest.Wait() // for the end of the producer
				}
				result = g.send(toPulsar(message("x"), "", time.Now())).wait(t.Context(), c.faults)
			})
			wg.Wait()
			assert.That(t, result != nil || i%2 == 1, "a send to a closed producer succeeded")
			if result != nil && !result.MaybeStored {
				expected{class: tidegate.ClassTransient, notConnected: true}.check(t, "late send", result)
			}
		}
	})
}

// A send that waits for a connection ends with its ctx, whose cause it has.
func TestWaitingSendEnds(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		s.away = true
		enough := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(transport.AwaitConnection(t.Context()), 10*time.Second, enough)
		defer cancel()
		start := time.Now()
		err := send(ctx, c, "x")
		assert.Equal(t, "end of the wait", time.Since(start), 10*time.Second)
		expected{class: tidegate.ClassTransient, notConnected: true}.check(t, "waiting send", err)
		assert.Is(t, "waiting send", err, enough)
		s.comeBack()
		time.Sleep(time.Minute)
		wantBodies(t, s)
	})
}

// Close ends the calls that wait for a connection, also between two attempts to connect.
func TestCloseEndsWaitingCalls(t *testing.T) {
	for _, after := range []time.Duration{time.Second, 3500 * time.Millisecond} { // an attempt takes 3 s
		inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
			s.away = true
			time.AfterFunc(after, func() { c.Close() })
			assert.Is(t, "Ping", c.Ping(t.Context(), "orders"), tidegate.ErrClosed)
		})
		inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
			s.away = true
			time.AfterFunc(after, func() { c.Close() })
			assert.Is(t, "Send", send(transport.AwaitConnection(t.Context()), c, "x"), tidegate.ErrClosed)
		})
	}
}

// A send in flight when the connection breaks may be stored. The client does not send it again, and
// the next send has a new producer.
func TestLostConnection(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		s.reconnect = time.Second
		mustSend(t, c, "0")
		s.with(func(s *fakeServer) { s.response, s.closeTime = 500*time.Millisecond, 2*time.Second })
		time.AfterFunc(200*time.Millisecond, func() { s.disconnect(true) })
		err := send(t.Context(), c, "1")
		expected{class: tidegate.ClassTransient, maybeStored: true}.check(t, "send in flight", err)
		expected{class: tidegate.ClassTransient, notConnected: true}.check(t, "send without a connection", send(t.Context(), c, "2"))
		s.comeBack()
		mustSend(t, c, "3")
		time.Sleep(time.Hour)
		wantBodies(t, s, "0", "3")
		assert.Equal(t, "producers", s.number(&s.created), 2)
	})
}

// The producer of a lost connection stays open while the client passes on responses that it has
// read, and a message with such a response is stored. New sends do not wait for that.
func TestResponsesAfterALostConnection(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		mustSend(t, c, "0")
		s.with(func(s *fakeServer) { s.response, s.unread = time.Second, 90*time.Millisecond })
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() { assert.NoError(t, send(t.Context(), c, "x"), "send %d", i) })
		}
		synctest.Wait()
		s.disconnect(false)
		s.with(func(s *fakeServer) { s.response, s.unread = 0, 0 })
		synctest.Wait()
		start := time.Now()
		mustSend(t, c, "1")
		assert.Equal(t, "time of a new send", time.Since(start), 0)
		wg.Wait()
		assert.Equal(t, "stored messages", len(s.bodies("orders")), 12)
	})
}

// Close ends the sends in flight, those that wait for a producer, a connection or memory, and later
// ones.
func TestCloseEndsSends(t *testing.T) {
	closed := expected{class: tidegate.ClassCancelled}
	for what, c := range map[string]struct {
		prepare func(s *fakeServer)
		maybe   bool
	}{
		"in flight":        {func(s *fakeServer) { s.response = time.Hour }, true},
		"unwritten":        {func(s *fakeServer) { s.unwritten = true }, false},
		"creates producer": {func(s *fakeServer) { s.openTime = 2 * time.Second }, false},
		"not connected":    {func(s *fakeServer) { s.away = true }, false},
	} {
		inBubble(t, Options{}, func(t *testing.T, s *fakeServer, client *Client) {
			s.with(c.prepare)
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					err := send(transport.AwaitConnection(t.Context()), client, "x")
					want := closed
					want.maybeStored = c.maybe
					want.check(t, what, err)
					assert.Is(t, what, err, tidegate.ErrClosed)
				})
			}
			time.Sleep(time.Second)
			start := time.Now()
			assert.NoError(t, client.Close())
			assert.That(t, time.Since(start) <= 3100*time.Millisecond, "%s: Close took %v", what, time.Since(start))
			wg.Wait()
			err := send(t.Context(), client, "x")
			closed.check(t, "send after Close", err)
			assert.Is(t, "send after Close", err, tidegate.ErrClosed)
			s.comeBack()
			time.Sleep(time.Hour)
			wantBodies(t, s)
		})
	}
}

// A message of a message group is sent after the one before is stored. After a transient failure no
// later one of the call is sent, and other groups are not affected.
func TestMessageGroups(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		mustSend(t, c, "0")
		s.with(func(s *fakeServer) { s.response = 100 * time.Millisecond })
		time.AfterFunc(150*time.Millisecond, func() { s.disconnect(false) })
		results := c.Send(t.Context(), []*tidegate.Message{ordered("a", "a0"), ordered("a", "a1"), ordered("a", "a2"), ordered("a", "a3"), ordered("b", "b0"), message("c0")})
		for i, want := range []expected{
			{}, {class: tidegate.ClassTransient, maybeStored: true}, {class: tidegate.ClassTransient, code: tidegate.CodeInternalServerError},
			{class: tidegate.ClassTransient, code: tidegate.CodeInternalServerError}, {}, {},
		} {
			if want == (expected{}) {
				assert.NoError(t, results[i].Err, "message %d", i)
			} else {
				want.check(t, fmt.Sprint("message ", i), results[i].Err)
			}
		}
		time.Sleep(time.Minute)
		got := s.bodies("orders")
		slices.Sort(got)
		assert.Slices(t, "stored bodies", got, []string{"0", "a0", "b0", "c0"})
	})
}

// After a permanent failure, which another attempt would have too, the later messages of a group
// are sent.
func TestMessageGroupAfterAPermanentFailure(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		s.maximum = 1000
		results := c.Send(t.Context(), []*tidegate.Message{ordered("a", strings.Repeat("x", 2000)), ordered("a", "a1"), ordered("a", "a2")})
		expected{class: tidegate.ClassPermanent, code: tidegate.CodeMessageBodyTooLarge}.check(t, "too large", results[0].Err)
		assert.Must(t, errors.Join(results[1].Err, results[2].Err))
		wantBodies(t, s, "a1", "a2")
		assert.Equal(t, "producers", s.number(&s.created), 1) // the fault is the message's
	})
}

// In flight are at most 64 MiB, with the messages of a call and with those of several calls.
func TestMemoryBound(t *testing.T) {
	for _, calls := range []int{1, 40} {
		inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
			s.response = time.Second
			body := string(bytes.Repeat([]byte("x"), 2<<20))
			var wg sync.WaitGroup
			for range calls {
				var list []*tidegate.Message
				for range 40 / calls {
					list = append(list, message(body))
				}
				wg.Go(func() {
					for i, r := range c.Send(t.Context(), list) {
						assert.NoError(t, r.Err, "message %d", i)
					}
				})
			}
			time.Sleep(500 * time.Millisecond)
			flight := 0
			s.with(func(s *fakeServer) {
				for p := range s.producers {
					flight += len(p.pending)
				}
			})
			assert.That(t, flight >= 30 && flight <= 32, "%d messages of 2 MiB are in flight, want 30 to 32", flight)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			expected{class: tidegate.ClassTransient}.check(t, "send without memory", send(ctx, c, body))
			wg.Wait()
			assert.Equal(t, "stored messages", len(s.bodies("orders")), 40)
		})
	}
}

// A producer without sends is closed, so that a program which sends to many topics in turn does not
// keep a producer for each of them. The next send creates another one.
func TestIdleProducers(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		for i := range 20 {
			m := message("x")
			m.Topic = fmt.Sprint("topic", i)
			assert.Must(t, c.Send(t.Context(), []*tidegate.Message{m})[0].Err)
		}
		for range 12 {
			mustSend(t, c, "x")
			time.Sleep(time.Minute)
		}
		s.with(func(s *fakeServer) { assert.Equal(t, "open producers", len(s.producers), 1) })
		assert.Equal(t, "producers", s.number(&s.created), 21)
		m := message("x")
		m.Topic = "topic0"
		assert.NoError(t, c.Send(t.Context(), []*tidegate.Message{m})[0].Err)
		assert.Equal(t, "producers", s.number(&s.created), 22)
	})
}

// A twice is a producer whose callbacks are called twice.
type twice struct {
	pulsar.Producer
	again []func()
}

func (p *twice) SendAsync(_ context.Context, m *pulsar.ProducerMessage, f func(pulsar.MessageID, *pulsar.ProducerMessage, error)) {
	f(nil, m, nil)
	p.again = append(p.again, func() { f(nil, m, pulsar.ErrProducerClosed) })
}

// The second call of a callback, after the end of its send, changes nothing.
func TestRepeatedCallback(t *testing.T) {
	producer := &twice{}
	g := &generation{producer: producer}
	p := g.send(&pulsar.ProducerMessage{})
	assert.NoError(t, <-p.reply)
	producer.again[0]()
	assert.Equal(t, "sends in flight", g.flight.Load(), 0)
	assert.Equal(t, "further replies", len(p.reply), 0)
}

// A crowd of first sends has one producer.
func TestOneProducer(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, s *fakeServer, c *Client) {
		s.openTime = time.Second
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { assert.NoError(t, send(t.Context(), c, "x")) })
		}
		wg.Wait()
		assert.Equal(t, "requests for a producer", s.number(&s.asked), 1)
		for p := range s.producers {
			assert.That(t, p.options.DisableBatching, "the producer batches without Options.Batching")
		}
	})
}

// A batch has the messages that were sent while the one before was on its way. None waits for the
// 10 ms after which the client writes a batch.
func TestBatchesDoNotWait(t *testing.T) {
	inBubble(t, Options{Batching: true}, func(t *testing.T, s *fakeServer, c *Client) {
		s.response = 4 * time.Millisecond
		timed := func() time.Duration {
			begin := time.Now()
			assert.NoError(t, send(t.Context(), c, "x"))
			return time.Since(begin)
		}
		for range 3 {
			assert.Equal(t, "time of a send alone", timed(), 4*time.Millisecond)
		}
		time.Sleep(20 * time.Millisecond) // the client's own writes of a batch are over
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { timed() })
		time.Sleep(time.Millisecond)
		for range 5 {
			wg.Go(func() { assert.Equal(t, "time of a send after 1 ms of another", timed(), 7*time.Millisecond) })
		}
	})
}

// Sends never reach a producer that is closed, although connections break all the time; the client
// would panic. A failed send is stored only if its error says so.
func TestSendsDuringDisconnects(t *testing.T) {
	for _, batching := range []bool{false, true} {
		t.Run(fmt.Sprint("batching ", batching), func(t *testing.T) { testSendsDuringDisconnects(t, batching) })
	}
}

func testSendsDuringDisconnects(t *testing.T, batching bool) {
	t.Helper()
	inBubble(t, Options{Batching: batching}, func(t *testing.T, s *fakeServer, c *Client) {
		s.response, s.reconnect = 3*time.Millisecond, time.Millisecond
		var wg sync.WaitGroup
		var mu sync.Mutex
		ended := map[string]time.Time{} // the attempts that failed for certain
		for g := range 8 {
			wg.Go(func() {
				for i := range 200 {
					body := fmt.Sprint(g, "-", i)
					err := send(t.Context(), c, body)
					if e, ok := errors.AsType[*tidegate.Error](err); ok && !e.MaybeStored {
						mu.Lock()
						ended[body] = time.Now()
						mu.Unlock()
					}
				}
			})
		}
		done := make(chan struct{})
		go func() {
			wg.Wait()
			close(done)
		}()
		for open := true; open; {
			select {
			case <-done:
				open = false
			case <-time.After(7 * time.Millisecond):
				s.disconnect(false)
			}
		}
		time.Sleep(time.Minute)
		stored := s.bodies("orders")
		for body := range ended {
			assert.That(t, !slices.Contains(stored, body), "%s is stored, and its error denies that", body)
		}
		slices.Sort(stored)
		assert.Equal(t, "messages stored twice", len(stored), len(slices.Compact(slices.Clone(stored))))
		assert.That(t, s.number(&s.created) > 20, "%d producers, which tests nothing", s.number(&s.created))
	})
}

// The client reports the quota for messages that it has written too, so they may be stored.
func TestQuotaErrorOfAWrittenMessage(t *testing.T) {
	f := newFaults(slog.New(slog.DiscardHandler), "pulsar:6650")
	p := pending{gen: &generation{end: make(chan struct{})}}
	e := p.result(errors.Join(pulsar.ErrProducerBlockedQuotaExceeded, errors.New("server error: "+blocked+": Cannot create producer")), f)
	expected{class: tidegate.ClassTransient, maybeStored: true}.check(t, "written message", e)
	assert.That(t, !p.gen.usable(), "the producer is used after its failed send")
	p = pending{gen: &generation{end: make(chan struct{})}}
	e = p.result(pulsar.ErrSendQueueIsFull, f)
	expected{class: tidegate.ClassThrottled, code: tidegate.CodeTooManyRequests}.check(t, "full queue", e)
	assert.That(t, p.gen.usable(), "the producer with a full queue is closed")
}
