package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/ratelimit"
	"github.com/tidegate/tidegate/transport"
)

// inTopic adds n messages of a topic.
func (s *server) inTopic(queue int, topic, group string, n int) {
	for i := range n {
		s.add(queue, &tidegate.Message{ID: fmt.Sprint(topic, "-", group, i), Topic: topic, MessageGroup: group, Body: []byte("x")})
	}
}

func ofTopics(names ...string) map[string]tidegate.Filter {
	all := map[string]tidegate.Filter{}
	for _, name := range names {
		all[name] = tidegate.Filter{}
	}
	return all
}

// One consumer receives from several topics, each with its filter. The topics share the
// concurrency, and outcomes name the topic.
func TestTopicsShareTheConsumer(t *testing.T) {
	withServer(t, func(t *testing.T, s *server) {
		filters := map[string]tidegate.Filter{"orders": consumer.Tags("paid", "refunded"), "returns": {}, "stock": consumer.SQL("region = 'eu'")}
		for topic := range filters {
			s.inTopic(0, topic, "", 10)
		}
		var seen outcomes
		var running, most int
		var mu sync.Mutex
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			running += n
			most = max(most, running)
		}
		stop := start(t, s, consumer.Subscription{
			Group: "billing", Topic: "orders", Filter: filters["orders"],
			Topics: map[string]tidegate.Filter{"returns": filters["returns"], "stock": filters["stock"]},
		}, func(context.Context, *tidegate.Delivery) error {
			count(1)
			defer count(-1)
			time.Sleep(time.Second)
			return nil
		}, consumer.PushOptions{Concurrency: 5, OnDelivery: seen.add})
		time.Sleep(6500 * time.Millisecond)
		synctest.Wait()
		assert.That(t, most == 5 && len(seen.all()) == 30,
			"%d messages handled, %d at a time; want 30, 5 at a time", len(seen.all()), most)
		handled := map[string]int{}
		for _, o := range seen.all() {
			handled[o.Delivery.Topic]++
		}
		for topic, filter := range filters {
			assert.That(t, handled[topic] == 10, "%d messages of %s handled, want 10", handled[topic], topic)
			s.mu.Lock()
			i := slices.IndexFunc(s.requests, func(r transport.ReceiveRequest) bool { return r.Topic == topic })
			assert.That(t, i >= 0 && s.requests[i].Filter == filter && s.requests[i].Group == "billing", "no receive from %s has the filter %+v", topic, filter)
			s.mu.Unlock()
		}
		assert.NoError(t, stop())
	})
}

// A topic with a large backlog does not delay the messages of a quiet topic. These wait for one or
// two running handlers, for any number of queues and messages of the other topic.
func TestTopicWithBacklogDoesNotStarveAnother(t *testing.T) {
	for name, tt := range map[string]struct {
		caps     transport.Capabilities
		handling time.Duration
		fifo     bool
		limiter  ratelimit.Limiter
	}{
		"slow handlers":          {caps: ours, handling: 10 * time.Second},
		"quick handlers":         {caps: ours, handling: 10 * time.Millisecond},
		"slow ones, on RocketMQ": {handling: 10 * time.Second},
		"message groups":         {caps: ours, handling: 10 * time.Second, fifo: true},
		"a limiter":              {caps: ours, handling: 10 * time.Millisecond, limiter: rate.NewLimiter(100, 1)},
	} {
		t.Run(name, onServer(func(t *testing.T, s *server) {
			s.caps, s.settings.FIFO = tt.caps, tt.fifo
			if tt.limiter == nil { // a limiter takes turns between queues
				s.queues = []int{0, 1, 2, 3, 4, 5, 6, 7}
			}
			const quiet = 10
			for i := range 20 * quiet {
				s.inTopic(i%8, "busy", fmt.Sprint(i), 1)
			}
			sent := map[string]time.Time{}
			var waits []time.Duration
			var mu sync.Mutex
			stop := start(t, s, consumer.Subscription{Topics: ofTopics("busy", "quiet")}, func(_ context.Context, d *tidegate.Delivery) error {
				if d.Topic == "quiet" {
					mu.Lock()
					waits = append(waits, time.Since(sent[d.ID]))
					mu.Unlock()
				}
				time.Sleep(tt.handling)
				return nil
			}, consumer.PushOptions{Concurrency: 4, ShutdownTimeout: time.Second, Limiter: tt.limiter})
			for i := range quiet {
				time.Sleep(3 * tt.handling)
				mu.Lock()
				m := &tidegate.Message{ID: fmt.Sprint("quiet", i), Topic: "quiet", MessageGroup: fmt.Sprint(i), Body: []byte("x")}
				sent[m.ID] = time.Now()
				mu.Unlock()
				s.add(0, m)
			}
			time.Sleep(3 * tt.handling)
			stop()
			if len(waits) != quiet || slices.Max(waits) > 2*tt.handling {
				t.Errorf("%d of %d messages of the quiet topic were handled, after %v; want each within %v", len(waits), quiet, waits, 2*tt.handling)
			}
		}))
	}
}

