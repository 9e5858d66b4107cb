package consumer

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/flow"
	"github.com/tidegate/tidegate/consumer/internal/killswitch"
	"github.com/tidegate/tidegate/consumer/internal/policies"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/internal/tally"
	"github.com/tidegate/tidegate/transport"
)

// A StopReport counts each disposition in one field, and a message is consumed if the group does
// not receive it again from its topic.
func TestDispositions(t *testing.T) {
	for _, tt := range []struct {
		disposition Disposition
		want        StopReport
		consumed    bool
	}{
		{disposition: Acked, want: StopReport{Acked: 1}, consumed: true},
		{disposition: Retried, want: StopReport{Retried: 1}},
		{disposition: DeadLettered, want: StopReport{Retried: 1}, consumed: true},
		{disposition: LeaseLost, want: StopReport{Unsettled: 1}},
		{disposition: Released, want: StopReport{Released: 1}},
		{disposition: Unsettled, want: StopReport{Unsettled: 1}},
		{disposition: PerhapsSettled, want: StopReport{Unsettled: 1}},
		{disposition: Parked, want: StopReport{Retried: 1}},
		{disposition: Snoozed, want: StopReport{Retried: 1}},
		{disposition: Reconsumed, want: StopReport{Retried: 1}, consumed: true},
		{disposition: Discarded, want: StopReport{Retried: 1}, consumed: true},
	} {
		var got StopReport
		it := &item{disposition: tt.disposition}
		if got.count(it); got != tt.want || it.consumed() != tt.consumed {
			t.Errorf("%v: report %+v, consumed %v; want %+v, %v", tt.disposition, got, it.consumed(), tt.want, tt.consumed)
		}
	}
}

// The maximum of a policy holds if the server announces none or a higher one.
func TestMaxAttemptsOfAPolicy(t *testing.T) {
	for _, tt := range []struct{ own, server, want int }{
		{own: 3, server: 0, want: 3},
		{own: 3, server: -1, want: 3},
		{own: 3, server: 5, want: 3},
		{own: 5, server: 3, want: 3},
		{own: 0, server: 3, want: 3},
		{own: 0, server: -1, want: -1},
	} {
		src := &source{topic: &topic{name: "orders"}}
		src.topic.settings.Store(&transport.ConsumerSettings{MaxAttempts: tt.server})
		it := &item{source: src, choice: policies.Choice{MaxAttempts: tt.own}, current: tidegate.Delivery{Message: tidegate.Message{Topic: "orders"}}}
		if got := (&run{}).maxAttempts(it); got != tt.want {
			t.Errorf("policy %d, server %d: %d, want %d", tt.own, tt.server, got, tt.want)
		}
	}
}

// Tripped lasts from the trip until full concurrency, also during the probe.
func TestTrippedDuringTheProbe(t *testing.T) {
	o := PushOptions{Concurrency: 4, KillSwitch: KillSwitch{FailureRatio: 0.5, MinMessages: 1}}.withDefaults()
	h := newHand(&o)
	now := time.Unix(0, 0)
	step := func(name string, state killswitch.State, want bool) {
		t.Helper()
		if h.gate.State() != state || h.tripped() != want {
			t.Errorf("%s: state %v, tripped %v; want %v, %v", name, h.gate.State(), h.tripped(), state, want)
		}
	}
	step("before", killswitch.Flowing, false)
	h.gate.Handled(now, true)
	step("after the failure", killswitch.Tripped, true)
	now = h.gate.Wake()
	h.gate.Tick(now, 4)
	step("during the probe", killswitch.Probing, true)
	h.gate.Handled(now, false)
	step("after the probe", killswitch.Ramping, true)
	for h.gate.State() == killswitch.Ramping {
		now = h.gate.Wake()
		h.gate.Tick(now, 4)
	}
	step("at full concurrency", killswitch.Flowing, false)
}

