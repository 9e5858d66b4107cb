package broker_test

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// The functions of this file hold a part of a broker, damage its records, or bring it into a state
// that is rare in use.

// holdWrites stops the commits of messages and settings after those under way, until release is
// called.
func holdWrites(b *broker.Broker) (release func()) { return holdLog(b.Engine().Parts().Store.Messages) }

// holdProgress is holdWrites for cursors and leases.
func holdProgress(b *broker.Broker) (release func()) { return holdLog(b.Engine().Parts().Store.Groups) }

func holdLog(l *store.Log) (release func()) {
	held, free := make(chan struct{}), make(chan struct{})
	l.Add(func(*store.Batch) {}, func(error) { close(held); <-free })
	<-held
	return func() { close(free) }
}

// awaitWrites returns when all earlier writes of messages and settings are on disk.
func awaitWrites(tb testing.TB, b *broker.Broker) { writeRecords(tb, b, func(*store.Batch) {}) }

// writeRecords writes records beside those of the broker.
func writeRecords(tb testing.TB, b *broker.Broker, f func(*store.Batch)) {
	tb.Helper()
	if err := b.Engine().Parts().Store.Messages.Add(f, nil).Wait(); err != nil {
		tb.Fatal(err)
	}
}

// inLog calls f while no other write of messages and settings is encoded. Numbers, offsets and
// message IDs do not change meanwhile. The batch is the next one to be written.
func inLog(b *broker.Broker, f func(*store.Batch)) { b.Engine().Parts().Store.Messages.Add(f, nil) }

// holdSettings keeps changes of topics, groups and address settings waiting until release is
// called.
func holdSettings(t *testing.T, b *broker.Broker) (release func()) {
	t.Helper()
	catalog := b.Engine().Parts().Catalog
	if err := catalog.LockAdmin(t.Context()); err != nil {
		t.Fatal(err)
	}
	return catalog.UnlockAdmin
}

// holdRetention keeps the removal of messages waiting until release is called.
func holdRetention(t *testing.T, b *broker.Broker) (release func()) {
	t.Helper()
	return holdTask(t, b.Engine().Parts().Retention.Task().Hold)
}

// holdDelayed keeps the moves, the recalls and the purge of delayed messages waiting.
func holdDelayed(t *testing.T, b *broker.Broker) (release func()) {
	t.Helper()
	return holdTask(t, b.Engine().Parts().Delayed.Task.Hold)
}

// holdTransactions keeps the checks and the purge of transactions waiting.
func holdTransactions(t *testing.T, b *broker.Broker) (release func()) {
	t.Helper()
	return holdTask(t, b.Engine().Parts().Transactions.Task.Hold)
}

// holdRedrives keeps redrives waiting, as a redrive under way does.
func holdRedrives(t *testing.T, b *broker.Broker) (release func()) {
	t.Helper()
	return holdTask(t, b.Engine().Parts().Letters.Hold)
}

func holdTask(t *testing.T, hold func(context.Context) (func(), error)) (release func()) {
	t.Helper()
	release, err := hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return release
}

// reserveRoom reserves n bytes of the room that writes of messages have in memory.
func reserveRoom(t *testing.T, b *broker.Broker, n int64) (release func()) {
	t.Helper()
	log := b.Engine().Parts().Store.Messages
	if err := log.Room(t.Context(), n, nil); err != nil {
		t.Fatal(err)
	}
	return func() { log.Release(n) }
}

// leaveRoom reserves all but n bytes of that room.
func leaveRoom(t *testing.T, b *broker.Broker, n int64) {
	t.Helper()
	var reserved []func()
	for !roomIsFull(b) {
		reserved = append(reserved, reserveRoom(t, b, n))
	}
	last := len(reserved) - 1
	reserved[last]()
	for _, release := range reserved[:last] {
		t.Cleanup(release)
	}
}

