package held_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
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
