package broker

import (
	"cmp"
	"context"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// maxRedrive and defaultRedrive bound how many dead letters one call moves or removes.
const (
	maxRedrive     = 100_000
	defaultRedrive = 1000
)

// A DeadLetterSelection says what Broker.RedriveDeadLetters sends back, or
// Broker.PurgeDeadLetters removes.
type DeadLetterSelection struct {
	DeadLetterFilter

	// In is the topic in which they lie, see Group.DeadLetterTopics. Empty: %DLQ%group.
	// A message that goes to two topics has a copy in each: redriven from both, it is there twice.
	In string

	After string // where to go on: Next of the call before. Empty: at the oldest one.
	Limit int    // of dead letters in this call. 0: 1000; at most 100 000

	// To is the topic to send to. Empty: the one that each was sent to. Redrive only.
	To string

	// MaxRedrives leaves those where they are that were sent back that often
	// before. 0: no bound. Redrive only.
	MaxRedrives int
}

// A DeadLetterRedrive is what Broker.RedriveDeadLetters did.
type DeadLetterRedrive struct {
	Redriven int64 `json:"redriven"`

	// NoTarget is how many stayed because their topic is not there or does not
	// take such messages, and TooOften how many because of MaxRedrives.
	NoTarget int64 `json:"no_target"`
	TooOften int64 `json:"too_often"`

	// Next is where to go on; empty: that was all.
	Next string `json:"next,omitempty"`

	// Throttle is why it stopped before its limit; nil if it did not.
	Throttle *Throttle `json:"throttle,omitempty"`
}

// A DeadLetterPurge is what Broker.PurgeDeadLetters did.
type DeadLetterPurge struct {
	Purged int64  `json:"purged"`
	Next   string `json:"next,omitempty"` // where to go on; empty: that was all
}

// RedriveDeadLetters sends dead letters of a group back, the oldest first, and returns when that is
// on disk: each is stored anew, as the newest message of its topic, and leaves the dead letters in
// the same write, so that neither a crash nor a repetition makes two of one. It keeps its ID,
// whatever the topic stored within its duplicate window, its body, keys, tag, message group and
// properties; those of a dead letter are taken off, and tidegate.PropertyDeadLetterRedrives counts
// how often that was done. What was retried through a retry topic comes back as what was sent: with
// that ID, and without the properties of a retry, whose number counts anew. A FIFO topic takes
// those with a message group and no other one does; a delivery time is over. Every group of the
// topic gets it, with attempts from 1 on.
//
// A topic whose backlog throttles stops it: the error is tidegate.ErrThrottled, and beside it is
// what was done, with Next to go on later. The other errors: those of DeadLetters, and 40402 for a
// To that is not there. One redrive or purge runs at a time; ctx ends the wait for it, and the
// redrive between two writes, as the end of the broker does (tidegate.ErrClosed); what was done is
// told then too.
func (b *Broker) RedriveDeadLetters(ctx context.Context, group string, sel DeadLetterSelection) (DeadLetterRedrive, error) {
	var done DeadLetterRedrive
	next, err := b.moveLetters(ctx, group, sel, func(t *topic.Topic, letters []deadletter.Letter) (stop string, err error) {
		return b.redriveChunk(t, letters, &sel, &done)
	})
	done.Next = next
	if err == nil && done.Throttle != nil {
		err = throttledError(*done.Throttle)
	}
	return done, fail.WithOp("RedriveDeadLetters", err)
}

// PurgeDeadLetters removes dead letters of a group for good, and returns when
// that is on disk. Errors are those of DeadLetters; one purge or redrive runs
// at a time. A receive from the topic of the dead letters that is under way may still deliver them.
func (b *Broker) PurgeDeadLetters(ctx context.Context, group string, sel DeadLetterSelection) (DeadLetterPurge, error) {
	var done DeadLetterPurge
	next, err := b.moveLetters(ctx, group, sel, func(t *topic.Topic, letters []deadletter.Letter) (stop string, err error) {
		err = b.store.Messages.Add(func(w *store.Batch) {
			if t.Deleted() {
				return
			}
			for i := range letters {
				t.Remove(w, letters[i].Queue, letters[i].Offset, int64(len(letters[i].Body)))
			}
		}, nil).Wait()
		if err == nil {
			done.Purged += int64(len(letters))
		}
		return "", err
	})
	done.Next = next
	return done, fail.WithOp("PurgeDeadLetters", err)
}

// moveLetters calls move with the dead letters that are selected, some at a
// time, until there are no more, their number is reached, or move returns the
// position at which it stopped. It returns where to go on.
func (b *Broker) moveLetters(ctx context.Context, group string, sel DeadLetterSelection, move func(*topic.Topic, []deadletter.Letter) (string, error)) (next string, err error) {
	if !b.begin() {
		return "", fail.Closed()
	}
	defer b.end()
	left := sel.Limit
	if left < 0 || left > maxRedrive {
		return "", fail.New(tidegate.CodeBadRequest, "limit", "it is %d; give 1 to %d, or 0 for %d", left, maxRedrive, defaultRedrive)
	} else if left == 0 {
		left = defaultRedrive
	}
	at, err := parsePosition(sel.After)
	if err != nil {
		return "", err
	}
	if sel.To != "" {
		if sel.To == cmp.Or(sel.In, tidegate.DeadLetterTopic(group)) {
			return "", fail.New(tidegate.CodeBadRequest, "to", "%q has the dead letters that are to be sent: give another topic", sel.To)
		}
		if _, err := b.topic(sel.To); err != nil {
			return "", err
		}
	}
	t, err := b.deadLettersOf(group, sel.In)
	if err != nil || t == nil {
		return "", err
	}
	if err := b.expectGaps(ctx, t); err != nil {
		return "", err
	}
	select {
	case b.redriving <- struct{}{}:
		defer func() { <-b.redriving }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	scan := deadletter.Scan{
		Topic: letters{t, b}, Group: group, Filter: deadletter.Filter(sel.DeadLetterFilter), At: at,
		Messages: max(left, deadletter.BrowseMessages), Bytes: 1 << 40,
	}
	for left > 0 && !scan.Over() {
		before := scan.Position()
		if b.life.Err() != nil {
			return before, fail.Closed()
		}
		if ctx.Err() != nil {
			return before, context.Cause(ctx)
		}
		letters, err := scan.Next(left)
		if err != nil {
			return before, fail.Store(err)
		}
		if len(letters) == 0 {
			continue
		}
		left -= len(letters)
		stop, err := move(t, letters)
		t.ForgetReadAhead() // no receive that begins now delivers them
		if err != nil {
			return before, fail.Store(err)
		} else if stop != "" {
			return stop, nil
		}
	}
	return scan.Position(), nil
}

// redriveChunk sends some dead letters back in one write. It returns the
// position of the one at which a throttle stopped it.
func (b *Broker) redriveChunk(t *topic.Topic, letters []deadletter.Letter, sel *DeadLetterSelection, done *DeadLetterRedrive) (stop string, err error) {
	var published []func(error)
	var n, noTarget, tooOften int64
	targets := make([]*topic.Topic, len(letters))
	for i := range letters {
		if targets[i] = b.redriveTarget(&letters[i], sel.To); targets[i] != nil {
			b.observe(targets[i], time.Now())
		}
	}
	err = b.store.Messages.Add(func(w *store.Batch) {
		now := time.Now()
		for i := range letters {
			l, to := &letters[i], targets[i]
			if t.Deleted() {
				return
			}
			switch {
			case to == nil || to.Deleted():
				noTarget++
				continue
			case sel.MaxRedrives > 0 && l.Origin.Redrives >= sel.MaxRedrives:
				tooOften++
				continue
			}
			if th := b.throttle(to, now, &sender{size: int64(len(l.Body))}); th != nil {
				done.Throttle = th
				stop = l.Position().String()
				return
			}
			m := l.Redriven(to.Name())
			q := to.Pick(m.MessageGroup)
			to.Put(w, q, m, now)
			t.Remove(w, l.Queue, l.Offset, int64(len(l.Body)))
			published = append(published, to.Publish(q))
			n++
		}
	}, func(err error) {
		for _, f := range published {
			f(err)
		}
	}).Wait()
	if err != nil {
		return "", err
	}
	done.Redriven += n
	done.NoTarget += noTarget
	done.TooOften += tooOften
	return stop, nil
}

// redriveTarget returns the topic that takes a dead letter, or nil.
func (b *Broker) redriveTarget(l *deadletter.Letter, name string) *topic.Topic {
	if name == "" {
		name = l.Origin.Topic
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	t := b.topics[name]
	if t == nil {
		return nil
	}
	// Nothing but a message group makes a type now: delivery times and
	// transactions are over, and retry topics change the former.
	if fifo := t.Settings().Type == TopicFIFO; fifo != (l.MessageGroup != "") && !topic.IsDeadLetter(name) {
		return nil
	}
	return t
}

// expectGaps has whoever removes the oldest messages of a topic look from now
// on for what is taken out from between the others.
func (b *Broker) expectGaps(ctx context.Context, t *topic.Topic) error {
	if t.HasGaps() {
		return nil
	}
	release, err := b.retention.task.Hold(ctx) // a removal that did not look is over then
	if err != nil {
		return err
	}
	defer release()
	t.ExpectGaps()
	return nil
}
