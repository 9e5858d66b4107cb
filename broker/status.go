package broker

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/status"
)

// describeSubscription returns the state of a group in a topic, except for Why.
func (b *Broker) describeSubscription(s *engine.Subscription, at *engine.Status) status.Subscription {
	return status.Subscription{
		Held: holdingOf(at.Held), CountsSince: b.opened,
		Topic: s.Topic().Name(),
		Ready: at.Ready, Inflight: at.Inflight, WaitingRetry: at.WaitingRetry,
		Parked: at.Parked, Blocked: at.Blocked, ParkedGroups: at.ParkedGroups, BlockedGroups: at.BlockedGroups,
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

// whyOf returns the value of status.Subscription.Why. throttled means that the broker rejects sends
// to the topic.
func whyOf(at *engine.Status, backlog int64, throttled bool, now time.Time) string {
	switch {
	case at.ParkedGroups > 0 || at.Parked > 0:
		return "parked"
	case at.BlockedGroups > 0:
		return "blocked"
	case holdingOf(at.Held).Long(now):
		return "held"
	case backlog == 0 && at.Filtered > 0 && at.Acked+at.DeadLetters == 0:
		return "filtered"
	case backlog == 0 && throttled:
		return "throttled"
	case backlog == 0:
		return "idle"
	case at.Ready > 0 && at.Inflight+at.Waiting == 0:
		return "no_consumer"
	case at.Ready == 0 && at.Inflight == 0 && at.WaitingRetry > 0:
		return "retrying"
	}
	return "working"
}
