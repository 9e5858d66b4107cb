package consumer_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
)

// A stop ends the wait for a fuller batch, and handles the messages that waited.
func TestBatchesAtStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps = ours
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

// The kill switch counts messages, and tries one message.
func TestBatchKillSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps = ours
		s.fill(100)
		down := true
		b := batches{begin: time.Now()}
		stop := startBatch(t, s, func(_ context.Context, ds []*tidegate.Delivery) error {
			b.add(ds)
			b.mu.Lock()
			defer b.mu.Unlock()
			if down {
				return errBroken
			}
			return nil
		}, consumer.PushOptions{Concurrency: 1, Batch: consumer.BatchOptions{MaxMessages: 10}, KillSwitch: consumer.KillSwitch{FailureRatio: 0.5, MinMessages: 20, Probe: time.Second}})
		time.Sleep(20 * time.Second)
		b.mu.Lock()
		down = false
		if n := len(b.list); n < 6 || len(strings.Fields(b.list[0])) != 10 || len(strings.Fields(b.list[n-1])) != 1 {
			t.Errorf("batches %v, want full ones and then single messages", b.list)
		}
		b.mu.Unlock()
		time.Sleep(2 * time.Hour)
		stop()
		if s.left() != 0 || len(s.dead) != 0 {
			t.Errorf("%d left, dead letters %v", s.left(), s.dead)
		}
	})
}

// A batch whose handler is stuck gives its place to another one, and each of its messages is
// reported with the stack of the handler.
func TestStuckBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.caps = ours
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
		if len(b.at) != 2 || b.at[1] != time.Minute || s.left() != 0 {
			t.Errorf("batches %v at %v, %d left", b.list, b.at, s.left())
		}
		if len(stuck) != 2 || !strings.Contains(stuck[0].Stack, "stuckBatch") || stuck[0].Took != time.Minute {
			t.Errorf("%d stuck messages: %+v", len(stuck), stuck)
		}
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
		if _, err := consumer.NewBatch(newServer(t), sub, handler, tt.opts); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("the error is %v, want it to have %q", err, tt.want)
		}
	}
	_, err := consumer.NewBatch(nil, sub, nil, consumer.PushOptions{LongPolling: -1, Batch: consumer.BatchOptions{MaxMessages: -1}})
	for _, want := range []string{`"handler"`, `"transport"`, `"LongPolling"`, `"Batch.MaxMessages"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want it to name %s", err, want)
		}
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
	if r.Error() != "2 of 4 messages of the batch failed, the first one with: broken" || !errors.Is(r, errBroken) {
		t.Errorf("got %q", r)
	}
	if text := make(consumer.BatchResult, 3).Error(); text != "all 3 messages of the batch succeeded" {
		t.Errorf("got %q", text)
	}
}
