package broker_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

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

// RocketMQ: consumption retry: the maximum is in the group's metadata; a change holds for messages
// under way. "If the maximum number of retries is three, the message can be delivered four times".
// RocketMQ: consumption retry: "Specified in the metadata when a consumer group is created"
// RocketMQ: consumption retry: "Apache RocketMQ supports custom numbers of consumption retries"
// RocketMQ: consumption retry: "if the maximum number of retries is three, the message can be
// delivered four times"
// RocketMQ: consumption retry: "If the message fails to be consumed even after a specified number
// of retries, the broker sends the message to the dead-letter queue"
// RocketMQ: consumption retry: "Maximum retries: the maximum number of times that a message can be
// retried for consumption"
// RocketMQ: consumption retry: "The maximum number of retries for a push consumer is specified in
// the metadata when the consumer group is created"
// RocketMQ: consumption retry: "The maximum number of retries for a simple consumer is specified in
// the metadata when the consumer group is created"
func TestMaxAttemptsChangesWhileUnderWay(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
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
			settle(t, b, ds[0], transport.Verdict{Kind: transport.Retry, Delay: time.Second})
		}
		assert.Equal(t, "deliveries", deliveries, 4)
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("y")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})[0]
		settle(t, b, d, transport.Verdict{Kind: transport.Retry, Delay: time.Minute})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 1})
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Hour}); len(ds) != 0 {
			t.Errorf("delivered attempt %d of at most 1", ds[0].Attempt)
		}
		assert.Equal(t, "dead letters", len(receiveAll(t, b, "%DLQ%g")), 2)
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
		assert.Must(t, assert.Err(p.Settle(h, transport.Verdict{Kind: transport.DeadLetter, Reason: "r"}, 0, &policy, time.Now())))
	})
}

// deletedMeanwhile makes every dead letter of g fail until the returned function is called, as if
// the topic were deleted between the lookup and the write.
func deletedMeanwhile(t *testing.T, b *broker.Broker) (over func()) {
	t.Helper()
	putTopic(t, b, "%DLQ%g", settings.Topic{Queues: 1})
	catalog, found := b.Engine().Parts().Catalog, topicOf(t, b, "%DLQ%g")
	assert.Must(t, b.DeleteTopic(t.Context(), found.Name()))
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
			subtest(t, fmt.Sprintf("%s, restart %t", name, restart), func(t *testing.T) {
				b, fs := openData(t)
				putTopic(t, b, "t", settings.Topic{Queues: 1})
				mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
				r := transport.ReceiveRequest{Group: "g", Topic: "t", Push: c.push, InvisibleDuration: time.Minute}
				d := receive(t, b, r)[0]
				elapse(c.wait)
				over := deletedMeanwhile(t, b)
				d.Attempt = 17 // a consumer that retries by itself has counted further
				_, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "r"})
				assert.That(t, errors.Is(err, tidegate.ErrTopicNotFound), "returned %v", err)
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
		}
	}
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Minute})[0]
		over := deletedMeanwhile(t, b)
		assert.That(t, assert.Err(b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "r"})) != nil,
			"it was confirmed, and there is no dead letter")
		over()
		elapse(2 * time.Second)
		assert.NoError(t, assert.Err(b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "r"})))
		assert.Equal(t, "dead letters", len(receiveAll(t, b, "%DLQ%g")), 1)
	})
}

// A dead letter that is due by time is tried again each second, and not delivered meanwhile.
func TestDeadLetterByTimeThatFails(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
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
		assert.Equal(t, "dead letters", len(receiveAll(t, b, "%DLQ%g")), 1)
	})
}

// If the failed message of a parked message group cannot become a dead letter, the group stays
// parked with its reason, also across a restart.
func TestParkedDeadLetterThatFails(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO, Queues: 2})
		putGroup(t, b, "g", settings.Group{FIFO: true, OnExhausted: settings.OnExhaustedPark, NegativeAck: settings.NegativeAck{MaxRedeliveries: 1}})
		sends, receives := fifoOf(t, b)
		sends("a:1", "a:2", "a:3")
		for range 2 {
			assert.Must(t, serve(b).NegativeAck(t.Context(), one(t, b, "g", "t"), time.Second))
		}
		parked := func() []status.ParkedGroup {
			t.Helper()
			page, err := b.Parked("g", status.ParkedQuery{})
			assert.MustThat(t, err == nil && len(page.Groups) == 1, "%+v, %v", page, err)
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
			assert.Equal(t, "it is parked as, was as", parked()[0], before[0])
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
		assert.That(t, err == nil && len(page.DeadLetters) == 1 && page.DeadLetters[0].Origin.Reason == before[0].Reason,
			"%+v, %v", page, err)
		assert.Equal(t, "reasons are left over", parkedReasons(t, b), 0)
	})
}

