package broker_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// Delayed messages arrive exactly at their time, in any order of sending, also across restarts.
// Those of the past arrive at once.
func TestDelay(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay})
		start := time.Now()
		var ms []*tidegate.Message
		for _, after := range []time.Duration{3 * time.Hour, time.Second, time.Hour, -time.Hour, time.Minute, 0, 90 * time.Second} {
			ms = append(ms, &tidegate.Message{Topic: "t", Body: []byte(after.String()), DeliverAt: start.Add(after)})
		}
		mustSend(t, b, ms...)
		for i, want := range []time.Duration{0, 0, time.Second, time.Minute, 90 * time.Second, time.Hour, 3 * time.Hour} {
			if i == 3 || i == 6 {
				b = reopen(t, b, fs)
			}
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: 25 * time.Hour})
			assert.MustThat(t, len(ds) == 1, "message %d: %d deliveries", i, len(ds))
			if got := time.Since(start); got != want || i > 1 && string(ds[0].Body) != want.String() {
				t.Errorf("message %d, %s, arrived after %v, want %v", i, ds[0].Body, got, want)
			}
			if d := ds[0].DeliverAt.Sub(start).String(); d != string(ds[0].Body) {
				t.Errorf("the delivery time is %s, want %s as sent", d, ds[0].Body)
			}
			assert.Must(t, b.Ack(t.Context(), ds)[0])
		}
	})
}

func TestRecall(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay})
		putTopic(t, b, "other", settings.Topic{Type: settings.TopicDelay})
		at := time.Now().Add(time.Minute)
		m := &tidegate.Message{ID: "m", Topic: "t", Body: []byte("x"), DeliverAt: at}
		r := send(t, b, m)[0].Receipt
		assert.MustThat(t, r.RecallHandle != "" && r.Queue == -1, "receipt %+v", r)
		// The response to a duplicate has the first receipt. The broker does not store the
		// duplicate.
		if again := send(t, b, m)[0]; again.Err != nil || again.Receipt != r {
			t.Errorf("repeated: %+v, want %+v", again, r)
		}
		for topic, h := range map[string]string{"t": "nonsense", "other": r.RecallHandle} {
			_, err := b.Recall(t.Context(), topic, h)
			assert.That(t, errors.Is(err, tidegate.ErrInvalid), "%q of topic %s: %v", h, topic, err)
		}
		id, err := b.Recall(t.Context(), "t", r.RecallHandle)
		assert.That(t, err == nil && id == "m", "recalled %q, %v", id, err)
		assert.Is(t, "recalled twice", assert.Err(b.Recall(t.Context(), "t", r.RecallHandle)), tidegate.ErrNotFound)
		// A recalled message can be sent again, and arrives once.
		second := send(t, b, m)[0]
		assert.That(t, second.Err == nil && second.Receipt != r, "sent again: %+v", second)
		<-time.After(time.Minute)
		synctest.Wait()
		assert.Is(t, "recalled after its time", assert.Err(b.Recall(t.Context(), "t", second.Receipt.RecallHandle)), tidegate.ErrNotFound)
		// A message is a duplicate also after the delivery time of the first one.
		if again := send(t, b, m)[0]; again.Err != nil || again.Receipt.Queue < 0 {
			t.Errorf("repeated after its time: %+v", again)
		}
		assert.Equal(t, "arrived", len(receiveAll(t, b, "t")), 1)
	})
}

