package broker_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// The end of a client looks only at the subscriptions from which the client received: the end of n
// clients of n groups would take n² steps. A list of all subscriptions would take at least 8 bytes
// for each. The bytes are those of the whole process, so the limit is half of that.
func TestEndOfAClientConcernsItsGroups(t *testing.T) {
	const n = 1000
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Queues: 1})
	for i := range n {
		p := engine.Request{ReceiveRequest: transport.ReceiveRequest{Group: fmt.Sprint("g", i), Topic: "t", Queue: -1, Push: true}, Owner: fmt.Sprint("client-", i)}
		assert.Must(t, assert.Err(serve(b).Poll(t.Context(), p)))
	}
	if bytes := assert.AllocatedBytes(func() {
		for i := range n {
			serve(b).Forget(fmt.Sprint("client-", i))
		}
	}); bytes > n*n*4 {
		t.Errorf("the end of %d clients of %d groups allocated %d bytes, want at most %d", n, n, bytes, n*n*4)
	}
}

// The end of a client concerns all of its deliveries, also those of a client with more groups than
// the broker remembers.
func TestEndOfAClientOfManyGroups(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const groups = 300
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		received := func(owner string) (n int) {
			for i := range groups {
				ds := assert.Value(serve(b).Poll(t.Context(), engine.Request{ReceiveRequest: transport.ReceiveRequest{Group: fmt.Sprint("g", i), Topic: "t", Queue: -1, Push: true}, Owner: owner}))(t)
				n += len(ds)
			}
			return n
		}
		assert.MustEqual(t, "the owner has deliveries", received("owner"), groups)
		serve(b).Forget("owner")
		time.Sleep(12 * time.Second) // a second, and the first interval of the retry schedule
		assert.Equal(t, "after the end of the owner messages were delivered again", received("other"), groups)
	})
}

// Heartbeats of clients without deliveries leave nothing behind. Those of other clients keep their
// deliveries, also over a restart of the broker.
func TestOnlyOwnersAreRemembered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir := t.TempDir()
		b := open(t, broker.Options{Dir: dir})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{})
		serve(b).Touch("stranger")
		assert.That(t, !remembers(b, "stranger"), "a client is remembered that received nothing")
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		poll := func(owner string) []*tidegate.Delivery {
			ds := assert.Value(serve(b).Poll(t.Context(), engine.Request{ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: "t", Queue: -1, Push: true}, Owner: owner}))(t)
			return ds
		}
		ds := poll("owner")
		assert.Must(t, b.Close())
		b = open(t, broker.Options{Dir: dir})
		for range 12 {
			time.Sleep(10 * time.Second)
			serve(b).Touch("owner") // a heartbeat: it has not received since
			serve(b).Touch("stranger")
		}
		assert.Equal(t, "delivered again while its owner lives", len(poll("other")), 0)
		assert.NoError(t, b.Ack(t.Context(), ds)[0])
		for owner, want := range map[string]bool{"owner": true, "other": true, "stranger": false} {
			got := remembers(b, owner)
			assert.That(t, got == want, "%s is remembered: %t, want %t", owner, got, want)
		}
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("y")})
		poll("owner")
		assert.Must(t, b.Close())
		b = open(t, broker.Options{Dir: dir})
		serve(b).Forget("owner")
		time.Sleep(12 * time.Second) // a second, and the first interval of the retry schedule
		assert.Equal(t, "after the end of its owner messages were delivered again", len(poll("other")), 1)
	})
}

