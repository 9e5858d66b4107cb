package conn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// sendTo returns a send of n messages to a topic.
func sendTo(topic string, n int) *wire.Sending {
	s := &wire.Sending{Encoder: &wire.Encoder{}, Topic: &rmqpb.Resource{Name: topic}}
	for i := range n {
		s.Messages = append(s.Messages, &tidegate.Message{ID: fmt.Sprint(topic, "-", i), Topic: topic, Body: []byte("x")})
	}
	return s
}

// A line takes requests, each for a time, and returns the ID of each message.
type line struct {
	takes  time.Duration
	before time.Duration // until the messages are encoded
	vary   *rand.Rand    // if set, a request takes up to takes longer

	mu       sync.Mutex
	requests [][]string // topics
	now      int        // requests under way
	most     int
}

// enter begins a request, and returns the time that it takes.
func (l *line) enter(topics ...string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, topics)
	l.now++
	l.most = max(l.most, l.now)
	if l.vary != nil {
		return l.takes + time.Duration(l.vary.Int64N(int64(l.takes)))
	}
	return l.takes
}

func (l *line) exit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now--
}

func answer(sends ...*wire.Sending) Combined {
	r := Combined{Response: &rmqpb.SendMessageResponse{}}
	for _, s := range sends {
		for _, m := range s.Messages {
			r.Response.Entries = append(r.Response.Entries, &rmqpb.SendResultEntry{MessageId: m.ID})
		}
	}
	return r
}

func (l *line) alone(s *wire.Sending) func() Combined {
	return func() Combined {
		defer l.exit()
		time.Sleep(l.enter(s.Topic.GetName()))
		return answer(s)
	}
}

func (l *line) together(ctx context.Context, req *wire.Sendings) Combined {
	if !wait(ctx, l.before) {
		return Combined{Err: &tidegate.Error{Err: context.Cause(ctx)}}
	}
	sends := req.Take()
	req.Encoded()
	var topics []string
	for _, s := range sends {
		topics = append(topics, s.Topic.GetName())
	}
	defer l.exit()
	if !wait(ctx, l.enter(topics...)) {
		return Combined{Err: &tidegate.Error{Err: context.Cause(ctx), MaybeStored: true}}
	}
	return answer(sends...)
}

func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Two requests go alone. The others share the next one, and each gets its own entries.
func TestSendsShareARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &line{takes: 10 * time.Millisecond}
		c := NewCombiner(time.Second, l.together)
		var sending sync.WaitGroup
		for i := range 10 {
			sending.Go(func() {
				time.Sleep(time.Duration(i) * time.Microsecond) // in order
				s := sendTo(fmt.Sprint("t", i), 1+i%3)
				out := c.Send(t.Context(), s, l.alone(s))
				if len(out.Response.GetEntries()) != 1+i%3 || out.Response.GetEntries()[0].GetMessageId() != s.Messages[0].ID {
					t.Errorf("topic %d has the entries %v", i, out.Response.GetEntries())
				}
			})
		}
		sending.Wait()
		want := [][]string{{"t0"}, {"t1"}, {"t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9"}}
		if !slices.EqualFunc(l.requests, want, slices.Equal) {
			t.Errorf("requests %v; want %v", l.requests, want)
		}
	})
}

// One topic with two requests under way sends as without a Combiner.
func TestOneTopicGoesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &line{takes: 10 * time.Millisecond}
		c := NewCombiner(time.Second, l.together)
		var sending sync.WaitGroup
		for range 2 {
			sending.Go(func() {
				for range 20 {
					s := sendTo("t", 5)
					if out := c.Send(t.Context(), s, l.alone(s)); out.Shared != 1 {
						t.Errorf("%d sends shared a request", out.Shared)
					}
				}
			})
		}
		sending.Wait()
		if len(l.requests) != 40 {
			t.Errorf("%d requests; want 40", len(l.requests))
		}
	})
}