// Messages that wait for their delivery time are reported, and count in the limit of their topic.
// Both stay the same when they are moved to their queue, and after a restart.
func TestDelayedMessagesCountInTheLimit(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]settings.Limit{"messages": {Messages: 100}, "bytes": {Bytes: 1000}} {
		subtest(t, name, func(t *testing.T) {
			b, fs := openData(t)
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
				assert.That(t, (info.Throttle != nil) == throttled, "%s: throttled by %+v", when, info.Throttle)
				if err := send(time.Hour); throttled != errors.Is(err, tidegate.ErrThrottled) {
					t.Errorf("%s: a send has %v", when, err)
				}
			}
			for i := range 100 {
				assert.Must(t, send(time.Duration(1+i%2)*time.Minute), "send %d", i)
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
	}
}

// delayed returns the messages of a topic that wait for their delivery time.
func delayed(t *testing.T, b *broker.Broker, topic string) status.Backlog {
	t.Helper()
	info := assert.Value(b.Topic(topic))(t)
	return status.Backlog{Messages: info.DelayedMessages, Bytes: info.DelayedBytes}
}

// The delayed messages of other topics, in any number and with any damage, do not concern a purge
// or the deletion of a topic. None of its own is left.
func TestPurgeLooksAtNoOtherTopicsDelayedMessages(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		for _, name := range []string{"a", "b"} {
			putTopic(t, b, name, settings.Topic{Type: settings.TopicDelay, Queues: 1})
		}
		corruptRecord(t, b, []byte("y, which is no key of a delayed message"))
		later := func(i int) time.Time { return time.Now().Add(time.Duration(1+i%50) * time.Minute) }
		for i := range engine.DelayedBatch + 5 {
			mustSend(t, b, &tidegate.Message{Topic: "a", Body: make([]byte, 1+i%7), DeliverAt: later(i)})
			if i%1000 == 0 {
				mustSend(t, b, &tidegate.Message{Topic: "b", Body: []byte("x"), DeliverAt: later(i)})
			}
		}
		r := send(t, b, &tidegate.Message{ID: "recalled", Topic: "b", Body: []byte("x"), DeliverAt: later(7)})[0]
		a := topicOf(t, b, "a")
		want := delayed(t, b, "a")
		if removed, err := b.PurgeTopic(t.Context(), "a"); err != nil || removed != want || want.Messages != engine.DelayedBatch+5 {
			t.Errorf("purged %+v, %v; want %+v", removed, err, want)
		}
		mustSend(t, b, &tidegate.Message{Topic: "a", Body: []byte("x"), DeliverAt: later(0)})
		assert.Must(t, b.DeleteTopic(t.Context(), "a"))
		left := delayedRecords(t, b, a)
		assert.That(t, len(left) == 0, "%+v are left", left)
		id, err := b.Recall(t.Context(), "b", r.Receipt.RecallHandle)
		assert.That(t, err == nil && id == "recalled", "recalled %q, %v", id, err)
		assert.Equal(t, "wait in the other topic", delayed(t, b, "b"), (status.Backlog{Messages: 5, Bytes: 5}))
	})
}

// Messages that are sent after the begin of a purge stay, and cannot keep it from ending.
func TestPurgeWhileDelayedMessagesAreSent(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay, Queues: 1})
		var handles []string
		sends := func() {
			r := send(t, b, &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Body: []byte("x"), DeliverAt: time.Now().Add(time.Hour)})[0]
			assert.NoError(t, r.Err)
			handles = append(handles, r.Receipt.RecallHandle)
		}
		for range 3 {
			sends()
			elapse(time.Second)
		}
		before := handles
		handles = nil
		release := holdDelayed(t, b) // the purge waits for it, once it has begun
		type result struct {
			removed status.Backlog
			err     error
		}
		done := make(chan result, 1)
		go func() {
			removed, err := b.PurgeTopic(t.Context(), "t")
			done <- result{removed, err}
		}()
		synctest.Wait()
		sends()
		release()
		for range 100_000 { // it may be long before a processor is there for the purge
			sends()
			if len(done) > 0 {
				break
			}
		}
		select {
		case r := <-done:
			assert.That(t, r.err == nil && r.removed == (status.Backlog{Messages: 3, Bytes: 3}),
				"purged %+v, %v; want the 3 that were there", r.removed, r.err)
		default:
			t.Error("it continues as long as messages are sent")
		}
		for _, h := range before {
			id, err := b.Recall(t.Context(), "t", h)
			assert.That(t, err != nil, "%s is recalled and should be gone", id)
		}
		for _, h := range handles {
			assert.Must(t, assert.Err(b.Recall(t.Context(), "t", h)), "of a message that was sent since")
		}
		assert.Equal(t, "wait", delayed(t, b, "t"), (status.Backlog{}))
	})
}

