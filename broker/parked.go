package broker

import (
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/subscription"
	"github.com/tidegate/tidegate/internal/protocol"
)

// A ParkedGroup is a parked message group: its failed message and the messages after it wait in
// order until Broker.RedriveParked.
type ParkedGroup struct {
	Topic        string    `json:"topic"`
	MessageGroup string    `json:"message_group"`
	Since        time.Time `json:"since"`
	Reason       string    `json:"reason"`

	// MessageID, Queue, Offset and Attempts are those of the failed message. The ID is empty if the
	// message does not exist any more.
	MessageID string `json:"message_id"`
	Queue     int    `json:"queue"`
	Offset    int64  `json:"offset"`
	Attempts  int    `json:"attempts"`

	// Messages is the number of waiting messages that receives of the group have reached so far,
	// including the failed one.
	Messages int64 `json:"messages"`
}

// A ParkedQuery selects one page of parked message groups.
type ParkedQuery struct {
	Topic string // empty means all topics
	After string // Next of the previous page; empty means the first page
	Limit int    // at most 1000; 0 means 100
}

// A ParkedPage is one page of parked message groups, by topic and name.
type ParkedPage struct {
	Groups []ParkedGroup `json:"groups"`
	Next   string        `json:"next,omitempty"` // After of the next page; empty on the last page
}

// A ParkedSelection selects the message groups of Broker.RedriveParked.
type ParkedSelection struct {
	Topic        string // empty means all topics
	MessageGroup string // empty means all of the topic; if it is not parked, the error is 40401

	// DeadLetter makes the failed message a dead letter, and the messages after it continue.
	// Default: the failed message is delivered first.
	DeadLetter bool
}

// A ParkedRedrive is the result of Broker.RedriveParked.
type ParkedRedrive struct {
	MessageGroups int64 `json:"message_groups"`
	Messages      int64 `json:"messages"` // including the failed ones
}

// Parked returns the parked message groups of a consumer group (OnExhaustedPark). It can read from
// the store. The error is 40403 if there is no such group, 40402 if the query names a topic that
// does not exist, and 40000 if Limit is invalid.
func (b *Broker) Parked(group string, q ParkedQuery) (ParkedPage, error) {
	if !b.begin() {
		return ParkedPage{}, fail.Closed()
	}
	defer b.end()
	limit, err := pageLimit(q.Limit)
	if err != nil {
		return ParkedPage{}, err
	}
	subs, err := b.parkers(group, q.Topic)
	if err != nil {
		return ParkedPage{}, err
	}
	found, next, err := b.letters.Parked(subs, q.After, limit)
	if err != nil {
		return ParkedPage{}, err
	}
	page := ParkedPage{Groups: make([]ParkedGroup, len(found)), Next: next}
	for i := range found {
		g := &found[i]
		page.Groups[i] = ParkedGroup{
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
		return 0, fail.New(tidegate.CodeBadRequest, "limit", "it is %d; give 1 to %d, or 0 for %d", limit, maxPage, defaultPage)
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
func (b *Broker) RedriveParked(ctx context.Context, group string, sel ParkedSelection) (ParkedRedrive, error) {
	done, err := b.redriveParked(ctx, group, sel)
	return done, fail.WithOp("RedriveParked", err)
}

func (b *Broker) redriveParked(ctx context.Context, group string, sel ParkedSelection) (done ParkedRedrive, err error) {
	if !b.begin() {
		return done, fail.Closed()
	}
	defer b.end()
	if sel.MessageGroup != "" && sel.Topic == "" {
		return done, fail.New(tidegate.CodeBadRequest, "topic", "the topic is empty; give the topic of message group %q", sel.MessageGroup)
	}
	subs, err := b.parkers(group, sel.Topic)
	if err != nil {
		return done, err
	}
	done.MessageGroups, done.Messages, err = b.letters.RedriveParked(ctx, subs, sel.MessageGroup, sel.DeadLetter)
	if err == nil && sel.MessageGroup != "" && done.MessageGroups == 0 {
		err = fail.New(protocol.CodeMessageNotFound, sel.MessageGroup, "the message group is not parked for group %q in topic %q", group, sel.Topic)
	}
	return done, err
}