// Messages that fail repeatedly do not delay new messages, and new messages do not delay due
// retries. RocketMQ: consumption retry: "you can use the retry mechanism to redeliver the message
// to avoid blocking the process"
func TestRetriesAndNewMessagesShare(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{1, 3, 8, 32} {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{})
			putGroup(t, b, "g", settings.Group{MaxAttempts: -1})
			for range 50 {
				mustSend(t, b, &tidegate.Message{Topic: "t", Tag: "poison", Body: []byte("x")})
			}
			fresh, retried := 0, 0
			for receives := 0; receives < 4*(50+200)+50 && fresh < 200; receives++ {
				if receives < 200 {
					mustSend(t, b, &tidegate.Message{Topic: "t", Tag: "good", Body: []byte("x")})
				}
				for _, d := range receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: batch}) {
					if d.Tag == "good" {
						fresh++
						assert.Must(t, b.Ack(t.Context(), []*tidegate.Delivery{d})[0])
						continue
					}
					if d.Attempt > 1 {
						retried++
					}
					settle(t, b, d, transport.Verdict{Kind: transport.Retry})
				}
				synctest.Wait()
			}
			assert.That(t, fresh >= 200 && retried >= 100,
				"batches of %d: %d of 200 new messages and %d retries were delivered", batch, fresh, retried)
		})
	}
}

// Deliveries that are released together share their fsyncs.
func TestReleaseSharesFsyncs(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	for _, topic := range []string{"t", "u"} {
		putTopic(t, b, topic, settings.Topic{Queues: 2})
		sendN(t, b, topic, 20, 1)
	}
	ds := append(receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 20}), receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "u", Max: 20})...)
	ds = append(ds[:10], append([]*tidegate.Delivery{{Handle: "none"}}, ds[10:]...)...)
	before := serve(b).Stats().GroupStore.Commit.Count()
	serve(b).Return(t.Context(), ds)
	if n := serve(b).Stats().GroupStore.Commit.Count() - before; n > 4 {
		t.Errorf("%d commits", n)
	}
	for _, topic := range []string{"t", "u"} {
		again := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: topic, Max: 32})
		if len(again) != 20 || again[0].Attempt != 1 {
			t.Errorf("%d are delivered again: %+v", len(again), again[0])
		}
	}
}

// A retry topic that serves several topics has the retries of all of them. The
// filter of a receive from one topic does not decide about another's.
func TestSharedRetryTopicWithFilters(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]settings.RetryTopic{
		"2.7.2": {Naming: "2.7.2"}, "2.6.1": {Naming: "2.6.1"}, "own name": {Topic: "retries"},
	} {
		subtest(t, name, func(t *testing.T) {
			b := open(t, broker.Options{})
			c.Enabled = true
			putGroup(t, b, "g", settings.Group{RetryTopic: c})
			for _, topic := range []string{"t1", "t2"} {
				putTopic(t, b, topic, settings.Topic{})
				mustSend(t, b, &tidegate.Message{Topic: topic, ID: topic, Tag: "b", Body: []byte("x")})
				_, err := serve(b).ReconsumeLater(t.Context(), one(t, b, "g", topic), transport.Verdict{Kind: transport.RetryTopic, Level: 1})
				assert.MustThat(t, err == nil, "%+v", err)
			}
			elapse(time.Second)
			filtered := transport.ReceiveRequest{Group: "g", Topic: "t1", Filter: tidegate.Filter{Expression: "a"}, Wait: time.Second, Max: 32}
			var got []string
			for _, d := range append(receive(t, b, filtered), receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t2", Wait: time.Second})...) {
				got = append(got, d.Topic+" "+d.Properties["ORIGIN_MESSAGE_ID"])
			}
			assert.That(t, fmt.Sprint(got) == "[t2 t2]", "%q were delivered, want the retry of t2: that of t1 does not match", got)
			if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t1", Wait: time.Second}); len(ds) != 0 {
				t.Errorf("%+v was skipped, and is delivered", ds[0])
			}
		})
	}
}