// Callers that wait for their results share large requests: a request of one send does not begin
// beside one of all others.
func TestSecondRequestGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers, sends = 60, 300
		l := &line{takes: 3 * time.Millisecond, vary: rand.New(rand.NewPCG(1, 1))}
		c := NewCombiner(time.Second, l.together)
		var sending sync.WaitGroup
		for i := range callers {
			sending.Go(func() {
				for range sends {
					s := sendTo(fmt.Sprint("t", i), 1)
					c.Send(t.Context(), s, l.alone(s))
				}
			})
		}
		sending.Wait()
		small := 0
		for _, topics := range l.requests {
			if len(topics) < callers/6 {
				small++
			}
		}
		if small > len(l.requests)/10 {
			t.Errorf("%d of %d requests have less than a sixth of the callers", small, len(l.requests))
		}
	})
}

// A send that gathers others beside a slow request leaves after 5 ms.
func TestGatheringEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &line{takes: 30 * time.Millisecond}
		c := NewCombiner(time.Second, l.together)
		var sending sync.WaitGroup
		send := func(topic int) {
			sending.Go(func() {
				s := sendTo(fmt.Sprint("t", topic), 1)
				c.Send(t.Context(), s, l.alone(s))
			})
			synctest.Wait()
		}
		for i := range 12 {
			send(i) // two alone, then ten together
		}
		time.Sleep(31 * time.Millisecond) // the ten have begun 1 ms ago
		send(12)
		for _, want := range []int{3, 4} {
			time.Sleep(3 * time.Millisecond)
			l.mu.Lock()
			if n := len(l.requests); n != want {
				t.Errorf("%d requests have begun; want %d", n, want)
			}
			l.mu.Unlock()
		}
		sending.Wait()
	})
}

// Requests whose responses are lost delay the sends of other topics by 50 ms.
func TestLostResponsesHoldNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &line{takes: 10 * time.Millisecond}
		c := NewCombiner(time.Minute, l.together)
		lost, cancel := context.WithCancel(t.Context())
		var sending sync.WaitGroup
		for range 2 {
			sending.Go(func() { c.Send(t.Context(), sendTo("lost", 1), func() Combined { <-lost.Done(); return Combined{} }) })
		}
		time.Sleep(time.Millisecond)
		start := time.Now()
		for i := range 3 {
			sending.Go(func() {
				s := sendTo(fmt.Sprint("t", i), 1)
				c.Send(t.Context(), s, l.alone(s))
				if took := time.Since(start); took > 60*time.Millisecond {
					t.Errorf("a send to another topic took %v", took)
				}
			})
		}
		time.Sleep(time.Second)
		cancel()
		sending.Wait()
	})
}

// A send that leaves before the request is encoded is not part of it; one that leaves later may be
// stored. Both leave at the end of their ctx.
func TestLeaving(t *testing.T) {
	for _, c := range []struct {
		name   string
		before time.Duration
		takes  time.Duration
		sent   bool
	}{
		{name: "while it waits", takes: time.Hour},
		{name: "before the encoding", before: 20 * time.Millisecond, takes: 5 * time.Millisecond},
		{name: "after the encoding", takes: 15 * time.Millisecond, sent: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &line{takes: c.takes, before: c.before}
				combiner := NewCombiner(time.Second, l.together)
				var sending sync.WaitGroup
				busy, free := context.WithCancel(t.Context())
				for range together {
					sending.Go(func() {
						combiner.Send(t.Context(), sendTo("busy", 1), func() Combined { <-busy.Done(); return Combined{} })
					})
				}
				time.Sleep(time.Millisecond)
				ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, errors.New("too late"))
				defer cancel()
				start := time.Now()
				for i := range 2 {
					sending.Go(func() {
						own := ctx
						if i == 1 {
							own = t.Context()
						}
						s := sendTo(fmt.Sprint("t", i), 1)
						out := combiner.Send(own, s, l.alone(s))
						if i == 0 && (!out.Left || out.Sent != c.sent || time.Since(start) != 10*time.Millisecond) {
							t.Errorf("after %v: %+v; want it to leave after 10 ms, Sent %v", time.Since(start), out, c.sent)
						}
						if i == 1 && len(out.Response.GetEntries()) != 1 {
							t.Errorf("the other send: %+v", out)
						}
					})
				}
				synctest.Wait() // both wait
				if c.takes == time.Hour {
					time.Sleep(20 * time.Millisecond)
				}
				free()
				sending.Wait()
				for _, topics := range l.requests {
					if slices.Contains(topics, "t0") != c.sent {
						t.Errorf("request of %v", topics)
					}
				}
			})
		})
	}
}

