package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/transport"
)

// A Reconsumed is what became of a message that is to be consumed later.
type Reconsumed struct {
	Topic     string    `json:"topic"`           // that it is in now: the group's retry topic or its dead letter topic
	MessageID string    `json:"message_id"`      // a new one
	Times     int       `json:"reconsume_times"` // the retries so far, this one included
	DeliverAt time.Time `json:"deliver_at,omitzero"`

	// DeadLetter tells that it was retried as often as the group allows.
	DeadLetter bool `json:"dead_letter"`
}

// A retried message is one on its way to a retry topic, or from there to the
// dead letter topic, where it is a message of its own.
type retried struct {
	id    string
	times int
	from  string    // the topic that it was sent to, if this is its first retry; empty: its properties tell
	due   time.Time // zero: at once
	dead  bool
}

// ReconsumeLater acknowledges a delivery and has its message delivered again later, as a new
// message of the group's retry topic, or sends it to the group's dead letter topic if it was
// retried as often as the group allows. A dead letter, or another group's retry, is retried like a
// new message of the topic that it is received from. It returns when both are on disk. Should the
// process end in between, the group gets the new message only. If ctx ends while the disk is waited
// for, it is as with Ack. 40000 if the group has no retry topics, 40013 if the handle is not valid
// any more.
func (b *Broker) ReconsumeLater(ctx context.Context, d *tidegate.Delivery, m ReconsumeMode) (Reconsumed, error) {
	r, err := b.reconsumeLater(ctx, d, m)
	return r, fail.WithOp("ReconsumeLater", err)
}

func (b *Broker) reconsumeLater(ctx context.Context, d *tidegate.Delivery, mode ReconsumeMode) (Reconsumed, error) {
	end, err := b.beginWith(ctx)
	if err != nil {
		return Reconsumed{}, err
	}
	defer end()
	s, h, err := b.locate(d)
	if err != nil {
		return Reconsumed{}, err
	}
	c := s.Group().Settings().RetryTopic
	if !c.Enabled {
		return Reconsumed{}, fail.New(tidegate.CodeBadRequest, s.Group().Name(),
			"the group has no retry topics; set retry_topic.enabled, or retry without a new message")
	}
	m, ok, err := b.store.Get(h.Place)
	if err != nil {
		return Reconsumed{}, fail.Store(err)
	}
	if !ok {
		return Reconsumed{}, fail.InvalidHandle("the message was deleted")
	}
	topic, times := originalTopic(c, &m, s.Topic().Name(), s.Group().Name())
	times++
	delay, dead, err := c.Reconsume(times, mode)
	if err != nil {
		return Reconsumed{}, err
	}
	out := Reconsumed{Topic: c.RetryName(topic, s.Group().Name()), MessageID: tidegate.NewMessageID(), Times: times, DeadLetter: dead}
	if dead {
		out.Topic, out.Times = c.DeadLetterName(topic, s.Group().Name()), times-1
	}
	if err := tidegate.ValidateTopic(out.Topic); err != nil {
		return Reconsumed{}, err // the names are too long together
	}
	var leaving *deadLetter
	s.locked(func() {
		now := time.Now()
		if s.gone {
			err = consume.ErrNoQueue
		} else {
			err = s.progress.Reconsume(h, fmt.Sprintf("retried %d times, the most that the group allows", out.Times), now)
		}
		if err != nil {
			return
		}
		if delay > 0 {
			out.DeliverAt = now.Add(delay)
		}
		leaving = s.apply(now).dying[0]
		leaving.topics = []string{out.Topic}
		leaving.retried = &retried{id: out.MessageID, times: out.Times, due: out.DeliverAt, dead: dead}
		if times == 1 {
			leaving.retried.from = topic
		}
	})
	if err != nil {
		return Reconsumed{}, asInvalidHandle(err)
	}
	if err := b.carryOut(ctx, leaving); err != nil {
		return Reconsumed{}, err
	}
	return out, nil
}

// origin returns the topic that a message of topic was sent to, and how often
// the group has retried it since. Its properties tell if topic is the
// group's own retry topic: anywhere else, dead letters and another group's
// retries are messages like others. It agrees with TopicOf.
func originalTopic(c RetryTopicConfig, m *store.Message, topic, group string) (from string, times int) {
	from, retry := c.Original(topic, group)
	switch {
	case !retry:
		return topic, 0
	case from == "": // it is for all topics
		from = realTopic(m, topic)
	}
	return from, reconsumeTimes(m)
}

