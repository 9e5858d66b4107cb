package engine

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
)

// Messages returns a page of the stored messages of a topic, consumed or not. It delivers none of
// them: no lease, no attempt and no position changes. A page ends when it has maxBytes; zero means
// that only the bounds of a call apply. The error is 40402 if the topic does not exist, and 40000
// if the queue, After or Limit is invalid.
func (e *Engine) Messages(name string, q status.MessageQuery, maxBytes int64) (status.MessagePage, error) {
	if !e.calls.Begin() {
		return status.MessagePage{}, refusal.Closed()
	}
	defer e.calls.End()
	limit, err := pageLimit(q.Limit)
	if err != nil {
		return status.MessagePage{}, err
	}
	t, err := e.catalog.Topic(name)
	if err != nil {
		return status.MessagePage{}, err
	}
	if q.Delayed {
		return BrowseDelayed(e.store, t, &q, limit, maxBytes)
	}
	return BrowsePage(e.store, t, &q, limit, maxBytes)
}

// maxPending is the number of delayed or half messages that a trace looks at.
const maxPending = 10_000

// Trace searches a topic for messages with the query's ID, and returns the fate of each in every
// group that wanted accepts. It searches like Messages; messages that are in no queue yet are
// looked for on the first page, the newest 10 000 of each kind. maxBytes and the errors are those
// of Messages.
func (e *Engine) Trace(name string, q status.MessageQuery, maxBytes int64, wanted func(group string) bool) (status.Trace, error) {
	page, err := e.Messages(name, q, maxBytes)
	if err != nil {
		return status.Trace{}, err
	}
	if !e.calls.Begin() {
		return status.Trace{}, refusal.Closed()
	}
	defer e.calls.End()
	t, err := e.catalog.Topic(name)
	if err != nil {
		return status.Trace{}, err
	}
	out := status.Trace{
		Messages: []status.TracedMessage{}, Scanned: page.Scanned, Left: page.Left, Reached: page.Reached, Complete: page.Complete, Next: page.Next,
	}
	_, subs := e.catalog.All()
	subs = slices.DeleteFunc(subs, func(s *Subscription) bool { return s.Topic() != t || !wanted(s.Group().Name()) })
	slices.SortFunc(subs, func(x, y *Subscription) int {
		return strings.Compare(x.Group().Name(), y.Group().Name())
	})
	for _, m := range page.Messages {
		traced := status.TracedMessage{StoredMessage: m, Groups: make([]status.Fate, len(subs))}
		for i, s := range subs {
			if traced.Groups[i], err = e.fate(s, &m); err != nil {
				return out, refusal.Store(err)
			}
		}
		out.Messages = append(out.Messages, traced)
	}
	if q.After == "" && len(out.Messages) == 0 {
		err = e.pending(t, q.ID, &out)
	}
	return out, err
}

// fate returns where a message of the topic is in a subscription.
func (e *Engine) fate(s *Subscription, m *status.StoredMessage) (status.Fate, error) {
	var f consume.Fate
	var rewound int64
	order := cmp.Or(m.MessageGroup, m.LiteTopic)
	s.Look(func(p *consume.Progress) {
		f = p.Fate(m.Queue, m.Offset, order)
		if m.Queue < p.Queues() {
			rewound = p.Cursor(m.Queue).Rewound
		}
	})
	group, place := s.Group(), store.Place{Topic: s.Topic().ID(), Queue: uint16(m.Queue), Offset: m.Offset}
	if f.Spilled {
		_, offsets, err := e.store.Spilled(group.ID(), place.Topic, place.Queue, order, m.Offset, 1)
		if err != nil {
			return status.Fate{}, err
		}
		if len(offsets) == 0 || offsets[0] != m.Offset {
			f = consume.Fate{State: consume.Commit}
		}
	}
	out := status.Fate{
		Group: group.Name(), Attempt: f.Attempt, MaxAttempts: max(0, s.Policy().MaxAttempts()), Due: f.Due, Owner: f.Owner, Blocked: f.Blocked,
		Reason: f.Reason, Ahead: f.Ahead, Waiting: s.Status().Waiting,
	}
	for _, f := range e.env.Failures.Of(group.Name(), place) {
		out.Failures = append(out.Failures, failure(&f))
	}
	out.State = stateNames[f.State]
	if f.New {
		out.State = "new"
	}
	if f.Head != nil {
		out.Behind = &status.StoredMessage{Queue: int(f.Head.Queue), Offset: f.Head.Offset}
		if h, ok, err := e.store.Header(*f.Head); err == nil && ok { // else it was removed meanwhile, or is corrupt
			out.Behind.ID, out.Behind.StoredAt, out.Behind.MessageGroup, out.Behind.LiteTopic = h.ID, h.StoredAt, h.MessageGroup, h.LiteTopic
		}
	}
	if f.State != consume.Commit {
		return out, nil
	}
	dead, err := e.store.IsDeadLetter(group.ID(), place, rewound)
	if err != nil || !dead {
		return out, err
	}
	out.State = "dead_letter"
	out.DeadLetter = e.letterOf(group, m)
	if out.DeadLetter != nil {
		out.Reason, out.Attempt = out.DeadLetter.Origin.Reason, out.DeadLetter.Origin.Attempts
		return out, nil
	}
	id, err := e.editedAs(place, m)
	if err != nil {
		return out, err
	}
	for _, as := range []string{m.ID, id} {
		if to, at := e.redriven(s, m, as); to != nil {
			out, err = e.fate(to, at)
			if out.Topic = to.Topic().Name(); as != m.ID {
				out.RedrivenAs = cmp.Or(out.RedrivenAs, as)
			}
			return out, err
		}
	}
	if id != "" && e.newest(s.Topic().Name(), id, m.StoredAt) != nil {
		out.RedrivenAs = id
	}
	return out, nil
}

