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
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// A purge removes messages in all states. Groups continue after it, and a power failure directly
// after its response restores nothing.
func TestPurgeTopic(t *testing.T) {
	t.Parallel()
	for _, kind := range []settings.TopicType{settings.TopicNormal, settings.TopicFIFO, settings.TopicDelay} {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewCrashableMem()
				b := open(t, broker.Options{Dir: "data"}.On(fs))
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
				if len(ds) != 4 {
					t.Fatalf("%d deliveries", len(ds))
				}
				_, err := b.Settle(t.Context(), ds[1], transport.Verdict{Kind: transport.Retry, Delay: time.Minute})
				if err := errors.Join(err, b.Ack(t.Context(), ds[:1])[0], second(b.Settle(t.Context(), ds[2], transport.Verdict{Kind: transport.DeadLetter, Reason: "r"}))); err != nil {
					t.Fatal(err)
				}
				elapse(time.Second) // the progress so far is on disk, and comes back, unlike that of the purge
				removed, err := b.PurgeTopic(t.Context(), "t")
				if err != nil || removed != (status.Backlog{Messages: 20, Bytes: 100}) {
					t.Errorf("removed %+v, %v", removed, err)
				}
				cut := fs.CrashClone(vfs.CrashCloneCfg{})
				if n := serve(b).Stats().Topics[0].Removed[engine.RemovedPurge]; n+serve(b).Stats().Topics[1].Removed[engine.RemovedPurge] != 20 {
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
					if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Minute}); len(ds) != 0 {
						t.Errorf("%s: received %v", where, ds)
					}
					if n := len(receiveAll(t, b, "%DLQ%g")); n != 1 {
						t.Errorf("%s: %d dead letters, want 1", where, n)
					}
					if kind != settings.TopicDelay {
						r := send(t, b, msgs[0])[0] // its ID is forgotten
						if r.Err != nil {
							t.Errorf("%s: sent again: %v", where, r.Err)
						}
						if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}); len(ds) != 1 || ds[0].ID != "m0" {
							t.Errorf("%s: sent again and received %v", where, ds)
						}
					} else if r := send(t, b, msgs[19])[0]; r.Err != nil {
						t.Errorf("%s: a delayed one sent again: %v", where, r.Err)
					}
					if where == "at once" {
						b = open(t, broker.Options{Dir: "data"}.On(cut))
					}
				}
			})
		})
	}
}

// A purge comes while a receive has read messages, and while a dead letter is
// being written: the first are not delivered, the second is counted once.
func TestPurgeMeetsOthersHalfWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
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
			c, _ = p.Claim(&r)
		})
		dying.Start()
		ms, offsets, err := b.Engine().Parts().Store.Read(s.Topic().ID(), 0, c.From, c.To, c.Limit, 1000)
		if err != nil || len(ms) != 4 {
			t.Fatal(ms, err)
		}
		if removed, err := b.PurgeTopic(t.Context(), "t"); err != nil || removed.Messages != 10 {
			t.Fatal(removed, err)
		}
		if err := dying.Wait(dying.RemoveLease()); err != nil {
			t.Error(err)
		}
		var next int64
		s.Update(func(p *consume.Progress) {
			p.Unclaim(&r, 0)
			p.Admit(&r, c, false, ms, offsets, time.Now())
			next = p.Cursor(0).Next
		})
		if len(r.Grants) != 0 || next != 10 {
			t.Errorf("%d are delivered, the group is at %d", len(r.Grants), next)
		}
		if s := subscriptionOf(t, b, "g"); s.Backlog != (status.Backlog{}) || s.Ready+s.Inflight+s.WaitingRetry != 0 {
			t.Errorf("the group has %+v", s)
		}
	})
}

func TestPurgeRejected(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	if _, err := b.PurgeTopic(t.Context(), "none"); !errors.Is(err, tidegate.ErrTopicNotFound) {
		t.Errorf("no topic: %v", err)
	}
	putTopic(t, b, "t", settings.Topic{})
	if removed, err := b.PurgeTopic(t.Context(), "t"); err != nil || removed != (status.Backlog{}) {
		t.Errorf("an empty one: %+v, %v", removed, err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.PurgeTopic(t.Context(), "t"); !errors.Is(err, tidegate.ErrClosed) {
		t.Errorf("a closed broker: %v", err)
	}
}

// A purge during sends, receives and settlements: only handles fail, the counters agree, and later
// messages arrive.
func TestPurgeInUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 2, Retention: settings.Retention{Consumed: true}})
		stop := make(chan struct{})
		running := func() bool {
			select {
			case <-stop:
				return false
			default:
				time.Sleep(time.Millisecond)
				return true
			}
		}
		for range 2 {
			go func() {
				for running() {
					mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
				}
			}()
			go func() {
				for i := 0; running(); i++ {
					for _, d := range receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 8}) {
						var err error
						switch i % 4 {
						case 0:
							err = b.Ack(t.Context(), []*tidegate.Delivery{d})[0]
						case 1:
							_, err = b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: time.Second})
						case 2:
							_, err = b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "r"})
						}
						if err != nil && !errors.Is(err, tidegate.ErrInvalidHandle) {
							t.Error(err)
						}
					}
				}
			}()
		}
		for range 100 {
			elapse(10 * time.Millisecond)
			if _, err := b.PurgeTopic(t.Context(), "t"); err != nil {
				t.Fatal(err)
			}
		}
		close(stop)
		elapse(time.Second)
		if _, err := b.PurgeTopic(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		if s := subscriptionOf(t, b, "g"); s.Backlog != (status.Backlog{}) || s.Ready+s.Inflight+s.WaitingRetry != 0 || stored(t, b, "t") != 0 {
			t.Errorf("left: %+v, %d", s, stored(t, b, "t"))
		}
		sendN(t, b, "t", 5, 10)
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}); len(ds) != 5 {
			t.Errorf("received %d, want 5", len(ds))
		}
	})
}

