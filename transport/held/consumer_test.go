package held_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/held"
)

// A log has the numbers of the successfully handled messages, in order, by message group.
type log struct {
	mu      sync.Mutex
	handled map[string][]int
}

func (l *log) add(d *tidegate.Delivery) {
	n, _ := strconv.Atoi(string(d.Body))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handled[d.MessageGroup] = append(l.handled[d.MessageGroup], n)
}

// distinct returns the number of handled messages.
func (l *log) distinct() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := slices.Concat(l.handled["mg0"], l.handled["mg1"])
	slices.Sort(seen)
	return len(slices.Compact(seen))
}

// A consumer whose handlers all have deliveries of a lost link does not receive. Their settlements
// open the new link, so that the consumer continues long before their leases end.
func TestBusyConsumerSurvivesLostLink(t *testing.T) {
	inBubble(t, 100, held.Options{}, func(t *testing.T, f *fake) {
		time.AfterFunc(time.Second, func() { f.disconnect(false) })
		ctx, stop := context.WithTimeout(t.Context(), 12*time.Second)
		defer stop()
		l := &log{handled: map[string][]int{}}
		runPush(ctx, t, f, func(_ context.Context, d *tidegate.Delivery) error {
			<-time.After(3 * time.Second)
			l.add(d)
			return nil
		})
		got := l.distinct()
		assert.That(t, got >= 40, "%d messages were handled in 12 s by 20 handlers of 3 s, want 40 at least", got)
	})
}

func runPush(ctx context.Context, t *testing.T, f *fake, handler consumer.Handler, group ...string) {
	t.Helper()
	group = append(group, "billing")
	sub := consumer.Subscription{Group: group[0], Topic: "orders", Retry: backoff.Steps{time.Second}}
	c := assert.Value(consumer.NewPush(f, sub, handler, consumer.PushOptions{
		OnReceiveFailure: func(consumer.ReceiveFailure) {},
	}))(t)
	assert.NoError(t, c.Run(ctx))
}

// An outage costs no attempt once the kill switch has tripped, however many messages wait and
// however few of them the Table may hold. The failures before the trip, of fewer than MinMessages,
// cost one.
func TestOutageCostsNoAttempt(t *testing.T) {
	const outage = 10 * time.Minute
	for _, tt := range []struct {
		name     string
		messages int
		opts     held.Options
		group    string
		batch    bool
	}{
		{"batches", 3000, held.Options{}, "billing", true},
		{"batches, few held", 3000, held.Options{MaxHeld: 100}, "billing", true},
		{"batches, few bytes held", 300, held.Options{MaxHeldBytes: 20}, "billing", true},
		{"batches in order", 3000, held.Options{}, "ledger", true},
		{"single messages", 3000, held.Options{}, "billing", false},
		{"single messages, few held", 300, held.Options{MaxHeld: 100}, "billing", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, 0, tt.opts, func(t *testing.T, f *fake) {
				for i := range tt.messages {
					f.store(&tidegate.Message{ID: fmt.Sprint("id", i), Topic: "orders", MessageGroup: fmt.Sprint("mg", i%200), Body: fmt.Append(nil, i)})
				}
				f.groups["billing"] = transport.ConsumerSettings{MaxAttempts: 3}
				f.groups["ledger"] = transport.ConsumerSettings{MaxAttempts: 3, FIFO: true}
				f.faults.deliverDelay = time.Millisecond
				start := time.Now()
				var mu sync.Mutex
				handled := map[string][]int{} // in order, by message group
				total := 0
				second := map[string]bool{} // messages in their second attempt
				ctx, stop := context.WithTimeout(t.Context(), 2*time.Hour)
				defer stop()
				one := func(_ context.Context, d *tidegate.Delivery) error {
					mu.Lock()
					defer mu.Unlock()
					if d.Attempt > 1 {
						second[d.ID] = true
					}
					assert.That(t, d.Attempt <= 2, "message %s came in attempt %d", d.Body, d.Attempt)
					if time.Since(start) < outage {
						return errors.New("the database is away")
					}
					n, _ := strconv.Atoi(string(d.Body))
					handled[d.MessageGroup] = append(handled[d.MessageGroup], n)
					if total++; total == tt.messages {
						stop()
					}
					return nil
				}
				opts := consumer.PushOptions{KillSwitch: consumer.KillSwitch{FailureRatio: .5}}
				sub := consumer.Subscription{Group: tt.group, Topic: "orders"}
				c, err := consumer.NewPush(f, sub, one, opts)
				if tt.batch {
					c, err = consumer.NewBatch(f, sub, func(ctx context.Context, ds []*tidegate.Delivery) error {
						<-time.After(100 * time.Millisecond)
						r := make(consumer.BatchResult, len(ds))
						for i, d := range ds {
							r[i] = one(ctx, d)
						}
						return r
					}, opts)
				}
				assert.Must(t, err)
				assert.NoError(t, c.Run(ctx))
				assert.That(t, total == tt.messages, "%d of %d messages were handled", total, tt.messages)
				t.Logf("all were handled %v after the outage", time.Since(start)-outage)
				assert.That(t, len(second) < 20, "%d messages came in a second attempt, want fewer than MinMessages", len(second))
				dead := len(f.logs[tidegate.DeadLetterTopic(tt.group)])
				assert.That(t, dead <= 0, "%d dead letters", dead)
				for g, got := range handled {
					assert.That(t, tt.group != "ledger" || slices.IsSorted(got), "the messages of %s were handled in the order %v", g, got)
				}
			})
		})
	}
}