// The process ends after the dead letter of a parked message group is written,
// and before its lease is removed: nothing is parked any more.
func TestParkedDeadLetterAcrossACrash(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fs := vfs.NewMem()
		b := parkedTopic(t, fs, settings.Retention{}, 3)
		d := departing(subscriptions(b)[0], func(p *consume.Progress) { p.Redrive("a", true, time.Now()) })
		startOnDisk(t, b, d)
		b = reopen(t, b, fs)
		synctest.Wait()
		for _, want := range []string{"1/1", "2/1"} {
			ackDeliveries(t, b, expectMessages(t, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}), want))
		}
		assert.Equal(t, "reasons are left over", parkedReasons(t, b), 0)
	})
}

// If the address settings have no dead-letter-address, the message is removed after its last
// attempt. A consumer can still make it a dead letter.
func TestRequestedDeadLettersAreKept(t *testing.T) {
	t.Parallel()
	set := settings.Address{RedeliveryDelay: new(settings.Milliseconds(7))}
	for name, c := range map[string]struct {
		group  settings.Group
		giveUp func(t *testing.T, b *broker.Broker)
	}{
		"negative acknowledgement": {settings.Group{NegativeAck: settings.NegativeAck{MaxRedeliveries: 5}}, func(t *testing.T, b *broker.Broker) {
			for range 6 {
				assert.Must(t, serve(b).NegativeAck(t.Context(), one(t, b, "g", "t"), time.Second))
			}
		}},
		"negative acknowledgement after the last attempt": {settings.Group{NegativeAck: settings.NegativeAck{MaxRedeliveries: 12}}, func(t *testing.T, b *broker.Broker) {
			for range 13 {
				assert.Must(t, serve(b).NegativeAck(t.Context(), one(t, b, "g", "t"), time.Second))
			}
		}},
		"redrive of parked messages": {settings.Group{FIFO: true, OnExhausted: settings.OnExhaustedPark}, func(t *testing.T, b *broker.Broker) {
			for range 10 {
				settle(t, b, one(t, b, "g", "t"), transport.Verdict{Kind: transport.Retry, Delay: time.Second})
			}
			done, err := b.RedriveParked(t.Context(), "g", status.ParkedSelection{DeadLetter: true})
			assert.MustThat(t, err == nil && done.Messages == 1, "%+v, %+v", done, err)
		}},
	} {
		subtest(t, name, func(t *testing.T) {
			b := open(t, broker.Options{})
			putTopic(t, b, "t", settings.Topic{Type: settings.TopicFIFO})
			putAddress(t, b, "t", set)
			putGroup(t, b, "g", c.group)
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", MessageGroup: "a", Body: []byte("x")})
			c.giveUp(t, b)
			if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Wait: time.Hour}); len(ds) != 0 {
				t.Errorf("it is delivered again: attempt %d", ds[0].Attempt)
			}
			ds := receiveAll(t, b, "%DLQ%g")
			assert.That(t, len(ds) == 1 && ds[0].ID == "m", "%d dead letters", len(ds))
			s := subscriptionOf(t, b, "g")
			assert.That(t, s.DeadLetters == 1 && s.Discarded == 0, "the group has %+v", s)
		})
	}
}