// A filter also applies to messages that are ready again, or that become the head of their message
// group: messages that do not match leave the group's backlog.
func TestFilterHoldsForRedeliveries(t *testing.T) {
	t.Parallel()
	for _, fifo := range []bool{false, true} {
		subtest(t, fmt.Sprint("fifo ", fifo), func(t *testing.T) {
			b := open(t, broker.Options{})
			topic := settings.Topic{Queues: 1}
			if fifo {
				topic.Type = settings.TopicFIFO
			}
			putTopic(t, b, "t", topic)
			putGroup(t, b, "g", settings.Group{FIFO: fifo})
			for i, tag := range []string{"b", "b", "a"} {
				m := &tidegate.Message{Topic: "t", ID: fmt.Sprint(i), Tag: tag, Body: []byte("x")}
				if fifo {
					m.MessageGroup = "m"
				}
				mustSend(t, b, m)
			}
			// The cursor has passed all three; the response has none of them.
			receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Second})
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Filter: tidegate.Filter{Expression: "a"}, Max: 32, Wait: time.Minute})
			assert.MustThat(t, len(ds) == 1 && ds[0].ID == "2", "%d deliveries: %+v", len(ds), ds)
			s := subscriptionOf(t, b, "g")
			assert.That(t, s.Backlog.Messages == 1 && s.Inflight == 1 && s.Ready == 0 && s.Acked == 0, "the group has %+v", s)
			assert.NoError(t, b.Ack(t.Context(), ds)[0])
		})
	}
}

// A message that was removed before its next delivery was not acknowledged.
func TestRemovedMessageIsNotAcknowledged(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		kill(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		receive(t, b, transport.ReceiveRequest{Group: "other", Topic: "%DLQ%g", InvisibleDuration: time.Second})
		done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{})
		assert.MustThat(t, err == nil && done.Purged == 1, "%+v, %+v", done, err)
		if ds := receive(t, b, transport.ReceiveRequest{Group: "other", Topic: "%DLQ%g", Wait: time.Minute}); len(ds) != 0 {
			t.Errorf("%+v was delivered", ds[0])
		}
		s := subscriptionOf(t, b, "other")
		assert.That(t, s.Acked == 0 && s.Backlog == (status.Backlog{}) && s.Inflight == 0, "the group has %+v", s)
	})
}

// A retry that is stored before the group looks at its retry topic is not skipped.
func TestStartLatestKeepsRetries(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{Start: settings.StartLatest})
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
		mustSend(t, b, &tidegate.Message{ID: "m", Topic: "t", Body: []byte("x")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})[0]
		putGroup(t, b, "g", settings.Group{Start: settings.StartLatest, RetryTopic: settings.RetryTopic{Enabled: true}})
		_, err := serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic, Delay: time.Second})
		assert.MustThat(t, err == nil, "%+v", err)
		elapse(time.Minute) // it is in the retry topic, from which no receive has come
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Second})
		assert.That(t, len(ds) == 1 && string(ds[0].Body) == "x", "the retry is not delivered: %+v", ds)
	})
}

// RocketMQ: sending retry and throttling: "a consumer group starts consuming messages from the
// maximum offset of the queue" With Start latest; also if the power fails right after, and not
// among the dead letters.
func TestStartLatest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b, fs := openData(t)
		putTopic(t, b, "t", settings.Topic{Queues: 3})
		putTopic(t, b, "%DLQ%h", settings.Topic{Queues: 1})
		for i := range 10 {
			mustSend(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte("x")}, &tidegate.Message{Topic: "%DLQ%h", Body: []byte("x")})
		}
		putGroup(t, b, "g", settings.Group{Start: settings.StartLatest})
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}); len(ds) != 0 {
			t.Errorf("received %d messages that were there before", len(ds))
		}
		s := subscriptionOf(t, b, "g")
		assert.That(t, s.Backlog == (status.Backlog{}) && s.Ready == 0, "the group begins with %+v", s)
		crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0, RNG: rand.New(rand.NewPCG(1, 2))})
		b = open(t, broker.Options{Dir: "data"}.On(crashed))
		mustSend(t, b, &tidegate.Message{ID: "next", Topic: "t", Body: []byte("x")})
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Second})
		assert.That(t, len(ds) == 1 && ds[0].ID == "next", "after the power failure it receives %d messages: %+v", len(ds), ds)
		assert.Equal(t, "dead letters", len(receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "%DLQ%h", Max: 32})), 10)
	})
}

