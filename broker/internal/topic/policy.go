package topic

import (
	"cmp"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/settings"
)

// A Policy has the retry settings of a group in one topic: the group's settings, or the address
// settings of the topic if these have redelivery settings.
type Policy struct {
	Group   *settings.Group
	Address *AddressPolicy
}

// Ladder returns the retry schedule without its random parts.
func (p Policy) Ladder() backoff.Steps {
	if r := p.Address.Redelivery; r != nil {
		return r.Ladder()
	}
	return p.Group.Ladder()
}

// LongestInterval returns the longest retry interval of the group and of the address.
func (p Policy) LongestInterval() time.Duration {
	return max(slices.Max(p.Ladder()), slices.Max(p.Group.Ladder()))
}

// MaxAttempts returns the maximum of deliveries of a message; -1 means no maximum.
func (p Policy) MaxAttempts() int {
	if r := p.Address.Redelivery; r != nil {
		return r.MaxAttempts
	}
	return p.Group.MaxAttempts
}

// Rules returns the policy as package consume applies it.
func (p Policy) Rules() consume.Policy {
	return consume.Policy{
		MaxAttempts: p.MaxAttempts(), MaxRedeliveries: p.Group.NegativeAck.MaxRedeliveries, OnExhausted: p.onExhausted(),
		Schedule: p.Group, Address: p.Address.Redelivery,
	}
}

// onExhausted returns the action after the last attempt of a message with a message group.
func (p Policy) onExhausted() consume.Exhaustion {
	switch {
	case !p.Group.FIFO:
		return consume.ThenDeadLetter // no order to keep
	case p.Group.OnExhausted == settings.OnExhaustedPark:
		return consume.ThenPark
	case p.Group.OnExhausted == settings.OnExhaustedBlock:
		return consume.ThenBlock
	}
	return consume.ThenDeadLetter
}

// DeadLetterTopics returns the topics of the dead letter of a message of group in topic. Without
// any the message is removed. early is Departure.Early of package consume: address settings without
// a dead-letter-address do not remove such a message. A dead letter does not go to the topic that
// it is in: a group that consumes its own dead letters would never end.
func (p Policy) DeadLetterTopics(group, topic string, early bool) []string {
	topics := []string{p.OwnDeadLetterTopic(group, topic)}
	if r := p.Address.Redelivery; r != nil {
		topics = r.DeadLetterTopics(topics[0], topic, early)
	}
	return slices.DeleteFunc(topics, func(to string) bool { return to == topic })
}

// OwnDeadLetterTopic returns the topic of dead letters without address settings.
func (p Policy) OwnDeadLetterTopic(group, topic string) string {
	if c := p.Group.RetryTopic; c.Enabled {
		from, _ := c.Original(topic, group)
		if name := c.DeadLetterName(cmp.Or(from, topic), group); name != topic && tidegate.ValidateTopic(name) == nil {
			return name
		}
	}
	return tidegate.DeadLetterTopic(group)
}
