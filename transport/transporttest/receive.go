package transporttest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

var receiveCases = []testCase{
	{name: "ReceiveNothing", run: func(e *env) {
		e.setup(settings.TopicNormal)
		start := time.Now()
		if ds := e.receive(e.request()); len(ds) != 0 {
			e.Errorf("received %s", describe(ds))
		}
		e.after(start, e.server.Unit, "an empty receive returned")
		start = time.Now()
		e.none(e.request())
		if e.lacks(e.server.ExactWaits, "ExactWaits", "a receive without a wait may take 5 s") {
			if got := time.Since(start); got > 5*time.Second+e.server.Slack {
				e.Errorf("a receive without a wait returned after %v", got)
			}
			return
		}
		e.after(start, 0, "a receive without a wait returned")
	}},
	{name: "ReceiveIsWoken", run: func(e *env) {
		e.setup(settings.TopicNormal)
		start := time.Now()
		wait := later(func() {
			e.sleep(e.server.Unit / 2)
			e.Transport.Send(e.Context(), []*tidegate.Message{e.message("wake up")})
		})
		defer wait()
		e.one()
		e.after(start, e.server.Unit/2, "the message arrived")
	}},
	{name: "ReceiveMax", run: func(e *env) {
		e.setup(settings.TopicNormal)
		for i := range 40 {
			e.send(e.message(fmt.Sprint(i)))
		}
		full := e.fullReceives()
		r := e.request()
		seen := map[string]bool{}
		for _, n := range []int{0, 1, 3, 32, 32} {
			r.Max = n
			ds := e.receive(r)
			want := min(max(1, n), 40-len(seen))
			if short := len(ds) < want && full; short || len(ds) == 0 && want > 0 || len(ds) > want {
				e.Errorf("Max %d brought %d deliveries after %d, want %d", n, len(ds), len(seen), want)
			}
			for _, d := range ds {
				if seen[d.ID] {
					e.Errorf("%s was delivered twice", describe([]*tidegate.Delivery{d}))
				}
				seen[d.ID] = true
			}
		}
	}},
	{name: "ReceiveMaxBytes", run: func(e *env) {
		e.createTopic(e.topic, settings.TopicNormal)
		e.createGroup(e.group, transport.ConsumerSettings{MaxAttempts: 17, Retry: backoff.Steps(e.ladder())}) // releases may spend them
		full := e.fullReceives()
		const size = 100
		left := 6
		for range left {
			e.send(e.message(strings.Repeat("x", size)))
		}
		for _, c := range []struct{ maxBytes, want int }{{size / 2, 1}, {size, 1}, {2*size + 1, 2}, {0, 2}} {
			r := e.request()
			r.Max, r.MaxBytes = 32, c.maxBytes
			ds := e.receive(r)
			if len(ds) == 0 && e.lacks(e.server.BoundsBytes, "BoundsBytes", "messages beyond MaxBytes are released and redelivered") {
				for start := time.Now(); len(ds) == 0 && time.Since(start) < lateness; {
					ds = e.receive(r)
				}
			}
			if c.maxBytes == 0 {
				c.want = left // 2, or more after receives that were not full
			}
			left -= len(ds)
			if short := len(ds) < c.want && full; short || len(ds) == 0 || len(ds) > c.want {
				e.Errorf("MaxBytes %d brought %d messages of %d bytes, want %d", c.maxBytes, len(ds), size, c.want)
			}
			for _, err := range e.Transport.Ack(e.Context(), ds) {
				if err != nil {
					e.Error(err)
				}
			}
		}
	}},
	{name: "EveryQueue", run: func(e *env) {
		e.setup(settings.TopicNormal)
		want := map[string]bool{}
		for i := range 32 {
			m := e.message(fmt.Sprint(i))
			want[m.ID] = true
			e.send(m)
		}
		queues, err := e.Transport.Queues(e.Context(), e.group, e.topic)
		if err != nil || len(queues) == 0 {
			e.Fatalf("Queues: %v, %v", queues, err)
		}
		for _, q := range queues {
			r := e.request()
			r.Queue, r.Max = q, 32
			for _, d := range e.drain(r) {
				if !want[d.ID] {
					e.Errorf("%q came twice", d.ID)
				}
				delete(want, d.ID)
			}
		}
		if len(want) != 0 {
			e.Errorf("%d messages are in no queue of %v", len(want), queues)
		}
	}},
	{name: "NoSuchTopic", run: func(e *env) {
		e.createGroup(e.group, transport.ConsumerSettings{MaxAttempts: 3, Retry: backoff.Steps(e.ladder())})
		want := tidegate.ErrTopicNotFound
		if e.createsTopics() {
			want = nil
		}
		if ds, err := e.Transport.Receive(e.Context(), e.request()); len(ds) != 0 || !errors.Is(err, want) {
			e.Errorf("Receive: %s, %v, want %v", describe(ds), err, want)
		}
		if _, err := e.Transport.Queues(e.Context(), e.group, e.topic); !errors.Is(err, want) {
			e.Errorf("Queues: %v, want %v", err, want)
		}
	}},
	{name: "BadGroup", run: func(e *env) {
		e.setup(settings.TopicNormal)
		r := e.request()
		r.Group = "a b"
		_, err := e.Transport.Receive(e.Context(), r)
		e.wantCode(err, tidegate.CodeIllegalConsumerGroup)
	}},
	{name: "TagFilterIsExact", run: func(e *env) {
		e.setup(settings.TopicNormal)
		// Aa and BB have the same hash in Java, on which RocketMQ filters first.
		tags := []string{"Aa", "BB", "A", "", "AaBB", "aa"}
		for i, c := range []struct {
			expression string
			want       []string
		}{
			{"*", tags},
			{"", tags},
			{"Aa", []string{"Aa"}},
			{"BB", []string{"BB"}},
			{"A||BB", []string{"A", "BB"}},
			{" A || BB ", []string{"A", "BB"}},
			{"none", nil},
		} {
			r := e.request()
			r.Group = e.name(fmt.Sprint("filter", i))
			r.Filter.Expression = c.expression
			r.Max = 32
			e.createGroup(r.Group, transport.ConsumerSettings{MaxAttempts: 3, Retry: backoff.Steps(e.ladder())})
			for _, tag := range tags {
				m := e.message(fmt.Sprintf("%d %s", i, tag))
				m.Tag = tag
				e.send(m)
			}
			var got []string
			for _, d := range e.drain(r) {
				if body := string(d.Body); strings.HasPrefix(body, fmt.Sprint(i, " ")) {
					got = append(got, d.Tag)
				}
			}
			want := slices.Clone(c.want)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				e.Errorf("filter %q delivered the tags %q, want %q", c.expression, got, want)
			}
		}
	}},
	{name: "GroupsAreApart", run: func(e *env) {
		e.setup(settings.TopicNormal)
		shipping := e.name("shipping")
		e.createGroup(shipping, transport.ConsumerSettings{MaxAttempts: 3, Retry: backoff.Steps(e.ladder())})
		e.send(e.message("for both"))
		other := e.request()
		other.Group = shipping
		a, b := e.one(), e.oneOf(other)
		if a.ID != b.ID || a.ConsumerGroup != e.group || b.ConsumerGroup != shipping {
			e.Errorf("delivered %+v and %+v", a, b)
		}
		e.mustAck(b)
		start := time.Now()
		if _, err := e.Transport.Settle(e.Context(), a, transport.Verdict{Kind: transport.Retry}); err != nil {
			e.Fatal(err)
		}
		if a = e.retried(e.request(), start, 0); a.Attempt != 2 {
			e.Errorf("attempt %d, want 2", a.Attempt)
		}
		e.none(other)
	}},
	{name: "ConsumerSettings", run: func(e *env) {
		e.setup(settings.TopicNormal)
		s, err := e.Transport.ConsumerSettings(e.Context(), e.group, e.topic)
		if err != nil {
			e.Fatal(err)
		}
		if s.FIFO {
			e.Error("the group has an order")
		}
		e.wantPolicy(s, e.ladder())
	}},
	{name: "Concurrent", run: func(e *env) {
		e.setup(settings.TopicNormal)
		const senders, each = 4, 50
		var wg, receivers sync.WaitGroup
		for s := range senders {
			wg.Go(func() {
				for i := range each {
					for _, r := range e.Transport.Send(e.Context(), []*tidegate.Message{e.message(fmt.Sprint(s, "/", i))}) {
						if r.Err != nil {
							e.Error(r.Err)
						}
					}
				}
			})
		}
		var mu sync.Mutex
		seen := map[string]int{}
		for range 4 {
			receivers.Go(func() {
				r := e.request()
				r.Max = 7
				for {
					ds, err := e.Transport.Receive(e.Context(), r)
					if err != nil || len(ds) == 0 {
						if err != nil {
							e.Error(err)
						}
						return
					}
					for _, err := range e.Transport.Ack(e.Context(), ds) {
						if err != nil {
							e.Error(err)
						}
					}
					mu.Lock()
					for _, d := range ds {
						seen[string(d.Body)]++
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		receivers.Wait()
		if len(seen) != senders*each {
			e.Errorf("%d of %d messages were delivered", len(seen), senders*each)
		}
		for body, n := range seen {
			if n != 1 {
				e.Errorf("%s was delivered %d times", body, n)
			}
		}
	}},
}

// fullReceives reports whether receives return all that they may.
func (e *env) fullReceives() bool {
	e.Helper()
	return !e.lacks(e.server.FullReceives, "FullReceives", "a receive may return fewer messages than there are")
}

// wantPolicy checks the attempts and the retry schedule that the server pushes for the group.
func (e *env) wantPolicy(s transport.ConsumerSettings, ladder []time.Duration) {
	e.Helper()
	if s.MaxAttempts != 3 {
		e.Errorf("%d attempts, want 3", s.MaxAttempts)
	}
	if s.Retry == nil {
		e.Fatal("the group has no ladder")
	}
	for i, want := range ladder {
		if got := s.Retry.Delay(i); got != want {
			e.Errorf("the ladder's step %d is %v, want %v", i, got, want)
		}
	}
}
