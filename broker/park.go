package broker

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
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
	sub          *subscription
	messageGroup string
	place        store.Place
	attempts     int
	reason       string
	flight       *store.Flight
}

// end waits until it is on disk.
func (p *parking) end(b *Broker) error {
	if err := p.flight.Wait(); err != nil {
		return storeError(err)
	}
	b.logger.Warn("a message group is parked", "group", p.sub.group.name, "topic", p.sub.topic.name, "message_group", p.messageGroup,
		"queue", p.place.Queue, "offset", p.place.Offset, "attempts", p.attempts, "reason", p.reason)
	return nil
}

// park parks the message group whose head is l, and writes that. mu is held.
func (s *subscription) park(l *lease, reason string, now time.Time) *parking {
	if reason = shortReason(reason); reason == "" {
		reason = "no reason was given"
	}
	full := s.counts[consume.Held] >= maxHeld
	moved := s.closeOff(s.fifo[l.Group], reason)
	s.set(l, StateParked)
	l.Due, l.Owner, l.Blocked = now, "", false // parked since
	p := &parking{sub: s, messageGroup: l.Group, place: s.place(l), attempts: l.Attempt, reason: reason}
	p.flight = s.broker.store.Groups.Add(func(w *store.Batch) {
		w.PutLease(s.group.id, p.place, &l.Lease)
		w.PutParked(s.group.id, p.place, reason)
		s.moveAside(w, moved)
	}, nil)
	if full {
		s.wakeRest()
	}
	return p
}

// restoreParked brings back a message whose message group is parked. mu is held.
func (s *subscription) restoreParked(l *lease) {
	if mg := s.fifo[l.Group]; mg != nil && mg.head == l {
		s.closeOff(mg, "it is not known any more")
		s.set(l, StateParked)
		return
	}
	s.set(l, StateReady)
}

// restoreReason brings back why a message group is parked.
func (s *subscription) restoreReason(p store.Place, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.cursors[p.Queue].leases[p.Offset]
	if l == nil || l.state() != StateParked || reason == "" {
		return
	}
	s.fifo[l.Group].rest.reason = reason
}

// Parked returns the message groups of a consumer group that are parked
// (OnExhaustedPark): 40403 if there is no such group, 40402 if the query names
// a topic that is not there, 40000 for a limit out of bounds.
func (b *Broker) Parked(group string, q ParkedQuery) (ParkedPage, error) {
	if !b.begin() {
		return ParkedPage{}, closedError()
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
		m, ok, err := b.store.Header(store.Place{Topic: t.id, Queue: uint16(p.Queue), Offset: p.Offset})
		if err != nil {
			return ParkedPage{}, storeError(err)
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
		return 0, newError(tidegate.CodeBadRequest, "limit", "it is %d; give 1 to %d, or 0 for %d", limit, maxPage, defaultPage)
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
		return nil, groupNotFound(group)
	}
	return slices.DeleteFunc(b.subscriptionsOf(g), func(s *subscription) bool { return topic != "" && s.topic.name != topic }), nil
}

func (s *subscription) parked() (out []ParkedGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts[StateParked] == 0 {
		return nil
	}
	for name, mg := range s.fifo {
		l := mg.head
		if l == nil || l.state() != StateParked {
			continue
		}
		out = append(out, ParkedGroup{
			Topic: s.topic.name, MessageGroup: name, Since: l.Due, Reason: mg.rest.reason,
			Queue: int(l.cursor.queue.number), Offset: l.offset, Attempts: l.Attempt, Messages: 1 + mg.rest.messages,
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
	return done, withOp("RedriveParked", err)
}

func (b *Broker) redriveParked(ctx context.Context, group string, sel ParkedSelection) (done ParkedRedrive, err error) {
	if !b.begin() {
		return done, closedError()
	}
	defer b.end()
	if sel.MessageGroup != "" && sel.Topic == "" {
		return done, newError(tidegate.CodeBadRequest, "topic", "it is empty, and the message group is %q: name the topic that it is of", sel.MessageGroup)
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
		return done, newError(tidegate.CodeMessageNotFound, sel.MessageGroup, "this message group is not parked for %q in topic %q", group, sel.Topic)
	}
	return done, nil
}

func (s *subscription) redriveParked(sel ParkedSelection) (done ParkedRedrive, err error) {
	now := time.Now()
	done, flight, dying, behind := s.callParked(sel, now)
	if done.MessageGroups > 0 {
		s.broker.retention.wake(s.topic, now) // it did not go past what was parked
	}
	for i, derr := range s.broker.endAll(dying) {
		if derr != nil { // its message group stays parked
			err = derr
			done.MessageGroups--
			done.Messages -= 1 + behind[i]
		}
	}
	if werr := flight.Wait(); werr != nil {
		return done, storeError(werr)
	}
	return done, err
}

// callParked makes the heads of parked message groups ready, or returns them as dying, with
// how many messages are behind each.
func (s *subscription) callParked(sel ParkedSelection, now time.Time) (done ParkedRedrive, flight *store.Flight, dying []*deadLetter, behind []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ready []*lease
	for name, mg := range s.fifo {
		l := mg.head
		if s.gone || l == nil || l.state() != StateParked || sel.MessageGroup != "" && name != sel.MessageGroup {
			continue
		}
		done.MessageGroups++
		done.Messages += 1 + mg.rest.messages
		if sel.DeadLetter { // the others are called back once it is one
			dying = append(dying, s.dying(l, consume.EventRedrive, mg.rest.reason))
			behind = append(behind, mg.rest.messages)
			continue
		}
		s.callBack(mg)
		to, _ := l.state().Next(consume.EventRedrive, consume.AttemptsLeft, false)
		l.Attempt, l.Push, l.Due, l.Keep = 0, false, now, true
		l.renumber()
		s.set(l, to)
		s.wake(1, l.cursor.queue.number)
		ready = append(ready, l)
	}
	flight = s.broker.store.Groups.Add(func(w *store.Batch) {
		for _, l := range ready {
			w.PutLease(s.group.id, s.place(l), &l.Lease)
			w.DeleteParked(s.group.id, s.place(l))
		}
	}, nil)
	return done, flight, dying, behind
}
