package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/transport"
)

// A watching is a server that leaves watches, and counts the receives of each topic.
type watching struct {
	*server
	refuses bool // leaves none

	wmu     sync.Mutex
	watches map[string][]chan struct{} // by topic
	prompt  map[string]int             // receives that asked for a watch
	waiting map[string]int             // other receives with a wait
	largest map[string]int             // Max of a receive
}

func newWatching(t *testing.T) *watching {
	w := &watching{server: newServer(t), watches: map[string][]chan struct{}{}, prompt: map[string]int{}, waiting: map[string]int{}, largest: map[string]int{}}
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
	w.largest[r.Topic] = max(w.largest[r.Topic], r.Max)
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
		if handled.Load() != 1 {
			t.Errorf("%d messages handled, want one at once", handled.Load())
		}
		time.Sleep(time.Hour)
		for _, topic := range names {
			if prompt, _ := w.receives(topic); prompt < 60/8 {
				t.Errorf("topic %s: %d receives within an hour", topic, prompt)
			}
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
				if n := handled.Load(); n != int64(tt.topics) {
					t.Errorf("%d messages handled at once, want %d", n, tt.topics)
				}
			})
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
		if most := 1 + 4 + int(burst/(100*time.Millisecond)); prompt > most || prompt < most/2 {
			t.Errorf("%d receives in a burst of %v, want about %d", prompt, burst, most)
		}
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
	p, err := consumer.NewPush(w, consumer.Subscription{Group: "billing", Topics: ofTopics(names...)}, func(context.Context, *tidegate.Delivery) error {
		handled.Add(1)
		return nil
	}, consumer.PushOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stop := runPush(t, p)
	time.Sleep(time.Second)
	p.Pause()
	synctest.Wait()
	for _, topic := range names {
		w.put(topic, "", 1)
	}
	time.Sleep(time.Hour)
	for _, topic := range names {
		if prompt, _ := w.receives(topic); prompt != 1 {
			t.Errorf("topic %s: %d receives at the end of the pause, want the one before it", topic, prompt)
		}
	}
	p.Resume()
	if synctest.Wait(); handled.Load() != 20 {
		t.Errorf("%d messages handled, want 20", handled.Load())
	}
	begin := time.Now()
	if err := stop(); err != nil || time.Since(begin) != 0 {
		t.Errorf("Run ended after %v: %v", time.Since(begin), err)
	}
}

// The watch of a removed queue ends, and the remaining queues then share the credits.
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
		if n := count() - before; n != 0 {
			t.Errorf("%d receives from removed queues", n)
		}
		w.put("t5", "", 640)
		if synctest.Wait(); w.left() != 0 || w.largest["t5"] != 32 {
			t.Errorf("%d messages are left, and the largest receive had a maximum of %d, want %d", w.left(), w.largest["t5"], 32)
		}
	})
}

// Message groups keep their order with watches.
func TestWatchesOfMessageGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, names := newWatching(t), topicNames(20)
		w.settings.FIFO = true
		seen := map[string][]string{}
		var mu sync.Mutex
		start(t, w, consumer.Subscription{Topics: ofTopics(names...)}, func(_ context.Context, d *tidegate.Delivery) error {
			mu.Lock()
			seen[d.Topic+d.MessageGroup] = append(seen[d.Topic+d.MessageGroup], d.ID)
			mu.Unlock()
			time.Sleep(time.Millisecond)
			w.report(d.Topic) // the next message of the group becomes visible soon
			return nil
		}, consumer.PushOptions{})
		const each = 20
		for _, topic := range names {
			for _, group := range []string{"a", "b"} {
				w.put(topic, group, each)
			}
		}
		for range 100 {
			time.Sleep(time.Second)
			w.report(names...)
		}
		for _, topic := range names {
			for _, group := range []string{"a", "b"} {
				var want []string
				for i := range each {
					want = append(want, fmt.Sprint(topic, "-", group, i))
				}
				if got := seen[topic+group]; !slices.Equal(got, want) {
					t.Errorf("group %s of %s: handled %v", group, topic, got)
				}
			}
		}
	})
}

// While the kill switch is shut no topic is received from, except by probes. Then all messages are
// handled.
func TestKillSwitchEndsWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, names := newWatching(t), topicNames(20)
		var away atomic.Bool
		var handled atomic.Int64
		away.Store(true)
		stop := start(t, w, consumer.Subscription{Topics: ofTopics(names...)}, func(context.Context, *tidegate.Delivery) error {
			if away.Load() {
				return errors.New("the database is away")
			}
			handled.Add(1)
			return nil
		}, consumer.PushOptions{KillSwitch: consumer.KillSwitch{FailureRatio: 0.5}})
		synctest.Wait()
		for _, topic := range names {
			w.put(topic, "", 20)
		}
		time.Sleep(10 * time.Second)
		before := 0
		for _, topic := range names {
			n, _ := w.receives(topic)
			before += n
		}
		time.Sleep(10 * time.Minute)
		total := 0
		for _, topic := range names {
			n, _ := w.receives(topic)
			total += n
		}
		// A probe of one message may take place every 5 s, and each topic may look for it.
		if n := total - before; n > 10*60/5*len(names) {
			t.Errorf("%d receives in ten minutes of the outage", n)
		}
		away.Store(false)
		for range 3600 {
			time.Sleep(time.Second)
			w.report(names...) // as for due retries
		}
		if err := stop(); err != nil || handled.Load() != 400 || w.left() != 0 {
			t.Errorf("%d messages handled, %d left, %v", handled.Load(), w.left(), err)
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
		if err := stop(); err != nil {
			t.Errorf("Run ended with 19 of 20 topics allowed: %v", err)
		}
	})
}
