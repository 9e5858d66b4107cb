package engine

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
)

func selection(s *status.DeadLetterSelection) LetterSelection {
	return LetterSelection{
		LetterQuery: LetterQuery{DeadLetterFilter: s.DeadLetterFilter, In: s.In, After: s.After, Limit: s.Limit, Newest: s.Newest},
		To:          s.To, ToGroup: s.ToGroupOnly, MaxRedrives: s.MaxRedrives, Edit: s.Edit, DryRun: s.DryRun,
	}
}

// DeadLetters executes the method of broker.Broker. A page ends when it has that many bytes; zero
// means that only the bound of a call applies.
func (e *Engine) DeadLetters(group string, q status.DeadLetterQuery, maxBytes int64) (status.DeadLetterPage, error) {
	if !e.calls.Begin() {
		return status.DeadLetterPage{}, refusal.Closed()
	}
	defer e.calls.End()
	limit, err := pageLimit(q.Limit)
	if err != nil {
		return status.DeadLetterPage{}, err
	}
	found, next, err := e.letters.Browse(group, LetterQuery{
		DeadLetterFilter: q.DeadLetterFilter, In: q.In, After: q.After, Limit: limit, Newest: q.Newest, NoBodies: !q.Bodies, MaxBytes: maxBytes,
	})
	page := status.DeadLetterPage{DeadLetters: make([]status.DeadLetter, len(found)), Next: next}
	for i := range found {
		page.DeadLetters[i] = found[i].Status()
	}
	return page, err
}

// CountDeadLetters counts the dead letters that a query selects. A call reads a bounded number of
// messages. After, Limit and errors are those of DeadLetters; Limit and Bodies have no effect.
func (e *Engine) CountDeadLetters(group string, q status.DeadLetterQuery) (status.DeadLetterCount, error) {
	if !e.calls.Begin() {
		return status.DeadLetterCount{}, refusal.Closed()
	}
	defer e.calls.End()
	n, next, err := e.letters.Count(group, LetterQuery{DeadLetterFilter: q.DeadLetterFilter, In: q.In, After: q.After, Newest: q.Newest})
	return status.DeadLetterCount{Count: n, Next: next}, err
}

// RedriveDeadLetters executes the method of broker.Broker.
func (e *Engine) RedriveDeadLetters(ctx context.Context, group string, sel status.DeadLetterSelection) (status.DeadLetterRedrive, error) {
	const op = "RedriveDeadLetters"
	if !e.calls.Begin() {
		return status.DeadLetterRedrive{}, refusal.WithOp(op, refusal.Closed())
	}
	defer e.calls.End()
	check := redriveLimits{Limits: e.limits}
	r, err := e.letters.Redrive(ctx, group, selection(&sel), &check)
	if err == nil && check.throttle != nil {
		err = Rejected(*check.throttle)
	}
	return status.DeadLetterRedrive{Redriven: r.Redriven, SentAs: r.SentAs, NoTarget: r.NoTarget, TooOften: r.TooOften, Next: r.Next, Throttle: check.throttle}, refusal.WithOp(op, err)
}

// redriveLimits are the limits of one redrive.
type redriveLimits struct {
	*Limits
	throttle *status.Throttle // that rejected a dead letter; nil if none did
}

func (l *redriveLimits) Rejects(t *Topic, bytes int64, now time.Time) bool {
	l.throttle = l.Check(t, now, &Sender{Size: bytes})
	return l.throttle != nil
}

// PurgeDeadLetters executes the method of broker.Broker.
func (e *Engine) PurgeDeadLetters(ctx context.Context, group string, sel status.DeadLetterSelection) (status.DeadLetterPurge, error) {
	const op = "PurgeDeadLetters"
	if !e.calls.Begin() {
		return status.DeadLetterPurge{}, refusal.WithOp(op, refusal.Closed())
	}
	defer e.calls.End()
	purged, next, err := e.letters.Purge(ctx, group, selection(&sel))
	return status.DeadLetterPurge{Purged: purged, Next: next}, refusal.WithOp(op, err)
}

// deadLetterTopics returns, by name, the existing topics that receive the dead letters of a group
// under the current settings.
func (e *Engine) deadLetterTopics(g *Group) (names []string) {
	wanted := []string{tidegate.DeadLetterTopic(g.Name())}
	for _, s := range e.catalog.SubscriptionsOf(g) {
		p := s.Policy()
		wanted = append(wanted, p.OwnDeadLetterTopic(g.Name(), s.Topic().Name()))
		wanted = append(wanted, p.DeadLetterTopics(g.Name(), s.Topic().Name(), false)...)
	}
	slices.Sort(wanted)
	return slices.DeleteFunc(slices.Compact(wanted), func(name string) bool { return e.catalog.FindTopic(name) == nil })
}

// DeadLetterClasses returns a page of the classes of dead letters of a group. It reads only memory.
// The errors are those of DeadLetters.
func (e *Engine) DeadLetterClasses(group string, q status.DeadLetterClassQuery) (status.DeadLetterClassPage, error) {
	if !e.calls.Begin() {
		return status.DeadLetterClassPage{}, refusal.Closed()
	}
	defer e.calls.End()
	limit, err := pageLimit(q.Limit)
	if err != nil {
		return status.DeadLetterClassPage{}, err
	}
	p, err := e.letters.Classes(group, q.In, q.Topic, q.After, limit)
	out := status.DeadLetterClassPage{Letters: p.Letters, Classes: make([]status.DeadLetterClass, len(p.Classes)), Next: p.Next}
	for i := range p.Classes {
		out.Classes[i] = letterClass(&p.Classes[i], &p)
	}
	if p.Rest.Count > 0 {
		out.Other = new(letterClass(&p.Rest, &p))
	}
	return out, err
}