// However much is given up at once, memory holds little of it.
func TestManyDeadLettersAtOnceAreFewInMemory(t *testing.T) {
	t.Parallel()
	const n, size = 16, 1 << 20
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putTopic(t, b, "%DLQ%g", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{MaxAttempts: 1})
		body := make([]byte, size)
		for i := range n {
			mustSend(t, b, &tidegate.Message{Topic: "t", ID: fmt.Sprint(i), Body: body})
		}
		taken := 0
		for taken < n {
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Minute})
			taken += len(ds)
		}
		release := holdWrites(b)
		elapse(2 * time.Minute)
		gathered := 0
		inLog(b, func(w *store.Batch) { gathered = (*pebble.Batch)(w).Len() })
		if gathered < size || gathered > 12<<20 { // three times the bound of engine.Letters
			t.Errorf("%d MiB of %d wait in memory to be written", gathered>>20, n)
		}
		release()
		elapse(time.Minute)
		s := subscriptionOf(t, b, "g")
		assert.That(t, s.DeadLetters == n && s.Backlog == (status.Backlog{}), "the group has %+v", s)
		page, err := b.DeadLetters("g", status.DeadLetterQuery{})
		assert.That(t, err == nil && len(page.DeadLetters) == n, "%d dead letters, %v", len(page.DeadLetters), err)
	})
}

// An unreadable or missing message does not become a dead letter, and does not count as one.
func TestLostMessageIsNoDeadLetter(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})[0]
		corruptMessage(t, b, "t", 0, 0)
		assert.NoError(t, assert.Err(b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "r"})))
		if s := subscriptionOf(t, b, "g"); s.DeadLetters != 0 || s.Acked != 0 || s.Backlog != (status.Backlog{}) || serve(b).Stats().Damaged != 1 {
			t.Errorf("%d damaged, the group has %+v", serve(b).Stats().Damaged, s)
		}
	})
}

// A dead letter request is repeated at any moment of the first one. It does not return before the
// end of the first one is on disk; otherwise the message could be redelivered after a power
// failure.
func TestRepeatedDeadLetterWaitsForTheDisk(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var slow atomic.Bool
		fs := hooked(vfs.NewMem(), func(op errorfs.Op) error {
			if slow.Load() && syncsLog(op) && strings.HasPrefix(op.Path, "data/groups/") {
				<-time.After(time.Hour)
			}
			return nil
		})
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putTopic(t, b, protocol.DeadLetterPrefix+"g", settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: 12 * time.Hour})
		assert.MustEqual(t, "received messages", len(ds), 1)
		<-time.After(time.Second) // the lease is on disk
		slow.Store(true)
		start := time.Now()
		type end struct {
			begun, ended time.Duration
			err          error
		}
		ends := make(chan end)
		call := func() {
			begun := time.Since(start)
			_, err := b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter})
			ends <- end{begun, time.Since(start), err}
		}
		const repeated = 24
		for range repeated + 1 {
			go call()
			<-time.After(5 * time.Minute)
		}
		slow.Store(false)
		var first time.Duration
		var all []end
		for range repeated + 1 {
			e := <-ends
			assert.NoError(t, e.err)
			if e.begun == 0 {
				first = e.ended
			}
			all = append(all, e)
		}
		assert.MustThat(t, first >= time.Hour, "the first request ended after %v, before an fsync of the groups", first)
		for _, e := range all {
			assert.That(t, e.ended >= first, "the request of %v ended after %v, and the first one after %v", e.begun, e.ended, first)
		}
	})
}

// The number of attempts that a consumer claims for a dead letter is bounded.
func TestClaimedAttemptsAreBounded(t *testing.T) {
	t.Parallel()
	b := open(t, broker.Options{})
	putTopic(t, b, "t", settings.Topic{Queues: 1})
	mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
	d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})[0]
	d.Attempt = math.MaxInt32
	settle(t, b, d, transport.Verdict{Kind: transport.DeadLetter})
	page, err := b.DeadLetters("g", status.DeadLetterQuery{})
	assert.MustThat(t, err == nil && len(page.DeadLetters) == 1, "%+v, %+v", page, err)
	assert.Equal(t, "the dead letter has attempts", page.DeadLetters[0].Origin.Attempts, 1<<20)
}

