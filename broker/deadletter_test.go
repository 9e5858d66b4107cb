package broker_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// The process ends after the dead letter is written and before its lease is removed: after the
// restart the dead letter is stored once, and the message is not delivered again.
func TestDeadLetterOnceAcrossACrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Minute})[0]
		s, _ := locate(t, b, d)
		policy := s.Policy().Rules()
		dying := departing(s, func(p *consume.Progress) { p.Expire(&policy, time.Now().Add(time.Minute)) })
		startOnDisk(t, b, dying)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = open(t, broker.Options{Dir: "data"}.On(fs))
		<-time.After(2 * time.Minute) // the lease, still there, runs out
		synctest.Wait()
		if ds := receiveAll(t, b, "%DLQ%g"); len(ds) != 1 {
			t.Errorf("%d dead letters, want 1", len(ds))
		}
		if g, err := b.Group("g"); err != nil || g.Topics[0].Backlog.Messages != 0 {
			t.Errorf("the group is left with %+v, %v", g.Topics, err)
		}
	})
}

// Official clients repeat the request until it succeeds.
func TestDeadLetterIsIdempotent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})[0]
		for range 3 {
			if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "no use"}); err != nil {
				t.Fatal(err)
			}
		}
		ds := receiveAll(t, b, "%DLQ%g")
		if len(ds) != 1 {
			t.Fatalf("%d dead letters", len(ds))
		}
		if o, _ := ds[0].DeadLetter(); o.Reason != "no use" || o.Attempts != 1 {
			t.Errorf("the origin is %+v", o)
		}
		// A dead letter that fails again keeps its first origin.
		again := receive(t, b, transport.ReceiveRequest{Group: "h", Topic: "%DLQ%g"})[0]
		if _, err := b.Settle(t.Context(), again, transport.Verdict{Kind: transport.DeadLetter, Reason: "still no use"}); err != nil {
			t.Fatal(err)
		}
		o, _ := receiveAll(t, b, "%DLQ%h")[0].DeadLetter()
		if o.Topic != "t" || o.Group != "h" || o.Reason != "still no use" {
			t.Errorf("the origin of the second one is %+v", o)
		}
	})
}

// RocketMQ: consumption retry: the maximum is in the group's metadata; a change holds for messages
// under way. "If the maximum number of retries is three, the message can be delivered four times".
// RocketMQ: consumption retry: "Specified in the metadata when a consumer group is created"
// RocketMQ: consumption retry: "Apache RocketMQ supports custom numbers of consumption retries"
func TestMaxAttemptsChangesWhileUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 4})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		deliveries := 0
		for {
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Minute})
			if len(ds) == 0 {
				break
			}
			deliveries++
			if _, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.Retry, Delay: time.Second}); err != nil {
				t.Fatal(err)
			}
		}
		if deliveries != 4 {
			t.Errorf("%d deliveries, want 4", deliveries)
		}
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("y")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})[0]
		if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: time.Minute}); err != nil {
			t.Fatal(err)
		}
		putGroup(t, b, "g", settings.Group{MaxAttempts: 1})
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Hour}); len(ds) != 0 {
			t.Errorf("delivered attempt %d of at most 1", ds[0].Attempt)
		}
		if ds := receiveAll(t, b, "%DLQ%g"); len(ds) != 2 {
			t.Errorf("%d dead letters, want 2", len(ds))
		}
	})
}

// The request may come after the invisible duration, but not after another consumer received the
// message.
func TestDeadLetterComesLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, push := range []bool{true, false} { // waits for its retry, is ready again
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{Queues: 1})
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")}, &tidegate.Message{Topic: "t", Body: []byte("y")})
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: push, Max: 2})
			time.Sleep(31 * time.Second)
			synctest.Wait()
			if _, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "late"}); err != nil {
				t.Errorf("push %v: %v", push, err)
			}
			again := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: push, Wait: time.Minute, Max: 2})
			if len(again) != 1 || string(again[0].Body) != "y" || again[0].Attempt != 2 {
				t.Errorf("push %v: delivered again: %v", push, again)
			}
			if _, err := b.Settle(t.Context(), ds[1], transport.Verdict{Kind: transport.DeadLetter, Reason: "too late"}); !errors.Is(err, tidegate.ErrInvalidHandle) {
				t.Errorf("push %v: another client has it: %v", push, err)
			}
			if n := len(receiveAll(t, b, "%DLQ%g")); n != 1 {
				t.Errorf("push %v: %d dead letters, want 1", push, n)
			}
		}
	})
}

// startOnDisk writes the message of a departure to its new topic. Its lease stays, as after a
// crash.
func startOnDisk(t *testing.T, b *broker.Broker, d *engine.Departure) {
	t.Helper()
	d.Start()
	awaitWrites(t, b)
}

// departing begins a departure, and leaves it to the caller to write the dead letter.
func departing(s *engine.Subscription, begin func(*consume.Progress)) *engine.Departure {
	_, leaving := s.Update(begin)
	return leaving[0]
}

// departingNow is departing for a delivery whose consumer requests a dead letter.
func departingNow(t *testing.T, s *engine.Subscription, h consume.Handle) *engine.Departure {
	t.Helper()
	policy := s.Policy().Rules()
	return departing(s, func(p *consume.Progress) {
		if _, err := p.Settle(h, transport.Verdict{Kind: transport.DeadLetter, Reason: "r"}, 0, &policy, time.Now()); err != nil {
			t.Fatal(err)
		}
	})
}