// A topic that does not exist, or that the credentials may not read, is reported with its name and
// does not stop the others. Credentials that are rejected for all topics end the consumer after a
// minute; a filter that the server cannot read ends it at once.
func TestTopicsThatFail(t *testing.T) {
	missing, forbidden, illegal := tidegate.CodeTopicNotFound, tidegate.CodeForbidden, tidegate.Code(protocol.CodeIllegalFilterExpression)
	for name, tt := range map[string]struct {
		fails map[string]tidegate.Code
		ends  time.Duration // 0: never
		topic string        // that the error names
	}{
		"one is missing":              {map[string]tidegate.Code{"orders": missing}, 0, ""},
		"one is forbidden":            {map[string]tidegate.Code{"orders": forbidden}, 0, ""},
		"one forbidden, one missing":  {map[string]tidegate.Code{"orders": forbidden, "returns": missing}, 0, ""},
		"both are forbidden":          {map[string]tidegate.Code{"orders": forbidden, "returns": forbidden}, verdict.CredentialsGrace, ""},
		"the filter of one is faulty": {map[string]tidegate.Code{"returns": illegal}, time.Nanosecond, "returns"},
	} {
		t.Run(name, onBroker(func(t *testing.T, s *server) {
			s.onTopic = func(topic string) error {
				if code := tt.fails[topic]; code != 0 {
					return &tidegate.Error{Op: "ReceiveMessage", Subject: topic, Code: code}
				}
				return nil
			}
			var mu sync.Mutex
			reported, handled := map[string]tidegate.Code{}, 0
			p, err := consumer.NewPush(s, consumer.Subscription{Group: "billing", Topic: "orders", Topics: ofTopics("returns")},
				func(context.Context, *tidegate.Delivery) error {
					mu.Lock()
					defer mu.Unlock()
					handled++
					return nil
				}, consumer.PushOptions{OnReceiveFailure: func(f consumer.ReceiveFailure) {
					mu.Lock()
					defer mu.Unlock()
					reported[f.Topic] = verdict.Code(f.Err)
				}})
			assert.Must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			begin := time.Now()
			for i := range 10 {
				time.AfterFunc(time.Duration(i)*50*time.Second, func() {
					for _, topic := range []string{"orders", "returns"} {
						if tt.fails[topic] == 0 {
							s.inTopic(0, topic, "", 1)
						}
					}
				})
			}
			err = p.Run(ctx)
			took := time.Since(begin)
			assert.That(t, tt.ends != 0 || err == nil && took == 10*time.Minute && (len(tt.fails) != 1 || handled == 10),
				"Run: %v after %v, %d messages of the other topic handled; want none for 10m, and 10", err, took, handled)
			if tt.ends > 0 && (err == nil || took > tt.ends+40*time.Second || took < tt.ends-time.Nanosecond || !strings.Contains(err.Error(), `"`+tt.topic)) {
				t.Errorf("Run: %v after %v, want an error of topic %q after %v", err, took, tt.topic, tt.ends)
			}
			assert.That(t, fmt.Sprint(reported) == fmt.Sprint(tt.fails), "reported %v, want %v", reported, tt.fails)
		}))
	}
}

