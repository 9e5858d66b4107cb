package letters

import (
	"context"
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/transport"
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
// or in its dead letter topic after the maximum of retries. It returns the new message when it is
// on disk. The error is 40000 if the group has no retry topics or the mode is invalid, and 40013 if
// the handle is not valid any more.
func (l *Letters) ReconsumeLater(ctx context.Context, s *subscription.Subscription, h handle.Receipt, mode transport.ReconsumeMode) (out Reconsumed, err error) {
	from := s.Consumed()
	group, c := from.Group().Name(), from.Group().Settings().RetryTopic
	if !c.Enabled {
		return out, refusal.New(tidegate.CodeBadRequest, group,
			"the group has no retry topics; set retry_topic.enabled, or retry without a new message")
	}
	m, ok, err := l.Store.Get(h.Place)
	if err != nil {
		return out, refusal.Store(err)
	}
	if !ok {
		return out, refusal.InvalidHandle("the message was deleted")
	}
	original, times := deadletter.Origin(&c, &m, from.Topic().Name(), group)
	times++
	delay, dead, err := c.Reconsume(times, mode.Delay, mode.Level)
	if err != nil {
		return out, err
	}
	out = Reconsumed{Topic: c.RetryName(original, group), MessageID: tidegate.NewMessageID(), Times: times, DeadLetter: dead}
	if dead {
		out.Topic, out.Times = c.DeadLetterName(original, group), times-1
	}
	if err := tidegate.ValidateTopic(out.Topic); err != nil {
		return Reconsumed{}, err // the names are too long together
	}
	retry := &deadletter.Retry{ID: out.MessageID, Times: out.Times, Dead: dead}
	if times == 1 {
		retry.From = original
	}
	reason := fmt.Sprintf("retried %d times, the maximum", out.Times)
	if err := s.Reconsume(ctx, h, subscription.Reconsumption{To: out.Topic, Retry: retry, Delay: delay, Reason: reason}); err != nil {
		return Reconsumed{}, err
	}
	out.DeliverAt = retry.Due
	return out, nil
}
