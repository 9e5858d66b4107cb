package broker_test

import (
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// subscriptions returns all subscriptions of a broker.
func subscriptions(b *broker.Broker) []*subscription.Subscription {
	_, all := b.Parts().Catalog.All()
	return all
}

// subscriptionsTo returns the subscriptions to a topic.
func subscriptionsTo(b *broker.Broker, t *topic.Topic) (to []*subscription.Subscription) {
	for _, s := range subscriptions(b) {
		if s.Topic() == t {
			to = append(to, s)
		}
	}
	return to
}

// locate returns the subscription of a delivery, and the content of its receipt handle.
func locate(t *testing.T, b *broker.Broker, d *tidegate.Delivery) (*subscription.Subscription, handle.Receipt) {
	t.Helper()
	r, err := handle.ParseReceipt(d.Handle)
	if err != nil {
		t.Fatal(err)
	}
	s := b.Parts().Catalog.Find(r.Group, r.Place.Topic)
	if s == nil {
		t.Fatalf("the handle of %s names no subscription", d.ID)
	}
	return s, r
}

// sent returns the number of messages in a topic, 0 if there is no such topic.
func sent(t *testing.T, b *broker.Broker, name string) int64 {
	t.Helper()
	topic, err := b.Parts().Catalog.Topic(name)
	if err != nil {
		return 0
	}
	return topic.Written().Messages
}

// second returns the error of a call with two results, for calls inside an expression.
func second[T any](_ T, err error) error { return err }
