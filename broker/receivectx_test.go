package broker_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// setStanding makes the fsyncs of logs wait from now on, or continue.
func (fs *standingFS) setStanding(stand bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if stand {
		fs.stand = make(chan struct{})
	} else if fs.stand != nil {
		close(fs.stand)
		fs.stand = nil
	}
}

// A receive ends with its context while the disk does not respond. Its messages were not delivered:
// the next receive gets them in the same attempt.
func TestReceiveEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		attemptID string
		expiry    bool // messages expire meanwhile
	}{
		"a later attempt": {},
		"repeated":        {attemptID: "x"},
		"expired":         {expiry: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := &standingFS{FS: vfs.NewMem()}
				b := open(t, broker.Options{Dir: "data"}.On(fs))
				putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 1})
				putGroup(t, b, "g", settings.Group{FIFO: true})
				mustSend(t, b, &tidegate.Message{Topic: "t", MessageGroup: "a", Body: []byte("x")})
				r := transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, AttemptID: c.attemptID, InvisibleDuration: time.Minute}
				receive(t, b, r)
				elapse(2 * time.Minute)
				want := 2
				if c.attemptID != "" { // the second attempt is repeated
					receive(t, b, r)
				}
				if c.expiry {
					putAddress(t, b, "t", settings.Address{ExpiryDelay: new(settings.Milliseconds(1)), ExpiryAddress: new("old")})
					want = 0
				}

				fs.setStanding(true)
				start := time.Now()
				ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Second, errImpatient)
				defer cancel()
				ds, err := b.Receive(ctx, r)
				if d := time.Since(start); d != 3*time.Second || !errors.Is(err, errImpatient) || len(ds) > 0 {
					t.Errorf("%d deliveries, %v after %v; want the cause of the context after 3s", len(ds), err, d)
				}
				fs.setStanding(false)
				synctest.Wait()
				ds = receive(t, b, r)
				if n := len(ds); want == 0 && n != 0 || want > 0 && (n != 1 || ds[0].Attempt != want) {
					t.Errorf("then %q is delivered, want attempt %d", idsOf(ds), want)
				}
				if n := sent(t, b, "old"); (n == 1) != c.expiry {
					t.Errorf("%d messages have expired", n)
				}
			})
		})
	}
}

// A consumer repeats its request for a dead letter while the disk hangs. Once the consumer has its
// response, no state of the repetitions is left.
func TestRepeatedDeadLettersLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := &standingFS{FS: vfs.NewMem()}
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Minute})[0]
		fs.setStanding(true)
		before := 0
		for i := range 100 {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errImpatient)
			_, err := b.Settle(ctx, d, transport.Verdict{Kind: transport.DeadLetter})
			cancel()
			var e *tidegate.Error
			if !errors.Is(err, errImpatient) || !errors.As(err, &e) || !e.MaybeStored {
				t.Fatalf("request %d: %v, want the cause of the context, and that it may be done", i, err)
			}
			synctest.Wait()
			if i == 0 {
				before = runtime.NumGoroutine()
			}
		}
		if n := runtime.NumGoroutine(); n > before+5 {
			t.Errorf("%d goroutines after the first request, %d after 99 more", before, n)
		}
		done := make(chan error)
		go func() { done <- second(b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter})) }()
		synctest.Wait()
		fs.setStanding(false)
		if err := <-done; err != nil {
			t.Errorf("a repetition that has time: %v", err)
		}
		if n := len(receiveAll(t, b, "%DLQ%g")); n != 1 {
			t.Errorf("%d dead letters, want 1", n)
		}
	})
}