// A purge removes the rest of a message that was corrupt when it came due, and the counters no
// longer have it.
func TestPurgeRemovesCorruptDelayedMessages(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay, Queues: 1})
		for range 3 {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x"), DeliverAt: time.Now().Add(time.Hour)})
		}
		corruptDelayed(t, b, "t", 1)
		elapse(2 * time.Hour)
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x"), DeliverAt: time.Now().Add(time.Hour)})
		tp := topicOf(t, b, "t")
		ds := delayedRecords(t, b, tp)
		assert.That(t, len(ds) == 2 && ds[0].Gone && !ds[1].Gone, "%+v are stored", ds)
		if removed, err := b.PurgeTopic(t.Context(), "t"); err != nil || removed != (status.Backlog{Messages: 3, Bytes: 3}) {
			t.Errorf("purged %+v, %v; want two that came and one that waits", removed, err)
		}
		if ds, left := delayedRecords(t, b, tp), delayed(t, b, "t"); len(ds) != 0 || left != (status.Backlog{}) {
			t.Errorf("%+v are left; %+v wait", ds, left)
		}
	})
}

// A purge removes messages in all states. Groups continue after it, and a power failure directly
// after its response restores nothing.
func TestPurgeTopic(t *testing.T) {
	t.Parallel()
	for _, kind := range []settings.TopicType{settings.TopicNormal, settings.TopicFIFO, settings.TopicDelay} {
		subtest(t, string(kind), func(t *testing.T) {
			b, fs := openData(t)
			putTopic(t, b, "t", settings.Topic{Type: kind, Queues: 2})
			putGroup(t, b, "g", settings.Group{FIFO: kind == settings.TopicFIFO, MaxAttempts: 2})
			var msgs []*tidegate.Message
			for i := range 20 {
				m := &tidegate.Message{ID: fmt.Sprint("m", i), Topic: "t", Body: []byte("12345")}
				switch kind {
				case settings.TopicFIFO:
					m.MessageGroup = fmt.Sprint(i % 4)
				case settings.TopicDelay:
					if m.DeliverAt = time.Now(); i >= 10 {
						m.DeliverAt = m.DeliverAt.Add(time.Hour)
					}
				}
				msgs = append(msgs, m)
			}
			mustSend(t, b, msgs...)
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 4, Push: true})
			assert.MustEqual(t, "deliveries", len(ds), 4)
			_, err := b.Settle(t.Context(), ds[1], transport.Verdict{Kind: transport.Retry, Delay: time.Minute})
			assert.Must(t, errors.Join(err, b.Ack(t.Context(), ds[:1])[0], second(b.Settle(t.Context(), ds[2], transport.Verdict{Kind: transport.DeadLetter, Reason: "r"}))))
			elapse(time.Second) // the progress so far is on disk, and comes back, unlike that of the purge
			removed, err := b.PurgeTopic(t.Context(), "t")
			assert.That(t, err == nil && removed == (status.Backlog{Messages: 20, Bytes: 100}), "removed %+v, %v", removed, err)
			cut := fs.CrashClone(vfs.CrashCloneCfg{})
			if n := serve(b).Stats().Topics[0].Removed[retention.Purged]; n+serve(b).Stats().Topics[1].Removed[retention.Purged] != 20 {
				t.Errorf("%d counted", n)
			}
			for _, where := range []string{"at once", "after a power failure"} {
				if s := subscriptionOf(t, b, "g"); s.Backlog != (status.Backlog{}) || s.Ready+s.Inflight+s.WaitingRetry != 0 || s.Overtaken != 0 {
					t.Errorf("%s: the group has %+v", where, s)
				}
				if err := b.Ack(t.Context(), ds[3:])[0]; !errors.Is(err, tidegate.ErrInvalidHandle) {
					t.Errorf("%s: the message in flight: %v", where, err)
				}
				elapse(2 * time.Hour)
				ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Minute})
				assert.That(t, len(ds) == 0, "%s: received %v", where, ds)
				n := len(receiveAll(t, b, "%DLQ%g"))
				assert.That(t, n == 1, "%s: %d dead letters, want 1", where, n)
				if kind != settings.TopicDelay {
					r := send(t, b, msgs[0])[0] // its ID is forgotten
					assert.That(t, r.Err == nil, "%s: sent again: %v", where, r.Err)
					ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
					assert.That(t, len(ds) == 1 && ds[0].ID == "m0", "%s: sent again and received %v", where, ds)
				} else if r := send(t, b, msgs[19])[0]; r.Err != nil {
					t.Errorf("%s: a delayed one sent again: %v", where, r.Err)
				}
				if where == "at once" {
					b = open(t, broker.Options{Dir: "data"}.On(cut))
				}
			}
		})
	}
}