// sent returns the topic that a message of topic was sent to, and the ID that it was sent with. As
// for origin, its properties tell only if topic is the group's own retry topic.
func sentTo(c RetryTopicConfig, m *store.Message, topic, group string) (to, id string) {
	if _, retry := c.Original(topic, group); !retry {
		return topic, m.ID
	}
	return realTopic(m, topic), cmp.Or(m.Properties[tidegate.PropertyOriginMessageID], m.ID)
}

// reconsumeTimes returns how often a message was retried.
func reconsumeTimes(m *store.Message) int {
	n, _ := strconv.Atoi(m.Properties[tidegate.PropertyReconsumeTimes]) // only the broker writes it
	return max(n, 0)
}

// realTopic returns the topic that a message was sent to, if it is one of a
// retry topic, or else topic.
func realTopic(m *store.Message, topic string) string {
	if name := m.Properties[tidegate.PropertyRealTopic]; name != "" {
		return name
	}
	return topic
}

// message turns the original into the one for the retry topic named topic.
func (r *retried) message(m *store.Message, topic string) {
	p := maps.Clone(m.Properties)
	if p == nil {
		p = map[string]string{}
	}
	if r.from != "" {
		p[tidegate.PropertyRealTopic], p[tidegate.PropertyOriginMessageID] = r.from, m.ID
	}
	if !r.dead {
		p[tidegate.PropertyRetryTopic] = topic
	}
	p[tidegate.PropertyReconsumeTimes] = strconv.Itoa(r.times)
	m.ID, m.DeliverAt, m.Properties = r.id, r.due, p
}

// NegativeAck says that a message could not be consumed and is to be delivered
// again after the delay, 0 standing for the group's NegativeAck.Delay; it
// returns when that is on disk. No new message is made, and neither the
// group's MaxAttempts nor the delays of address settings count: only
// NegativeAck.MaxRedeliveries, after which the message becomes a dead letter.
// 40011 for a delay that is negative or above 864 000 s, 40013 if the handle is not valid any more.
func (b *Broker) NegativeAck(ctx context.Context, d *tidegate.Delivery, delay time.Duration) error {
	_, err := b.negativeAck(ctx, d, delay)
	return fail.WithOp("NegativeAck", err)
}

var _ transport.Reconsumer = (*Broker)(nil)

// Reconsume is [Broker.ReconsumeLater], or [Broker.NegativeAck] if mode.Negative is set. It returns
// what becomes of the message. The errors are theirs; 40000 for a mode that has more than one of
// Delay, Level and Negative, but for Negative with Delay.
func (b *Broker) Reconsume(ctx context.Context, d *tidegate.Delivery, mode transport.ReconsumeMode) (transport.RetryResult, error) {
	const op = "Reconsume"
	if mode.Negative {
		if mode.Level != 0 {
			return transport.RetryResult{}, fail.WithOp(op, fail.New(tidegate.CodeBadRequest, "level", "it is %d; a negative acknowledgement has no level, give a delay", mode.Level))
		}
		out, err := b.negativeAck(ctx, d, mode.Delay)
		if err != nil {
			return transport.RetryResult{}, fail.WithOp(op, err)
		}
		return out.retryResult(), nil
	}
	r, err := b.reconsumeLater(ctx, d, ReconsumeMode{Delay: mode.Delay, Level: mode.Level})
	switch {
	case err != nil:
		return transport.RetryResult{}, fail.WithOp(op, err)
	case r.DeadLetter:
		return transport.RetryResult{Fate: transport.FateDeadLetter}, nil
	case r.DeliverAt.IsZero():
		return transport.RetryResult{Fate: transport.FateAgain}, nil
	}
	return transport.RetryResult{Fate: transport.FateAgain, Delay: max(time.Until(r.DeliverAt), 0)}, nil
}

