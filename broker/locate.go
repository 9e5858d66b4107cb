package broker

import (
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/handle"
)

// locate returns the subscription that a handle is of. A handle of another
// broker, or of a topic or group that was deleted, is not valid.
func (b *Broker) locate(d *tidegate.Delivery) (*subscription, handle.Receipt, error) {
	h, err := handle.ParseReceipt(d.Handle)
	if err != nil {
		return nil, h, invalidHandle("%v", err)
	}
	s := b.subscription(h)
	if s == nil || int(h.Place.Queue) >= len(*s.topic.queues.Load()) {
		return nil, h, invalidHandle("its topic or consumer group is not there any more")
	}
	if d.ConsumerGroup != "" && d.ConsumerGroup != s.group.name {
		return nil, h, invalidHandle("it is of group %q, not of %q", s.group.name, d.ConsumerGroup)
	}
	if d.Topic != "" && d.Topic != s.topic.name && !s.retries(d.Topic) {
		return nil, h, invalidHandle("it is of topic %q, not of %q", s.topic.name, d.Topic)
	}
	return s, h, nil
}

// TopicOf returns the topic of the delivery that a receipt handle names,
// whether that is over or not, and the original one: the topic that a receive
// shows, which differs if the message lies in the group's retry topic. 40013
// if the handle names none of this broker's.
func (b *Broker) TopicOf(receiptHandle string) (topic, original string, err error) {
	if !b.begin() {
		return "", "", closedError()
	}
	defer b.end()
	s, h, err := b.locate(&tidegate.Delivery{Handle: receiptHandle})
	if err != nil {
		return "", "", err
	}
	topic = s.topic.name
	switch from, retry := s.group.config.Load().RetryTopic.original(topic, s.group.name); {
	case !retry:
		return topic, topic, nil
	case from != "":
		return topic, from, nil
	}
	m, ok, err := b.store.Get(h.Place) // it is the retry topic for all topics: the message knows
	if err != nil {
		return "", "", storeError(err)
	}
	if !ok {
		return "", "", invalidHandle("the message was deleted")
	}
	return topic, realTopic(&m, topic), nil
}

// retries reports whether the subscription is to the group's retry topic for the topic.
func (s *subscription) retries(topic string) bool {
	return s.group.config.Load().RetryTopic.retryTopic(topic, s.group.name) == s.topic.name
}

func (b *Broker) subscription(h handle.Receipt) *subscription {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.subs[[2]uint32{h.Group, h.Place.Topic}]
}

// current returns the lease that a handle names, if it is in flight. mu is held.
func (s *subscription) current(h handle.Receipt, now time.Time) (*lease, error) {
	if s.gone || int(h.Place.Queue) >= len(s.cursors) {
		return nil, invalidHandle("its topic or consumer group is not there any more")
	}
	l := s.cursors[h.Place.Queue].leases[h.Place.Offset]
	switch {
	case l == nil || l.state() == StateDeadLetter:
		return nil, invalidHandle("the message was acknowledged or given up already")
	case l.Serial != h.Serial:
		return nil, invalidHandle("a later delivery of the message, or a change of its invisible duration, replaced it")
	case l.state() != StateInflight || !now.Before(l.Due) && !s.renew(l, now):
		return nil, invalidHandle("its invisible duration is over")
	}
	return l, nil
}

// replacement returns the handle that replaced h if that was done by a change of the
// invisible duration, and h otherwise.
func (s *subscription) replacement(h handle.Receipt) handle.Receipt {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || int(h.Place.Queue) >= len(s.cursors) {
		return h
	}
	if l := s.cursors[h.Place.Queue].leases[h.Place.Offset]; l != nil && l.Changed && l.Serial == h.Serial+1 {
		h.Serial = l.Serial
	}
	return h
}

// forDeadLetter loosens what current demands: official clients repeat the request until it
// succeeds, so it succeeds when there is nothing left to do, and may come
// late as long as nobody else received the message. With errDone, a lease is one that
// is being made a dead letter or is parked. mu is held.
func (s *subscription) forDeadLetter(h handle.Receipt, l *lease, err error) (*lease, error) {
	if err == nil || s.gone || int(h.Place.Queue) >= len(s.cursors) {
		return l, err
	}
	c := s.cursors[h.Place.Queue]
	l = c.leases[h.Place.Offset]
	switch {
	case h.Place.Offset >= c.next:
		return nil, err // a power failure took back the delivery: it comes again
	case l == nil || l.state() == StateDeadLetter:
		return l, errDone
	case l.Serial != h.Serial:
		return nil, err
	case l.state() == StateParked: // nobody but RedriveParked moves it
		return l, errDone
	}
	return l, nil
}
