package broker

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// A ParkedGroup is a message group that is parked: its failed message, and
// those after it, wait in order for Broker.RedriveParked.
type ParkedGroup struct {
	Topic        string    `json:"topic"`
	MessageGroup string    `json:"message_group"`
	Since        time.Time `json:"since"`
	Reason       string    `json:"reason"`

	// MessageID, Queue, Offset and Attempts are of the failed message. The ID
	// is empty if the message is not there any more.
	MessageID string `json:"message_id"`
	Queue     int    `json:"queue"`
	Offset    int64  `json:"offset"`
	Attempts  int    `json:"attempts"`

	// Messages is how many wait, the failed one included, of those that a receive
	// of the group has passed so far.
	Messages int64 `json:"messages"`
}

// A ParkedQuery says which message groups Broker.Parked returns.
type ParkedQuery struct {
	Topic string // empty: of all topics
	After string // where to go on: Next of the page before. Empty: at the beginning.
	Limit int    // of groups. 0: 100; at most 1000
}

// A ParkedPage is one page of parked message groups, by topic and name.
type ParkedPage struct {
	Groups []ParkedGroup `json:"groups"`
	Next   string        `json:"next,omitempty"` // for the next page; empty: that was all
}

// A ParkedSelection says what Broker.RedriveParked sends on.
type ParkedSelection struct {
	Topic        string // empty: all topics
	MessageGroup string // empty: all of the topic's. One that is not parked is an error (40401).

	// DeadLetter makes the failed message a dead letter; those after it go on
	// without it. False: the failed message goes first.
	DeadLetter bool
}

// A ParkedRedrive is what Broker.RedriveParked sent on.
type ParkedRedrive struct {
	MessageGroups int64 `json:"message_groups"`
	Messages      int64 `json:"messages"` // failed ones included
}

// A parking is what remains to be done, without the lock, when a message group is parked.
type parking struct {
	sub   *subscription
	group consume.ParkedGroup
	write *store.PendingWrite
}

// carryOut waits until it is on disk.
func (p *parking) carryOut(b *Broker) error {
	if err := p.write.Wait(); err != nil {
		return fail.Store(err)
	}
	g := &p.group
	b.logger.Warn("a message group is parked", "group", p.sub.Group().Name(), "topic", p.sub.Topic().Name(), "message_group", g.MessageGroup,
		"queue", g.Place.Queue, "offset", g.Place.Offset, "attempts", g.Attempts, "reason", g.Reason)
	return nil
}

