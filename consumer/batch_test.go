package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/consumer/policy"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// startBatch runs a batch consumer of topic orders until stop is called.
func startBatch(t *testing.T, s consumer.Transport, h consumer.BatchHandler, o consumer.PushOptions) (stop func() error) {
	t.Helper()
	p := assert.Value(consumer.NewBatch(s, consumer.Subscription{Group: "billing", Topic: "orders"}, h, o))(t)
	return runPush(t, p)
}

// batches collects the message IDs of batches, with their times.
type batches struct {
	mu    sync.Mutex
	begin time.Time
	list  []string
	at    []time.Duration
}

func (b *batches) add(ds []*tidegate.Delivery) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := make([]string, len(ds))
	for i, d := range ds {
		ids[i] = d.ID
	}
	b.list, b.at = append(b.list, strings.Join(ids, " ")), append(b.at, time.Since(b.begin))
}

var errBroken = errors.New("broken")

// Each message has the end of its verdict, and a single error, a panic and a Goexit are
// the end of all messages.
func TestBatchResults(t *testing.T) {
	acked, retried, dead := consumer.Outcome{Disposition: consumer.Acked}, consumer.Outcome{Disposition: consumer.Retried, Delay: time.Second}, consumer.Outcome{Disposition: consumer.DeadLettered}
	for _, tt := range []struct {
		name   string
		result func() error
		want   []consumer.Outcome // of m0, m1, …: their dispositions and delays
		err    string             // in Outcome.Err of a message that failed
	}{
		{"success", func() error { return nil }, []consumer.Outcome{acked, acked, acked, acked}, ""},
		{"no failure in a result", func() error { return make(consumer.BatchResult, 4) }, []consumer.Outcome{acked, acked, acked, acked}, ""},
		{"one error", func() error { return errBroken }, []consumer.Outcome{retried, retried, retried, retried}, "broken"},
		{"one verdict", func() error { return fmt.Errorf("load: %w", consumer.DeadLetterNow(errBroken)) }, []consumer.Outcome{dead, dead, dead, dead}, "load: broken"},
		{"partial results", func() error {
			return consumer.BatchResult{nil, errBroken, consumer.DeadLetterNow(errBroken), consumer.RetryIn(time.Minute, errBroken)}
		}, []consumer.Outcome{acked, retried, dead, {Disposition: consumer.Retried, Delay: time.Minute}}, "broken"},
		{"a wrapped result", func() error { return fmt.Errorf("load: %w", consumer.BatchResult{errBroken, nil, nil, nil}) }, []consumer.Outcome{retried, acked, acked, acked}, "broken"},
		{"the first messages alone", func() error { return consumer.BatchResult{nil, errBroken, consumer.Snooze(0), consumer.Snooze(0)} },
			[]consumer.Outcome{acked, retried, {Disposition: consumer.Snoozed}, {Disposition: consumer.Snoozed}}, ""},
		{"a result that is too short", func() error { return consumer.BatchResult{nil} }, []consumer.Outcome{retried, retried, retried, retried},
			"the BatchResult has 1 results for 4 messages"},
		{"a result that is too long", func() error { return make(consumer.BatchResult, 5) }, []consumer.Outcome{retried, retried, retried, retried}, "5 results for 4"},
		{"a panic", func() error { panic("boom") }, []consumer.Outcome{retried, retried, retried, retried}, "handler panicked: boom"},
		{"a Goexit", func() error { runtime.Goexit(); return nil }, []consumer.Outcome{retried, retried, retried, retried}, "handler panicked: " + verdict.Goexit},
		{"an error that panics", func() error { return (*nilPanics)(nil) }, []consumer.Outcome{retried, retried, retried, retried}, "has no readable text"},
		{"such an error of one message", func() error { return consumer.BatchResult{nil, (*nilPanics)(nil), nil, nil} }, []consumer.Outcome{acked, retried, acked, acked}, "has no readable text"},
	} {
		t.Run(tt.name, onBroker(func(t *testing.T, s *server) {
			s.settings = transport.ConsumerSettings{Retry: backoff.Steps{time.Second}}
			s.fill(4)
			var seen outcomes
			var once sync.Once
			stop := startBatch(t, s, func(_ context.Context, ds []*tidegate.Delivery) (err error) {
				first := false
				once.Do(func() { first = true })
				if !first {
					return nil
				}
				assert.That(t, len(ds) == 4, "a batch of %d messages", len(ds))
				time.Sleep(time.Second)
				return tt.result()
			}, consumer.PushOptions{Concurrency: 1, OnDelivery: seen.add, Batch: consumer.BatchOptions{MaxMessages: 4}})
			time.Sleep(10 * time.Minute)
			stop()
			got := map[string]consumer.Outcome{}
			for _, o := range seen.all() {
				if _, later := got[o.Delivery.ID]; !later {
					got[o.Delivery.ID] = o
				}
			}
			for i, want := range tt.want {
				o := got[fmt.Sprint("m", i)]
				if o.Disposition != want.Disposition || o.Delay != want.Delay || o.Delivery.Attempt != 1 || o.Duration != time.Second {
					t.Errorf("m%d: %+v, want %v after %v", i, o, want.Disposition, want.Delay)
				}
				if (o.Err == nil) != (want.Disposition == consumer.Acked) || o.Err != nil && want.Disposition != consumer.Snoozed && !strings.Contains(errText(o.Err), tt.err) {
					t.Errorf("m%d: the error is %s, want %q", i, errText(o.Err), tt.err)
				}
			}
			assert.That(t, s.left() == 0, "%d messages are left", s.left())
		}))
	}
}

