package broker_test

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

func stored(tb testing.TB, b *broker.Broker, topic string) int64 {
	tb.Helper()
	info, err := b.Topic(topic)
	if err != nil {
		tb.Fatal(err)
	}
	return info.StoredMessages
}

func subscriptionOf(tb testing.TB, b *broker.Broker, group string) status.Subscription {
	tb.Helper()
	g, err := b.Group(group)
	if err != nil || len(g.Topics) != 1 {
		tb.Fatalf("group %s: %+v, %v", group, g, err)
	}
	return g.Topics[0]
}

func sendN(tb testing.TB, b *broker.Broker, topic string, n, size int) {
	tb.Helper()
	for range n {
		mustSend(tb, b, &tidegate.Message{Topic: topic, Body: make([]byte, size)})
	}
}

// reopen closes a broker and opens another one on the same files.
func reopen(tb testing.TB, b *broker.Broker, fs vfs.FS) *broker.Broker {
	tb.Helper()
	if err := b.Close(); err != nil {
		tb.Fatal(err)
	}
	return open(tb, broker.Options{Dir: "data"}.On(fs))
}

// elapse lets time pass, and waits for its effects.
func elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A message is there until the moment in which its time is over, consumed or not, also after a
// restart; offsets continue.
func TestRetentionByTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		topic  string
		config settings.Duration
		age    time.Duration
	}{{"t", settings.Duration(time.Hour), time.Hour}, {"%DLQ%g", settings.Duration(time.Hour), time.Hour}, {"t", settings.Duration(time.Second), 2 * time.Minute}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				b := open(t, broker.Options{Dir: "data"}.On(fs))
				putTopic(t, b, c.topic, settings.Topic{Queues: 1, Retention: settings.Retention{Time: c.config}})
				sendN(t, b, c.topic, 10, 100)
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: c.topic, Max: 4})
				for _, err := range b.Ack(t.Context(), ds) {
					if err != nil {
						t.Fatal(err)
					}
				}
				elapse(c.age / 2)
				b = reopen(t, b, fs)
				elapse(c.age/2 - 1)
				if n := stored(t, b, c.topic); n != 10 {
					t.Fatalf("just before: %d messages", n)
				}
				elapse(1)
				if n := stored(t, b, c.topic); n != 0 {
					t.Fatalf("just after: %d messages", n)
				}
				if s := subscriptionOf(t, b, "g"); s.Overtaken != 6 || s.Backlog != (status.Backlog{}) || s.Ready != 0 {
					t.Errorf("the group is left with %+v", s)
				}
				for range 2 {
					if n := serve(b).Stats().Topics[0]; n.Stored != (status.Backlog{}) || n.Backlog != (status.Backlog{}) {
						t.Errorf("left: %+v", n)
					}
					b = reopen(t, b, fs)
				}
				r := send(t, b, &tidegate.Message{Topic: c.topic, Body: []byte("next")})[0]
				if r.Err != nil || r.Receipt.Offset != 10 {
					t.Errorf("the next message: %+v", r)
				}
				for _, group := range []string{"g", "new"} {
					if ds := receive(t, b, transport.ReceiveRequest{Group: group, Topic: c.topic, Max: 4}); len(ds) != 1 || string(ds[0].Body) != "next" {
						t.Errorf("%s received %v", group, ds)
					}
				}
			})
		})
	}
}

func TestDefaultRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{})
		sendN(t, b, "t", 3, 1)
		elapse(72*time.Hour - 1)
		if n := stored(t, b, "t"); n != 3 {
			t.Errorf("%d are left, want 3", n)
		}
		elapse(1)
		if n := stored(t, b, "t"); n != 0 {
			t.Errorf("%d are left", n)
		}
	})
}

// Messages that are to be kept without end are kept: dead letters by default, others on request.
func TestRetentionForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Retention: settings.Retention{Time: -1}})
		putTopic(t, b, "%DLQ%g", settings.Topic{})
		sendN(t, b, "t", 3, 1)
		sendN(t, b, "%DLQ%g", 3, 1)
		elapse(10000 * time.Hour)
		if n := stored(t, b, "t") + stored(t, b, "%DLQ%g"); n != 6 {
			t.Errorf("%d are left, want 6", n)
		}
		putTopic(t, b, "t", settings.Topic{Retention: settings.Retention{Time: settings.Duration(time.Hour)}}) // a change holds at once
		elapse(1)
		if n := stored(t, b, "t"); n != 0 {
			t.Errorf("%d are left", n)
		}
	})
}