// Parked returns the message groups of a consumer group that are parked
// (OnExhaustedPark): 40403 if there is no such group, 40402 if the query names
// a topic that is not there, 40000 for a limit out of bounds.
func (b *Broker) Parked(group string, q ParkedQuery) (ParkedPage, error) {
	if !b.begin() {
		return ParkedPage{}, fail.Closed()
	}
	defer b.end()
	limit, err := pageLimit(q.Limit)
	if err != nil {
		return ParkedPage{}, err
	}
	subs, err := b.subscriptionsIn(group, q.Topic)
	if err != nil {
		return ParkedPage{}, err
	}
	afterTopic, afterGroup, _ := strings.Cut(q.After, "/") // no topic has a slash in its name
	page := ParkedPage{Groups: []ParkedGroup{}}
	for _, s := range subs {
		page.Groups = append(page.Groups, s.parked()...)
	}
	compare := func(x, y ParkedGroup) int {
		return cmp.Or(strings.Compare(x.Topic, y.Topic), strings.Compare(x.MessageGroup, y.MessageGroup))
	}
	slices.SortFunc(page.Groups, compare)
	if q.After != "" {
		page.Groups = slices.DeleteFunc(page.Groups, func(p ParkedGroup) bool {
			return compare(p, ParkedGroup{Topic: afterTopic, MessageGroup: afterGroup}) <= 0
		})
	}
	if len(page.Groups) > limit {
		page.Groups = page.Groups[:limit:limit]
		last := page.Groups[limit-1]
		page.Next = last.Topic + "/" + last.MessageGroup
	}
	for i := range page.Groups {
		p := &page.Groups[i]
		t, err := b.topic(p.Topic)
		if err != nil {
			continue // deleted meanwhile
		}
		m, ok, err := b.store.Header(store.Place{Topic: t.ID(), Queue: uint16(p.Queue), Offset: p.Offset})
		if err != nil {
			return ParkedPage{}, fail.Store(err)
		}
		if ok {
			p.MessageID = m.ID
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

// subscriptionsIn returns a group's subscriptions, or the one to a topic.
func (b *Broker) subscriptionsIn(group, topic string) ([]*subscription, error) {
	if _, err := b.Group(group); err != nil {
		return nil, err
	}
	if topic != "" {
		if _, err := b.topic(topic); err != nil {
			return nil, err
		}
	}
	g := b.group(group)
	if g == nil {
		return nil, fail.GroupNotFound(group)
	}
	return slices.DeleteFunc(b.subscriptionsOf(g), func(s *subscription) bool { return topic != "" && s.Topic().Name() != topic }), nil
}

func (s *subscription) parked() (out []ParkedGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.progress.ParkedGroups() {
		out = append(out, ParkedGroup{
			Topic: s.Topic().Name(), MessageGroup: g.MessageGroup, Since: g.Since, Reason: g.Reason,
			Queue: int(g.Place.Queue), Offset: g.Place.Offset, Attempts: g.Attempts, Messages: g.Messages,
		})
	}
	return out
}

// RedriveParked sends parked message groups on, in order, the failed message
// first, and returns when that is written. Attempts count anew. A message
// group whose failed message cannot be made a dead letter stays parked as it is. An error may
// come with what was done beside it: 40403 and 40402 for a group or topic that
// is not there, 40401 if the one message group that was named is not parked.
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
		return done, fail.New(tidegate.CodeBadRequest, "topic", "it is empty, and the message group is %q: name the topic that it is of", sel.MessageGroup)
	}
	subs, err := b.subscriptionsIn(group, sel.Topic)
	if err != nil {
		return done, err
	}
	for _, s := range subs {
		if ctx.Err() != nil {
			return done, context.Cause(ctx)
		}
		n, err := s.redriveParked(sel)
		done.MessageGroups += n.MessageGroups
		done.Messages += n.Messages
		if err != nil {
			return done, err
		}
	}
	if sel.MessageGroup != "" && done.MessageGroups == 0 {
		return done, fail.New(tidegate.CodeMessageNotFound, sel.MessageGroup, "this message group is not parked for %q in topic %q", group, sel.Topic)
	}
	return done, nil
}

func (s *subscription) redriveParked(sel ParkedSelection) (done ParkedRedrive, err error) {
	now := time.Now()
	done, effects, behind := s.redriveUnsynced(sel, now)
	if done.MessageGroups > 0 {
		s.Topic().WakeRetention(now) // it kept the messages that were parked
	}
	for i, derr := range s.broker.writeDeadLetters(effects.dying) {
		if derr != nil { // its message group stays parked
			err = derr
			done.MessageGroups--
			done.Messages -= 1 + behind[i]
		}
	}
	if werr := effects.write.Wait(); werr != nil {
		return done, fail.Store(werr)
	}
	return done, err
}

// redriveUnsynced is redriveParked without what waits for the disk: the dead letters, and the
// flight. behind is how many messages are behind each dead letter.
func (s *subscription) redriveUnsynced(sel ParkedSelection, now time.Time) (done ParkedRedrive, effects applied, behind []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gone {
		done.MessageGroups, done.Messages, behind = s.progress.Redrive(sel.MessageGroup, sel.DeadLetter, now)
		effects = s.apply(now)
	}
	if effects.write == nil {
		effects.write = s.broker.store.Groups.Add(func(*store.Batch) {}, nil)
	}
	return done, effects, behind
}