// Consumers receive, cancel, forget, settle and close at random while the system loses links and
// settlements. When the faults end, each message is consumed or a dead letter within the leases,
// and nothing is in flight.
func TestRandomConsumers(t *testing.T) {
	model.Run(t, 20, func(t *testing.T, r *rand.Rand) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) { runConsumers(t, r) })
	})
}

const stressMessages = 300

func runConsumers(t *testing.T, r *rand.Rand) {
	t.Helper()
	f := newFake(held.Options{MaxHeld: 5 + r.IntN(100)})
	defer f.Close()
	f.topics["orders"] = settings.TopicNormal
	f.groups["billing"] = transport.ConsumerSettings{MaxAttempts: 5, FIFO: r.IntN(2) == 0}
	f.faults = faults{
		openDelay: time.Duration(r.IntN(50)) * time.Millisecond, deliverDelay: time.Duration(r.IntN(20)) * time.Millisecond, excess: r.IntN(3),
		gap:        time.Duration(r.IntN(2000)) * time.Microsecond,
		settle:     refuse(8),
		carriedOut: func(held.Settlement) bool { return rand.IntN(2) == 0 },
		slow:       func(held.Settlement) time.Duration { return time.Duration(rand.IntN(3000)) * time.Millisecond },
	}
	f.fill(stressMessages)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var wg sync.WaitGroup
	for range 1 + r.IntN(6) {
		seed := r.Uint64()
		wg.Go(func() { f.consume(ctx, rand.New(rand.NewPCG(seed, 0))) })
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(r.IntN(20)) * time.Second):
			f.disconnect(false)
		}
	}
	wg.Wait()
	f.mu.Lock()
	f.faults = faults{}
	f.mu.Unlock()
	for range stressMessages { // a FIFO group gives one of each message group
		q := request("billing")
		q.Max, q.Wait = 32, 90*time.Second
		ds := receive(t, f, q)
		if len(ds) == 0 {
			break
		}
		ack(t, f, ds...)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.queue("billing", "orders").entries {
		if !e.done {
			t.Errorf("message %s is not consumed, %d failed deliveries, in flight %v", e.msg.ID, e.count, e.link != nil)
		}
	}
}

// refuse returns a function that refuses one of n settlements.
func refuse(n int) func(held.Settlement) error {
	return func(held.Settlement) error {
		if rand.IntN(n) == 0 {
			return errRefused
		}
		return nil
	}
}

