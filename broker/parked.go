package broker

import (
	"context"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
)

// Parked returns the parked message groups of a consumer group (OnExhaustedPark). It can read from
// the store. The error is 40403 if there is no such group, 40402 if the query names a topic that
// does not exist, and 40000 if Limit is invalid.
func (b *Broker) Parked(group string, q status.ParkedQuery) (status.ParkedPage, error) {
	if !b.calls.Begin() {
		return status.ParkedPage{}, refusal.Closed()
	}
	defer b.calls.End()
	limit, err := pageLimit(q.Limit)
	if err != nil {
		return status.ParkedPage{}, err
	}
	subs, err := b.parkers(group, q.Topic)
	if err != nil {
		return status.ParkedPage{}, err
	}
	found, next, err := b.letters.Parked(subs, q.After, limit)
	if err != nil {
		return status.ParkedPage{}, err
	}
	page := status.ParkedPage{Groups: make([]status.ParkedGroup, len(found)), Next: next}
	for i := range found {
		g := &found[i]
		page.Groups[i] = status.ParkedGroup{
			Topic: g.Topic.Name(), MessageGroup: g.MessageGroup, Since: g.Since, Reason: g.Reason, MessageID: g.MessageID,
			Queue: int(g.Place.Queue), Offset: g.Place.Offset, Attempts: g.Attempts, Messages: g.Messages,
		}
	}
	return page, nil
}

// The bounds of one page.
const (
	defaultPage = 100
	maxPage     = 1000
)

func pageLimit(limit int) (int, error) {
	if limit < 0 || limit > maxPage {
		return 0, refusal.New(tidegate.CodeBadRequest, "limit", "it is %d; give 1 to %d, or 0 for %d", limit, maxPage, defaultPage)
	}
	if limit == 0 {
		limit = defaultPage
	}
	return limit, nil
}

// parkers returns the subscriptions of a group, or its only one in a topic.
func (b *Broker) parkers(group, topic string) (subs []*subscription.Subscription, err error) {
	g, err := b.catalog.Group(group)
	if err != nil {
		return nil, err
	}
	if topic != "" {
		if _, err := b.catalog.Topic(topic); err != nil {
			return nil, err
		}
	}
	for _, s := range b.catalog.SubscriptionsOf(g) {
		if topic == "" || s.Topic().Name() == topic {
			subs = append(subs, s)
		}
	}
	return subs, nil
}

// RedriveParked makes the messages of parked message groups ready again, in order, the failed
// message first. It returns when this is on disk. Attempts count from 1 again. If the dead letter
// of a failed message cannot be written, the message group stays parked. If RedriveParked returns
// an error, the result counts the message groups that were redriven before it. The error is 40403
// or 40402 if the group or the topic does not exist, and 40401 if the named message group is not
// parked. If ctx ends, the call ends between two topics.
func (b *Broker) RedriveParked(ctx context.Context, group string, sel status.ParkedSelection) (status.ParkedRedrive, error) {
	done, err := b.redriveParked(ctx, group, sel)
	return done, refusal.WithOp("RedriveParked", err)
}

func (b *Broker) redriveParked(ctx context.Context, group string, sel status.ParkedSelection) (done status.ParkedRedrive, err error) {
	if !b.calls.Begin() {
		return done, refusal.Closed()
	}
	defer b.calls.End()
	if sel.MessageGroup != "" && sel.Topic == "" {
		return done, refusal.New(tidegate.CodeBadRequest, "topic", "the topic is empty; give the topic of message group %q", sel.MessageGroup)
	}
	subs, err := b.parkers(group, sel.Topic)
	if err != nil {
		return done, err
	}
	done.MessageGroups, done.Messages, err = b.letters.RedriveParked(ctx, subs, sel.MessageGroup, sel.DeadLetter)
	if err == nil && sel.MessageGroup != "" && done.MessageGroups == 0 {
		err = refusal.New(protocol.CodeMessageNotFound, sel.MessageGroup, "the message group is not parked for group %q in topic %q", group, sel.Topic)
	}
	return done, err
}
