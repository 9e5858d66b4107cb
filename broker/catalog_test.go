package broker

import (
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// subscriptions returns all subscriptions of a broker.
func subscriptions(b *Broker) []*subscription.Subscription {
	_, all := b.catalog.All()
	return all
}

// subscriptionsTo returns the subscriptions to a topic.
func subscriptionsTo(b *Broker, t *topic.Topic) (to []*subscription.Subscription) {
	for _, s := range subscriptions(b) {
		if s.Topic() == t {
			to = append(to, s)
		}
	}
	return to
}