// nilPanics panics as a nil pointer.
type nilPanics struct{ text string }

func (e *nilPanics) Error() string { return e.text }

func errText(err error) string { return fmt.Sprint(err) }

// A batch begins when it is full, in messages or bytes, or when its first message has waited.
func TestBatchLimits(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		b := batches{begin: time.Now()}
		stop := startBatch(t, s, func(_ context.Context, ds []*tidegate.Delivery) error {
			b.add(ds)
			return nil
		}, consumer.PushOptions{Concurrency: 1, Batch: consumer.BatchOptions{MaxMessages: 3, MaxBytes: 10, MaxWait: time.Minute}})
		add := func(id string, size int) {
			s.add(0, &tidegate.Message{ID: id, Topic: "orders", Body: make([]byte, size)})
			time.Sleep(time.Second)
		}
		for _, id := range []string{"a", "b", "c", "d"} {
			add(id, 1)
		}
		time.Sleep(time.Minute)
		add("e", 6)
		add("f", 6)
		add("g", 11)
		time.Sleep(2 * time.Minute)
		stop()
		assert.Equal(t, "batches", strings.Join(b.list, ", "), "a b c, d, e, f, g")
		want := []time.Duration{2 * time.Second, 63 * time.Second, 65 * time.Second, 66 * time.Second, 66 * time.Second}
		assert.That(t, slices.Equal(b.at, want), "the batches came at %v, want %v", b.at, want)
	})
}

// Messages that wait for a batch, because it is not full or because others are being handled, keep
// their leases. The handler's ctx ends with the first lease that is lost.
func TestBatchLeases(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.fill(5)
		var seen outcomes
		var gone atomic.Bool
		s.onChange = func(d *tidegate.Delivery) error {
			if gone.Load() {
				return &tidegate.Error{Subject: d.ID, Code: tidegate.CodeInvalidReceiptHandle}
			}
			return nil
		}
		var causes []error
		var mu sync.Mutex
		startBatch(t, s, func(ctx context.Context, ds []*tidegate.Delivery) error {
			for _, d := range ds {
				assert.That(t, d.ID[0] != 'm' || d.Attempt == 1, "%s comes in attempt %d", d.ID, d.Attempt)
			}
			select {
			case <-time.After(10 * time.Minute):
			case <-ctx.Done():
				mu.Lock()
				defer mu.Unlock()
				causes = append(causes, context.Cause(ctx))
			}
			return nil
		}, consumer.PushOptions{Concurrency: 1, OnDelivery: seen.add, Batch: consumer.BatchOptions{MaxMessages: 4, MaxWait: 5 * time.Minute}})
		time.Sleep(24 * time.Minute)
		n := len(seen.all())
		assert.That(t, n == 5 && s.left() == 0, "%d outcomes, %d left: %+v", n, s.left(), seen.all())
		for _, id := range []string{"x", "y"} {
			s.add(0, &tidegate.Message{ID: id, Topic: "orders", Body: []byte("x")})
		}
		time.Sleep(6 * time.Minute)
		gone.Store(true)
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		assert.That(t, len(causes) == 1 && errors.Is(causes[0], consumer.ErrLeaseLost), "the batch's context ended with %v", causes)
	})
}