func letterClass(c *store.LetterClass, p *ClassPage) status.DeadLetterClass {
	return status.DeadLetterClass{
		Fingerprint: c.Fingerprint, Topic: c.Topic, Reason: c.Reason, Count: c.Count, Share: float64(c.Count) / float64(p.Letters),
		First: c.First, Last: c.Last, MaxRedrives: c.MaxRedrives,
	}
}

// Parked executes the method of broker.Broker.
func (e *Engine) Parked(group string, q status.ParkedQuery) (status.ParkedPage, error) {
	if !e.calls.Begin() {
		return status.ParkedPage{}, refusal.Closed()
	}
	defer e.calls.End()
	limit, err := pageLimit(q.Limit)
	if err != nil {
		return status.ParkedPage{}, err
	}
	if q.State != "" && q.State != stateParked && q.State != stateBlocked {
		return status.ParkedPage{}, refusal.New(tidegate.CodeBadRequest, "state", "it is %.40q; give %s or %s, or nothing for both", q.State, stateParked, stateBlocked)
	}
	subs, err := e.parkers(group, q.Topic)
	if err != nil {
		return status.ParkedPage{}, err
	}
	wanted := func(g *consume.ParkedGroup) bool {
		return q.State == "" || (q.State == stateParked) == (g.State == consume.Parked)
	}
	found, next, err := e.letters.Parked(subs, wanted, q.After, limit)
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
		e.env.Failures.Latest(group, last)
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
func (e *Engine) parkers(group, topic string) (subs []*Subscription, err error) {
	g, err := e.catalog.Group(group)
	if err != nil {
		return nil, err
	}
	if topic != "" {
		if _, err := e.catalog.Topic(topic); err != nil {
			return nil, err
		}
	}
	for _, s := range e.catalog.SubscriptionsOf(g) {
		if topic == "" || s.Topic().Name() == topic {
			subs = append(subs, s)
		}
	}
	return subs, nil
}

// RedriveParked executes the method of broker.Broker.
func (e *Engine) RedriveParked(ctx context.Context, group string, sel status.ParkedSelection) (status.ParkedRedrive, error) {
	done, err := e.redriveParked(ctx, group, sel)
	return done, refusal.WithOp("RedriveParked", err)
}

func (e *Engine) redriveParked(ctx context.Context, group string, sel status.ParkedSelection) (done status.ParkedRedrive, err error) {
	if !e.calls.Begin() {
		return done, refusal.Closed()
	}
	defer e.calls.End()
	if sel.MessageGroup != "" && sel.Topic == "" {
		return done, refusal.New(tidegate.CodeBadRequest, "topic", "the topic is empty; give the topic of message group %q", sel.MessageGroup)
	}
	subs, err := e.parkers(group, sel.Topic)
	if err != nil {
		return done, err
	}
	done.MessageGroups, done.Messages, err = e.letters.RedriveParked(ctx, subs, sel.MessageGroup, sel.DeadLetter)
	if err == nil && sel.MessageGroup != "" && done.MessageGroups == 0 {
		err = refusal.New(protocol.CodeMessageNotFound, sel.MessageGroup, "the message group is not parked for group %q in topic %q", group, sel.Topic)
	}
	return done, err
}

// Failures returns a page of the latest failures of a group, the newest first. It reads the IDs of
// the messages from the store. The error is 40403 if there is no such group, and 40000 if After or
// Limit is invalid.
func (e *Engine) Failures(group string, q status.FailureQuery) (status.FailurePage, error) {
	if !e.calls.Begin() {
		return status.FailurePage{}, refusal.Closed()
	}
	defer e.calls.End()
	limit, err := pageLimit(q.Limit)
	if err != nil {
		return status.FailurePage{}, err
	}
	var before uint64
	if q.After != "" {
		if before, err = strconv.ParseUint(q.After, 10, 64); err != nil || before == 0 {
			return status.FailurePage{}, refusal.New(tidegate.CodeBadRequest, "after",
				"%.40q is not the position of a page; give the value next of the previous page, or nothing for the first page", q.After)
		}
	}
	if _, err := e.catalog.Group(group); err != nil {
		return status.FailurePage{}, err
	}
	page, dropped, more := e.env.Failures.Page(group, q.Topic, before, limit)
	out := status.FailurePage{Failures: make([]status.Failure, len(page)), Dropped: dropped}
	for i := range page {
		f := &page[i]
		out.Failures[i] = failure(f)
		if m, ok, err := e.store.Header(f.Place); err == nil && ok { // else it was removed, or is corrupt
			out.Failures[i].MessageID = m.ID
		}
	}
	if more {
		out.Next = strconv.FormatUint(page[len(page)-1].Number, 10)
	}
	return out, nil
}

// failure returns a failure without the ID of its message.
func failure(f *deadletter.Failure) status.Failure {
	out := status.Failure{
		Time: f.At, Topic: f.Topic, Queue: int(f.Place.Queue), Offset: f.Place.Offset, Attempt: f.Attempt, Client: f.Client,
		Reason: f.Reason, Cause: f.Cause, Fate: f.Fate, Delay: settings.Duration(f.Delay),
	}
	if f.Reason != "" {
		out.Fingerprint = protocol.Fingerprint(f.Topic, f.Reason)
	}
	return out
}