// consume receives and settles until ctx ends.
func (f *fake) consume(ctx context.Context, r *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		q := request("billing")
		q.Max, q.Push = 1+r.IntN(16), r.IntN(2) == 0
		q.Wait = time.Duration(r.IntN(3000)) * time.Millisecond
		q.InvisibleDuration = time.Duration(100+r.IntN(10_000)) * time.Millisecond
		q.AttemptID = fmt.Sprint(n)
		receiving, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(5000))*time.Millisecond)
		ds, err := f.Receive(receiving, q)
		cancel()
		if err != nil {
			q.Repeat = true
			ds, _ = f.Receive(ctx, q)
		}
		for _, d := range ds {
			f.end(ctx, d, r)
		}
	}
}

// end settles a delivery, or forgets it.
func (f *fake) end(ctx context.Context, d *tidegate.Delivery, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(4000))*time.Millisecond)
	defer cancel()
	for range 3 {
		var err error
		delay := time.Duration(r.IntN(2000)) * time.Millisecond
		switch r.IntN(8) {
		case 0:
			return
		case 1:
			_, err = f.Settle(ctx, d, transport.Verdict{Kind: transport.Retry, Delay: delay})
		case 2:
			_, err = f.Settle(ctx, d, transport.Verdict{Kind: transport.DeadLetter})
		case 3:
			_, err = f.Settle(ctx, d, transport.Verdict{Kind: transport.Snooze, Delay: delay})
		case 4:
			_, err = f.Settle(ctx, d, transport.Verdict{Kind: transport.Release})
		case 5:
			var handle string
			if handle, err = f.Extend(ctx, d, delay, false); err == nil && delay > 0 {
				d.Handle = handle
				continue
			}
		default:
			err = f.Ack(ctx, []*tidegate.Delivery{d})[0]
		}
		if err == nil {
			return
		}
	}
}

// An eager is a system and a link that delivers each message within the call of Grant.
type eager struct {
	feed    atomic.Pointer[held.Feed]
	opening time.Duration // how long Open takes, even if its ctx ends
	closing time.Duration // how long Close takes
	silent  bool          // it delivers nothing
	closed  atomic.Int32
}

func (e *eager) Open(_ context.Context, f *held.Feed) (held.Link, error) {
	<-time.After(e.opening)
	e.feed.Store(f)
	return e, nil
}

func (e *eager) Grant(n int) {
	for range n {
		if e.silent {
			return
		}
		e.feed.Load().Deliver(&tidegate.Delivery{Message: tidegate.Message{ID: "id", Topic: "orders", Body: []byte("0")}}, nil)
	}
}

func (e *eager) Settle(context.Context, []held.Settlement) []error { return nil }

func (e *eager) Close() {
	e.feed.Load().Lost(tidegate.ErrUnavailable) // has no effect any more
	<-time.After(e.closing)
	e.closed.Add(1)
}

// Close waits until all links are closed, also the one that is closed for lack of receives.
func TestCloseWaits(t *testing.T) {
	for _, idle := range []time.Duration{0, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			e := &eager{closing: 5 * time.Second}
			table := held.New(e, held.Options{})
			ack(t, table, receive(t, table, request("billing"))...)
			time.Sleep(idle)
			if err := table.Close(); err != nil || e.closed.Load() != 1 {
				t.Errorf("Close returned %v with %d closed links, want 1", err, e.closed.Load())
			}
			assert.NoError(t, table.Close(), "second Close")
		})
	}
}

// A link that opens after Close is closed at once.
func TestCloseDuringOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &eager{opening: 5 * time.Second, closing: time.Second}
		table := held.New(e, held.Options{})
		start := time.Now()
		time.AfterFunc(time.Second, func() { table.Close() })
		_, err := table.Receive(t.Context(), request("billing"))
		if wantError(t, "Receive", err, tidegate.ErrClosed); time.Since(start) != time.Second {
			t.Errorf("the receive ended after %v, want the time of Close", time.Since(start))
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		assert.That(t, e.closed.Load() == 1, "the link is open after Close")
	})
}

// A receive that does not wait gets the messages that a new link brings within Options.Grace.
func TestGrace(t *testing.T) {
	inBubble(t, 1, held.Options{Grace: 50 * time.Millisecond}, func(t *testing.T, f *fake) {
		f.faults.openDelay, f.faults.deliverDelay = 100*time.Millisecond, 40*time.Millisecond
		q := request("billing")
		q.Wait = 0
		start := time.Now()
		d := one(t, f, q, "0", 1)
		assert.Equal(t, "the message came after", time.Since(start), 140*time.Millisecond)
		ack(t, f, d)
		start = time.Now()
		if ds := receive(t, f, q); len(ds) > 0 || time.Since(start) != 50*time.Millisecond {
			t.Errorf("received %s after %v, want nothing after 50ms", describe(ds), time.Since(start))
		}
	})
}