// editedAs returns the ID that the dead letter of a message gets if it is edited and sent back. The
// ID is empty if the message is corrupt, or was removed meanwhile.
func (e *Engine) editedAs(place store.Place, m *status.StoredMessage) (string, error) {
	h, ok, err := e.store.Header(place)
	if store.IsDamage(err) || err == nil && !ok {
		return "", nil
	}
	redrives, _ := strconv.Atoi(h.Properties[protocol.PropertyDeadLetterRedrives]) // 0 without it
	return protocol.RedrivenID(m.ID, redrives), err
}

// redriven returns the newest message with an ID that was redriven to the group of a subscription
// alone for a message, and the subscription that has it; nil if a call of Messages does not find
// one.
func (e *Engine) redriven(s *Subscription, m *status.StoredMessage, id string) (*Subscription, *status.StoredMessage) {
	if id == "" {
		return nil, nil
	}
	t := e.catalog.FindTopic(s.Group().Settings().RetryTopic.RedriveName(s.Topic().Name(), s.Group().Name()))
	if t == nil {
		return nil, nil
	}
	to := e.catalog.Find(s.Group().ID(), t.ID())
	found := e.newest(t.Name(), id, m.StoredAt)
	if to == nil || found == nil {
		return nil, nil
	}
	return to, found
}

// newest returns the newest message of a topic with an ID that was stored since a time; nil if a
// call of Messages does not find one.
func (e *Engine) newest(name, id string, since time.Time) *status.StoredMessage {
	page, err := e.Messages(name, status.MessageQuery{
		MessageFilter: status.MessageFilter{ID: id}, Since: since, Before: time.Now().Add(time.Second), Newest: true, Limit: 1,
	}, 0)
	if err != nil || len(page.Messages) == 0 {
		return nil
	}
	return &page.Messages[0]
}

// letterOf returns the dead letter of a message, and nil if a call of Browse does not find it.
func (e *Engine) letterOf(g *Group, m *status.StoredMessage) *status.DeadLetter {
	for _, in := range e.deadLetterTopics(g) {
		found, _, err := e.letters.Browse(g.Name(), LetterQuery{
			DeadLetterFilter: status.DeadLetterFilter{MessageIDs: []string{m.ID}, Since: m.StoredAt}, In: in, Limit: 1, NoBodies: true,
		})
		if err == nil && len(found) == 1 {
			return new(found[0].Status())
		}
	}
	return nil
}

// pending looks for a message that is in no queue yet.
func (e *Engine) pending(t *Topic, id string, out *status.Trace) error {
	hash, looked := t.IDs().Hash(id), 0
	var delayed []store.Delayed
	err := e.store.NewestDelayed(t.ID(), time.Time{}, func(d *store.StoredDelayed) bool {
		if d.IDHash == hash {
			delayed = append(delayed, d.Delayed)
		}
		looked++
		return looked < maxPending
	})
	if err != nil {
		return refusal.Store(err)
	}
	for _, d := range delayed {
		if m, ok, err := e.store.GetDelayed(d); err == nil && ok && m.ID == id { // a corrupt one is not found
			out.DeliverAt = d.Due
		}
	}
	looked = 0
	err = e.store.HalfMessagesOf(t.ID(), math.MaxUint64, func(h store.HalfID, st store.HalfState) bool {
		if st.IDHash == hash {
			if m, _, ok, err := e.store.HalfHeader(h); err == nil && ok && m.ID == id {
				out.Half = true
			}
		}
		looked++
		return looked < maxPending && !out.Half
	})
	if err != nil {
		return refusal.Store(err)
	}
	return nil
}