// A message whose lease is lost leaves the batch that it waits for. In a batch that has begun it
// waits for the end of the batch.
func TestLostLeasesInBatches(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.onChange = func(d *tidegate.Delivery) error {
			if strings.HasPrefix(d.ID, "lost") && d.Attempt == 1 {
				return &tidegate.Error{Subject: d.ID, Code: tidegate.CodeInvalidReceiptHandle}
			}
			return nil
		}
		b := batches{begin: time.Now()}
		var seen outcomes
		stop := startBatch(t, s, func(_ context.Context, ds []*tidegate.Delivery) error {
			b.add(ds)
			time.Sleep(time.Minute)
			return nil
		}, consumer.PushOptions{Concurrency: 1, OnDelivery: seen.add, Batch: consumer.BatchOptions{MaxMessages: 3, MaxWait: 20 * time.Second}})
		for _, batch := range []string{"a lost1", "b lost2 c"} {
			for id := range strings.FieldsSeq(batch) {
				s.add(0, &tidegate.Message{ID: id, Topic: "orders"})
			}
			time.Sleep(5 * time.Minute)
		}
		stop()
		assert.Equal(t, "batches", strings.Join(b.list, ", "), "a, lost1, b lost2 c, lost2")
		want := map[string]time.Duration{"lost1": 0, "lost2": time.Minute}
		for _, o := range seen.all() {
			took, lost := want[o.Delivery.ID]
			if lost = lost && o.Delivery.Attempt == 1; lost != (o.Disposition == consumer.LeaseLost) || lost && o.Duration != took {
				t.Errorf("outcome %+v, want a lost lease of %s in attempt 1 after %v", o, o.Delivery.ID, took)
			}
		}
	})
}

// A batch has one message of a message group. Its successors wait until it is consumed, and
// therefore for its retry; other message groups continue.
func TestBatchesOfFIFOGroups(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.settings = transport.ConsumerSettings{FIFO: true, MaxAttempts: 3, Retry: backoff.Steps{time.Minute}}
		for i := range 3 {
			for _, g := range []string{"a", "b", "c"} {
				s.add(0, &tidegate.Message{ID: fmt.Sprint(g, i), Topic: "orders", MessageGroup: g, Body: fmt.Append(nil, i)})
			}
		}
		b := batches{begin: time.Now()}
		stop := startBatch(t, s, func(_ context.Context, ds []*tidegate.Delivery) error {
			b.add(ds)
			res := make(consumer.BatchResult, len(ds))
			for i, d := range ds {
				switch {
				case d.ID == "a0" && d.Attempt == 1:
					res[i] = errBroken
				case d.ID == "b1":
					res[i] = consumer.RetryIn(3*time.Minute, errBroken)
				}
			}
			return res
		}, consumer.PushOptions{Concurrency: 1, Batch: consumer.BatchOptions{MaxMessages: 10, MaxWait: time.Second}})
		time.Sleep(10 * time.Minute)
		stop()
		want := strings.Join([]string{"a0 b0 c0", "b1 c1", "c2", "a0", "a1", "a2", "b1", "b1", "b2"}, ", ")
		if got := strings.Join(b.list, ", "); got != want || s.left() != 0 || s.dead["b1"] == "" {
			t.Errorf("batches %s, want %s; %d left, dead letters %v", got, want, s.left(), s.dead)
		}
	})
}