func (b *Broker) negativeAck(ctx context.Context, d *tidegate.Delivery, delay time.Duration) (settled, error) {
	if delay < 0 || delay > MaxReconsumeDelay {
		return settled{}, fail.New(tidegate.CodeIllegalInvisibleTime, "delay", "it is %v; give up to %v, or 0 for the group's", delay, MaxReconsumeDelay)
	}
	end, err := b.beginWith(ctx)
	if err != nil {
		return settled{}, err
	}
	defer end()
	s, h, err := b.locate(d)
	if err != nil {
		return settled{}, err
	}
	if delay == 0 {
		delay = time.Duration(s.Group().Settings().NegativeAck.Delay)
	}
	return s.settle(ctx, h, consume.Settlement{Event: consume.EventNegativeAck, After: delay})
}

// retrySubscription returns the group's subscription to its retry topic for
// the topic of s, and makes both if they are not there; nil if there is none.
func (s *subscription) retrySubscription(ctx context.Context) (*subscription, error) {
	c := s.Group().Settings().RetryTopic
	if !c.Enabled {
		return nil, nil //nolint:nilnil // most groups have none, and nothing is wrong then
	}
	if _, itself := c.Original(s.Topic().Name(), s.Group().Name()); itself {
		return nil, nil //nolint:nilnil // likewise
	}
	name := c.RetryName(s.Topic().Name(), s.Group().Name())
	if tidegate.ValidateTopic(name) != nil {
		return nil, nil //nolint:nilnil,nilerr // the names are too long together: ReconsumeLater says so
	}
	if _, err := s.broker.ownTopic(ctx, name, TopicConfig{Queues: 1}, false); err != nil {
		return nil, err
	}
	r, err := s.broker.subscribe(ctx, s.Group().Name(), name)
	if errors.Is(err, tidegate.ErrNotFound) { // deleted in this moment: the next receive makes it anew
		return nil, nil //nolint:nilnil // likewise
	}
	return r, err
}

// checkRetryTopics refuses names with which the group would not receive from a
// retry topic any more that it receives from, or that has retries for it.
func (b *Broker) checkRetryTopics(g *topic.Group, c RetryTopicConfig) error {
	before := g.Settings().RetryTopic
	received := map[string]*subscription{}
	retries := map[string]bool{}
	for _, s := range b.subscriptionsOf(g) {
		received[s.Topic().Name()] = s
		if _, itself := before.Original(s.Topic().Name(), g.Name()); itself {
			retries[s.Topic().Name()] = true
		} else {
			retries[before.RetryName(s.Topic().Name(), g.Name())] = true
		}
	}
	for name := range retries {
		from, _ := before.Original(name, g.Name())
		if now, is := c.Original(name, g.Name()); is && now == from {
			continue
		}
		s := received[name]
		if before.Enabled && s != nil {
			return fail.New(tidegate.CodeBadRequest, g.Name(),
				"it receives from the retry topic %s, so retry_topic's naming and topic cannot change; delete that topic, or use another group", name)
		}
		if b.hasRetries(name, s) {
			return fail.New(tidegate.CodeBadRequest, g.Name(),
				"its retry topic %s has messages that it would not receive any more, so retry_topic's naming and topic cannot change; enable it as it was until they are consumed, or delete that topic", name)
		}
	}
	return nil
}

// checkOthersRetries refuses a retry topic that was named for one group and is
// another one's too: each would take what the other one is to retry. Two names that
// Naming makes of topics and groups may be the same; see Poll.wants.
func (b *Broker) checkOthersRetries(name string, c RetryTopicConfig) error {
	if !c.Enabled {
		return nil
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, g := range b.groups {
		other := g.Settings().RetryTopic
		if g.Name() == name || !other.Enabled {
			continue
		}
		topic, clash := c.Topic, false
		if topic != "" {
			_, clash = other.Original(topic, g.Name())
		} else if topic = other.Topic; topic != "" {
			_, clash = c.Original(topic, name)
		}
		if clash {
			return fail.New(tidegate.CodeBadRequest, name,
				"its retry topic %s is the one of group %s too, so each would consume the other's retries; give retry_topic.topic another name", topic, g.Name())
		}
	}
	return nil
}

// hasRetries reports whether a retry topic, if it is there, has messages that
// its group has not consumed, or will have. s is nil if the group never received from it.
func (b *Broker) hasRetries(name string, s *subscription) bool {
	t, err := b.topic(name)
	if err != nil {
		return false // it is not there
	}
	return s == nil && t.Written().Messages > t.Before().Messages || s != nil && s.Backlog().Messages > 0 || t.Delayed().Messages > 0
}