func TestTopicsAreChecked(t *testing.T) {
	for want, sub := range map[string]consumer.Subscription{
		`Subscription.Topic:`:        {},
		`"orders" is Subscription`:   {Topic: "orders", Topics: ofTopics("orders", "returns")},
		`"a b"`:                      {Topics: ofTopics("orders", "a b")},
		`Topic, which is empty; set`: {Filter: consumer.Tags("paid"), Topics: ofTopics("orders")},
	} {
		sub.Group = "billing"
		_, err := consumer.NewPush(newServer(t), sub, func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{})
		assert.That(t, errors.Is(err, tidegate.ErrInvalid) && strings.Contains(err.Error(), want), "%+v: %v, want %q", sub, err, want)
	}
	_, err := consumer.NewSimple(newServer(t), consumer.Subscription{Group: "billing", Topic: "orders", Topics: ofTopics("returns")}, consumer.SimpleOptions{})
	assert.That(t, errors.Is(err, tidegate.ErrInvalid) && strings.Contains(err.Error(), "Subscription.Topics"), "a simple consumer of two topics: %v", err)
}

// A lossy server takes a second for the response of a receive, which is lost if the receive is
// cancelled before.
type lossy struct{ *server }

func (s lossy) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	ds, err := s.server.Receive(ctx, r)
	if err != nil || r.Repeat {
		return ds, err
	}
	select {
	case <-time.After(time.Second):
		return ds, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// A pause and the end of a run cancel receives. The deliveries of a lost response are recalled and
// released, so that other consumers receive them at once.
func TestDeliveriesOfACancelledReceiveAreReleased(t *testing.T) {
	for _, pause := range []bool{true, false} {
		withBroker(t, func(t *testing.T, s *server) {
			p := assert.Value(consumer.NewPush(lossy{s}, consumer.Subscription{Group: "billing", Topic: "orders"},
				func(context.Context, *tidegate.Delivery) error { return nil }, consumer.PushOptions{}))(t)
			stop := runPush(t, p)
			s.fill(1)
			if synctest.Wait(); s.inHand() != 1 {
				t.Fatalf("%d deliveries are in transit, want 1", s.inHand())
			}
			if pause {
				p.Pause()
			} else if err := stop(); err != nil {
				t.Error(err)
			}
			if synctest.Wait(); s.inHand() != 0 || s.left() != 1 {
				t.Errorf("pause %v: %d deliveries are in flight and %d messages left, want 0 and 1", pause, s.inHand(), s.left())
			}
			assert.NoError(t, stop())
		})
	}
}

// A watching is a server that leaves watches, and counts the receives of each topic.
type watching struct {
	*server
	refuses bool // leaves none

	wmu     sync.Mutex
	watches map[string][]chan struct{} // by topic
	prompt  map[string]int             // receives that asked for a watch
	waiting map[string]int             // other receives with a wait
}

func newWatching(t *testing.T) *watching {
	w := &watching{server: newServer(t), watches: map[string][]chan struct{}{}, prompt: map[string]int{}, waiting: map[string]int{}}
	w.caps = ours
	w.caps.Watch = true
	return w
}

func (w *watching) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	w.wmu.Lock()
	if r.Wait > 0 {
		w.waiting[r.Topic]++
	}
	w.wmu.Unlock()
	return w.server.Receive(ctx, r)
}

func (w *watching) ReceiveOrWatch(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, <-chan struct{}, error) {
	w.wmu.Lock()
	w.prompt[r.Topic]++
	ready := make(chan struct{})
	w.watches[r.Topic] = append(w.watches[r.Topic], ready)
	w.wmu.Unlock()
	r.Wait = 0
	ds, err := w.server.Receive(ctx, r)
	if err != nil || len(ds) == r.Max || w.refuses {
		return ds, nil, err
	}
	return ds, ready, nil
}

// report makes the watches of topics ready.
func (w *watching) report(topics ...string) {
	w.wmu.Lock()
	defer w.wmu.Unlock()
	for _, topic := range topics {
		for _, ready := range w.watches[topic] {
			close(ready)
		}
		delete(w.watches, topic)
	}
}

// put adds n messages of a topic and reports them.
func (w *watching) put(topic, group string, n int) {
	w.inTopic(0, topic, group, n)
	w.report(topic)
}