// A group has the number of messages that its filter skipped, with the time from which it counts,
// and the delivery in flight that began first, also after an extension of its lease.
func TestGroupHasFilteredAndHeld(t *testing.T) {
	bubble(t, func(t *testing.T) {
		opened := time.Now()
		b := open(t, broker.Options{})
		putTopic(t, b, "orders", settings.Topic{Queues: 1})
		for _, tag := range []string{"paid", "open", "open", "paid", "open"} {
			mustSend(t, b, &tidegate.Message{Topic: "orders", Tag: tag, Body: []byte("x")})
		}
		time.Sleep(time.Minute)
		begin := time.Now()
		ds := receive(t, b, transport.ReceiveRequest{Group: "billing", Topic: "orders", Max: 9, InvisibleDuration: time.Hour, Filter: tidegate.Filter{Expression: "paid"}})
		assert.MustEqual(t, "received", len(ds), 2)
		time.Sleep(time.Minute)
		assert.Must(t, assert.Err(b.Extend(t.Context(), ds[0], 2*time.Hour, false)))
		g, err := b.Group("billing")
		assert.MustThat(t, err == nil && len(g.Topics) == 1, "%+v, %v", g, err)
		s := g.Topics[0]
		assert.That(t, s.Filtered == 3 && s.CountsSince.Equal(opened),
			"skipped %d since %v, want 3 since %v", s.Filtered, s.CountsSince, opened)
		until := begin.Add(time.Hour)
		if s.Held != nil && !s.Held.Until.Equal(until) {
			until = begin.Add(time.Minute + 2*time.Hour) // of the other message, which began at the same time
		}
		if want := (status.Holding{Messages: 2, Since: begin, Until: until}); s.Held == nil || *s.Held != want {
			t.Errorf("held %+v, want %+v", s.Held, want)
		}
	})
}

// A prepared collects the arguments of Prepare.
type prepared [][]*tidegate.Delivery

func (p *prepared) Prepare(ds []*tidegate.Delivery, _ bool) { *p = append(*p, slices.Clone(ds)) }

// Prepare is called once for each receive that returns deliveries, before it
// returns, with these very deliveries; also for those that are repeated.
func TestPrepare(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO})
	assert.Must(t, assert.Err(b.PutGroup(t.Context(), "g", settings.Group{FIFO: true})))
	poll := func(attempt string) (all prepared, ds []*tidegate.Delivery) {
		t.Helper()
		ds, err := serve(b).Poll(t.Context(), engine.Request{
			ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, Max: 8, InvisibleDuration: time.Minute, AttemptID: attempt},
			Encoder:        &all,
		})
		assert.Must(t, err)
		return all, ds
	}
	all, ds := poll("0")
	assert.That(t, len(all) == 0 && len(ds) == 0, "no message is ready: prepared %v, received %v", all, ds)
	for _, id := range []string{"1", "2"} {
		mustSend(t, b, &tidegate.Message{ID: id, Topic: "t", MessageGroup: id, Body: []byte(id)})
	}
	for _, name := range []string{"first", "repeated"} {
		all, ds := poll("1")
		assert.That(t, len(ds) == 2 && len(all) == 1 && slices.Equal(all[0], ds), "%s: prepared %v, received %v", name, all, ds)
	}
}

// Groups that are behind get every message once and in the order of its queue, with any sizes of
// receives, and nothing stays in memory.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	const n, aheadBytes = 1500, 256 << 10
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Queues: 2})
	sizes := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < n; i += 50 {
		batch := make([]*tidegate.Message, 50)
		for j := range batch {
			tag := "odd"
			if (i+j)%2 == 0 {
				tag = "even"
			}
			batch[j] = &tidegate.Message{ID: fmt.Sprint(i + j), Topic: "t", Tag: tag, Body: make([]byte, 1+sizes.IntN(4000))}
		}
		mustSend(t, b, batch...)
	}
	receive(t, b, transport.ReceiveRequest{Group: "slow", Topic: "t", Max: 1, InvisibleDuration: time.Minute})
	if ahead := readAheadBytes(b); ahead <= 0 || ahead > 2*(aheadBytes+4000) {
		t.Errorf("%d bytes are read ahead; want some, at most %d for each queue", ahead, aheadBytes)
	}
	reads := b.Engine().Parts().Env.Reads
	reads.Add(8 << 20)
	before := readAheadBytes(b)
	receive(t, b, transport.ReceiveRequest{Group: "late", Topic: "t", Max: 1, InvisibleDuration: time.Minute})
	assert.Equal(t, "it is read ahead beyond the bound of the whole broker", readAheadBytes(b), before)
	reads.Add(-(8 << 20))
	assert.Must(t, b.DeleteTopic(t.Context(), "t"))
	assert.Equal(t, "bytes are kept of a topic that is deleted", readAheadBytes(b), 0)
}

