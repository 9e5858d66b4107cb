package engine

import (
	"cmp"
	"context"
	"errors"
	"math"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// maxMoved and defaultMoved are the bound and the default of the dead letters that one call moves
// or removes.
const (
	maxMoved     = 100_000
	defaultMoved = 1000
)

// A LetterSelection selects the dead letters of a redrive or purge. A Limit of zero means
// DefaultMoved.
type LetterSelection struct {
	LetterQuery

	// To is the target topic of a redrive. Empty means the topic of each message's original send.
	To string

	// ToGroup redrives to the group alone, through a topic of its own. To is empty then.
	ToGroup bool

	// MaxRedrives excludes messages with at least that many earlier redrives. Zero means no bound.
	// For redrives only.
	MaxRedrives int

	Edit *status.DeadLetterEdit // changes the one selected letter; nil: none. For redrives only

	DryRun bool // change nothing, and count the letters that a call without a throttle would send
}

// limits are the limits of sends, which also apply to redrives.
type limits interface {
	// Observe updates the values that the limits of a topic read from the store. The caller holds
	// no lock.
	Observe(t *Topic, now time.Time)

	// Rejects reports whether a limit rejects the next message of a topic, whose body has that many
	// bytes. Only called within the message log's Add.
	Rejects(t *Topic, bytes int64, now time.Time) bool
}

// Redriven is the result of a redrive.
type Redriven struct {
	Redriven int64
	NoTarget int64  // not sent: the topic does not exist or does not accept the message
	TooOften int64  // not sent because of Selection.MaxRedrives
	SentAs   string // the ID of the edited message; empty if none was sent
	Next     string // position to continue at; empty at the end
}

// Redrive sends dead letters of a group back, the oldest first, and returns when this is on disk.
// It stops at the first dead letter that a limit rejects. With an error the result has the dead
// letters that were sent before it. The errors are those of Browse, the cause of ctx, and
// tidegate.ErrClosed, 40000 for ToGroup and a FIFO group, and for an edit those of a send.
func (l *Letters) Redrive(ctx context.Context, group string, sel LetterSelection, limits limits) (done Redriven, err error) {
	r := redrive{Letters: l, sel: &sel, limits: limits, done: &done}
	if sel.Edit != nil {
		if err := sel.one(); err != nil {
			return done, err
		}
		defer func() { done.Next = "" }()
	}
	if sel.ToGroup {
		if r.group, err = l.ownGroup(group, sel.To); err != nil {
			return done, err
		}
	}
	for left := cmp.Or(sel.Limit, defaultMoved); ; {
		r.missing = nil
		done.Next, err = l.move(ctx, group, sel, r.chunk)
		if err != nil || r.missing == nil {
			return done, err
		}
		// The topic is created here, because that waits for requests that wait for the token of
		// move.
		if _, err = l.Redrives.RedriveTopic(ctx, r.group, r.missing); err != nil {
			return done, err
		}
		sel.After, sel.Limit = done.Next, left-int(done.Redriven+done.NoTarget+done.TooOften)
	}
}

// one makes the selection of an edit begin and end with the place of the letter.
func (s *LetterSelection) one() error {
	if len(s.MessageIDs) != 1 || s.After != "" || s.Newest || s.Limit > 1 {
		return refusal.New(tidegate.CodeBadRequest, "edit",
			"an edit changes one dead letter; give its ID alone in message_ids and its place in the edit, and leave out after, limit and newest")
	}
	at := deadletter.Position{Queue: s.Edit.Queue, Offset: s.Edit.Offset}
	if at.Queue < 0 || at.Queue > math.MaxUint16 || at.Offset < 0 {
		return refusal.New(tidegate.CodeBadRequest, "edit", "queue %d and offset %d are no place of a dead letter; give those of the list", at.Queue, at.Offset)
	}
	s.After, s.Limit = at.String(), 1
	return nil
}

// Purge removes dead letters of a group permanently, and returns when this is on disk. It returns
// their number and the position to continue at. A receive from the topic of the dead letters that
// is under way may still deliver them. The errors are those of Redrive.
func (l *Letters) Purge(ctx context.Context, group string, sel LetterSelection) (purged int64, next string, err error) {
	next, err = l.move(ctx, group, sel, func(t *Topic, chunk []deadletter.Letter) (stop string, err error) {
		if sel.DryRun {
			purged += int64(len(chunk))
			return "", nil
		}
		counted, err := l.counted(t, chunk)
		if err != nil {
			return "", err
		}
		err = l.Store.Messages.Add(func(w *store.Batch) {
			if t.Deleted() {
				return
			}
			for i := range chunk {
				counted.remove(w, &chunk[i])
			}
			counted.subtract(w)
		}, nil).Wait()
		if err == nil {
			purged += int64(len(chunk))
		}
		return "", err
	})
	return purged, next, err
}

// move calls f with chunks of the selected dead letters until there are no more, their number is
// reached, or f returns the position at which it stopped. It returns the position to continue at.
func (l *Letters) move(ctx context.Context, group string, sel LetterSelection, f func(*Topic, []deadletter.Letter) (string, error)) (next string, err error) {
	left := cmp.Or(sel.Limit, defaultMoved)
	if left < 0 || left > maxMoved {
		return "", refusal.New(tidegate.CodeBadRequest, "limit", "it is %d; give 1 to %d, or 0 for %d", left, maxMoved, defaultMoved)
	}
	if sel.To != "" {
		if sel.To == cmp.Or(sel.In, tidegate.DeadLetterTopic(group)) {
			return "", refusal.New(tidegate.CodeBadRequest, "to", "%q is the topic that holds the dead letters; give another topic", sel.To)
		}
		if _, err := l.topic(sel.To); err != nil {
			return "", err
		}
	}
	t, scan, err := l.scan(group, &sel.LetterQuery)
	if err != nil || scan == nil {
		return "", err
	}
	scan.Messages, scan.Bytes = max(left, deadletter.BrowseMessages), 1<<40
	if !sel.DryRun {
		if err := expectGaps(ctx, t); err != nil {
			return "", err
		}
		release, err := l.Hold(ctx)
		if err != nil {
			return "", err
		}
		defer release()
	}
	for left > 0 && !scan.Over() {
		before := scan.Position()
		if l.Life.Err() != nil {
			return before, refusal.Closed()
		}
		if ctx.Err() != nil {
			return before, context.Cause(ctx)
		}
		chunk, err := scan.Next(left)
		if err != nil {
			return before, refusal.Store(err)
		}
		if len(chunk) == 0 {
			continue
		}
		left -= len(chunk)
		stop, err := f(t, chunk)
		if !sel.DryRun {
			t.ForgetReadAhead() // receives that begin now do not deliver them
		}
		if e, ok := errors.AsType[*tidegate.Error](err); ok && sel.Edit != nil {
			return before, e // the changed message is invalid
		} else if err != nil {
			return before, refusal.Store(err)
		} else if stop != "" {
			return stop, nil
		}
	}
	return scan.Position(), nil
}

// A redrive is the state of one call of Redrive.
type redrive struct {
	*Letters
	sel    *LetterSelection
	group  *Group // for Selection.ToGroup
	limits limits
	done   *Redriven

	missing *Topic // the original topic whose topic for the group does not exist yet
}

// stopAt returns the position at which a redrive continues with a letter.
func (r *redrive) stopAt(letter *deadletter.Letter) string {
	at := letter.Position()
	if r.sel.Newest {
		at.Offset++
	}
	return at.String()
}

// edited returns the letters to send in place of a chunk, and the chunk itself without an edit. The
// result is empty if the chunk does not have the letter of the edit.
func (r *redrive) edited(chunk []deadletter.Letter) ([]deadletter.Letter, error) {
	e := r.sel.Edit
	if e == nil {
		return chunk, nil
	}
	if at := chunk[0].Position(); at.Queue != e.Queue || at.Offset != e.Offset {
		return nil, nil
	}
	changed, err := chunk[0].Edited(e, r.MaxBodySize)
	if err != nil {
		return nil, err
	}
	return []deadletter.Letter{*changed}, nil
}

// chunk sends a chunk of dead letters back in one write. It returns the position of the dead letter
// that a limit rejected, or of the first letter if a topic is missing.
func (r *redrive) chunk(t *Topic, chunk []deadletter.Letter) (stop string, err error) {
	sel, limits, done := r.sel, r.limits, r.done
	sent, err := r.edited(chunk)
	if err != nil || len(sent) == 0 {
		return "", err
	}
	var published []func(error)
	var redriven, noTarget, tooOften int64
	var sentAs string
	targets := make([]*Topic, len(chunk))
	for i := range chunk {
		var original *Topic
		if targets[i] = r.target(&chunk[i], sel.To); sel.ToGroup {
			targets[i], original = r.toGroup(&chunk[i])
		}
		switch {
		case sel.DryRun:
			done.count(&chunk[i], targets[i] != nil || original != nil, sel)
		case targets[i] != nil:
			limits.Observe(targets[i], time.Now())
		case original != nil:
			r.missing = original
			return r.stopAt(&chunk[0]), nil
		}
	}
	if sel.DryRun {
		return "", nil
	}
	counted, err := r.counted(t, chunk)
	if err != nil {
		return "", err
	}
	err = r.Store.Messages.Add(func(w *store.Batch) {
		now := time.Now()
		if t.Deleted() {
			return
		}
		defer counted.subtract(w)
		for i := range chunk {
			letter, to, anew := &chunk[i], targets[i], &sent[i]
			switch {
			case to == nil || to.Deleted():
				noTarget++
				continue
			case sel.MaxRedrives > 0 && letter.Origin.Redrives >= sel.MaxRedrives:
				tooOften++
				continue
			}
			if limits.Rejects(to, int64(len(anew.Body)), now) {
				stop = r.stopAt(letter)
				return
			}
			m := anew.Redriven(to.Name())
			if sel.ToGroup {
				m = anew.RedrivenToGroup(to.Name())
			}
			q := to.Pick(&m.Message)
			to.Put(w, q, m, now)
			counted.remove(w, letter)
			published = append(published, to.Publish(q))
			redriven++
			if sel.Edit != nil {
				sentAs = m.ID
			}
		}
	}, func(err error) {
		for _, f := range published {
			f(err)
		}
	}).Wait()
	if err != nil {
		return "", err
	}
	done.Redriven += redriven
	done.SentAs = sentAs
	done.NoTarget += noTarget
	done.TooOften += tooOften
	return stop, nil
}

// count counts a letter of a dry run.
func (r *Redriven) count(l *deadletter.Letter, accepted bool, sel *LetterSelection) {
	switch {
	case !accepted:
		r.NoTarget++
	case sel.MaxRedrives > 0 && l.Origin.Redrives >= sel.MaxRedrives:
		r.TooOften++
	default:
		r.Redriven++
	}
}

// target returns the topic that accepts a dead letter, or nil.
func (l *Letters) target(letter *deadletter.Letter, name string) *Topic {
	if name == "" {
		name = letter.Origin.Topic
	}
	t := l.Directory.FindTopic(name)
	if t == nil {
		return nil
	}
	// Only the message group and the lite topic decide: a delivery time has passed, a transaction has ended, and
	// retry topics change the delivery time.
	kind := t.Settings().Type
	fits := (kind == settings.TopicFIFO) == (letter.MessageGroup != "") && (kind == settings.TopicLite) == (letter.LiteTopic != "")
	if !fits && !isDeadLetter(name) || t.lite() && t.admitsLite(letter.LiteTopic) != nil {
		return nil
	}
	return t
}

// expectGaps makes retention look for gaps in the topic from now on.
func expectGaps(ctx context.Context, t *Topic) error {
	if t.HasGaps() {
		return nil
	}
	release, err := t.RetentionTask().Hold(ctx) // a round that did not look has ended then
	if err != nil {
		return err
	}
	defer release()
	t.ExpectGaps()
	return nil
}

// A removal removes dead letters of one queue, and subtracts them from their classes.
type removal struct {
	topic   *Topic
	classes map[int64]uint32 // of the letters that are counted, by offset
	removed deadletter.ClassRemoval
}

// counted begins the removal of a chunk, whose letters are in one queue.
func (l *Letters) counted(t *Topic, chunk []deadletter.Letter) (removal, error) {
	r := removal{topic: t, classes: map[int64]uint32{}, removed: deadletter.ClassRemoval{}}
	if t.Classes().Empty() {
		return r, nil
	}
	from, to := chunk[0].Offset, chunk[0].Offset+1
	for i := range chunk {
		from, to = min(from, chunk[i].Offset), max(to, chunk[i].Offset+1)
	}
	span := store.Range{Topic: t.ID(), Queue: uint16(chunk[0].Queue), From: from, To: to}
	return r, l.Store.ClassesOf(span, func(offset int64, class uint32) { r.classes[offset] = class })
}

// remove removes a letter. Only called within the message log's Add, before subtract.
func (r *removal) remove(w *store.Batch, l *deadletter.Letter) {
	r.topic.Remove(w, l.Queue, l.Offset, int64(len(l.Body)))
	if class, ok := r.classes[l.Offset]; ok {
		r.removed[class]++
		w.DeleteClassesOf(store.Range{Topic: r.topic.ID(), Queue: uint16(l.Queue), From: l.Offset, To: l.Offset + 1})
	}
}

// subtract writes the counts of the classes.
func (r *removal) subtract(w *store.Batch) { r.topic.Classes().Remove(w, r.removed) }
