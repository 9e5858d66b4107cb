package broker_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// parkedTopic returns a broker with n messages of one message group, the
// first of which has failed, so that the group is parked.
func parkedTopic(t *testing.T, fs vfs.FS, r settings.Retention, n int) *broker.Broker {
	b := open(t, broker.Options{Dir: "data"}.On(fs))
	putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 1, DuplicateWindow: -1, Retention: r})
	putGroup(t, b, "g", settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedPark})
	for i := range n {
		mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", MessageGroup: "a", Body: []byte("x")})
	}
	d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32})[0]
	if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry}); err != nil {
		t.Fatal(err)
	}
	receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}) // passes the others
	if s := subscriptionOf(t, b, "g"); s.Parked != int64(n) {
		t.Fatalf("%d messages are parked, want %d", s.Parked, n)
	}
	return b
}

// Retention does not remove parked messages at any time, until they are redriven.
func TestRetentionKeepsParkedMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := parkedTopic(t, fs, settings.Retention{Time: settings.Duration(time.Minute), Bytes: 1, Consumed: true}, 10)
		elapse(10 * time.Minute)
		b = reopen(t, b, fs)
		elapse(10 * time.Minute)
		if _, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{}); err != nil {
			t.Fatal(err)
		}
		elapse(2 * time.Second)
		for i := range 10 {
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Second})
			if len(ds) != 1 || ds[0].ID != fmt.Sprint(i) || ds[0].Attempt != 1 {
				t.Fatalf("delivery %d is %+v", i, ds)
			}
			if err := b.Ack(t.Context(), ds)[0]; err != nil {
				t.Fatal(err)
			}
		}
		elapse(2 * time.Minute)
		if n := stored(t, b, "t"); n != 0 {
			t.Errorf("%d messages are left once all are consumed and old", n)
		}
	})
}

// A message was parked for longer than its topic keeps messages, and is then redriven. It stays
// until it is consumed, also after a long time and with any timers set meanwhile.
func TestRetentionKeepsRedrivenMessages(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		messages  int
		before    time.Duration // of the first receive
		between   time.Duration // receives
		restarted bool
	}{
		"the consumer comes late":    {10, time.Hour, 0, false},
		"one message a second":       {2 * consume.FetchLimit, 0, time.Second, false},
		"one message in a long time": {4, time.Second, 30 * time.Minute, false},
		"after a restart":            {2 * consume.FetchLimit, 2 * time.Second, 100 * time.Millisecond, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				b := parkedTopic(t, fs, settings.Retention{Time: settings.Duration(10 * time.Minute), Consumed: true}, c.messages)
				elapse(time.Hour)
				if _, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{}); err != nil {
					t.Fatal(err)
				}
				elapse(c.before)
				for i := range c.messages {
					if c.restarted && i == c.messages/3 {
						b = reopen(t, b, fs)
					}
					ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Second})
					if len(ds) != 1 || ds[0].ID != fmt.Sprint(i) || ds[0].Attempt != 1 {
						t.Fatalf("delivery %d is %+v", i, ds)
					}
					if err := b.Ack(t.Context(), ds)[0]; err != nil {
						t.Fatal(err)
					}
					elapse(c.between)
				}
				elapse(12 * time.Minute)
				if s := subscriptionOf(t, b, "g"); stored(t, b, "t") != 0 || s.Overtaken != 0 {
					t.Errorf("%d messages are left, %d were lost", stored(t, b, "t"), s.Overtaken)
				}
			})
		})
	}
}

// The same holds for messages behind a message that was retried without end, and then consumed.
func TestRetentionKeepsMessagesThatWereBlocked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(10 * time.Minute)}})
		putGroup(t, b, "g", settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedBlock})
		for i := range 10 {
			mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", MessageGroup: "a", Body: []byte("x")})
		}
		for started := time.Now(); time.Since(started) < time.Hour; {
			d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Minute})[0]
			if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: time.Minute}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 10 {
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Minute})
			if len(ds) != 1 || ds[0].ID != fmt.Sprint(i) {
				t.Fatalf("delivery %d is %+v", i, ds)
			}
			if err := b.Ack(t.Context(), ds)[0]; err != nil {
				t.Fatal(err)
			}
			elapse(2 * time.Minute)
		}
	})
}

// Retention does not remove the blocked message itself either, also if it is not received for long:
// its successors would continue without it.
func TestRetentionKeepsBlockingMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(10 * time.Minute)}})
		putGroup(t, b, "g", settings.Group{FIFO: true, MaxAttempts: 1, OnExhausted: settings.OnExhaustedBlock})
		for i := range 3 {
			mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", MessageGroup: "a", Body: []byte("x")})
		}
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Second})
		elapse(2 * time.Second)
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Second, Max: 32}) // passes the others
		for range 2 {
			elapse(25 * time.Minute)
			if s := subscriptionOf(t, b, "g"); s.BlockedGroups != 1 || s.Overtaken != 0 || stored(t, b, "t") != 3 {
				t.Errorf("%d of 3 messages are left, %+v", stored(t, b, "t"), s)
			}
			b = reopen(t, b, fs)
		}
		for i := range 3 {
			d := one(t, b, "g", "t")
			if d.ID != fmt.Sprint(i) {
				t.Fatalf("%s was delivered, want %d", d.ID, i)
			}
			ackDeliveries(t, b, []*tidegate.Delivery{d})
		}
	})
}

