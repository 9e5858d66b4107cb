package broker_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// Delayed messages arrive exactly at their time, in any order of sending, also across restarts.
// Those of the past arrive at once.
func TestDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay})
		start := time.Now()
		for _, after := range []time.Duration{3 * time.Hour, time.Second, time.Hour, -time.Hour, time.Minute, 0, 90 * time.Second} {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte(after.String()), DeliverAt: start.Add(after)})
		}
		for i, want := range []time.Duration{0, 0, time.Second, time.Minute, 90 * time.Second, time.Hour, 3 * time.Hour} {
			if i == 3 || i == 6 {
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
				b = open(t, broker.Options{Dir: "data"}.On(fs))
			}
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: 25 * time.Hour})
			if len(ds) != 1 {
				t.Fatalf("message %d: %d deliveries", i, len(ds))
			}
			if got := time.Since(start); got != want || i > 1 && string(ds[0].Body) != want.String() {
				t.Errorf("message %d, %s, arrived after %v, want %v", i, ds[0].Body, got, want)
			}
			if d := ds[0].DeliverAt.Sub(start).String(); d != string(ds[0].Body) {
				t.Errorf("the delivery time is %s, want %s as sent", d, ds[0].Body)
			}
			if err := b.Ack(t.Context(), ds)[0]; err != nil {
				t.Fatal(err)
			}
		}
	})
}

// More than one batch can be due at the same time.
func TestManyDueAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay})
		at := time.Now().Add(time.Hour)
		for i := range 3*engine.DueBatch + 1 {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: fmt.Append(nil, i), DeliverAt: at})
		}
		<-time.After(time.Hour)
		synctest.Wait()
		if n := len(receiveAll(t, b, "t")); n != 3*engine.DueBatch+1 {
			t.Errorf("%d arrived, want %d", n, 3*engine.DueBatch+1)
		}
	})
}

func TestRecall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay})
		putTopic(t, b, "other", settings.Topic{Type: settings.TopicDelay})
		at := time.Now().Add(time.Minute)
		m := &tidegate.Message{ID: "m", Topic: "t", Body: []byte("x"), DeliverAt: at}
		r := send(t, b, m)[0].Receipt
		if r.RecallHandle == "" || r.Queue != -1 {
			t.Fatalf("receipt %+v", r)
		}
		// The response to a duplicate has the first receipt. The broker does not store the
		// duplicate.
		if again := send(t, b, m)[0]; again.Err != nil || again.Receipt != r {
			t.Errorf("repeated: %+v, want %+v", again, r)
		}
		for topic, h := range map[string]string{"t": "nonsense", "other": r.RecallHandle} {
			if _, err := b.Recall(t.Context(), topic, h); !errors.Is(err, tidegate.ErrInvalid) {
				t.Errorf("%q of topic %s: %v", h, topic, err)
			}
		}
		if id, err := b.Recall(t.Context(), "t", r.RecallHandle); err != nil || id != "m" {
			t.Errorf("recalled %q, %v", id, err)
		}
		if _, err := b.Recall(t.Context(), "t", r.RecallHandle); !errors.Is(err, tidegate.ErrNotFound) {
			t.Errorf("recalled twice: %v", err)
		}
		// A recalled message can be sent again, and arrives once.
		second := send(t, b, m)[0]
		if second.Err != nil || second.Receipt == r {
			t.Errorf("sent again: %+v", second)
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if _, err := b.Recall(t.Context(), "t", second.Receipt.RecallHandle); !errors.Is(err, tidegate.ErrNotFound) {
			t.Errorf("recalled after its time: %v", err)
		}
		// A message is a duplicate also after the delivery time of the first one.
		if again := send(t, b, m)[0]; again.Err != nil || again.Receipt.Queue < 0 {
			t.Errorf("repeated after its time: %+v", again)
		}
		if n := len(receiveAll(t, b, "t")); n != 1 {
			t.Errorf("%d arrived, want 1", n)
		}
	})
}

// A topic is deleted while messages wait: they are gone, also for the next one of that name.
func TestDeletedTopicHasNoDelayedMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x"), DeliverAt: time.Now().Add(time.Minute)})
		if err := b.DeleteTopic(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay})
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if n := len(receiveAll(t, b, "t")); n != 0 {
			t.Errorf("%d arrived", n)
		}
		expectNothingPending(t, b)
	})
}

// Each message arrives exactly at its time, once, for any order of the times of new and waiting
// messages. In the end nothing is left to look at.
func TestDelaysInRandomOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 0))
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay})
		const longest = 2 * time.Minute
		arrived := map[string]time.Time{}
		var consumer sync.WaitGroup
		consumer.Go(func() {
			for {
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: longest + time.Second})
				for i, err := range b.Ack(t.Context(), ds) {
					if _, again := arrived[ds[i].ID]; again || err != nil {
						t.Errorf("seed %d: message %s arrived twice, or %v", seed, ds[i].ID, err)
					}
					arrived[ds[i].ID] = time.Now()
				}
				if len(ds) == 0 {
					return
				}
			}
		})
		due := map[string]time.Time{}
		for i := range 1000 {
			id, at := fmt.Sprint(i), time.Now().Add(time.Duration(1+rnd.Int64N(int64(longest))))
			r := send(t, b, &tidegate.Message{ID: id, Topic: "t", Body: []byte("x"), DeliverAt: at})[0]
			if rnd.IntN(5) == 0 {
				if _, err := b.Recall(t.Context(), "t", r.Receipt.RecallHandle); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			} else {
				due[id] = at
			}
			if rnd.IntN(3) == 0 {
				<-time.After(time.Duration(rnd.Int64N(int64(longest / 100))))
			}
		}
		consumer.Wait()
		for id, at := range due {
			if !arrived[id].Equal(at) {
				t.Errorf("seed %d: message %s arrived at %v, want %v", seed, id, arrived[id], at)
			}
		}
		if len(arrived) != len(due) {
			t.Errorf("seed %d: %d arrived, want %d", seed, len(arrived), len(due))
		}
		if at := b.Engine().Parts().Delayed.From(); at.Before(time.Now().AddDate(100, 0, 0)) {
			t.Errorf("seed %d: nothing waits, and the next look begins at %v", seed, at)
		}
	})
}

