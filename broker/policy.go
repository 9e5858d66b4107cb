package broker

import (
	"cmp"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/redelivery"
	"github.com/tidegate/tidegate/broker/settings"
)

// An addressPolicy has the effects of the address settings that match a topic.
type addressPolicy struct {
	redelivery    *redelivery.Rules // nil if no redelivery or dead letter setting matches
	keepQueues    bool              // auto-delete-queues is false
	persist       bool              // persist-delivery-count-before-delivery
	expiry        time.Duration
	expiryAddress string
}

// newAddressPolicy returns the effects of merged settings on a topic.
func newAddressPolicy(s AddressSettings) *addressPolicy {
	p := &addressPolicy{
		keepQueues: !orDefault(s.AutoDeleteQueues, true),
		persist:    orDefault(s.PersistDeliveryCountBeforeDelivery, false),
		expiry:     orDefault(s.ExpiryDelay, 0).Duration(), expiryAddress: orDefault(s.ExpiryAddress, ""),
	}
	if !s.Redelivers() {
		return p
	}
	delay := orDefault(s.RedeliveryDelay, 0)
	p.redelivery = &redelivery.Rules{
		Delay:       delay.Duration(),
		Longest:     orDefault(s.MaxRedeliveryDelay, min(delay*DefaultMaxRedeliveryDelayFactor, maxMilliseconds)).Duration(),
		Multiplier:  orDefault(s.RedeliveryDelayMultiplier, DefaultRedeliveryDelayMultiplier),
		Factor:      orDefault(s.RedeliveryCollisionAvoidanceFactor, 0),
		MaxAttempts: orDefault(s.MaxDeliveryAttempts, DefaultMaxDeliveryAttempts),
		DeadLetter:  orDefault(s.DeadLetterAddress, ""),
		AutoCreate:  orDefault(s.AutoCreateDeadLetterResources, false),
		Prefix:      orDefault(s.DeadLetterQueuePrefix, DefaultDeadLetterQueuePrefix),
		Suffix:      orDefault(s.DeadLetterQueueSuffix, ""),
	}
	return p
}

const maxMilliseconds = Milliseconds(settings.MaxDuration / time.Millisecond)

// orDefault returns *p, or v if p is nil.
func orDefault[T any](p *T, v T) T {
	if p != nil {
		return *p
	}
	return v
}

// A policy is what holds for a group's messages of one topic: the group's
// settings, and where address settings say something of redelivery, these.
type policy struct {
	group   *GroupConfig
	address *addressPolicy
}

func (s *subscription) policy() policy {
	return policy{s.group.config.Load(), s.topic.address.Load()}
}

// interval returns the retry interval after delivery attempt of a push consumer failed.
func (p policy) interval(attempt int, d redelivery.Draw) time.Duration {
	if r := p.address.redelivery; r != nil {
		return r.After(attempt, d)
	}
	return p.group.Interval(attempt)
}

// overrides reports whether the broker's interval goes before the one that a
// push consumer asks for.
func (p policy) overrides() bool { return p.address.redelivery != nil }

// ladder is the intervals as a client is told them, without chance.
func (p policy) ladder() backoff.Steps {
	if r := p.address.redelivery; r != nil {
		return r.Ladder()
	}
	return p.group.Ladder()
}

// maxAttempts is how often a message is delivered; -1 for ever.
func (p policy) maxAttempts() int {
	if r := p.address.redelivery; r != nil {
		return r.MaxAttempts
	}
	return p.group.MaxAttempts
}

// rules returns what package consume needs to know of the policy.
func (p policy) rules() consume.Policy {
	return consume.Policy{
		MaxAttempts: p.maxAttempts(), MaxRedeliveries: p.group.NegativeAck.MaxRedeliveries, OnExhausted: onExhausted(p.group),
		Interval: p.interval, Override: p.overrides(),
	}
}

// onExhausted returns the behaviour of a group after the last attempt of a message with a message
// group.
func onExhausted(c *GroupConfig) consume.Exhaustion {
	switch {
	case !c.FIFO:
		return consume.ThenDeadLetter // no order to keep
	case c.OnExhausted == OnExhaustedPark:
		return consume.ThenPark
	case c.OnExhausted == OnExhaustedBlock:
		return consume.ThenBlock
	}
	return consume.ThenDeadLetter
}

// deadLetterTopics returns the topics that a message of group, in topic, goes
// to when it is given up; none: it is removed, unless keep is set. A dead letter does not go to the
// topic that it is in: a group that consumes its own dead letters, and fails, would go on for ever.
func (p policy) deadLetterTopics(group, topic string, keep bool) []string {
	topics := []string{p.ownDeadLetterTopic(group, topic)}
	if r := p.address.redelivery; r != nil {
		topics = r.DeadLetterTopics(topics[0], topic, keep)
	}
	return slices.DeleteFunc(topics, func(to string) bool { return to == topic })
}

// ownDeadLetterTopic returns the topic that it goes to where address settings say nothing.
func (p policy) ownDeadLetterTopic(group, topic string) string {
	if c := p.group.RetryTopic; c.Enabled {
		from, _ := c.Original(topic, group)
		if name := c.DeadLetterName(cmp.Or(from, topic), group); name != topic && tidegate.ValidateTopic(name) == nil {
			return name
		}
	}
	return tidegate.DeadLetterTopic(group)
}

// A RetryPolicy is what a client of a group is told about redelivery.
type RetryPolicy struct {
	MaxAttempts int           // deliveries of one message; -1 for ever
	Ladder      backoff.Steps // the interval after the first failure, the second, ...; the last one repeats
}

// RetryInterval returns the interval, without chance, after which a message
// comes again whose delivery d failed: that after attempt d.Attempt or, if that is 0, after
// the one that the handle names. 40013 for a handle that is none, and,
// without an attempt, for one that is not valid any more.
func (b *Broker) RetryInterval(d *tidegate.Delivery) (time.Duration, error) {
	s, h, err := b.locate(d)
	if err != nil {
		return 0, err
	}
	attempt := d.Attempt
	if attempt == 0 {
		var err error
		s.locked(func() {
			var l *consume.Lease
			if s.gone {
				err = consume.ErrNoQueue
			} else if l, err = s.progress.Current(h, time.Now()); err == nil {
				attempt = l.Attempt
			}
		})
		if err != nil {
			return 0, asInvalidHandle(err)
		}
	}
	return s.policy().ladder().Delay(attempt - 1), nil
}

// RetryPolicy returns what holds for the group, whose settings are c, in the
// topics: the most deliveries that one of them allows, and the ladder if they
// agree on it, else the group's own. Topics that do not exist, and none at
// all, have the group's. Whatever a client makes of it, the broker decides.
func (b *Broker) RetryPolicy(c GroupConfig, topics ...string) RetryPolicy {
	c = c.WithDefaults()
	own := policy{&c, &addressPolicy{}}
	out := RetryPolicy{own.maxAttempts(), own.ladder()}
	seen := 0
	for _, name := range topics {
		b.mu.RLock()
		t := b.topics[name]
		b.mu.RUnlock()
		p := own
		if t != nil {
			p.address = t.address.Load()
		}
		most, ladder := p.maxAttempts(), p.ladder()
		if seen++; seen == 1 {
			out = RetryPolicy{most, ladder}
			continue
		}
		if out.MaxAttempts > 0 && (most < 0 || most > out.MaxAttempts) {
			out.MaxAttempts = most
		}
		if !slices.Equal(ladder, out.Ladder) {
			out.Ladder = own.ladder()
		}
	}
	return out
}
