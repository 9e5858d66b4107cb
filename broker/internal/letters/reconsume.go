package letters

import (
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/settings"
)

// A Reconsumed is the result of [Letters.ReconsumeLater].
type Reconsumed struct {
	Topic      string    // new topic of the message: the group's retry topic or dead letter topic
	MessageID  string    // new ID
	Times      int       // retries, including this one
	DeliverAt  time.Time // delivery time; zero means at once
	DeadLetter bool      // the message had the maximum of retries
}

// ReconsumeLater ends a delivery and stores its message as a new one: in the group's retry topic,
// or in its dead letter topic after the maximum of retries. It returns the new message, and a
// function that writes it and waits for the disk. The error is 40000 if the group has no retry
// topics or the mode is invalid, and 40013 if the handle is not valid any more.
func (l *Letters) ReconsumeLater(s *subscription.Subscription, h handle.Receipt, mode settings.ReconsumeMode) (out Reconsumed, carryOut func() error, err error) {
	from := s.Consumed()
	group, c := from.Group().Name(), from.Group().Settings().RetryTopic
	if !c.Enabled {
		return out, nil, fail.New(tidegate.CodeBadRequest, group,
			"the group has no retry topics; set retry_topic.enabled, or retry without a new message")
	}
	m, ok, err := l.Store.Get(h.Place)
	if err != nil {
		return out, nil, fail.Store(err)
	}
	if !ok {
		return out, nil, fail.InvalidHandle("the message was deleted")
	}
	original, times := deadletter.Origin(&c, &m, from.Topic().Name(), group)
	times++
	delay, dead, err := c.Reconsume(times, mode)
	if err != nil {
		return out, nil, err
	}
	out = Reconsumed{Topic: c.RetryName(original, group), MessageID: tidegate.NewMessageID(), Times: times, DeadLetter: dead}
	if dead {
		out.Topic, out.Times = c.DeadLetterName(original, group), times-1
	}
	if err := tidegate.ValidateTopic(out.Topic); err != nil {
		return Reconsumed{}, nil, err // the names are too long together
	}
	leaving, now, err := s.Reconsume(h, fmt.Sprintf("retried %d times, the maximum", out.Times))
	if err != nil {
		return Reconsumed{}, nil, err
	}
	if delay > 0 {
		out.DeliverAt = now.Add(delay)
	}
	retry := &deadletter.Retry{ID: out.MessageID, Times: out.Times, Due: out.DeliverAt, Dead: dead}
	if times == 1 {
		retry.From = original
	}
	d := NewRetry(leaving, out.Topic, retry)
	return out, func() error { return l.CarryOut([]*Departure{d})[0] }, nil
}