// A purge comes while a receive has read messages, and while a dead letter is
// being written: the first are not delivered, the second is counted once.
func TestPurgeMeetsOthersHalfWay(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		sendN(t, b, "t", 10, 10)
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})[0]
		s, h := locate(t, b, d)
		dying := departingNow(t, s, h)
		r := consume.Receive{Queue: transport.AnyQueue, Max: 4, MaxBytes: 16 << 20, Filter: allMessages{}}
		var c consume.Claim
		s.Update(func(p *consume.Progress) {
			p.Extend(0, s.Topic().Queues()[0].End())
			p.Begin(&r, time.Now())
			c, _ = p.Claim(&r, time.Now())
		})
		dying.Start()
		ms, offsets, err := b.Engine().Parts().Store.Read(s.Topic().ID(), 0, c.From, c.To, c.Limit, 1000)
		assert.MustThat(t, err == nil && len(ms) == 4, "%+v, %+v", ms, err)
		if removed, err := b.PurgeTopic(t.Context(), "t"); err != nil || removed.Messages != 10 {
			t.Fatal(removed, err)
		}
		assert.NoError(t, dying.Wait(dying.RemoveLease()))
		var next int64
		s.Update(func(p *consume.Progress) {
			p.Unclaim(&r, 0)
			p.Admit(&r, c, false, ms, offsets, time.Now())
			next = p.Cursor(0).Next
		})
		assert.That(t, len(r.Grants) == 0 && next == 10, "%d are delivered, the group is at %d", len(r.Grants), next)
		if s := subscriptionOf(t, b, "g"); s.Backlog != (status.Backlog{}) || s.Ready+s.Inflight+s.WaitingRetry != 0 {
			t.Errorf("the group has %+v", s)
		}
	})
}

// records returns the keys of all stored records, except the last number given and the key of IDs'
// hashes.
func records(tb testing.TB, fs vfs.FS) (keys []string) {
	tb.Helper()
	for _, name := range []string{"data/messages", "data/groups"} {
		db := assert.Value(pebble.Open(name, &pebble.Options{FS: fs, ReadOnly: true, Logger: quiet{}}))(tb)
		it := assert.Value(db.NewIter(nil))(tb)
		for ok := it.First(); ok; ok = it.Next() {
			if k := it.Key()[0]; k != 'n' && k != 'k' && k != 'o' && k != 'j' {
				keys = append(keys, string(it.Key()))
			}
		}
		assert.Must(tb, errors.Join(it.Close(), db.Close()))
	}
	return keys
}

// quiet is a Pebble logger without output.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(string, ...any) {}

// The deletion of a topic or group removes all its records from the store.
func TestDeletionLeavesNothing(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		for round := range 2 {
			putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay})
			now := time.Now()
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x"), DeliverAt: now.Add(time.Hour)},
				&tidegate.Message{Topic: "t", Body: []byte("x"), DeliverAt: now}, &tidegate.Message{Topic: "t", Body: []byte("x"), DeliverAt: now})
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 2})
			assert.MustThat(t, len(ds) == 2 && ds[0].Attempt == 1, "received %v", ds)
			settle(t, b, ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "r"})
			if round == 1 { // the group first
				assert.Must(t, b.DeleteGroup(t.Context(), "g"))
			}
			for _, topic := range []string{"t", "%DLQ%g"} {
				assert.Must(t, b.DeleteTopic(t.Context(), topic))
			}
			if round == 0 {
				assert.Must(t, b.DeleteGroup(t.Context(), "g"))
			}
			assert.Must(t, b.Close())
			assert.Equal(t, "left", len(records(t, fs)), 0)
			b = open(t, broker.Options{Dir: "data"}.On(fs))
		}
	})
}