// Middleware and policies are for each message, and its context is known in the batch.
func TestBatchMiddleware(t *testing.T) {
	type key struct{}
	withBroker(t, func(t *testing.T, s *server) {
		s.settings = transport.ConsumerSettings{MaxAttempts: 9, Retry: backoff.Steps{time.Second}}
		s.fill(3)
		var mu sync.Mutex
		calls := map[string]error{}
		note := func(next consumer.Handler) consumer.Handler {
			return func(ctx context.Context, d *tidegate.Delivery) error {
				err := next(context.WithValue(ctx, key{}, d.ID), d)
				mu.Lock()
				defer mu.Unlock()
				calls[fmt.Sprint(d.ID, "#", d.Attempt)] = err
				return err
			}
		}
		var got []finality
		stop := startBatch(t, s, func(ctx context.Context, ds []*tidegate.Delivery) error {
			assert.That(t, ctx.Value(key{}) == nil, "the batch has the value of a message")
			res := make(consumer.BatchResult, len(ds))
			for i, d := range ds {
				id := consumer.BatchContext(ctx, i).Value(key{})
				assert.That(t, id == d.ID, "the context of %s is that of %v", d.ID, id)
				if d.ID == "m1" {
					got = append(got, finalityOf(consumer.BatchContext(ctx, i)))
					res[i] = errBroken
				}
			}
			return res
		}, consumer.PushOptions{Middleware: []consumer.Middleware{note}, Policies: []policy.Policy{{MaxAttempts: 2}}, Batch: consumer.BatchOptions{MaxWait: -1}})
		time.Sleep(time.Minute)
		stop()
		want := map[string]error{"m0#1": nil, "m1#1": errBroken, "m1#2": errBroken, "m2#1": nil}
		if fmt.Sprint(calls) != fmt.Sprint(want) || !slices.Equal(got, []finality{notFinal, final}) || s.dead["m1"] != "broken" {
			t.Errorf("calls %v, want %v; %v, dead letters %v", calls, want, got, s.dead)
		}
	})
	synctest.Test(t, func(t *testing.T) { // one that loses the context
		s := newServer(t)
		s.fill(1)
		var seen outcomes
		stop := startBatch(t, s, func(context.Context, []*tidegate.Delivery) error { return nil }, consumer.PushOptions{
			OnDelivery: seen.add,
			Middleware: []consumer.Middleware{func(next consumer.Handler) consumer.Handler {
				return func(_ context.Context, d *tidegate.Delivery) error { return next(context.Background(), d) } //nolint:contextcheck // the fault
			}},
		})
		time.Sleep(time.Second)
		stop()
		if o := seen.all(); len(o) == 0 || o[0].Err == nil || !strings.Contains(o[0].Err.Error(), "not derived from its own context") {
			t.Errorf("outcomes %+v", o)
		}
	})
}

// A batch is sorted by topic, queue and offset.
func TestBatchIsSorted(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.queues = []int{0, 1}
		for _, m := range []struct {
			id, topic string
			queue     int
		}{
			{"7", "returns", 1}, {"3", "orders", 1}, {"1", "orders", 0}, {"5", "returns", 0},
			{"8", "returns", 1}, {"6", "returns", 0}, {"4", "orders", 1}, {"2", "orders", 0},
		} {
			s.add(m.queue, &tidegate.Message{ID: m.id, Topic: m.topic})
		}
		var b batches
		p := assert.Value(consumer.NewBatch(s, consumer.Subscription{Group: "billing", Topics: ofTopics("orders", "returns")},
			func(_ context.Context, ds []*tidegate.Delivery) error { b.add(ds); return nil },
			consumer.PushOptions{Batch: consumer.BatchOptions{MaxMessages: 8, MaxWait: time.Second}}))(t)
		stop := runPush(t, p)
		time.Sleep(5 * time.Second)
		stop()
		assert.Slices(t, "batches", b.list, []string{"1 2 3 4 5 6 7 8"})
	})
}

// A stop ends the wait for a fuller batch, and handles the messages that waited.
func TestBatchesAtStop(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.fill(3)
		b := batches{begin: time.Now()}
		stop := startBatch(t, s, func(_ context.Context, ds []*tidegate.Delivery) error {
			b.add(ds)
			return nil
		}, consumer.PushOptions{Batch: consumer.BatchOptions{MaxWait: 30 * time.Minute}})
		time.Sleep(time.Minute)
		begin := time.Now()
		if err := stop(); err != nil || time.Since(begin) > 0 || strings.Join(b.list, ", ") != "m0 m1 m2" || s.left() != 0 {
			t.Errorf("stopped with %v after %v, batches %v, %d left", err, time.Since(begin), b.list, s.left())
		}
	})
}