// receives returns how many receives of a topic asked for a watch, and how many others waited.
func (w *watching) receives(topic string) (prompt, waiting int) {
	w.wmu.Lock()
	defer w.wmu.Unlock()
	return w.prompt[topic], w.waiting[topic]
}

// topicNames returns n names.
func topicNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("t", i))
	}
	return names
}

// A consumer of 20 topics receives from each once, and again after a report. Without reports a
// receive follows every few minutes.
func TestManyTopicsLeaveWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, names := newWatching(t), topicNames(20)
		var handled atomic.Int64
		stop := start(t, w, consumer.Subscription{Topics: ofTopics(names...)}, func(context.Context, *tidegate.Delivery) error {
			handled.Add(1)
			return nil
		}, consumer.PushOptions{})
		expect := func(topic string, most int) {
			t.Helper()
			synctest.Wait()
			if prompt, waiting := w.receives(topic); prompt < 1 || prompt > most || waiting != 0 {
				t.Errorf("topic %s: %d receives with a watch and %d waiting ones, want at most %d with a watch", topic, prompt, waiting, most)
			}
		}
		synctest.Wait()
		for _, topic := range names {
			expect(topic, 1)
		}
		time.Sleep(time.Minute)
		w.put("t7", "", 1)
		expect("t7", 2)
		expect("t8", 1)
		assert.That(t, handled.Load() == 1, "%d messages handled, want one at once", handled.Load())
		time.Sleep(time.Hour)
		for _, topic := range names {
			prompt, _ := w.receives(topic)
			assert.That(t, prompt >= 60/8, "topic %s: %d receives within an hour", topic, prompt)
			expect(topic, 60*2/5+2)
		}
		begin := time.Now()
		if err := stop(); err != nil || time.Since(begin) != 0 {
			t.Errorf("Run ended %v after ctx: %v; want at once, because all topics wait", time.Since(begin), err)
		}
	})
}

// A consumer of 16 topics uses waiting receives, at most two for each wait. A consumer whose server
// leaves no watches does the same.
func TestWaitingReceivesWithoutWatches(t *testing.T) {
	const wait = 30 * time.Second
	for name, tt := range map[string]struct {
		topics  int
		unable  bool // the server does not announce watches
		refuses bool
		prompt  int // receives of an idle topic within a wait at most
	}{
		"few topics":         {16, false, false, 0},
		"a server without":   {20, true, false, 0},
		"the server refuses": {20, false, true, 1},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			w, names := newWatching(t), topicNames(tt.topics)
			w.refuses, w.caps.Watch = tt.refuses, !tt.unable
			var handled atomic.Int64
			start(t, w, consumer.Subscription{Topics: ofTopics(names...)}, func(context.Context, *tidegate.Delivery) error {
				handled.Add(1)
				return nil
			}, consumer.PushOptions{LongPolling: wait})
			time.Sleep(100*wait + time.Second)
			for _, topic := range names {
				if prompt, waiting := w.receives(topic); prompt > 101*tt.prompt || waiting < 90 || waiting > 101 {
					t.Errorf("topic %s: %d receives with a watch and %d waiting ones in 100 waits", topic, prompt, waiting)
				}
				w.inTopic(0, topic, "", 1)
			}
			synctest.Wait()
			n := handled.Load()
			assert.That(t, n == int64(tt.topics), "%d messages handled at once, want %d", n, tt.topics)
		})
	}
}

// Reports without messages, as beside other consumers of the group, lead to a bounded number of
// receives. A message is then received at the next report.
func TestReportsWithoutMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, names := newWatching(t), topicNames(20)
		var handled atomic.Int64
		start(t, w, consumer.Subscription{Topics: ofTopics(names...)}, func(context.Context, *tidegate.Delivery) error {
			handled.Add(1)
			return nil
		}, consumer.PushOptions{})
		time.Sleep(time.Second)
		const burst = 10 * time.Second
		for begin := time.Now(); time.Since(begin) < burst; time.Sleep(time.Millisecond) {
			w.report("t3")
		}
		prompt, _ := w.receives("t3")
		most := 1 + 4 + int(burst/(100*time.Millisecond))
		assert.That(t, prompt <= most && prompt >= most/2, "%d receives in a burst of %v, want about %d", prompt, burst, most)
		w.put("t3", "", 1)
		time.Sleep(100 * time.Millisecond)
		if synctest.Wait(); handled.Load() != 1 {
			t.Errorf("%d messages handled after the burst", handled.Load())
		}
		w.put("t3", "again", 1) // after a message the reports are no burst
		if synctest.Wait(); handled.Load() != 2 {
			t.Errorf("%d messages handled after the burst and a message", handled.Load())
		}
	})
}