// From the moment at which a message failed, deliveries that arrive do not wait behind it: the
// server may deliver the failed message again before the response to its settlement has come. Those
// that were received behind it are released, and none of them is handled.
func TestDeliveriesAfterAFailure(t *testing.T) {
	now := time.Unix(0, 0)
	o := PushOptions{}.withDefaults()
	h := newHand(&o)
	s := &source{topic: &topic{}}
	h.addSources(1)
	arrive := func(ids ...string) {
		var ds []*tidegate.Delivery
		for _, id := range ids {
			ds = append(ds, &tidegate.Delivery{Message: tidegate.Message{ID: id, MessageGroup: "g"}, Attempt: 1})
		}
		h.arrive(arrival{
			list: ds, caps: func(string) transport.Capabilities { return transport.Capabilities{Suspend: true} },
			source: s, sent: now, invisible: time.Minute, fifo: true,
		}, now)
	}
	next := func() string {
		h.mu.Lock()
		defer h.mu.Unlock()
		if it := h.next(); it != nil {
			return it.current.ID
		}
		return ""
	}
	arrive("1", "2")
	it := h.take(func(error) {})
	if got := next(); it.current.ID != "1" || got != "" {
		t.Fatalf("%s and %q are handled, want 1 alone", it.current.ID, got)
	}
	h.returned(it, handled{decision: verdict.Decision{Verdict: transport.Verdict{Kind: transport.Retry}}, failed: true}, now)
	arrive("1 again")
	if got := next(); got != "1 again" {
		t.Errorf("%q is handled after the failure, want the redelivery", got)
	}
	it.disposition = Retried
	var released []string
	for _, it := range h.removeSettled(now, it).release {
		released = append(released, it.current.ID)
	}
	if got := next(); fmt.Sprint(released) != "[2]" || got != "" {
		t.Errorf("released %v and handled %q, want 2 released and none handled", released, got)
	}
}

// A settlement that is postponed in the moment in which the shutdown time ends is not forgotten:
// its delivery ends as Unsettled, so that Run can return.
func TestSettlementPostponedAtTheEndOfTheShutdown(t *testing.T) {
	var seen []Outcome
	p, err := NewPush(struct{ Transport }{}, Subscription{Group: "billing", Topic: "orders"}, func(context.Context, *tidegate.Delivery) error { return nil },
		PushOptions{OnDelivery: func(o Outcome) { seen = append(seen, o) }})
	if err != nil {
		t.Fatal(err)
	}
	r := &run{Push: p, log: p.opts.Logger, events: tally.New(p.opts.Logger), hand: newHand(&p.opts), topics: p.sub.newTopics()}
	r.detached, r.settling = t.Context(), &endingContext{Context: t.Context()}
	r.announcer = newPool(1, r.effects.Go)
	r.topics[0].settings.Store(&transport.ConsumerSettings{})

	now := time.Now()
	r.hand.arrive(arrival{
		list: []*tidegate.Delivery{{Message: tidegate.Message{ID: "1", Topic: "orders"}, Attempt: 1}}, caps: func(string) transport.Capabilities { return transport.Capabilities{} },
		source: &source{topic: r.topics[0]}, sent: now, invisible: time.Minute,
	}, now)
	it := r.hand.take(func(error) {})
	if carryOut, _ := r.hand.returned(it, handled{decision: verdict.Decision{Act: verdict.Ack}}, now); !carryOut {
		t.Fatal("the acknowledgement is not carried out")
	}
	it.Last = errLost
	r.goOn(it, transport.RetryResult{}, verdict.TryAgain)
	if got := seen; len(got) != 1 || got[0].Disposition != Unsettled || r.hand.credits.Messages() != 0 {
		t.Errorf("outcomes %+v with %d deliveries in hand, want one that is unsettled, and none", got, r.hand.credits.Messages())
	}
}

// endingContext ends between the first and the second look at it.
type endingContext struct {
	context.Context
	looks int
}

func (c *endingContext) Err() error {
	if c.looks++; c.looks > 1 {
		return context.Canceled
	}
	return nil
}

// newItemOf returns a delivery of a hand whose lease ends after inv.
func newItemOf(t *testing.T, h *hand, inv time.Duration) *item {
	t.Helper()
	h.armed = time.Now().Add(time.Hour)
	src := &source{topic: &topic{name: "orders"}}
	src.topic.settings.Store(&transport.ConsumerSettings{})
	h.arrive(arrival{
		list: []*tidegate.Delivery{{Message: tidegate.Message{ID: "m", Topic: "orders"}, Handle: "h", Attempt: 1}},
		caps: func(string) transport.Capabilities { return transport.Capabilities{} }, source: src, sent: time.Now(), invisible: inv,
	}, time.Now())
	return h.all()[0]
}

func newTestHand(o PushOptions) *hand {
	o = o.withDefaults()
	return newHand(&o)
}

