package broker

import (
	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
)

// locate returns the subscription and the receipt of a delivery's handle. The handle of another
// broker, or of a deleted topic or group, is not valid.
func (b *Broker) locate(d *tidegate.Delivery) (*engine.Subscription, consume.Handle, error) {
	h, err := consume.ParseHandle(d.Handle)
	if err != nil {
		return nil, h, refusal.InvalidHandle("%v", err)
	}
	s := b.catalog.Find(h.Group, h.Place.Topic)
	if s == nil || int(h.Place.Queue) >= len(s.Topic().Queues()) {
		return nil, h, refusal.InvalidHandle("its topic or consumer group no longer exists")
	}
	if d.ConsumerGroup != "" && d.ConsumerGroup != s.Group().Name() {
		return nil, h, refusal.InvalidHandle("it belongs to group %q, not to %q", s.Group().Name(), d.ConsumerGroup)
	}
	if d.Topic != "" && d.Topic != s.Topic().Name() && !retriesFor(s, d.Topic) {
		return nil, h, refusal.InvalidHandle("it belongs to topic %q, not to %q", s.Topic().Name(), d.Topic)
	}
	return s, h, nil
}

// TopicOf returns the topic of the delivery that a receipt handle names, also after its end, and
// the original topic, which receives show. The two differ if the message is in the group's retry
// topic. The error is 40013 if the handle is not one of this broker.
func (b served) TopicOf(receiptHandle string) (topic, original string, err error) {
	if !b.calls.Begin() {
		return "", "", refusal.Closed()
	}
	defer b.calls.End()
	s, h, err := b.locate(&tidegate.Delivery{Handle: receiptHandle})
	if err != nil {
		return "", "", err
	}
	topic = s.Topic().Name()
	switch from, retry := s.Group().Settings().RetryTopic.Original(topic, s.Group().Name()); {
	case !retry:
		return topic, topic, nil
	case from != "":
		return topic, from, nil
	}
	m, ok, err := b.store.Get(h.Place) // the retry topic is one for all topics, so read the message
	if err != nil {
		return "", "", refusal.Store(err)
	}
	if !ok {
		return "", "", refusal.InvalidHandle("the message was deleted")
	}
	return topic, deadletter.RealTopic(&m, topic), nil
}

// retriesFor reports whether the subscription is to one of the group's retry topics for the topic.
func retriesFor(s *engine.Subscription, topic string) bool {
	c, group, name := &s.Group().Settings().RetryTopic, s.Group().Name(), s.Topic().Name()
	return c.RetryName(topic, group) == name || c.RedriveName(topic, group) == name
}
