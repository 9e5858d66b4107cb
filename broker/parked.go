package broker

import (
	"context"
	"fmt"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
)

// Parked returns the message groups of a consumer group that wait behind a failed message: parked
// ones (OnExhaustedPark) and blocked ones (OnExhaustedBlock). It can read from the store. The error
// is 40403 if there is no such group, 40402 if the query names a topic that does not exist, and
// 40000 if State or Limit is invalid.
func (b *Broker) Parked(group string, q status.ParkedQuery) (status.ParkedPage, error) {
	if !b.calls.Begin() {
		return status.ParkedPage{}, refusal.Closed()
	}
	defer b.calls.End()
	limit, err := pageLimit(q.Limit)
	if err != nil {
		return status.ParkedPage{}, err
	}
	if q.State != "" && q.State != stateParked && q.State != stateBlocked {
		return status.ParkedPage{}, refusal.New(tidegate.CodeBadRequest, "state", "it is %.40q; give %s or %s, or nothing for both", q.State, stateParked, stateBlocked)
	}
	subs, err := b.parkers(group, q.Topic)
	if err != nil {
		return status.ParkedPage{}, err
	}
	wanted := func(g *consume.ParkedGroup) bool {
		return q.State == "" || (q.State == stateParked) == (g.State == consume.Parked)
	}
	found, next, err := b.letters.Parked(subs, wanted, q.After, limit)
	if err != nil {
		return status.ParkedPage{}, err
	}
	page := status.ParkedPage{Groups: make([]status.ParkedGroup, len(found)), Next: next}
	last := map[store.Place]*deadletter.Failure{}
	for i := range found {
		g := &found[i]
		page.Groups[i] = status.ParkedGroup{
			Topic: g.Topic.Name(), MessageGroup: g.MessageGroup, State: stateParked, Since: g.Since, Reason: g.Reason, MessageID: g.MessageID,
			Queue: int(g.Place.Queue), Offset: g.Place.Offset, Attempts: g.Attempts, Messages: g.Messages,
		}
		if g.State != consume.Parked {
			page.Groups[i].State, page.Groups[i].Due = stateBlocked, g.Due
			last[g.Place] = nil
		}
	}
	if len(last) > 0 {
		b.env.Failures.Latest(group, last)
		for i := range found {
			if f := last[found[i].Place]; f != nil {
				page.Groups[i].Reason = reasonOfFailure(f)
			}
		}
	}
	return page, nil
}

// The values of status.ParkedGroup.State.
const (
	stateParked  = "parked"
	stateBlocked = "blocked"
)

// reasonOfFailure returns the reason that the consumer gave, or a text for its absence.
func reasonOfFailure(f *deadletter.Failure) string {
	switch {
	case f.Reason != "":
		return f.Reason
	case f.Cause == deadletter.Timeout:
		return fmt.Sprintf("delivery %d timed out", f.Attempt)
	}
	return fmt.Sprintf("delivery %d failed, no reason given", f.Attempt)
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
func (b *Broker) parkers(group, topic string) (subs []*engine.Subscription, err error) {
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