// Every receipt handle of a client is rejected with 40013, or names a delivery that is there.
func FuzzHandle(f *testing.F) {
	b := open(f, broker.Options{})
	putTopic(f, b, "t", settings.Topic{Queues: 1})
	putGroup(f, b, "g", settings.Group{})
	f.Add(consume.Handle{Group: 2, Place: store.Place{Topic: 1, Queue: 0, Offset: 0}, Serial: 1}.String())
	f.Add(consume.Handle{Group: 2, Place: store.Place{Topic: 1, Queue: 9, Offset: -1}}.String())
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		d := &tidegate.Delivery{Handle: s}
		_, retried := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry})
		_, changed := b.Extend(t.Context(), d, time.Second, false)
		for name, err := range map[string]error{
			"ack": b.Ack(t.Context(), []*tidegate.Delivery{d})[0], "retry": retried, "change": changed,
		} {
			assert.MustThat(t, errors.Is(err, tidegate.ErrInvalidHandle), "%s with handle %q: %v", name, s, err)
		}
		serve(b).Return(t.Context(), []*tidegate.Delivery{d})
	})
}

// Every recall handle of a client is rejected, or names a waiting message.
func FuzzRecallHandle(f *testing.F) {
	b := open(f, broker.Options{})
	putTopic(f, b, "d", settings.Topic{Type: settings.TopicDelay, Queues: 1})
	r := send(f, b, &tidegate.Message{ID: "m", Topic: "d", DeliverAt: time.Now().Add(time.Hour), Body: []byte("x")})[0]
	assert.Must(f, r.Err)
	f.Add(r.Receipt.RecallHandle[:len(r.Receipt.RecallHandle)-1] + "A")
	f.Add(base64.RawURLEncoding.EncodeToString(make([]byte, 21)))
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := b.Recall(t.Context(), "d", s)
		if e := (*tidegate.Error)(nil); s != r.Receipt.RecallHandle &&
			(id != "" || !errors.As(err, &e) || e.Code != tidegate.CodeBadRequest && e.Code != protocol.CodeMessageNotFound) {
			t.Fatalf("recall handle %q: %q, %v", s, id, err)
		}
	})
}

// A receive gets the messages that it is admitted, new ones and ones that are due again. The others
// stay, with the attempts that they had.
func TestAdmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := assert.Value(broker.Open(broker.Options{MinInvisibleDuration: 1}))(t)
		defer b.Close()
		assert.Must(t, assert.Err(b.PutTopic(t.Context(), "t", settings.Topic{Queues: 1})))
		for i := range 10 {
			if r := b.Send(t.Context(), []*tidegate.Message{{Topic: "t", ID: fmt.Sprint(i), Body: make([]byte, 100)}})[0]; r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		poll := func(room space, want int, attempt int) {
			t.Helper()
			ds, err := serve(b).Poll(t.Context(), engine.Request{
				ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Second},
				Memory:         room,
			})
			assert.MustThat(t, len(ds) == want && (want == 0) == errors.Is(err, errNoSpace),
				"with space for %d bytes it gets %d messages, %v; want %d", room, len(ds), err, want)
			for _, d := range ds {
				assert.That(t, d.Attempt == attempt, "offset %d comes with attempt %d, want %d", d.Offset, d.Attempt, attempt)
			}
		}
		poll(99, 0, 0)
		poll(350, 3, 1)
		poll(1000, 7, 1)
		time.Sleep(2 * time.Second) // all are due again
		poll(99, 0, 0)
		poll(999, 9, 2)
		poll(1000, 1, 2)
	})
}