// A purge removes half messages too: their transactions no longer exist and are not checked. A half
// message with the same ID is a new one, delivered once.
func TestPurgeRemovesHalfMessages(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b, fs := openData(t)
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		putTopic(t, b, "other", settings.Topic{Type: settings.TopicTransaction})
		const n = 2*engine.CheckBatch + 3
		var receipts []tidegate.Receipt
		for i := range n {
			receipts = append(receipts, sendHalf(t, b, fmt.Sprintf("%04d", i)))
		}
		r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: "other", Topic: "other", Body: []byte("x")}, 0)
		assert.MustThat(t, r.Err == nil, "%+v", r.Err)
		assert.Must(t, endTransaction(t, b, receipts[1], transport.Commit))
		if removed, err := b.PurgeTopic(t.Context(), "t"); err != nil || removed != (status.Backlog{Messages: n, Bytes: 4 * n}) {
			t.Errorf("removed %+v, %v; want all %d", removed, err, n)
		}
		var a asked
		for _, restart := range []bool{false, true} {
			if restart {
				b = open(t, broker.Options{Dir: "data"}.On(fs.CrashClone(vfs.CrashCloneCfg{})))
			}
			a.of(b)
			if info, err := b.Topic("t"); err != nil || info.HalfMessages != 0 || info.StoredMessages > 1 {
				t.Errorf("restart %t: %d half messages, %d messages, %v", restart, info.HalfMessages, info.StoredMessages, err)
			}
			wantCode(t, "end of a purged transaction", endTransaction(t, b, receipts[0], transport.Commit), tidegate.CodeInternalServerError)
			again := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: "0000", Topic: "t", Body: []byte("0000")}, 0)
			if again.Err != nil || again.Receipt == receipts[0] {
				t.Errorf("restart %t: sent again: %+v, first %+v", restart, again, receipts[0])
			}
			if !restart {
				assert.NoError(t, endTransaction(t, b, again.Receipt, transport.Commit))
			}
			ds := receiveAll(t, b, "t")
			assert.That(t, len(ds) == 1 && ds[0].ID == "0000", "restart %t: received %v", restart, ds)
		}
		<-time.After(time.Minute)
		synctest.Wait()
		for _, c := range a.all {
			assert.That(t, c.Message.Topic == "other", "asked about %q", c.Message.ID)
		}
	})
}

// A purge and the check of transactions that makes the topic of those given up do not wait for one
// another.
func TestPurgeMeetsTheEndOfATransaction(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction, Transaction: settings.Transaction{CheckMax: 1}})
		putTopic(t, b, "purged", settings.Topic{Type: settings.TopicTransaction})
		sendHalf(t, b, "given up")
		elapse(6 * time.Second)
		release := holdTransactions(t, b)
		elapse(30 * time.Second)
		r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: "p", Topic: "purged", Body: []byte("12")}, 0)
		assert.MustThat(t, r.Err == nil, "%+v", r.Err)
		purged := make(chan error, 1)
		go func() {
			removed, err := b.PurgeTopic(t.Context(), "purged")
			assert.Equal(t, "removed", removed, (status.Backlog{Messages: 1, Bytes: 2}))
			purged <- err
		}()
		synctest.Wait() // both want the task, the check first
		begin := time.Now()
		release()
		assert.NoError(t, <-purged)
		synctest.Wait()
		assert.Equal(t, "they stood for", time.Since(begin), 0)
		assert.Equal(t, "were given up", len(receiveAll(t, b, broker.AbandonedTransactions)), 1)
	})
}

// allMessages is a filter that takes all messages.
type allMessages struct{}

func (allMessages) Wants(*store.Message) bool { return true }