// A receive whose wait ends with a lease, or soon after, gets the message, which takes its time
// through the system.
func TestReceiveEndsWithALease(t *testing.T) {
	for _, more := range []time.Duration{0, 5 * time.Millisecond} {
		receiveEndsWithALease(t, more)
	}
}

func receiveEndsWithALease(t *testing.T, more time.Duration) {
	t.Helper()
	inBubble(t, 1, held.Options{}, func(t *testing.T, f *fake) {
		f.faults.slow = func(held.Settlement) time.Duration { return 10 * time.Millisecond }
		q := request("billing")
		one(t, f, q, "0", 1)
		q.Wait = q.InvisibleDuration + more
		start := time.Now()
		one(t, f, q, "0", 2)
		assert.Equal(t, "the message came after", time.Since(start), 30*time.Second+10*time.Millisecond)
	})
}

// The messages in flight are bounded by number and by bytes. Settlements admit further messages.
func TestMemoryIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		opts    held.Options
		size    int
		atLeast int
		atMost  int
	}{
		"messages":     {held.Options{MaxHeld: 50}, 10, 50, 50},
		"bytes":        {held.Options{MaxHeldBytes: 1 << 20}, 32 << 10, 32, 32},
		"large bodies": {held.Options{MaxHeldBytes: 4 << 20}, 1 << 20, 4, 32}, // the first credit expects 64 KiB
	} {
		inBubble(t, 0, c.opts, func(t *testing.T, f *fake) {
			for range 200 {
				f.store(&tidegate.Message{ID: tidegate.NewMessageID(), Topic: "orders", Body: make([]byte, c.size)})
			}
			q := request("billing")
			q.Max = 32
			var all []*tidegate.Delivery
			for consumed := 0; consumed < 200; consumed += len(all) {
				all = nil
				for ds := receive(t, f, q); len(ds) > 0; ds = receive(t, f, q) {
					all = append(all, ds...)
				}
				if left := 200 - consumed; len(all) < min(c.atLeast, left) || len(all) > c.atMost {
					t.Fatalf("%s: %d messages were in flight, want %d to %d", name, len(all), c.atLeast, c.atMost)
				}
				ack(t, f, all...)
			}
		})
	}
}

// taken returns the number of messages of a group that a link has.
func (f *fake) taken(group string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.queues[[2]string{group, "orders"}].entries {
		if e.link != nil && !e.done {
			n++
		}
	}
	return n
}

// After receives that follow each other at once and get their maximum, the Table has the messages
// of one more receive. Slow receives leave them at the system, and unused ones return to it.
func TestQuickReceivesAskAhead(t *testing.T) {
	for pause, ahead := range map[time.Duration]int{0: 4, 4 * time.Millisecond: 4, 20 * time.Millisecond: 0, time.Second: 0} {
		inBubble(t, 100, held.Options{Linger: 10 * time.Millisecond}, func(t *testing.T, f *fake) {
			q := request("billing")
			q.Max = 4
			for n := range 3 {
				time.Sleep(pause)
				ds := receive(t, f, q)
				assert.MustThat(t, len(ds) == 4, "receive %d brought %d messages, want 4", n, len(ds))
			}
			synctest.Wait()
			got := f.taken("billing")
			assert.That(t, got == 12+ahead, "with pauses of %v the Table has %d messages, want 12 and %d ahead", pause, got, ahead)
			time.Sleep(3 * time.Second)
			if got := f.taken("billing"); got != 12 {
				t.Errorf("with pauses of %v the Table has %d messages after Idle, want the 12 delivered ones", pause, got)
			}
			assert.MustEqual(t, "a late receive brought messages", len(receive(t, f, q)), 4)
			synctest.Wait()
			assert.Equal(t, "after a late receive the Table has messages", f.taken("billing"), 16)
		})
	}
}