// A purge removes parked messages too, also for a restart.
func TestPurgeOfAParkedTopic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := parkedTopic(t, fs, settings.Retention{Time: -1}, 10)
		if removed, err := b.PurgeTopic(t.Context(), "t"); err != nil || removed.Messages != 10 {
			t.Fatal(removed, err)
		}
		for range 2 {
			s := subscriptionOf(t, b, "g")
			if s.Backlog != (status.Backlog{}) || s.Parked+s.ParkedGroups+s.Ready+s.Inflight+s.WaitingRetry != 0 || stored(t, b, "t") != 0 {
				t.Errorf("left: %+v", s)
			}
			if p, err := b.Parked("g", status.ParkedQuery{}); err != nil || len(p.Groups) != 0 {
				t.Errorf("parked: %+v, %v", p, err)
			}
			b = reopen(t, b, fs)
		}
		mustSend(t, b, &tidegate.Message{Topic: "t", MessageGroup: "a", Body: []byte("y")})
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}); len(ds) != 1 || string(ds[0].Body) != "y" {
			t.Errorf("the message group does not continue: %+v", ds)
		}
	})
}

// Letters that were removed from the middle of the dead letters count once, with or without a
// removal of the others by retention or a purge.
func TestRetentionOfDeadLettersWithHoles(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(context.Context, *broker.Broker) error{
		"none": func(context.Context, *broker.Broker) error { return nil },
		"time": func(ctx context.Context, b *broker.Broker) error {
			_, err := b.PutTopic(ctx, "%DLQ%g", settings.Topic{Retention: settings.Retention{Time: settings.Duration(90 * time.Second)}})
			return err
		},
		"purge": func(ctx context.Context, b *broker.Broker) error {
			removed, err := b.PurgeTopic(ctx, "%DLQ%g")
			if removed != (status.Backlog{Messages: 6, Bytes: 12}) {
				return fmt.Errorf("removed %+v, %w", removed, err)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				b := open(t, broker.Options{Dir: "data"}.On(fs))
				putTopic(t, b, "t", settings.Topic{Queues: 1, Retention: settings.Retention{Time: -1}})
				putGroup(t, b, "g", settings.Group{MaxAttempts: 1})
				putTopic(t, b, "%DLQ%g", settings.Topic{Queues: 1, DuplicateWindow: -1})
				for i := range 10 {
					mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte("xy")})
					ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
					if _, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "r"}); err != nil {
						t.Fatal(err)
					}
					elapse(30 * time.Second)
				}
				// The 2nd, 3rd, 8th and last one go.
				sel := status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{MessageIDs: []string{"1", "2", "7", "9"}}}
				if done, err := b.PurgeDeadLetters(t.Context(), "g", sel); err != nil || done.Purged != 4 {
					t.Fatal(done, err)
				}
				if info, err := b.Topic("%DLQ%g"); err != nil || info.StoredMessages != 6 || info.StoredBytes != 12 {
					t.Fatalf("%+v, %v", info, err)
				}
				if err := remove(t.Context(), b); err != nil {
					t.Fatal(err)
				}
				elapse(2 * time.Second)
				want := map[string]int64{"none": 6, "time": 1, "purge": 0}[name] // of 90 seconds: 7, 8 and 9
				for range 2 {
					if info, err := b.Topic("%DLQ%g"); err != nil || info.StoredMessages != want || info.StoredBytes != 2*want {
						t.Errorf("%d messages, %d bytes are left, %v; want %d", info.StoredMessages, info.StoredBytes, err, want)
					}
					if ds := receiveAll(t, b, "%DLQ%g"); len(ds) != int(want) {
						t.Errorf("%d are delivered, want %d", len(ds), want)
					}
					b = reopen(t, b, fs)
				}
				mustSend(t, b, &tidegate.Message{ID: "new", Topic: "t", Body: []byte("xy")})
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
				if _, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "r"}); err != nil {
					t.Fatal(err)
				}
				all := receiveAll(t, b, "%DLQ%g")
				if len(all) != int(want)+1 || all[want].Offset != 10 {
					t.Errorf("%d dead letters, the last one at %d; want %d and 10", len(all), all[len(all)-1].Offset, want+1)
				}
			})
		})
	}
}

// A message that was parked for longer than it is kept is removed soon after it was redriven and
// consumed, also if retention does not depend on consumption.
func TestRetentionRemovesConsumedParkedMessages(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]settings.Retention{"time": {Time: settings.Duration(time.Hour)}, "bytes": {Time: -1, Bytes: 1}, "both": {Time: settings.Duration(10 * time.Hour), Bytes: 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := parkedTopic(t, vfs.NewMem(), settings.Retention{Time: -1}, 2*consume.FetchLimit)
				putTopic(t, b, "t", settings.Topic{DuplicateWindow: -1, Retention: r})
				elapse(2 * time.Hour)
				if n := stored(t, b, "t"); n != 2*consume.FetchLimit {
					t.Fatalf("%d messages are left while they are parked", n)
				}
				if _, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{}); err != nil {
					t.Fatal(err)
				}
				for i := range 2 * consume.FetchLimit {
					if i == 3 { // the first is not kept any more, and the next one is only on disk
						elapse(5 * time.Second)
					}
					ackDeliveries(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Second}))
				}
				pause := 2 * time.Second
				if r.Bytes == 0 {
					pause = retention.MaxAgePause + time.Second
				}
				if elapse(pause); stored(t, b, "t") > r.Bytes { // messages of one byte
					t.Errorf("%d messages are left %v after all were consumed", stored(t, b, "t"), pause)
				}
			})
		})
	}
}