// A stream of messages is removed in steps, not one by one: never early, and
// not more than a 64th of the time late.
func TestRetentionOfAStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		const retention = 64 * time.Minute
		putTopic(t, b, "t", settings.Topic{Queues: 2, Retention: settings.Retention{Time: settings.Duration(retention)}})
		for i := range 300 {
			sendN(t, b, "t", 1, 10)
			elapse(time.Minute/2 - 1)
			age := min(int64(i)+1, 128)
			if n := stored(t, b, "t"); n < age || n > age+3 {
				t.Fatalf("after %d messages there are %d, want %d to %d", i+1, n, age, age+3)
			}
			elapse(1)
		}
		for _, d := range receiveAll(t, b, "t") {
			if age := time.Since(d.StoredAt); age > retention+time.Minute {
				t.Errorf("one is %v old", age)
			}
		}
	})
}

// Messages that are in flight, wait for their retry, or were ready again just now are kept.
// Messages that were never received are not.
func TestRetentionKeepsUnfinishedMessages(t *testing.T) {
	t.Parallel()
	for _, fifo := range []bool{false, true} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("fifo %v restart %v", fifo, restart), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var o broker.Options // in memory time costs less
					fs := vfs.NewMem()
					if restart {
						o = broker.Options{Dir: "data"}.On(fs)
					}
					b := open(t, o)
					c := settings.Topic{Queues: 1, Retention: settings.Retention{Time: settings.Duration(3 * time.Hour)}}
					if fifo {
						c.Type = settings.TopicFIFO
					}
					putTopic(t, b, "t", c)
					putGroup(t, b, "g", settings.Group{FIFO: fifo, MaxAttempts: 2})
					groups := []string{"inflight", "waiting", "ready", "new", "inflight"} // in a FIFO group the last one is held
					for i, g := range groups {
						m := &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte(g)}
						if fifo {
							m.MessageGroup = g
						}
						mustSend(t, b, m)
					}
					elapse(90 * time.Minute)
					req := transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: 2 * time.Hour, Push: true, Max: 1}
					inflight := receive(t, b, req)[0]
					waiting := receive(t, b, req)[0]
					if _, err := b.Settle(t.Context(), waiting, transport.Verdict{Kind: transport.Retry, Delay: 2 * time.Hour}); err != nil {
						t.Fatal(err)
					}
					req.InvisibleDuration, req.Push = time.Hour, false
					receive(t, b, req)
					if fifo { // skips the last one
						req.Queue, req.Max = transport.AnyQueue, 1
						serve(b).Return(t.Context(), receive(t, b, req))
					}
					elapse(90 * time.Minute) // the third is ready for half an hour
					if n := stored(t, b, "t"); n != 3 {
						t.Fatalf("%d messages are left, want 3", n)
					}
					if s := subscriptionOf(t, b, "g"); s.Overtaken != 2 || s.Backlog.Messages != 3 || s.Ready != 1 || s.Inflight != 1 || s.WaitingRetry != 1 {
						t.Errorf("the group has %+v", s)
					}
					if restart {
						b = reopen(t, b, fs)
						elapse(time.Minute)
						if s := subscriptionOf(t, b, "g"); s.Backlog.Messages != 3 || stored(t, b, "t") != 3 {
							t.Errorf("after a restart the group has %+v, the topic %d", s, stored(t, b, "t"))
						}
					}
					if err := b.Ack(t.Context(), []*tidegate.Delivery{inflight})[0]; err != nil {
						t.Error(err)
					}
					elapse(time.Hour)
					if n, s := stored(t, b, "t"), subscriptionOf(t, b, "g"); n != 1 || s.Backlog.Messages != 1 || s.Ready != 1 {
						t.Errorf("%d messages are left, want the one that waited; the group has %+v", n, s)
					}
					ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: true, Wait: time.Hour, Max: 8})
					if len(ds) != 1 || string(ds[0].Body) != "waiting" || ds[0].Attempt != 2 {
						t.Fatalf("received %v", ds)
					}
					if _, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.Retry, Delay: time.Hour}); err != nil { // the last attempt
						t.Error(err)
					}
					if ds := receiveAll(t, b, "%DLQ%g"); len(ds) != 1 || string(ds[0].Body) != "waiting" {
						t.Errorf("dead letters: %v", ds)
					}
					elapse(2 * time.Hour)
					if n := stored(t, b, "t"); n != 0 {
						t.Errorf("%d messages are left", n)
					}
				})
			})
		}
	}
}

// A topic keeps only its youngest messages, up to its maximum of bytes, precisely to a millisecond.
func TestRetentionByBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 3, DuplicateWindow: -1, Retention: settings.Retention{Bytes: 1000}})
		for i := range 100 {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: fmt.Appendf(nil, "%050d", i)})
			elapse(100 * time.Millisecond)
		}
		elapse(2 * time.Second)
		info, err := b.Topic("t")
		if err != nil || info.StoredBytes != 1000 || info.StoredMessages != 20 {
			t.Fatalf("it holds %+v, %v", info, err)
		}
		b = reopen(t, b, fs)
		for i, d := range receiveAll(t, b, "t") {
			if n, err := strconv.Atoi(string(d.Body)); err != nil || n < 80 {
				t.Errorf("message %d is number %d, %v", i, n, err)
			}
		}
		sendN(t, b, "t", 50, 50) // all at the same time
		elapse(2 * time.Second)
		if info, err := b.Topic("t"); err != nil || info.StoredBytes != 1000 || info.StoredMessages != 20 {
			t.Fatalf("it holds %+v, %v", info, err)
		}
	})
}