// roomIsFull reports whether writes of messages wait for room.
func roomIsFull(b *broker.Broker) bool { return b.Engine().Parts().Store.Messages.Full() }

// stalled reports whether Pebble lets writes wait.
func stalled(b *broker.Broker) bool { return !b.Engine().Parts().Store.StalledSince().IsZero() }

// corruptRecord makes a record of the messages database unreadable.
func corruptRecord(t *testing.T, b *broker.Broker, key []byte) {
	t.Helper()
	writeRecords(t, b, func(w *store.Batch) {
		if err := (*pebble.Batch)(w).Set(key, []byte{0xff}, nil); err != nil {
			t.Error(err)
		}
	})
}

// corruptMessage makes a stored message unreadable until repair is called.
func corruptMessage(t *testing.T, b *broker.Broker, topic string, queue uint16, offset int64) (repair func()) {
	t.Helper()
	s, at := b.Engine().Parts().Store, store.Place{Topic: topicOf(t, b, topic).ID(), Queue: queue, Offset: offset}
	whole, ok, err := s.Get(at)
	if !ok || err != nil {
		t.Fatalf("offset %d is not there: %v", offset, err)
	}
	k := binary.BigEndian.AppendUint32([]byte{'m'}, at.Topic)
	corruptRecord(t, b, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint16(k, queue), uint64(offset)))
	if _, _, err := s.Get(at); !store.IsDamage(err) {
		t.Fatalf("offset %d is not damaged: %v", offset, err)
	}
	return func() {
		t.Helper()
		writeRecords(t, b, func(w *store.Batch) { w.PutMessage(at, &whole) })
	}
}

// corruptDelayed makes one of the messages of a topic that wait for their delivery time unreadable:
// the nth in the order of their sends, from 0.
func corruptDelayed(t *testing.T, b *broker.Broker, topic string, n int) {
	t.Helper()
	tp := topicOf(t, b, topic)
	waiting := delayedRecords(t, b, tp)
	if n >= len(waiting) {
		t.Fatalf("%d messages wait: %+v", len(waiting), waiting)
	}
	k := binary.BigEndian.AppendUint64([]byte{'y'}, uint64(waiting[n].Due.UnixNano()))
	corruptRecord(t, b, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(k, tp.ID()), waiting[n].Number))
}

// rememberID makes a topic remember a message ID at a place where its message is not, as with equal
// hashes or a corrupt message.
func rememberID(t *testing.T, b *broker.Broker, topic, id string, at engine.PendingLocation) {
	t.Helper()
	tp := topicOf(t, b, topic)
	inLog(b, func(*store.Batch) {
		tp.IDs().Remember(&store.Message{Message: tidegate.Message{ID: id}}, at, time.Minute, time.Now())
	})
}

// growQueues adds queues to a topic as PutTopic does, in the moment before its groups have them.
// The returned function adds them to the groups.
func growQueues(t *testing.T, b *broker.Broker, topic string, queues int) (addToGroups func()) {
	t.Helper()
	tp, subscriptions := topicOf(t, b, topic), b.Engine().Parts().Catalog.Subscriptions()
	subscriptions.Lock()
	defer subscriptions.Unlock()
	tp.Grow(queues)
	return func() {
		for _, s := range tp.Subscriptions() {
			s.AddQueues()
		}
	}
}

// nextQueue sets the queue of the next message without a message group.
func nextQueue(t *testing.T, b *broker.Broker, topic string, queue uint32) {
	t.Helper()
	tp := topicOf(t, b, topic)
	tp.RoundRobin.Store(queue + uint32(len(tp.Queues())) - 1)
}

// nearReclaim counts removed messages that never existed, so that the broker reclaims disk space
// after bytes more removed bytes.
func nearReclaim(b *broker.Broker, bytes int64) {
	freed(b).Add(store.Range{Topic: 9, Queue: 0, From: 0, To: 1}, retention.ReclaimBytes-bytes)
}
