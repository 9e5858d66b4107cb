package broker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// A streaming is a receive that goes on after its first messages.
type streaming struct {
	b     *broker.Broker
	parts [][]*tidegate.Delivery
	last  []*tidegate.Delivery
	err   error
	took  time.Duration
	done  chan struct{}
}

func streamRequest(change func(*engine.Request)) engine.Request {
	r := engine.Request{ReceiveRequest: transport.ReceiveRequest{
		Group: "g", Topic: "t", Queue: transport.AnyQueue, Max: 8, Wait: time.Minute, InvisibleDuration: time.Hour, AttemptID: "x",
	}}
	change(&r)
	return r
}

func stream(ctx context.Context, b *broker.Broker, change func(*engine.Request)) *streaming {
	s := &streaming{b: b, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		begin := time.Now()
		s.last, s.err = serve(b).Poll(ctx, streamRequest(func(r *engine.Request) {
			r.Stream = func(part []*tidegate.Delivery) (bool, error) {
				s.parts = append(s.parts, part)
				return true, nil
			}
			change(r)
		}))
		s.took = time.Since(begin)
	}()
	return s
}

// got returns the parts so far, and the last one after the end.
func (s *streaming) got() string {
	synctest.Wait()
	text := ""
	for _, p := range s.parts {
		text += "[" + idsOf(p) + "]"
	}
	select {
	case <-s.done:
		return fmt.Sprintf("%s%s in %v, %v", text, idsOf(s.last), s.took, s.err)
	default:
		return text
	}
}

func withStreams(t *testing.T, test func(t *testing.T, b *broker.Broker, send func(ids ...string))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		test(t, b, func(ids ...string) {
			t.Helper()
			var all []*tidegate.Message
			for _, id := range ids {
				all = append(all, &tidegate.Message{ID: id, Topic: "t", Body: make([]byte, 100)})
			}
			mustSend(t, b, all...)
		})
	})
}

// A receive with a Stream ends after its wait, or with the messages that bring it to half of its
// messages or bytes. Until then it returns each part when it is there.
func TestStream(t *testing.T) {
	keep := func(*engine.Request) {}
	for name, c := range map[string]struct {
		change func(*engine.Request)
		sends  [][]string // a second apart
		want   string
	}{
		"nothing":      {keep, nil, " in 1m0s, <nil>"},
		"parts":        {keep, [][]string{{"1"}, {"2", "3"}}, "[1/1][2/1 3/1] in 1m0s, <nil>"},
		"half":         {keep, [][]string{{"1"}, {"2", "3"}, {"4"}}, "[1/1][2/1 3/1]4/1 in 3s, <nil>"},
		"most at once": {keep, [][]string{{"1", "2", "3", "4"}}, "1/1 2/1 3/1 4/1 in 1s, <nil>"},
		"half of the bytes": {func(r *engine.Request) { r.MaxBytes = 300 }, [][]string{{"1"}, {"2"}},
			"[1/1]2/1 in 2s, <nil>"},
		"one message": {func(r *engine.Request) { r.Max = 1 }, [][]string{{"1"}}, "1/1 in 1s, <nil>"},
		"no wait":     {func(r *engine.Request) { r.Wait = 0 }, nil, " in 0s, <nil>"},
	} {
		t.Run(name, func(t *testing.T) {
			withStreams(t, func(t *testing.T, b *broker.Broker, send func(...string)) {
				s := stream(t.Context(), b, c.change)
				for _, ids := range c.sends {
					time.Sleep(time.Second)
					send(ids...)
					synctest.Wait()
				}
				<-s.done
				assert.Equal(t, "parts", s.got(), c.want)
			})
		})
	}
}

// A client that lost its connection repeats a receive, and says how many parts have arrived. The
// repetition ends the receive and returns the others, with new handles. The handles of the parts
// that arrived stay valid.
func TestRepeatedStream(t *testing.T) {
	for _, only := range []bool{false, true} {
		withStreams(t, func(t *testing.T, b *broker.Broker, send func(...string)) {
			s := stream(t.Context(), b, func(r *engine.Request) { r.Max = 32 })
			for _, id := range []string{"1", "2", "3"} {
				send(id)
				synctest.Wait()
			}
			assert.MustEqual(t, "parts", s.got(), "[1/1][2/1][3/1]")
			lost := s.parts[1][0]
			again := func(arrived int) string {
				ds, err := serve(b).Poll(t.Context(), streamRequest(func(r *engine.Request) { r.Arrived, r.Repeat = arrived, only }))
				return fmt.Sprintf("%s, %v", idsOf(ds), err)
			}
			assert.Equal(t, "the repetition", again(1), "2/1 3/1, <nil>")
			assert.Equal(t, "the receive", s.got(), "[1/1][2/1][3/1] in 0s, <nil>")
			assert.Is(t, "an old handle", b.Ack(t.Context(), []*tidegate.Delivery{lost})[0], tidegate.ErrInvalidHandle)
			assert.NoError(t, b.Ack(t.Context(), s.parts[0])[0], "the part that arrived")
			assert.Equal(t, "the repetition's response was lost too", again(1), "2/1 3/1, <nil>")
			if only {
				assert.Equal(t, "everything has arrived", again(2), ", <nil>")
			}
		})
	}
}