// records returns the keys of all stored records, except the last number given and the key of IDs'
// hashes.
func records(tb testing.TB, fs vfs.FS) (keys []string) {
	tb.Helper()
	for _, name := range []string{"data/messages", "data/groups"} {
		db, err := pebble.Open(name, &pebble.Options{FS: fs, ReadOnly: true, Logger: quiet{}})
		if err != nil {
			tb.Fatal(err)
		}
		it, err := db.NewIter(nil)
		if err != nil {
			tb.Fatal(err)
		}
		for ok := it.First(); ok; ok = it.Next() {
			if k := it.Key()[0]; k != 'n' && k != 'k' && k != 'o' && k != 'j' {
				keys = append(keys, string(it.Key()))
			}
		}
		if err := errors.Join(it.Close(), db.Close()); err != nil {
			tb.Fatal(err)
		}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		for round := range 2 {
			putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay})
			now := time.Now()
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x"), DeliverAt: now.Add(time.Hour)},
				&tidegate.Message{Topic: "t", Body: []byte("x"), DeliverAt: now}, &tidegate.Message{Topic: "t", Body: []byte("x"), DeliverAt: now})
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 2})
			if len(ds) != 2 || ds[0].Attempt != 1 {
				t.Fatalf("received %v", ds)
			}
			if _, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "r"}); err != nil {
				t.Fatal(err)
			}
			if round == 1 { // the group first
				if err := b.DeleteGroup(t.Context(), "g"); err != nil {
					t.Fatal(err)
				}
			}
			for _, topic := range []string{"t", "%DLQ%g"} {
				if err := b.DeleteTopic(t.Context(), topic); err != nil {
					t.Fatal(err)
				}
			}
			if round == 0 {
				if err := b.DeleteGroup(t.Context(), "g"); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			if left := records(t, fs); len(left) != 0 {
				t.Errorf("left: %q", left)
			}
			b = open(t, broker.Options{Dir: "data"}.On(fs))
		}
	})
}

// A purge removes half messages too: their transactions no longer exist and are not checked. A half
// message with the same ID is a new one, delivered once.
func TestPurgeRemovesHalfMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		putTopic(t, b, "other", settings.Topic{Type: settings.TopicTransaction})
		const n = 2*engine.CheckBatch + 3
		var receipts []tidegate.Receipt
		for i := range n {
			receipts = append(receipts, sendHalf(t, b, fmt.Sprintf("%04d", i)))
		}
		if r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: "other", Topic: "other", Body: []byte("x")}, 0); r.Err != nil {
			t.Fatal(r.Err)
		}
		if err := endTransaction(t, b, receipts[1], transport.Commit); err != nil {
			t.Fatal(err)
		}
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
				if err := endTransaction(t, b, again.Receipt, transport.Commit); err != nil {
					t.Error(err)
				}
			}
			if ds := receiveAll(t, b, "t"); len(ds) != 1 || ds[0].ID != "0000" {
				t.Errorf("restart %t: received %v", restart, ds)
			}
		}
		<-time.After(time.Minute)
		synctest.Wait()
		for _, c := range a.all {
			if c.Message.Topic != "other" {
				t.Errorf("asked about %q", c.Message.ID)
			}
		}
	})
}

// A purge and the check of transactions that makes the topic of those given up do not wait for one
// another.
func TestPurgeMeetsTheEndOfATransaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction, Transaction: settings.Transaction{CheckMax: 1}})
		putTopic(t, b, "purged", settings.Topic{Type: settings.TopicTransaction})
		sendHalf(t, b, "given up")
		elapse(6 * time.Second)
		release := holdTransactions(t, b)
		elapse(30 * time.Second)
		if r := serve(b).SendHalf(t.Context(), &tidegate.Message{ID: "p", Topic: "purged", Body: []byte("12")}, 0); r.Err != nil {
			t.Fatal(r.Err)
		}
		purged := make(chan error, 1)
		go func() {
			removed, err := b.PurgeTopic(t.Context(), "purged")
			if removed != (status.Backlog{Messages: 1, Bytes: 2}) {
				t.Errorf("removed %+v", removed)
			}
			purged <- err
		}()
		synctest.Wait() // both want the task, the check first
		begin := time.Now()
		release()
		if err := <-purged; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if took := time.Since(begin); took != 0 {
			t.Errorf("they stood for %v", took)
		}
		if n := len(receiveAll(t, b, broker.AbandonedTransactions)); n != 1 {
			t.Errorf("%d were given up, want 1", n)
		}
	})
}

// allMessages is a filter that takes all messages.
type allMessages struct{}

func (allMessages) Wants(*store.Message) bool { return true }
