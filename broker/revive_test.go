package broker_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// deletedMeanwhile makes every dead letter of g fail until the returned function is called, as if
// the topic were deleted between the lookup and the write.
func deletedMeanwhile(t *testing.T, b *broker.Broker) (over func()) {
	t.Helper()
	putTopic(t, b, "%DLQ%g", settings.Topic{Queues: 1})
	catalog, found := b.Engine().Parts().Catalog, topicOf(t, b, "%DLQ%g")
	if err := b.DeleteTopic(t.Context(), found.Name()); err != nil {
		t.Fatal(err)
	}
	catalog.AddTopic(found)
	return func() { catalog.RemoveTopic(found) }
}

// A request for a dead letter that fails changes nothing: the lease ends at the same time, and its
// handle is still valid.
func TestDeadLetterThatFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wait, again time.Duration // before the request, and from then until the message is delivered
		push        bool
	}{
		"in flight":           {time.Second, 59 * time.Second, false},
		"in flight, push":     {time.Second, 69 * time.Second, true},
		"ready again":         {time.Minute, 0, false},
		"waiting for a retry": {time.Minute, 10 * time.Second, true},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %t", name, restart), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					fs := vfs.NewMem()
					b := open(t, broker.Options{Dir: "data"}.On(fs))
					putTopic(t, b, "t", settings.Topic{Queues: 1})
					mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
					r := transport.ReceiveRequest{Group: "g", Topic: "t", Push: c.push, InvisibleDuration: time.Minute}
					d := receive(t, b, r)[0]
					elapse(c.wait)
					over := deletedMeanwhile(t, b)
					d.Attempt = 17 // a consumer that retries by itself has counted further
					if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "r"}); !errors.Is(err, tidegate.ErrTopicNotFound) {
						t.Errorf("returned %v", err)
					}
					over()
					if restart {
						b = reopen(t, b, fs)
					}
					asked := time.Now()
					r.Wait = time.Hour
					if got := receive(t, b, r); len(got) != 1 || got[0].Attempt != 2 || time.Since(asked) != c.again {
						t.Errorf("%s after %v, want attempt 2 after %v", idsOf(got), time.Since(asked), c.again)
					}
				})
			})
		}
	}
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Minute})[0]
		over := deletedMeanwhile(t, b)
		if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "r"}); err == nil {
			t.Error("it was confirmed, and there is no dead letter")
		}
		over()
		elapse(2 * time.Second)
		if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "r"}); err != nil {
			t.Error(err)
		}
		if n := len(receiveAll(t, b, "%DLQ%g")); n != 1 {
			t.Errorf("%d dead letters, want 1", n)
		}
	})
}

// A dead letter that is due by time is tried again each second, and not delivered meanwhile.
func TestDeadLetterByTimeThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		r := transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Minute}
		receive(t, b, r)
		over := deletedMeanwhile(t, b)
		r.Wait = 10 * time.Minute
		if ds := receive(t, b, r); len(ds) != 0 {
			t.Errorf("attempt %d of 1 was delivered", ds[0].Attempt)
		}
		over()
		elapse(2 * time.Second)
		if n := len(receiveAll(t, b, "%DLQ%g")); n != 1 {
			t.Errorf("%d dead letters, want 1", n)
		}
	})
}

// If the failed message of a parked message group cannot become a dead letter, the group stays
// parked with its reason, also across a restart.
func TestParkedDeadLetterThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 2})
		putGroup(t, b, "g", settings.Group{FIFO: true, OnExhausted: settings.OnExhaustedPark, NegativeAck: settings.NegativeAck{MaxRedeliveries: 1}})
		sends, receives := fifoOf(t, b)
		sends("a:1", "a:2", "a:3")
		for range 2 {
			if err := serve(b).NegativeAck(t.Context(), one(t, b, "g", "t"), time.Second); err != nil {
				t.Fatal(err)
			}
		}
		parked := func() []status.ParkedGroup {
			t.Helper()
			page, err := b.Parked("g", status.ParkedQuery{})
			if err != nil || len(page.Groups) != 1 {
				t.Fatalf("%+v, %v", page, err)
			}
			return page.Groups
		}
		expectMessages(t, receives(), "")
		before := parked()
		over := deletedMeanwhile(t, b)
		if done, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{DeadLetter: true}); !errors.Is(err, tidegate.ErrTopicNotFound) || done != (status.ParkedRedrive{}) {
			t.Errorf("%+v, %v", done, err)
		}
		over()
		for range 2 {
			elapse(time.Hour)
			expectMessages(t, receives(), "")
			expectState(t, b, 0, 0, 0, 3, 1, 0)
			if after := parked(); after[0] != before[0] {
				t.Errorf("it is parked as %+v, was as %+v", after[0], before[0])
			}
			b = reopen(t, b, fs)
			_, receives = fifoOf(t, b)
		}
		if done, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{DeadLetter: true}); err != nil || done != (status.ParkedRedrive{MessageGroups: 1, Messages: 3}) {
			t.Errorf("%+v, %v", done, err)
		}
		synctest.Wait()
		ackDeliveries(t, b, expectMessages(t, receives(), "a:2/1"))
		ackDeliveries(t, b, expectMessages(t, receives(), "a:3/1"))
		expectState(t, b, 0, 0, 0, 0, 0, 0)
		page, err := b.DeadLetters("g", status.DeadLetterQuery{})
		if err != nil || len(page.DeadLetters) != 1 || page.DeadLetters[0].Origin.Reason != before[0].Reason {
			t.Errorf("%+v, %v", page, err)
		}
		if n := parkedReasons(t, b); n != 0 {
			t.Errorf("%d reasons are left over", n)
		}
	})
}

// The process ends after the dead letter of a parked message group is written,
// and before its lease is removed: nothing is parked any more.
func TestParkedDeadLetterAcrossACrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := parkedTopic(t, fs, settings.Retention{}, 3)
		d := departing(subscriptions(b)[0], func(p *consume.Progress) { p.Redrive("a", true, time.Now()) })
		startOnDisk(t, b, d)
		b = reopen(t, b, fs)
		synctest.Wait()
		for _, want := range []string{"1/1", "2/1"} {
			ackDeliveries(t, b, expectMessages(t, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}), want))
		}
		if n := parkedReasons(t, b); n != 0 {
			t.Errorf("%d reasons are left over", n)
		}
	})
}