// A client that was cut off receives again while its first receive still waits: the first one ends,
// and the second gets the messages.
func TestRepeatedReceiveWhileItWaits(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		sends, _ := fifo(t, b, settings.OnExhaustedDeadLetter)
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, AttemptID: "x", Wait: time.Hour}
		const n = 5
		answers := make(chan string, n)
		start := time.Now()
		for range n {
			go func() { answers <- fmt.Sprint(idsOf(receive(t, b, r)), time.Since(start)) }()
			time.Sleep(time.Second)
			synctest.Wait()
		}
		for i := range n - 1 {
			if got, want := <-answers, (time.Duration(i+1) * time.Second).String(); got != want {
				t.Errorf("a repeated receive returned %q, want %q", got, want)
			}
		}
		sends("a:1")
		if got, want := <-answers, fmt.Sprint("a:1/1", n*time.Second); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		// Another attempt is another receive.
		r.AttemptID, r.Wait = "y", 0
		expectMessages(t, receive(t, b, r), "")
	})
}

// All repetitions come at the same time, on a slow store. Each gets the same response, and no
// message is delivered twice.
func TestRepeatedReceiveAtOnce(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		sends, _ := fifo(t, b, settings.OnExhaustedDeadLetter)
		putAddress(t, b, "t", settings.Address{PersistDeliveryCountBeforeDelivery: new(true)}) // deliveries wait for the store
		sends("a:1", "b:1", "c:1", "d:1")
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Max: 2, AttemptID: "x"}
		release := holdProgress(b)
		answers := make(chan string, 8)
		for range cap(answers) {
			go func() { answers <- idsOf(receive(t, b, r)) }()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		late := r
		late.Queue, late.InvisibleDuration = transport.AnyQueue, time.Minute
		assert.Is(t, "a repetition whose context ends", assert.Err(b.Receive(ctx, late)), context.DeadlineExceeded)
		release()
		want := <-answers
		for range cap(answers) - 1 {
			if got := <-answers; got != want || got == "" {
				t.Errorf("a repetition got %q, another one %q", got, want)
			}
		}
		r.AttemptID, r.Max = "y", 32
		assert.Equal(t, "messages are left", len(receive(t, b, r)), 2)
		a, err := subscriptions(b)[0].Audit()
		assert.That(t, err == nil && a.Receiving == 0, "%d receives are left over, %v", a.Receiving, err)
	})
}

// A receive of an unordered group can be repeated too, also if its messages were from the group's
// retry topic, and after a later receive.
func TestRepeatedReceiveOfAnyGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		assert.Must(t, assert.Err(b.PutTopic(t.Context(), "t", settings.Topic{})))
		assert.Must(t, assert.Err(b.PutGroup(t.Context(), "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}})))
		mustSend(t, b, &tidegate.Message{ID: "first", Topic: "t", Body: []byte("x")})
		r := transport.ReceiveRequest{Group: "g", Topic: "t", Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Hour}
		ds := expectMessages(t, receive(t, b, r), "first/1")
		_, err := serve(b).ReconsumeLater(t.Context(), ds[0], transport.Verdict{Kind: transport.RetryTopic, Delay: time.Second})
		assert.MustThat(t, err == nil, "%+v", err)
		time.Sleep(time.Minute)
		named := func(id string) transport.ReceiveRequest {
			r := r
			r.AttemptID = id
			return r
		}
		retried := receive(t, b, named("retried"))
		assert.MustEqual(t, "received messages", len(retried), 1)
		mustSend(t, b, &tidegate.Message{ID: "later", Topic: "t", Body: []byte("x")})
		expectMessages(t, receive(t, b, named("later")), "later/1")
		repeat := func(id string) []*tidegate.Delivery {
			r := named(id)
			r.Repeat, r.Wait = true, time.Minute
			return receive(t, b, r)
		}
		if again := repeat("retried"); len(again) != 1 || again[0].ID != retried[0].ID || again[0].Attempt != retried[0].Attempt {
			t.Errorf("repeated: %v, want %v", again, retried)
		}
		expectMessages(t, repeat("later"), "later/1")
	})
}

