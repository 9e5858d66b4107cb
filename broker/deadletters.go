package broker

import (
	"context"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/status"
)

func selection(s *status.DeadLetterSelection) engine.LetterSelection {
	return engine.LetterSelection{
		LetterQuery: engine.LetterQuery{DeadLetterFilter: s.DeadLetterFilter, In: s.In, After: s.After, Limit: s.Limit, Newest: s.Newest},
		To:          s.To, ToGroup: s.ToGroupOnly, MaxRedrives: s.MaxRedrives, Edit: s.Edit, DryRun: s.DryRun,
	}
}

// DeadLetters returns a page of the dead letters of a group, without consuming them. It also works
// for a deleted group. In a topic other than %DLQ%group it returns only the dead letters of the
// group. It can read from the store, and waits for nothing else. The error is
//
//   - 40403 if there is neither such a group nor a dead letter of it,
//   - 40402 if the query names a topic that does not exist,
//   - 40000 if After or Limit is invalid.
func (b *Broker) DeadLetters(group string, q status.DeadLetterQuery) (status.DeadLetterPage, error) {
	return serve(b).DeadLettersUpTo(group, q, 0)
}

// DeadLettersUpTo is [Broker.DeadLetters] for servers. A page ends when it has that many bytes;
// zero means that only the bound of a call applies.
func (b served) DeadLettersUpTo(group string, q status.DeadLetterQuery, maxBytes int64) (status.DeadLetterPage, error) {
	if !b.calls.Begin() {
		return status.DeadLetterPage{}, refusal.Closed()
	}
	defer b.calls.End()
	limit, err := pageLimit(q.Limit)
	if err != nil {
		return status.DeadLetterPage{}, err
	}
	found, next, err := b.letters.Browse(group, engine.LetterQuery{
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
func (b served) CountDeadLetters(group string, q status.DeadLetterQuery) (status.DeadLetterCount, error) {
	if !b.calls.Begin() {
		return status.DeadLetterCount{}, refusal.Closed()
	}
	defer b.calls.End()
	n, next, err := b.letters.Count(group, engine.LetterQuery{DeadLetterFilter: q.DeadLetterFilter, In: q.In, After: q.After, Newest: q.Newest})
	return status.DeadLetterCount{Count: n, Next: next}, err
}

// RedriveDeadLetters sends dead letters of a group back to their topics, in the selected order, and
// returns when this is on disk. The broker stores each as the newest message of its topic and
// removes the dead letter in the same write, so neither a crash nor a repetition creates a second
// copy. Every group of the topic receives the message, beginning with attempt 1.
//
// The message keeps its ID, body, keys, tag, message group and properties, except for those of a
// dead letter. The duplicate window does not apply. protocol.PropertyDeadLetterRedrives counts the
// redrives. A message from a retry topic gets the ID of its original send again and loses the
// properties of a retry, so its retries count from 1 again. A FIFO topic accepts only messages with
// a message group, and other topics only messages without one. A delayed message is ready at once,
// because its delivery time has passed.
//
// With sel.ToGroupOnly only the group receives the message, through the topic %RETRY%group_topic,
// which the first such redrive creates. Its receives from the original topic also take from this
// topic. The delivery has the original topic, and the retry settings are those of the original
// topic. The error is 40000 if the group is FIFO, and 40403 if it does not exist any more.
//
// With sel.Edit the one selected letter is stored with the changes, under a new ID; otherwise the
// same holds as for an unedited one. The error is that of a send if the changed message is invalid.
//
// A throttle of the topic ends the call: the error matches tidegate.ErrThrottled, and the result
// has the number of redriven messages and Next to continue later. One redrive or purge runs at a
// time; RedriveDeadLetters waits for the others. If ctx ends or the broker is closed
// (tidegate.ErrClosed), this wait ends, and a redrive ends between two writes. The result is valid
// with an error too: it counts the messages redriven before it. Other errors are those of
// DeadLetters, and 40402 if To does not exist.
func (b *Broker) RedriveDeadLetters(ctx context.Context, group string, sel status.DeadLetterSelection) (status.DeadLetterRedrive, error) {
	const op = "RedriveDeadLetters"
	if !b.calls.Begin() {
		return status.DeadLetterRedrive{}, refusal.WithOp(op, refusal.Closed())
	}
	defer b.calls.End()
	check := redriveLimits{Limits: b.limits}
	r, err := b.letters.Redrive(ctx, group, selection(&sel), &check)
	if err == nil && check.throttle != nil {
		err = engine.Rejected(*check.throttle)
	}
	return status.DeadLetterRedrive{Redriven: r.Redriven, SentAs: r.SentAs, NoTarget: r.NoTarget, TooOften: r.TooOften, Next: r.Next, Throttle: check.throttle}, refusal.WithOp(op, err)
}

// redriveLimits are the limits of one redrive.
type redriveLimits struct {
	*engine.Limits
	throttle *status.Throttle // that rejected a dead letter; nil if none did
}

func (l *redriveLimits) Rejects(t *engine.Topic, bytes int64, now time.Time) bool {
	l.throttle = l.Check(t, now, &engine.Sender{Size: bytes})
	return l.throttle != nil
}

// PurgeDeadLetters removes dead letters of a group permanently, and returns when this is on disk.
// It waits, and returns errors, as RedriveDeadLetters does. A receive from the topic of the dead
// letters that is under way may still deliver them.
func (b *Broker) PurgeDeadLetters(ctx context.Context, group string, sel status.DeadLetterSelection) (status.DeadLetterPurge, error) {
	const op = "PurgeDeadLetters"
	if !b.calls.Begin() {
		return status.DeadLetterPurge{}, refusal.WithOp(op, refusal.Closed())
	}
	defer b.calls.End()
	purged, next, err := b.letters.Purge(ctx, group, selection(&sel))
	return status.DeadLetterPurge{Purged: purged, Next: next}, refusal.WithOp(op, err)
}

// deadLetterTopics returns, by name, the existing topics that receive the dead letters of a group
// under the current settings.
func (b *Broker) deadLetterTopics(g *engine.Group) (names []string) {
	wanted := []string{tidegate.DeadLetterTopic(g.Name())}
	for _, s := range b.catalog.SubscriptionsOf(g) {
		p := s.Policy()
		wanted = append(wanted, p.OwnDeadLetterTopic(g.Name(), s.Topic().Name()))
		wanted = append(wanted, p.DeadLetterTopics(g.Name(), s.Topic().Name(), false)...)
	}
	slices.Sort(wanted)
	return slices.DeleteFunc(slices.Compact(wanted), func(name string) bool { return b.catalog.FindTopic(name) == nil })
}