// BenchmarkDelayed moves one message at a time, after the number of delivered messages in its name.
// The cost may not depend on them.
func BenchmarkDelayed(b *testing.B) {
	for _, before := range []int{0, 100_000} {
		b.Run(fmt.Sprintf("before=%d", before), func(b *testing.B) {
			br := open(b, broker.Options{})
			putTopic(b, br, "t", settings.Topic{Type: settings.TopicDelay, DuplicateWindow: -1})
			put := func(due time.Time, n int) {
				batch := make([]*tidegate.Message, n)
				for i := range batch {
					batch[i] = &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: []byte("x"), DeliverAt: due}
				}
				mustSend(b, br, batch...)
			}
			moved := func(n int64) {
				for {
					if t, err := br.Topic("t"); err != nil || t.StoredMessages >= n {
						return
					}
					runtime.Gosched()
				}
			}
			put(time.Now().Add(time.Hour), 1)
			for done := 0; done < before; done += 1000 {
				put(time.Now().Add(time.Millisecond), 1000)
			}
			moved(int64(before))
			b.ResetTimer()
			for i := range b.N {
				put(time.Now().Add(50*time.Microsecond), 1)
				moved(int64(before + i + 1))
			}
		})
	}
}

// Messages that wait for their delivery time are reported, and count in the limit of their topic.
// Both stay the same when they are moved to their queue, and after a restart.
func TestDelayedMessagesCountInTheLimit(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]settings.Limit{"messages": {Messages: 100}, "bytes": {Bytes: 1000}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				b := open(t, broker.Options{Dir: "data"}.On(fs))
				putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay, MaxBacklog: limit})
				receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
				send := func(after time.Duration) error {
					return send(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, 10), DeliverAt: time.Now().Add(after)})[0].Err
				}
				is := func(when string, stored, delayed, backlog int64, throttled bool) {
					t.Helper()
					info, err := b.Topic("t")
					if err != nil || info.StoredMessages != stored || info.DelayedMessages != delayed || info.DelayedBytes != delayed*10 || info.Backlog.Messages != backlog {
						t.Errorf("%s: %+v, %v", when, info, err)
					}
					if st := serve(b).Stats().Topics[0]; st.Delayed != (status.Backlog{Messages: delayed, Bytes: delayed * 10}) {
						t.Errorf("%s: the statistics have %+v", when, st.Delayed)
					}
					if (info.Throttle != nil) != throttled {
						t.Errorf("%s: throttled by %+v", when, info.Throttle)
					}
					if err := send(time.Hour); throttled != errors.Is(err, tidegate.ErrThrottled) {
						t.Errorf("%s: a send has %v", when, err)
					}
				}
				for i := range 100 {
					if err := send(time.Duration(1+i%2) * time.Minute); err != nil {
						t.Fatalf("send %d: %v", i, err)
					}
				}
				is("sent", 0, 100, 0, true)
				elapse(time.Minute)
				is("half of it is due", 50, 50, 50, true)
				b = reopen(t, b, fs)
				is("opened again", 50, 50, 50, true)
				elapse(time.Minute)
				is("all is due", 100, 0, 100, true)
				for range 2 { // from 100 to 80
					ackDeliveries(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 10}))
				}
				is("some is consumed", 100, 0, 80, false)
				is("and one was sent", 100, 1, 80, false)
			})
		})
	}
}

// Each end of the wait of delayed messages removes them from the counter.
func TestDelayedMessagesAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay, Queues: 1})
		send := func(after time.Duration) tidegate.Receipt {
			t.Helper()
			r := send(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, 10), DeliverAt: time.Now().Add(after)})[0]
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			return r.Receipt
		}
		is := func(when string, want int64) {
			t.Helper()
			for range 2 {
				info, err := b.Topic("t")
				if err != nil || info.DelayedMessages != want || info.DelayedBytes != 10*want {
					t.Errorf("%s: %d messages, %d bytes wait, want %d; %v", when, info.DelayedMessages, info.DelayedBytes, want, err)
				}
				b = reopen(t, b, fs)
			}
		}
		r := send(time.Hour)
		send(2 * time.Hour)
		send(3 * time.Hour)
		is("sent", 3)
		if _, err := b.Recall(t.Context(), "t", r.RecallHandle); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Recall(t.Context(), "t", r.RecallHandle); err == nil {
			t.Error("it was recalled twice")
		}
		is("recalled", 2)
		if removed, err := b.PurgeTopic(t.Context(), "t"); err != nil || removed != (status.Backlog{Messages: 2, Bytes: 20}) {
			t.Errorf("purged %+v, %v", removed, err)
		}
		is("purged", 0)

		// A corrupt message stops waiting at its time.
		send(time.Minute)
		corruptDelayed(t, b, "t", 0)
		elapse(2 * time.Minute)
		is("damaged", 0)

		send(time.Hour)
		if err := b.DeleteTopic(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		expectNothingPending(t, b)
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay, Queues: 1})
		is("made anew", 0)
	})
}