// The server counts an extension from a moment before its response, so the lease counts it from the
// request.
func TestExtensionCountsFromTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestHand(PushOptions{})
		it := newItemOf(t, h, 30*time.Second)
		sent := time.Now()
		time.Sleep(8 * time.Second)
		h.extended(it, extension{sent: sent, now: time.Now(), inv: 30 * time.Second, handle: "new"})
		if end := it.lease.Until.Sub(sent); end > 30*time.Second || end < 29*time.Second {
			t.Errorf("the lease ends %v after the request, want just below 30 s", end)
		}
	})
}

// After an extension with a lost response the handle is uncertain, also if the next attempt was
// certainly rejected, until one succeeds.
func TestHandleStaysUncertain(t *testing.T) {
	lost := &tidegate.Error{MaybeStored: true, Message: "the connection broke"}
	throttled := &tidegate.Error{Code: tidegate.CodeTooManyRequests}
	var it item
	for i, step := range []struct {
		err  error
		want bool
	}{{throttled, false}, {lost, true}, {throttled, true}, {nil, false}, {throttled, false}} {
		if it.takeOver(extension{err: step.err}); it.unsure != step.want {
			t.Errorf("after step %d (%v) the handle is uncertain: %v", i, step.err, it.unsure)
		}
	}
}

// A receive loop that waits for credits ends when its queue is removed.
func TestRemovedQueueEndsItsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestHand(PushOptions{})
		h.pause(true, time.Now())
		s := &source{topic: &topic{name: "orders"}}
		done := make(chan bool, 1)
		go func() {
			_, ok := h.reserve(s, 32, true, false)
			done <- ok
		}()
		synctest.Wait()
		h.remove(s)
		synctest.Wait()
		select {
		case ok := <-done:
			if ok {
				t.Error("a removed queue got credits")
			}
		default:
			t.Error("the loop of a removed queue waits")
			h.stop(true)
		}
	})
}

// A retry of RocketMQ whose reminder is due before the next check wakes maintainLeases.
func TestReminderWakesTheCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestHand(PushOptions{})
		it := newItemOf(t, h, time.Hour)
		for len(h.kicked) > 0 {
			<-h.kicked
		}
		h.armed = time.Now().Add(time.Hour)
		h.take(func(error) {})
		it.disposition, it.delay = Retried, time.Second
		h.removeSettled(time.Now(), it)
		if len(h.kicked) != 1 || h.armed.After(time.Now().Add(4*time.Second)) {
			t.Errorf("the next check is after %v, and %d wake-ups are pending", time.Until(h.armed), len(h.kicked))
		}
	})
}