// Dead letters that lie elsewhere than in %DLQ%group, because of retry topics
// or address settings, are listed with their group, browsed, sent back and purged; those of others
// in the same topic are left alone.
func TestDeadLettersInOtherTopics(t *testing.T) {
	t.Parallel()
	dla := settings.Address{DeadLetterAddress: new("DLA"), MaxDeliveryAttempts: new(1)}
	for name, c := range map[string]struct {
		address settings.Address
		group   settings.Group
		topics  []string
		in      string
	}{
		"retry topics":             {settings.Address{}, settings.Group{MaxAttempts: 1, RetryTopic: settings.RetryTopic{Enabled: true}}, []string{"t-g-DLQ"}, "t-g-DLQ"},
		"retry topics, older":      {settings.Address{}, settings.Group{MaxAttempts: 1, RetryTopic: settings.RetryTopic{Enabled: true, Naming: "2.7.2"}}, []string{"g-DLQ"}, "g-DLQ"},
		"dead-letter-address":      {dla, settings.Group{}, []string{"DLA"}, "DLA"},
		"automatic":                {settings.Address{AutoCreateDeadLetterResources: new(true)}.Over(dla), settings.Group{}, []string{"DLA", "DLQ.t"}, "DLQ.t"},
		"address and retry topics": {dla, settings.Group{RetryTopic: settings.RetryTopic{Enabled: true}}, []string{"DLA"}, "DLA"},
	} {
		subtest(t, name, func(t *testing.T) {
			b, fs := openData(t)
			putTopic(t, b, "t", settings.Topic{Queues: 1})
			putAddress(t, b, "t", c.address)
			other := c.group
			other.RetryTopic.DeadLetterTopic = c.in // both in one topic
			putGroup(t, b, "g", c.group)
			putGroup(t, b, "other", other)
			for i := range 4 {
				mustSend(t, b, &tidegate.Message{Topic: "t", ID: fmt.Sprint(i), Body: []byte("x")})
				for _, g := range []string{"g", "other"} {
					settle(t, b, one(t, b, g, "t"), transport.Verdict{Kind: transport.Retry})
				}
			}
			if g, err := b.Group("g"); err != nil || !slices.Equal(g.DeadLetterTopics, c.topics) {
				t.Errorf("the group's are in %q, %v; want %q", g.DeadLetterTopics, err, c.topics)
			}
			list := func(group string, want string) {
				t.Helper()
				page, err := b.DeadLetters(group, status.DeadLetterQuery{In: c.in})
				got := fmt.Sprint(letterIDs(page))
				assert.That(t, err == nil && got == want, "%s has %s in %s, %v; want %s", group, got, c.in, err, want)
			}
			list("g", "[0 1 2 3]")
			list("other", "[0 1 2 3]")
			only := status.DeadLetterFilter{MessageIDs: []string{"1", "2"}}
			done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{In: c.in, DeadLetterFilter: only})
			assert.That(t, err == nil && done.Purged == 2, "%+v, %v", done, err)
			list("g", "[0 3]")
			list("other", "[0 1 2 3]")
			if done, err := b.RedriveDeadLetters(t.Context(), "other", status.DeadLetterSelection{In: c.in}); err != nil || done.Redriven != 4 {
				t.Errorf("%+v, %v", done, err)
			}
			list("other", "[]")
			ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, Wait: time.Second})
			assert.That(t, len(ds) == 4, "%d were sent back", len(ds))
			for range 2 {
				list("g", "[0 3]")
				if info, err := b.Topic(c.in); err != nil || info.StoredMessages != 2 || info.Backlog.Messages != 2 || info.StoredBytes != 2 {
					t.Errorf("%s has %+v, %v", c.in, info, err)
				}
				b = reopen(t, b, fs)
			}
			// A letter that was taken out is not counted again when the rest is removed.
			putTopic(t, b, c.in, settings.Topic{DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(time.Second)}})
			elapse(time.Hour)
			if info, err := b.Topic(c.in); err == nil && (info.StoredMessages != 0 || info.StoredBytes != 0 || info.Backlog != (status.Backlog{})) {
				t.Errorf("%s has %+v once all are removed", c.in, info)
			}
		})
	}
}

// The topic remembers the ID of a dead letter like any other ID. A send with that ID is a
// duplicate, before and after a restart.
func TestDuplicateOfADeadLetter(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putTopic(t, b, "DLA", settings.Topic{Queues: 1})
		putAddress(t, b, "t", settings.Address{DeadLetterAddress: new("DLA"), MaxDeliveryAttempts: new(1)})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
		settle(t, b, one(t, b, "g", "t"), transport.Verdict{Kind: transport.DeadLetter, Reason: "no use"})
		for range 2 {
			r := send(t, b, &tidegate.Message{Topic: "DLA", ID: "m", Body: []byte("x")})[0]
			if info, err := b.Topic("DLA"); r.Err != nil || err != nil || info.StoredMessages != 1 || r.Receipt.Offset != 0 {
				t.Errorf("%+v, %v; the topic is %+v, %v", r.Receipt, r.Err, info, err)
			}
			b = reopen(t, b, fs)
		}
		time.Sleep(2 * time.Minute)
		mustSend(t, b, &tidegate.Message{Topic: "DLA", ID: "m", Body: []byte("x")})
		info, err := b.Topic("DLA")
		assert.That(t, err == nil && info.StoredMessages == 2, "after the window the topic is %+v, %v", info, err)
	})
}