// In random traffic each send ends by the end of its ctx with its own entries, few requests are
// under way at once, and nothing is left at the end.
func TestTraffic(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			l := &line{takes: time.Duration(r.IntN(80)) * time.Millisecond, before: time.Duration(r.IntN(2)*r.IntN(20)) * time.Millisecond}
			c := NewCombiner(time.Second, l.together)
			var sending sync.WaitGroup
			for i := range 1 + r.IntN(60) {
				begins, ends := time.Duration(r.IntN(100))*time.Millisecond, time.Duration(1+r.IntN(300))*time.Millisecond
				n := 1 + r.IntN(400)
				sending.Go(func() {
					time.Sleep(begins)
					ctx, cancel := context.WithTimeout(t.Context(), ends)
					defer cancel()
					start := time.Now()
					s := sendTo(fmt.Sprint("t", i), n)
					out := c.Send(ctx, s, func() Combined {
						l.enter(s.Topic.GetName())
						defer l.exit()
						if !wait(ctx, l.takes) {
							return Combined{Left: true, Sent: true}
						}
						return answer(s)
					})
					if took := time.Since(start); took > ends {
						t.Errorf("seed %d: a send with %v took %v", seed, ends, took)
					}
					entries := out.Response.GetEntries()
					if !out.Left && (len(entries) != n || entries[0].GetMessageId() != s.Messages[0].ID || entries[n-1].GetMessageId() != s.Messages[n-1].ID) {
						t.Errorf("seed %d: %d entries for %d messages, %+v", seed, len(entries), n, out.Err)
					}
				})
			}
			sending.Wait()
			synctest.Wait()
			c.mu.Lock()
			if len(c.waiting) > 0 || len(c.rides) > 0 {
				t.Errorf("seed %d: %d sends wait and %d requests are under way at the end", seed, len(c.waiting), len(c.rides))
			}
			c.mu.Unlock()
			if l.takes+l.before < slow && l.most > together {
				t.Errorf("seed %d: %d requests under way at once", seed, l.most)
			}
		})
	}
}

func TestDivide(t *testing.T) {
	sends := []*wire.Sending{sendTo("a", 1), sendTo("a", 2), sendTo("b", 1), sendTo("c", 1)}
	r := answer(sends...)
	r.Trailer = metadata.Pairs(wire.TrailerPushBacks, "0,1500,20")
	var waits []string
	for i, one := range divide(r, sends) {
		if got := one.Response.GetEntries(); len(got) != len(sends[i].Messages) || got[0].GetMessageId() != sends[i].Messages[0].ID {
			t.Errorf("send %d: %v", i, got)
		}
		waits = append(waits, append(one.Trailer.Get(wire.TrailerPushBack), "")[0])
	}
	if want := []string{"", "", "1500", "20"}; !slices.Equal(waits, want) {
		t.Errorf("waits %q; want %q", waits, want)
	}
	for i, one := range divide(Combined{Err: &tidegate.Error{Subject: "a", Code: tidegate.CodeForbidden}, Trailer: metadata.Pairs(wire.TrailerPushBack, "7")}, sends) {
		if one.Err.Subject != sends[i].Topic.GetName() || one.Err.Code != tidegate.CodeForbidden || len(one.Trailer.Get(wire.TrailerPushBack)) != 1 {
			t.Errorf("send %d: %+v", i, one)
		}
	}
}
