package broker

import (
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/status"
)

func (b *Broker) describeSubscription(s *subscription.Subscription, at *subscription.Status) status.Subscription {
	return status.Subscription{
		Held: holdingOf(at.Held), CountsSince: b.opened,
		Topic: s.Topic().Name(),
		Ready: at.Ready, Inflight: at.Inflight, WaitingRetry: at.WaitingRetry,
		Parked: at.Parked, ParkedGroups: at.ParkedGroups, BlockedGroups: at.BlockedGroups,
		Backlog: status.Backlog(s.Backlog()),
		Acked:   at.Acked, Redelivered: at.Redelivered, DeadLetters: at.DeadLetters,
		Overtaken: at.Overtaken, Discarded: at.Discarded, Expired: at.Expired, Filtered: at.Filtered,
	}
}

func holdingOf(h *consume.Holding) *status.Holding {
	if h == nil {
		return nil
	}
	return &status.Holding{Client: h.Client, Messages: h.Messages, Since: h.Since, Until: h.Due}
}