// A pause ends the watches. After it each topic is received from again.
func TestPauseEndsWatches(t *testing.T) {
	for _, repeatable := range []bool{true, false} { // receives, not watches
		synctest.Test(t, func(t *testing.T) { pauseEndsWatches(t, repeatable) })
	}
}

func pauseEndsWatches(t *testing.T, repeatable bool) {
	w, names := newWatching(t), topicNames(20)
	w.caps.RepeatReceive = repeatable
	var handled atomic.Int64
	p := assert.Value(consumer.NewPush(w, consumer.Subscription{Group: "billing", Topics: ofTopics(names...)}, func(context.Context, *tidegate.Delivery) error {
		handled.Add(1)
		return nil
	}, consumer.PushOptions{}))(t)
	stop := runPush(t, p)
	time.Sleep(time.Second)
	p.Pause()
	synctest.Wait()
	for _, topic := range names {
		w.put(topic, "", 1)
	}
	time.Sleep(time.Hour)
	for _, topic := range names {
		prompt, _ := w.receives(topic)
		assert.That(t, prompt == 1, "topic %s: %d receives at the end of the pause, want the one before it", topic, prompt)
	}
	p.Resume()
	if synctest.Wait(); handled.Load() != 20 {
		t.Errorf("%d messages handled, want 20", handled.Load())
	}
	begin := time.Now()
	err := stop()
	assert.That(t, err == nil && time.Since(begin) == 0, "Run ended after %v: %v", time.Since(begin), err)
}

// The watch of a removed queue ends, and the removed queue no longer has a share of the credits.
func TestRemovedQueueEndsItsWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, names := newWatching(t), topicNames(20)
		w.queues = []int{0, 1, 2}
		start(t, w, consumer.Subscription{Topics: ofTopics(names...)}, func(context.Context, *tidegate.Delivery) error { return nil },
			consumer.PushOptions{Concurrency: 64})
		time.Sleep(time.Second)
		w.mu.Lock()
		w.queues = []int{0}
		w.mu.Unlock()
		time.Sleep(20 * time.Second)
		count := func() (n int) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, r := range w.requests {
				if r.Queue > 0 {
					n++
				}
			}
			return n
		}
		before := count()
		w.report(names...)
		time.Sleep(time.Hour)
		synctest.Wait() // a receive of this instant would take the messages
		assert.Equal(t, "receives from removed queues", count()-before, 0)
		all := len(w.requests)
		w.put("t5", "", 640)
		time.Sleep(time.Second) // acknowledgements wait for others
		synctest.Wait()
		// The other queues have watches. One queue has half of 64 MiB; a message may have 4 MiB.
		if first := w.requests[all:]; w.left() != 0 || len(first) == 0 || first[0].Max != 8 {
			t.Errorf("%d messages are left, want none, after the receives %+v, want a maximum of 8", w.left(), first)
		}
	})
}

// A topic whose receive succeeded does not count as rejected, although the watch of the receive
// continues. So a consumer does not end because one of its topics remains forbidden.
func TestReceiveSucceedsBeforeItsWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, names := newWatching(t), topicNames(20)
		var allowed atomic.Bool
		w.onTopic = func(topic string) error {
			if topic == "t0" || !allowed.Load() {
				return &tidegate.Error{Code: tidegate.CodeForbidden}
			}
			return nil
		}
		stop := start(t, w, consumer.Subscription{Topics: ofTopics(names...)}, func(context.Context, *tidegate.Delivery) error { return nil },
			consumer.PushOptions{OnReceiveFailure: func(consumer.ReceiveFailure) {}})
		synctest.Wait()
		allowed.Store(true)
		time.Sleep(2 * time.Minute) // the others have watches
		assert.NoError(t, stop(), "Run ended with 19 of 20 topics allowed")
	})
}