// The leases of all groups together are bounded by the memory. At the bound a receive of new
// messages is rejected with 42900, retries are delivered, and an acknowledgement permits a new
// delivery. A store with twice as many leases is opened and drained. The error of one with more has
// the remedy.
func TestLeasesAreBoundedByTheMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testLeases)
}

func testLeases(t *testing.T) {
	const leases = 20
	options := broker.Options{Memory: broker.NewMemory(), MinInvisibleDuration: 1}.ProcessMemory(leases * 4 * 256)
	b := open(t, options)
	putTopic(t, b, "t", settings.Topic{Queues: 1})
	for i := range 100 {
		send(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte("x")})
	}
	var held []*tidegate.Delivery
	for i := 0; len(held) < leases; i++ {
		group := fmt.Sprint("g", i%2)
		putGroup(t, b, group, settings.Group{Retry: []time.Duration{time.Millisecond}})
		held = append(held, receive(t, b, transport.ReceiveRequest{Group: group, Topic: "t", Max: 5, InvisibleDuration: time.Hour})...)
	}
	full := func(b *broker.Broker) {
		t.Helper()
		for _, group := range []string{"g0", "g1"} {
			ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: group, Topic: "t", Max: 5, InvisibleDuration: time.Hour})
			wantCode(t, "a receive at the bound", err, tidegate.CodeTooManyRequests)
			assert.That(t, len(ds) == 0, "%d messages were delivered at the bound", len(ds))
		}
	}
	full(b)
	settle(t, b, held[0], transport.Verdict{Kind: transport.Retry})
	synctest.Wait() // it is ready
	again := receive(t, b, transport.ReceiveRequest{Group: "g0", Topic: "t", Max: 5, InvisibleDuration: time.Hour, Wait: time.Minute})
	assert.MustThat(t, len(again) == 1 && again[0].ID == held[0].ID && again[0].Attempt == 2, "the retry at the bound: %v", again)
	held[0] = again[0]
	full(b)
	assert.Must(t, b.Close())

	options = options.ProcessMemory(leases*2*256 - 4)
	if b, err := broker.Open(options); err == nil {
		t.Error("a store with more leases than half of the memory was opened", b.Close())
	} else {
		for _, w := range []string{"20 messages in flight", "10236 bytes suffices for 18", "at least 10240 bytes (GOMEMLIMIT)", "nothing was changed"} {
			assert.That(t, strings.Contains(err.Error(), w), "the error does not contain %q: %v", w, err)
		}
	}
	options = options.ProcessMemory(leases * 2 * 256)
	b = open(t, options)
	full(b)
	for i, err := range b.Ack(t.Context(), held[:leases/2+1]) {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	ds := receive(t, b, transport.ReceiveRequest{Group: "g1", Topic: "t", Max: 1, InvisibleDuration: time.Hour})
	assert.That(t, len(ds) == 1, "%d messages were delivered below the bound", len(ds))
	full(b)
	assert.Must(t, b.DeleteGroup(t.Context(), "g1"))
	ds = receive(t, b, transport.ReceiveRequest{Group: "g2", Topic: "t", Max: 1, InvisibleDuration: time.Hour})
	assert.That(t, len(ds) == 1, "%d messages were delivered after the other group was deleted", len(ds))
}

