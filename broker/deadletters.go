package broker

import (
	"context"
	"slices"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/letters"
	"github.com/tidegate/tidegate/broker/internal/limits"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// A DeadLetterFilter selects the dead letters of a group that match each field that is not zero.
// The zero value selects all.
type DeadLetterFilter struct {
	Topic      string    // topic of the original send
	MessageIDs []string  // any of these
	Reason     string    // a part of the reason
	Since      time.Time // it became a dead letter at this time or later
	Before     time.Time // it became a dead letter before this time
}

// A DeadLetterQuery selects one page of dead letters.
type DeadLetterQuery struct {
	DeadLetterFilter
	In    string // topic with the dead letters, see Group.DeadLetterTopics; empty means %DLQ%group
	After string // Next of the previous page; empty means the first page
	Limit int    // at most 1000; 0 means 100

	NoBodies bool  // omit the bodies
	MaxBytes int64 // a page with so many bytes ends; 0 means that only the bound of a call applies
}

// A StoredDeadLetter is a dead letter in its topic.
type StoredDeadLetter struct {
	tidegate.Message                     // with the properties of a dead letter, and its topic
	Origin           tidegate.DeadLetter // zero for a message that was sent to the topic

	Queue    int
	Offset   int64
	BornAt   time.Time
	BornHost string
	StoredAt time.Time // when it became a dead letter

	BodySize int // in bytes, also if the query omits the bodies
}

// A DeadLetterPage is one page of dead letters, the oldest first. A page that is not the last can
// have fewer dead letters than the limit, or none, because a call reads a bounded number of
// messages.
type DeadLetterPage struct {
	Letters []StoredDeadLetter
	Next    string // After of the next page; empty on the last page
}

// A DeadLetterSelection selects the dead letters of a redrive or purge.
type DeadLetterSelection struct {
	DeadLetterFilter

	// In is the topic with the dead letters, see Group.DeadLetterTopics. Empty means %DLQ%group. If
	// a message has a dead letter in each of two topics, a redrive from both sends it twice.
	In string

	After string // Next of the previous call; empty means the beginning
	Limit int    // dead letters of this call, at most 100 000; 0 means 1000

	// To is the target topic of a redrive. Empty means the topic of each message's original send.
	To string

	// MaxRedrives excludes messages with at least that many earlier redrives. Zero means no bound.
	// For redrives only.
	MaxRedrives int
}

func (s *DeadLetterSelection) internal() letters.Selection {
	return letters.Selection{
		Query: letters.Query{Filter: deadletter.Filter(s.DeadLetterFilter), In: s.In, After: s.After, Limit: s.Limit},
		To:    s.To, MaxRedrives: s.MaxRedrives,
	}
}

// A DeadLetterRedrive is the result of Broker.RedriveDeadLetters.
type DeadLetterRedrive struct {
	Redriven int64 `json:"redriven"`

	// NoTarget and TooOften are the numbers of dead letters that were not sent: because the topic
	// does not exist or does not accept such a message, and because of MaxRedrives.
	NoTarget int64 `json:"no_target"`
	TooOften int64 `json:"too_often"`

	// Next is the position to continue at. Empty at the end.
	Next string `json:"next,omitempty"`

	// Throttle is the throttle that ended the call before its limit. Nil if none did.
	Throttle *Throttle `json:"throttle,omitempty"`
}

// A DeadLetterPurge is the result of Broker.PurgeDeadLetters.
type DeadLetterPurge struct {
	Purged int64  `json:"purged"`
	Next   string `json:"next,omitempty"` // position to continue at; empty at the end
}

// DeadLetters returns a page of the dead letters of a group, without consuming them. It also works
// for a deleted group. In a topic other than %DLQ%group it returns only the dead letters of the
// group. It can read from the store, and waits for nothing else. The error is
//
//   - 40403 if there is neither such a group nor a dead letter of it,
//   - 40402 if the query names a topic that does not exist,
//   - 40000 if After or Limit is invalid.
func (b *Broker) DeadLetters(group string, q DeadLetterQuery) (DeadLetterPage, error) {
	if !b.begin() {
		return DeadLetterPage{}, fail.Closed()
	}
	defer b.end()
	limit, err := pageLimit(q.Limit)
	if err != nil {
		return DeadLetterPage{}, err
	}
	found, next, err := b.letters.Browse(group, letters.Query{
		Filter: deadletter.Filter(q.DeadLetterFilter), In: q.In, After: q.After, Limit: limit, NoBodies: q.NoBodies, MaxBytes: q.MaxBytes,
	})
	page := DeadLetterPage{Letters: make([]StoredDeadLetter, len(found)), Next: next}
	for i := range found {
		page.Letters[i] = StoredDeadLetter(found[i])
	}
	return page, err
}

// RedriveDeadLetters sends dead letters of a group back to their topics, the oldest first, and
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
// A throttle of the topic ends the call: the error matches tidegate.ErrThrottled, and the result
// has the number of redriven messages and Next to continue later. One redrive or purge runs at a
// time; RedriveDeadLetters waits for the others. If ctx ends or the broker is closed
// (tidegate.ErrClosed), this wait ends, and a redrive ends between two writes. The result is valid
// with an error too: it counts the messages redriven before it. Other errors are those of
// DeadLetters, and 40402 if To does not exist.
func (b *Broker) RedriveDeadLetters(ctx context.Context, group string, sel DeadLetterSelection) (DeadLetterRedrive, error) {
	const op = "RedriveDeadLetters"
	if !b.begin() {
		return DeadLetterRedrive{}, fail.WithOp(op, fail.Closed())
	}
	defer b.end()
	check := redriveLimits{Limits: b.limits}
	r, err := b.letters.Redrive(ctx, group, sel.internal(), &check)
	if err == nil && check.throttle != nil {
		err = limits.Rejected(*check.throttle)
	}
	return DeadLetterRedrive{r.Redriven, r.NoTarget, r.TooOften, r.Next, check.throttle}, fail.WithOp(op, err)
}

// redriveLimits are the limits of one redrive.
type redriveLimits struct {
	*limits.Limits
	throttle *Throttle // that rejected a dead letter; nil if none did
}

func (l *redriveLimits) Rejects(t *topic.Topic, bytes int64, now time.Time) bool {
	l.throttle = l.Check(t, now, &limits.Sender{Size: bytes})
	return l.throttle != nil
}

// PurgeDeadLetters removes dead letters of a group permanently, and returns when this is on disk.
// It waits, and returns errors, as RedriveDeadLetters does. A receive from the topic of the dead
// letters that is under way may still deliver them.
func (b *Broker) PurgeDeadLetters(ctx context.Context, group string, sel DeadLetterSelection) (DeadLetterPurge, error) {
	const op = "PurgeDeadLetters"
	if !b.begin() {
		return DeadLetterPurge{}, fail.WithOp(op, fail.Closed())
	}
	defer b.end()
	purged, next, err := b.letters.Purge(ctx, group, sel.internal())
	return DeadLetterPurge{purged, next}, fail.WithOp(op, err)
}

// deadLetterTopics returns, by name, the existing topics that receive the dead letters of a group
// under the current settings.
func (b *Broker) deadLetterTopics(g *topic.Group) (names []string) {
	wanted := []string{tidegate.DeadLetterTopic(g.Name())}
	for _, s := range b.catalog.SubscriptionsOf(g) {
		p := s.Policy()
		wanted = append(wanted, p.OwnDeadLetterTopic(g.Name(), s.Topic().Name()))
		wanted = append(wanted, p.DeadLetterTopics(g.Name(), s.Topic().Name(), false)...)
	}
	slices.Sort(wanted)
	return slices.DeleteFunc(slices.Compact(wanted), func(name string) bool { return b.catalog.FindTopic(name) == nil })
}