// Messages that every group has finished are removed once the duplicate window is over. A group
// that has only received nothing counts, also after a restart.
func TestRetentionOfConsumed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 2, Retention: settings.Retention{Consumed: true}})
		for _, g := range []string{"one", "two"} {
			if ds := receive(t, b, transport.ReceiveRequest{Group: g, Topic: "t"}); len(ds) != 0 {
				t.Fatal(ds)
			}
		}
		b = reopen(t, b, fs)
		mustSend(t, b, &tidegate.Message{ID: "twice", Topic: "t", Body: make([]byte, 10)})
		sendN(t, b, "t", 9, 10)
		consume := func(group string, n int) {
			t.Helper()
			ds := receive(t, b, transport.ReceiveRequest{Group: group, Topic: "t", Max: n})
			for _, err := range b.Ack(t.Context(), ds) {
				if err != nil {
					t.Fatal(err)
				}
			}
			if len(ds) != n {
				t.Fatalf("%s received %d, want %d", group, len(ds), n)
			}
		}
		consume("one", 10)
		elapse(time.Hour)
		if n := stored(t, b, "t"); n != 10 {
			t.Fatalf("%d are left, but no other group has consumed any", n)
		}
		consume("two", 10)
		elapse(retention.Pause)
		if n := stored(t, b, "t"); n != 0 {
			t.Fatalf("%d are left, but all groups have consumed all", n)
		}
		if n := serve(b).Stats().Topics[0].Removed[engine.RemovedConsumed]; n != 10 {
			t.Errorf("%d removed as consumed", n)
		}
		// Within the duplicate window consumed messages stay, so that their IDs are known.
		mustSend(t, b, &tidegate.Message{ID: "twice", Topic: "t", Body: make([]byte, 10)})
		consume("one", 1)
		consume("two", 1)
		elapse(2*time.Minute - time.Second)
		b = reopen(t, b, fs)
		mustSend(t, b, &tidegate.Message{ID: "twice", Topic: "t", Body: make([]byte, 10)})
		if n := stored(t, b, "t"); n != 1 {
			t.Errorf("%d are left, want 1", n)
		}
		elapse(2 * time.Second)
		if n := stored(t, b, "t"); n != 0 {
			t.Errorf("%d are left after the duplicate window", n)
		}
		if s := subscriptionOf(t, b, "one"); s.Overtaken != 0 {
			t.Errorf("overtaken: %+v", s)
		}
		// A group that goes away holds nothing back.
		sendN(t, b, "t", 5, 10)
		consume("one", 5)
		elapse(time.Hour)
		if err := b.DeleteGroup(t.Context(), "two"); err != nil {
			t.Fatal(err)
		}
		elapse(2 * time.Second)
		if n := stored(t, b, "t"); n != 0 {
			t.Errorf("%d are left that only a deleted group needed", n)
		}
	})
}

// One message that fails does not keep all behind it on disk: it is left alone.
func TestConsumedStepsOverFailedMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Consumed: true}})
		sendN(t, b, "t", retention.StepOver+1, 10)
		var failed *tidegate.Delivery
		for {
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Push: true})
			if len(ds) == 0 {
				break
			}
			if failed == nil {
				failed, ds = ds[0], ds[1:]
			}
			b.Ack(t.Context(), ds)
		}
		if _, err := b.Settle(t.Context(), failed, transport.Verdict{Kind: transport.Retry, Delay: 5 * time.Hour}); err != nil {
			t.Fatal(err)
		}
		elapse(2 * time.Second)
		for range 2 {
			if n := stored(t, b, "t"); n != 1 {
				t.Fatalf("%d are left, want 1", n)
			}
			for offset := range int64(retention.StepOver + 1) {
				if is := isStored(t, b, topicOf(t, b, "t"), 0, offset); is != (offset == failed.Offset) {
					t.Errorf("offset %d is on disk: %t", offset, is)
				}
			}
			b = reopen(t, b, fs)
		}
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: 6 * time.Hour})
		if len(ds) != 1 || ds[0].Offset != failed.Offset {
			t.Fatalf("received %v", ds)
		}
		b.Ack(t.Context(), ds)
		elapse(2 * time.Second)
		if n := stored(t, b, "t"); n != 0 {
			t.Errorf("%d are left", n)
		}
	})
}