// The pages of leases have each lease once, in order, for any size of a page.
func TestLeasePages(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 2})
		begin := time.Now()
		want := map[string][]string{}
		var released []*tidegate.Delivery
		for i := range 20 {
			id := fmt.Sprint(i)
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: id, Body: []byte("body")})
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Duration(40-i) * time.Minute})
			assert.MustEqual(t, "deliveries", len(ds), 1)
			state := "inflight"
			switch i % 4 {
			case 0:
				state = "waiting_retry"
				settle(t, b, ds[0], transport.Verdict{Kind: transport.Retry, Delay: time.Duration(40-i) * time.Minute})
			case 1:
				state = "ready" // without a due time
				released = append(released, ds...)
			}
			want[state] = append(want[state], id)
		}
		serve(b).Return(t.Context(), released)
		for _, ids := range want {
			slices.Reverse(ids) // later ones are due earlier
		}
		read := func(state string, byDue bool, limit int) (ids []string) {
			t.Helper()
			var before status.Lease
			for after := ""; ; {
				page, err := serve(b).Leases("g", "t", status.LeaseQuery{State: state, ByDue: byDue, After: after, Limit: limit})
				assert.MustThat(t, err == nil && len(page.Leases) <= limit, "%+v, %v", page, err)
				for _, l := range page.Leases {
					ids = append(ids, l.MessageID)
					ordered := before.Queue < l.Queue || before.Queue == l.Queue && before.Offset < l.Offset
					if byDue {
						ordered = l.Due.IsZero() || !l.Due.Before(before.Due)
					}
					assert.That(t, before.State == "" || ordered, "%+v follows %+v", l, before)
					if before = l; l.BodySize != 4 || l.Due.IsZero() != (l.State == "ready") || l.Since.Equal(begin) != (l.State == "inflight") || l.Holder != "" {
						t.Errorf("%+v", l)
					}
				}
				if after = page.Next; after == "" {
					return ids
				}
			}
		}
		for _, limit := range []int{1, 2, 3, 7, 20, 1000} {
			for _, byDue := range []bool{false, true} {
				all := read("", byDue, limit)
				if slices.Sort(all); len(slices.Compact(all)) != 20 {
					t.Errorf("pages of %d have %v", limit, all)
				}
				for state, ids := range want {
					got, sorted := read(state, byDue, limit), slices.Clone(ids)
					if !byDue || state == "ready" {
						slices.Sort(got)
						slices.Sort(sorted)
					}
					assert.That(t, slices.Equal(got, sorted), "pages of %d have the %s leases %v, want %v", limit, state, got, sorted)
				}
			}
		}
		s := assert.Value(serve(b).Schedule("g", "t"))(t)
		var retries, flights int64
		for i, d := range s.Buckets {
			assert.That(t, (d.Until == nil) == (i == len(s.Buckets)-1), "bucket %d is %+v", i, d)
			retries += d.WaitingRetry
			flights += d.Inflight
			// Of 24, 28, 32, 36 and 40 minutes, two are within half an hour.
			assert.That(t, d.Until == nil || time.Duration(*d.Until) != 30*time.Minute || d.WaitingRetry == 2,
				"%d retries come within 10 to 30 minutes", d.WaitingRetry)
		}
		if retries != 5 || flights != 10 || !s.Now.Equal(begin) || !s.NextRetry.Equal(begin.Add(24*time.Minute)) || !s.NextLeaseEnd.Equal(begin.Add(21*time.Minute)) {
			t.Errorf("%d retries and %d leases: %+v", retries, flights, s)
		}
		for _, c := range []struct {
			group, topic string
			query        status.LeaseQuery
			want         tidegate.Code
		}{
			{"x", "t", status.LeaseQuery{}, protocol.CodeConsumerGroupNotFound},
			{"g", "x", status.LeaseQuery{}, tidegate.CodeTopicNotFound},
			{"g", "other", status.LeaseQuery{}, protocol.CodeConsumerGroupNotFound},
			{"g", "t", status.LeaseQuery{Limit: 1001}, tidegate.CodeBadRequest},
			{"g", "t", status.LeaseQuery{State: "done"}, tidegate.CodeBadRequest},
			{"g", "t", status.LeaseQuery{State: "x"}, tidegate.CodeBadRequest},
			{"g", "t", status.LeaseQuery{After: "1-2"}, tidegate.CodeBadRequest},
			{"g", "t", status.LeaseQuery{After: "1-x-2"}, tidegate.CodeBadRequest},
		} {
			putTopic(t, b, "other", settings.Topic{Queues: 1})
			_, err := serve(b).Leases(c.group, c.topic, c.query)
			e, ok := errors.AsType[*tidegate.Error](err)
			assert.That(t, ok && e.Code == c.want, "%+v: %v", c, err)
		}
	})
}