// A batch whose handler is stuck gives its place to another one, and each of its messages is
// reported with the stack of the handler.
func TestStuckBatch(t *testing.T) {
	withBroker(t, func(t *testing.T, s *server) {
		s.fill(4)
		var stuck []consumer.StuckHandler
		var mu sync.Mutex
		b := batches{begin: time.Now()}
		stop := startBatch(t, s, stuckBatch(&b), consumer.PushOptions{
			Concurrency: 1, Batch: consumer.BatchOptions{MaxMessages: 2}, StuckAfter: time.Minute,
			OnStuck: func(h consumer.StuckHandler) {
				mu.Lock()
				defer mu.Unlock()
				stuck = append(stuck, h)
			},
		})
		time.Sleep(time.Hour)
		stop()
		assert.That(t, len(b.at) == 2 && b.at[1] == time.Minute && s.left() == 0, "batches %v at %v, %d left", b.list, b.at, s.left())
		assert.That(t, len(stuck) == 2 && strings.Contains(stuck[0].Stack, "stuckBatch") && stuck[0].Took == time.Minute, "%d stuck messages: %+v", len(stuck), stuck)
	})
}

// stuckBatch returns a handler that is stuck with its first batch.
func stuckBatch(b *batches) consumer.BatchHandler {
	var calls atomic.Int64
	return func(_ context.Context, ds []*tidegate.Delivery) error {
		if b.add(ds); calls.Add(1) == 1 {
			time.Sleep(10 * time.Minute)
		}
		return nil
	}
}

// No option is ignored.
func TestBatchOptionsAreValidated(t *testing.T) {
	handler := func(context.Context, []*tidegate.Delivery) error { return nil }
	sub := consumer.Subscription{Group: "billing", Topic: "orders"}
	for _, tt := range []struct {
		opts consumer.PushOptions
		want string
	}{
		{consumer.PushOptions{Batch: consumer.BatchOptions{MaxMessages: -1}}, `"Batch.MaxMessages": 40000 BAD_REQUEST: -1 is negative`},
		{consumer.PushOptions{Batch: consumer.BatchOptions{MaxBytes: -1}}, `"Batch.MaxBytes": 40000 BAD_REQUEST: -1 is negative`},
		{consumer.PushOptions{Concurrency: -2}, `"Concurrency": 40000 BAD_REQUEST: -2 is negative`},
		{consumer.PushOptions{Concurrency: 1 << 12, Batch: consumer.BatchOptions{MaxMessages: 1 << 9}}, "512 are too many with a Concurrency of 4096; give at most 255"},
		{consumer.PushOptions{MaxBytes: 1 << 10, Batch: consumer.BatchOptions{MaxBytes: 1 << 11}}, `"Batch.MaxBytes": 40000 BAD_REQUEST: 2048 exceeds MaxBytes (1024)`},
		{consumer.PushOptions{Batch: consumer.BatchOptions{MaxWait: time.Hour}}, "1h0m0s is not less than MaxExtension (1h0m0s)"},
		{consumer.PushOptions{MaxExtension: -1, Batch: consumer.BatchOptions{MaxWait: time.Minute}}, "1m0s is not less than InvisibleDuration (30s)"},
	} {
		_, err := consumer.NewBatch(newServer(t), sub, handler, tt.opts)
		assert.That(t, err != nil && strings.Contains(err.Error(), tt.want), "the error is %v, want it to have %q", err, tt.want)
	}
	_, err := consumer.NewBatch(nil, sub, nil, consumer.PushOptions{LongPolling: -1, Batch: consumer.BatchOptions{MaxMessages: -1}})
	for _, want := range []string{`"handler"`, `"transport"`, `"LongPolling"`, `"Batch.MaxMessages"`} {
		assert.That(t, err != nil && strings.Contains(err.Error(), want), "the error is %v, want it to name %s", err, want)
	}
	if _, err := consumer.NewPush(newServer(t), sub, func(context.Context, *tidegate.Delivery) error { return nil },
		consumer.PushOptions{Batch: consumer.BatchOptions{MaxMessages: 7}}); err == nil || !strings.Contains(err.Error(), "it has an effect only with NewBatch") {
		t.Errorf("NewPush with batches: %v", err)
	}
	if _, err := consumer.NewBatch(newServer(t), sub, handler, consumer.PushOptions{MaxBytes: 1 << 10}); err != nil {
		t.Errorf("the default of MaxBytes does not follow: %v", err)
	}
}

func TestBatchResultText(t *testing.T) {
	r := consumer.BatchResult{nil, errBroken, nil, errors.New("other")}
	assert.That(t, r.Error() == "2 of 4 messages of the batch failed, the first one with: broken" && errors.Is(r, errBroken), "got %q", r)
	text := make(consumer.BatchResult, 3).Error()
	assert.That(t, text == "all 3 messages of the batch succeeded", "got %q", text)
}
