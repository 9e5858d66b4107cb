package broker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// The functions of this file read the state of a broker that none of its methods returns.

// subscriptions returns all subscriptions of a broker.
func subscriptions(b *broker.Broker) []*engine.Subscription {
	_, all := b.Engine().Parts().Catalog.All()
	return all
}

// topicOf returns a topic of a broker.
func topicOf(tb testing.TB, b *broker.Broker, name string) *engine.Topic {
	tb.Helper()
	t := assert.Value(b.Engine().Parts().Catalog.Topic(name))(tb)
	return t
}

// locate returns the subscription of a delivery, and the content of its receipt handle.
func locate(t *testing.T, b *broker.Broker, d *tidegate.Delivery) (*engine.Subscription, consume.Handle) {
	t.Helper()
	r := assert.Value(consume.ParseHandle(d.Handle))(t)
	s := b.Engine().Parts().Catalog.Find(r.Group, r.Place.Topic)
	assert.MustThat(t, s != nil, "the handle of %s names no subscription", d.ID)
	return s, r
}

// isStored reports whether a message is on disk: in its queue, or kept before its beginning.
func isStored(t *testing.T, b *broker.Broker, tp *engine.Topic, queue uint16, offset int64) bool {
	t.Helper()
	_, ok, err := b.Engine().Parts().Store.Get(store.Place{Topic: tp.ID(), Queue: queue, Offset: offset})
	assert.Must(t, err)
	return ok
}

// delayedRecords returns the records of the messages of a topic that wait for their delivery time,
// in the order of their sends. The topic may be deleted.
func delayedRecords(t *testing.T, b *broker.Broker, tp *engine.Topic) []store.StoredDelayed {
	t.Helper()
	all := assert.Value(b.Engine().Parts().Store.DelayedOf(tp.ID(), store.StoredDelayed{}, 1<<20))(t)
	return all
}

// expectNothingPending fails if a delayed message or a half message of any topic, deleted or not,
// is left on disk, or a count of them.
func expectNothingPending(t *testing.T, b *broker.Broker) {
	t.Helper()
	p := b.Engine().Parts()
	s, topics := p.Store, p.Catalog.TopicsByID()
	_, _, delayed, err := s.Due(time.Time{}, time.Time{}, 0, 0)
	_, half, errHalf := s.DueHalfMessages(time.Time{}, time.Time{}, 10)
	errCounts := s.Waiting(func(id uint32, n store.Waiting) error {
		if n != (store.Waiting{}) || topics[id] == nil {
			t.Errorf("topic %d, which exists: %t, counts %+v", id, topics[id] != nil, n)
		}
		return nil
	})
	errStates := s.HalfMessages(func(id store.HalfID, _ store.HalfState) error {
		t.Errorf("the half message %+v is left", id)
		return nil
	})
	if err := errors.Join(err, errHalf, errCounts, errStates); err != nil || !delayed.IsZero() || !half.IsZero() {
		t.Errorf("left are a delayed message of %v, a half message of %v; %v", delayed, half, err)
	}
}

// parkedReasons returns the number of parked message groups whose reason is on disk.
func parkedReasons(t *testing.T, b *broker.Broker) (n int) {
	t.Helper()
	assert.Must(t, b.Engine().Parts().Store.AllParked(func(uint32, store.Place, string) error { n++; return nil }))
	return n
}

// readAheadBytes returns the bytes of all messages that are in memory for later receives.
func readAheadBytes(b *broker.Broker) int64 { return b.Engine().Parts().Env.Reads.Ahead() }

// sent returns the number of messages in a topic, 0 if there is no such topic.
func sent(t *testing.T, b *broker.Broker, name string) int64 {
	t.Helper()
	topic, err := b.Topic(name)
	if err != nil {
		return 0
	}
	return topic.StoredMessages
}

// second returns the error of a call with two results, for calls inside an expression.
func second[T any](_ T, err error) error { return err }

// remembers reports whether the heartbeats of a client are recorded.
func remembers(b *broker.Broker, client string) bool {
	_, ok := b.Engine().Parts().Owners.Last(client)
	return ok
}

// freed returns the removed messages whose disk space was not reclaimed yet.
func freed(b *broker.Broker) *retention.Freed { return b.Engine().Parts().Retention.Freed() }

// served has the operations of a broker for programs and for servers.
type served struct{ *engine.Engine }

func serve(b *broker.Broker) served { return served{b.Engine()} }

// SendHalf stores a half message, as a server does.
func (b served) SendHalf(ctx context.Context, m *tidegate.Message, firstCheck time.Duration) transport.SendResult {
	return b.Append(ctx, []engine.Incoming{{Message: m, BornHost: "localhost", Half: true, FirstCheck: firstCheck}})[0]
}

// NegativeAck settles a delivery by a negative acknowledgement.
func (b served) NegativeAck(ctx context.Context, d *tidegate.Delivery, delay time.Duration) error {
	_, err := b.Settle(ctx, d, transport.Verdict{Kind: transport.NegativeAck, Delay: delay})
	return err
}