// The settings of a topic have no attempts for its retry topic.
func TestAttemptsOfARetryTopicAreUnknown(t *testing.T) {
	src := &source{topic: &topic{name: "orders"}}
	src.topic.settings.Store(&transport.ConsumerSettings{MaxAttempts: 3})
	r := &run{}
	for name, want := range map[string]int{"orders": 3, "orders-billing-RETRY": 0} {
		it := &item{source: src, current: tidegate.Delivery{Message: tidegate.Message{Topic: name}, Attempt: 3}}
		if got := r.maxAttempts(it); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// In any order of the events, the credits are shared by the queues that the consumer has, except
// those with a watch.
func TestWatchesAreNoSources(t *testing.T) {
	model.Run(t, 200, func(t *testing.T, r *rand.Rand) {
		h := newTestHand(PushOptions{})
		var queues []*source // that the consumer has
		watches := map[*poll]bool{}
		for range 300 {
			switch n := r.IntN(10); {
			case n < 3:
				queues = append(queues, &source{topic: &topic{}})
				h.addSources(1)
			case n < 7 && len(queues) > 0:
				s := queues[r.IntN(len(queues))]
				if taken := slices.ContainsFunc(slices.Collect(maps.Keys(watches)), func(p *poll) bool { return p.source == s }); taken {
					break
				}
				if p := (&poll{source: s, cancel: func() {}}); h.beginWatch(p) {
					watches[p] = true
				}
			case n < 8 && len(queues) > 0:
				i := r.IntN(len(queues))
				h.addSources(-1)
				h.remove(queues[i])
				if h.beginWatch(&poll{source: queues[i], cancel: func() {}}) {
					t.Fatal("a removed queue has a watch")
				}
				queues = slices.Delete(queues, i, i+1)
			case n < 9:
				h.pause(r.IntN(2) == 0, time.Now())
			default:
				for p := range watches {
					h.endWatch(p)
					delete(watches, p)
					break
				}
			}
			if h.sources != len(queues)-len(watches) || len(h.polls) != len(watches) {
				t.Fatalf("%d sources and %d polls, with %d queues and %d watches", h.sources, len(h.polls), len(queues), len(watches))
			}
		}
	})
}

func TestStackOfAnotherGoroutine(t *testing.T) {
	numbers, release := make(chan string), make(chan struct{})
	defer close(release)
	for range 3 {
		go parkedForTheTest(numbers, release)
	}
	for range 3 {
		number := <-numbers
		got := stackOf(number)
		if !strings.HasPrefix(got, number) || !strings.Contains(got, "parkedForTheTest") || strings.Contains(got, "TestStackOfAnotherGoroutine(") {
			t.Errorf("the stack of %q is %q", number, got)
		}
	}
	for _, number := range []string{"", "goroutine 999999999 "} {
		if got := stackOf(number); got != "" {
			t.Errorf("%q has the stack %q", number, got)
		}
	}
}

func parkedForTheTest(numbers chan<- string, release <-chan struct{}) {
	numbers <- goroutine()
	<-release
}

func TestPoolRunsAllJobsWithinItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var goroutines sync.WaitGroup
		p := newPool(3, goroutines.Go)
		var running, most, done atomic.Int64
		for range 20 {
			p.Do(func() {
				most.Store(max(most.Load(), running.Add(1)))
				time.Sleep(time.Second)
				running.Add(-1)
				done.Add(1)
			})
		}
		begin := time.Now()
		goroutines.Wait() // they end when nothing is to be done
		if done.Load() != 20 || most.Load() != 3 || time.Since(begin) != 7*time.Second {
			t.Errorf("%d jobs, %d at a time, in %v; want 20, 3 and 7s", done.Load(), most.Load(), time.Since(begin))
		}
	})
}

// Retries and new messages wait for handlers in two queues. While
// both have messages, each four turns are three new messages and one retry, so that neither queue
// starves; a queue that is alone has all turns.
func TestRetriesAndNewMessagesShareTheHandlers(t *testing.T) {
	o := PushOptions{Concurrency: 1000}.withDefaults()
	h := newHand(&o)
	arrive := func(attempt, n int) {
		for range n {
			h.unread++
			it := newItem(&tidegate.Delivery{Attempt: attempt}, nil, transport.Capabilities{}, flow.Lease{})
			h.makeReady(it)
		}
	}
	_, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	attempts := func(n int) (fresh, retried int) {
		for range n {
			if it := h.take(cancel); it.current.Attempt == 1 {
				fresh++
			} else {
				retried++
			}
		}
		return fresh, retried
	}
	arrive(2, 100)
	arrive(1, 100)
	for order := range 30 {
		if fresh, retried := attempts(4); fresh != 3 || retried != 1 {
			t.Fatalf("turns %d to %d are %d new messages and %d retries, want 3 and 1", 4*order+1, 4*order+4, fresh, retried)
		}
	}
	if fresh, retried := attempts(80); fresh != 10 || retried != 70 {
		t.Errorf("the rest is %d new messages and %d retries, want 10 and 70", fresh, retried)
	}
}

// Items that arrive during a request share the next request, within both limits. Each is sent once,
// and nothing runs afterwards.
func TestBatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var goroutines sync.WaitGroup
		var mu sync.Mutex
		var sent []int
		var sizes []int
		running := 0
		b := newBatch(4, 2, goroutines.Go, func(list []int) {
			mu.Lock()
			sent, sizes = append(sent, list...), append(sizes, len(list))
			if running++; running > 2 {
				t.Errorf("%d requests under way", running)
			}
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
		})
		for i := range 15 {
			b.Add(i)
			synctest.Wait()
		}
		begin := time.Now()
		goroutines.Wait()
		slices.Sort(sent)
		if len(slices.Compact(sent)) != 15 || len(sent) != 15 || slices.Max(sizes) != 4 || time.Since(begin) != 3*time.Second {
			t.Errorf("sent %v in requests of %v within %v", sent, sizes, time.Since(begin))
		}
		b.Add(15)
		goroutines.Wait()
		if len(sizes) != 7 {
			t.Errorf("%d requests, want another one for the last item", len(sizes))
		}
	})
}