// The parts of one receive can have several sources: the topic and the group's retry topic. A
// repetition returns those of all.
func TestRepeatedStreamOfRetries(t *testing.T) {
	withStreams(t, func(t *testing.T, b *broker.Broker, send func(...string)) {
		assert.Must(t, assert.Err(b.PutGroup(t.Context(), "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})))
		send("first")
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 1, InvisibleDuration: time.Hour})
		assert.Must(t, assert.Err(serve(b).ReconsumeLater(t.Context(), ds[0], transport.Verdict{Kind: transport.RetryTopic, Delay: time.Second})))
		more := &notingEncoder{}
		s := stream(t.Context(), b, func(r *engine.Request) { r.Max, r.Encoder = 32, more })
		send("second")
		synctest.Wait()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.MustEqual(t, "parts", len(s.parts), 2)
		assert.Slices(t, "encoded as parts before others", *more, []bool{true, true})
		again, err := serve(b).Poll(t.Context(), streamRequest(func(r *engine.Request) { r.Repeat = true }))
		assert.That(t, err == nil && len(again) == 2, "the repetition returned %s, %v, want both messages", idsOf(again), err)
	})
}

// A client whose connection is dead does not read a part. The repetition on another connection does
// not wait for that, and returns the part.
func TestRepetitionOfABlockedStream(t *testing.T) {
	withStreams(t, func(t *testing.T, b *broker.Broker, send func(...string)) {
		blocked := make(chan struct{})
		s := stream(t.Context(), b, func(r *engine.Request) {
			r.Stream = func([]*tidegate.Delivery) (bool, error) { <-blocked; return true, nil }
		})
		send("1")
		synctest.Wait()
		begin := time.Now()
		ds, err := serve(b).Poll(t.Context(), streamRequest(func(r *engine.Request) { r.Repeat = true }))
		assert.That(t, err == nil && idsOf(ds) == "1/1" && time.Since(begin) == 0, "%s, %v after %v", idsOf(ds), err, time.Since(begin))
		close(blocked)
		<-s.done
		assert.That(t, len(s.last) == 0 && s.err == nil, "the receive returned %s, %v", idsOf(s.last), s.err)
		assert.NoError(t, b.Ack(t.Context(), ds)[0], "the repeated delivery")
		a, err := subscriptions(b)[0].Audit()
		assert.That(t, err == nil && a.Receiving == 0, "%d receives are left over, %v", a.Receiving, err)
	})
}

// A notingEncoder notes which parts are followed by others.
type notingEncoder []bool

func (n *notingEncoder) Prepare(_ []*tidegate.Delivery, more bool) { *n = append(*n, more) }

// The error of Stream and the end of the context end the receive. The messages of parts before stay
// in flight.
func TestStreamEnds(t *testing.T) {
	withStreams(t, func(t *testing.T, b *broker.Broker, send func(...string)) {
		broken := errors.New("the connection is broken")
		s := stream(t.Context(), b, func(r *engine.Request) {
			r.Stream = func([]*tidegate.Delivery) (bool, error) { return true, broken }
		})
		send("1")
		<-s.done
		assert.Is(t, "the receive", s.err, broken)
		ctx, cancel := context.WithCancel(t.Context())
		s = stream(ctx, b, func(r *engine.Request) { r.AttemptID = "y" })
		send("2")
		synctest.Wait()
		cancel()
		<-s.done
		assert.That(t, errors.Is(s.err, context.Canceled) && len(s.parts) == 1, "%s", s.got())
		send("3")
		expectMessages(t, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 8, InvisibleDuration: time.Minute}), "3/1")
		for _, arrived := range []int{-1, 1<<20 + 1} {
			_, err := serve(b).Poll(t.Context(), streamRequest(func(r *engine.Request) { r.Arrived = arrived }))
			assert.That(t, tidegate.Classify(err) == tidegate.ClassPermanent, "%d parts: %v", arrived, err)
		}
	})
}
