package broker

import (
	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/handle"
)

// locate returns the subscription that a handle is of. A handle of another
// broker, or of a topic or group that was deleted, is not valid.
func (b *Broker) locate(d *tidegate.Delivery) (*subscription, handle.Receipt, error) {
	h, err := handle.ParseReceipt(d.Handle)
	if err != nil {
		return nil, h, fail.InvalidHandle("%v", err)
	}
	s := b.subscription(h)
	if s == nil || int(h.Place.Queue) >= len(*s.topic.queues.Load()) {
		return nil, h, fail.InvalidHandle("its topic or consumer group is not there any more")
	}
	if d.ConsumerGroup != "" && d.ConsumerGroup != s.group.name {
		return nil, h, fail.InvalidHandle("it is of group %q, not of %q", s.group.name, d.ConsumerGroup)
	}
	if d.Topic != "" && d.Topic != s.topic.name && !s.retries(d.Topic) {
		return nil, h, fail.InvalidHandle("it is of topic %q, not of %q", s.topic.name, d.Topic)
	}
	return s, h, nil
}

// TopicOf returns the topic of the delivery that a receipt handle names,
// whether that is over or not, and the original one: the topic that a receive
// shows, which differs if the message lies in the group's retry topic. 40013
// if the handle names none of this broker's.
func (b *Broker) TopicOf(receiptHandle string) (topic, original string, err error) {
	if !b.begin() {
		return "", "", fail.Closed()
	}
	defer b.end()
	s, h, err := b.locate(&tidegate.Delivery{Handle: receiptHandle})
	if err != nil {
		return "", "", err
	}
	topic = s.topic.name
	switch from, retry := s.group.config.Load().RetryTopic.Original(topic, s.group.name); {
	case !retry:
		return topic, topic, nil
	case from != "":
		return topic, from, nil
	}
	m, ok, err := b.store.Get(h.Place) // it is the retry topic for all topics: the message knows
	if err != nil {
		return "", "", fail.Store(err)
	}
	if !ok {
		return "", "", fail.InvalidHandle("the message was deleted")
	}
	return topic, realTopic(&m, topic), nil
}

// retries reports whether the subscription is to the group's retry topic for the topic.
func (s *subscription) retries(topic string) bool {
	return s.group.config.Load().RetryTopic.RetryName(topic, s.group.name) == s.topic.name
}

func (b *Broker) subscription(h handle.Receipt) *subscription {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.subs[[2]uint32{h.Group, h.Place.Topic}]
}

// replacement returns the handle that replaced h if that was done by a change of the
// invisible duration, and h otherwise.
func (s *subscription) replacement(h handle.Receipt) handle.Receipt {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return h
	}
	return s.progress.Replacement(h)
}