// A dead letter is written once the lease of its message is on disk. Otherwise a power failure in
// between would leave the dead letter of a message that was never delivered.
func TestDeadLetterWaitsForTheLeasesFsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newStallFS(func(op errorfs.Op) bool { return syncsLog(op) && strings.HasPrefix(op.Path, "data/groups/") })
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		letters := protocol.DeadLetterPrefix + "g"
		putTopic(t, b, letters, settings.Topic{Queues: 1})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}) // the group is on disk
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("y")})
		<-time.After(time.Second)
		fs.hold(true)
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: 2 * time.Hour})
		assert.MustEqual(t, "received messages", len(ds), 1)
		done := make(chan error)
		go func() { done <- second(b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter})) }()
		stored := func() int64 {
			info := assert.Value(b.Topic(letters))(t)
			return info.StoredMessages
		}
		<-time.After(time.Minute)
		assert.Equal(t, "dead letters before the lease is on disk", stored(), 0)
		fs.hold(false)
		assert.Must(t, <-done)
		assert.Equal(t, "dead letters", stored(), 1)
	})
}

// Dead letters are logged one by one only in small numbers: a class has two lines a minute at most.
func TestDeadLettersAreSummedUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var log bytes.Buffer
		b := open(t, broker.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		putTopic(t, b, "t", settings.Topic{})
		const n = 300
		for i := range n {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: fmt.Append(nil, i)})
		}
		for done := 0; done < n; {
			for _, d := range receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Minute}) {
				settle(t, b, d, transport.Verdict{Kind: transport.DeadLetter, Reason: "bad"})
				done++
			}
		}
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if lines := strings.Count(log.String(), "became a dead letter"); lines != 2 || !strings.Contains(log.String(), "further=299") {
			t.Errorf("%d lines, want 2:\n%.2000s", lines, log.String())
		}
	})
}

// Delayed messages that are moved in time are hardly late, and those of a broker that was down are.
func TestLatenessOfDelayedMessages(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x"), DeliverAt: time.Now().Add(time.Hour)})
		assert.Equal(t, "before its time, messages count", serve(b).Stats().DelayedLateness.Count(), 0)
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		if h := serve(b).Stats().DelayedLateness; h.Count() != 1 || h.Sum > 0.01 {
			t.Errorf("%d messages, %v s late together, want 1 and about 0", h.Count(), h.Sum)
		}
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("y"), DeliverAt: time.Now().Add(time.Minute)})
		assert.Must(t, b.Close())
		time.Sleep(3 * time.Minute)
		b = open(t, broker.Options{Dir: "data"}.On(fs))
		synctest.Wait()
		if h := serve(b).Stats().DelayedLateness; h.Count() != 1 || h.Sum < 119 || h.Sum > 121 {
			t.Errorf("after two minutes without a broker, %d messages, %v s late together", h.Count(), h.Sum)
		}
	})
}

// A broker that opens a directory after a crash logs its content, and only then.
func TestRecoveryAfterCrashIsLogged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		var log bytes.Buffer
		begin := func(fs vfs.FS) *broker.Broker {
			return open(t, broker.Options{Dir: "data", Logger: slog.New(slog.NewTextHandler(&log, nil))}.On(fs))
		}
		b := begin(fs)
		putTopic(t, b, "t", settings.Topic{})
		for i := range 5 {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: fmt.Append(nil, i)})
		}
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 2, InvisibleDuration: time.Hour})
		time.Sleep(time.Second) // the leases are written
		crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
		assert.Must(t, b.Close())
		b = begin(fs)
		if strings.Contains(log.String(), "did not close") {
			t.Errorf("of a new directory, or after an orderly close:\n%s", log.String())
		}
		b.Close()
		begin(crashed)
		assert.Contains(t, "the log", log.String(), "level=WARN", "did not close", "stored_messages=5", "deliveries_in_flight=2")
	})
}
