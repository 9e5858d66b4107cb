// Package deadletter lists dead letters, groups them by the reason of their failure, edits them,
// and sends them back without loss or duplicates.
//
// A [Source] has the dead letters of a consumer group. [Broker] reads them over the HTTP
// administration interface of a tidegate broker. [Queue] receives them from the topic %DLQ%group,
// for example of a RocketMQ.
//
//	src := deadletter.Broker{Client: client, Group: "billing"}
//	classes, err := deadletter.Summarize(ctx, src, deadletter.Filter{})
//	...
//	report, err := deadletter.Redrive(ctx, src, deadletter.Options{
//		Filter:  deadletter.Filter{Fingerprint: classes[0].Fingerprint},
//		Journal: "billing-2026-01-31.jsonl",
//	})
//
// # A redrive
//
// [Redrive] sends dead letters back to their topics at a limited rate (Options.PerSecond). It stops
// if too many of them fail (MaxFailureShare), and skips messages that were already redriven three
// times (MaxGenerations). With DryRun it reports its decisions and sends nothing.
//
// The journal is a file of JSON lines: an audit trail of the redrive, and its state. All calls of
// Redrive with the same journal are one job. After a crash, call Redrive again with the same
// journal. Each message is sent back once:
//
//   - On a tidegate broker, an unedited message is stored in its topic and removed from the dead
//     letters in one write of the broker.
//   - An edited message, and every message of a Queue, is sent as a new message. Its ID depends
//     only on the message's first ID and the number of the redrive. The dead letter is removed
//     after the send; with ToGroupOnly a tidegate broker does both in one write. The journal
//     records the intent before the send and the result after it. If two letters of a job have one
//     ID, which a topic can store beyond its duplicate window, the ID of the second one also
//     depends on its place. The ID does not depend on the job: a letter that jobs with different
//     journals send is stored once within the duplicate window, and so are two letters with one ID
//     of two topics that two such jobs send to one.
//
// After a crash between intent and result, the next run repeats the send with the same ID. A
// tidegate broker drops the repeated message within the duplicate window of the topic, by default 2
// minutes. A RocketMQ stores the message twice: consumers recognize the duplicate by its ID, for
// example with package consumer/inbox.
//
// A redrive locks its journal. A second one with the same journal returns an error that names the
// process of the first.
package deadletter

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
)

// A Letter is a dead letter.
type Letter struct {
	// Message is the message. Its Topic is the topic with the dead letter. Its Body is nil if the
	// letter was listed without bodies.
	Message tidegate.Message

	// Origin has the origin of the message and the reason why it became a dead letter. RocketMQ
	// records neither; there all fields except Redrives are zero.
	Origin tidegate.DeadLetter

	StoredAt time.Time // time at which it became a dead letter; zero if the server does not report it
	BodySize int       // in bytes

	page     string                   // of a Broker: start of its page, or of a page that begins with it
	filter   *status.DeadLetterFilter // of a Broker: of its page
	queue    int                      // of a Broker: its place
	offset   int64
	delivery *tidegate.Delivery // of a Queue
	born     time.Time          // of a Queue
}

// at tells a letter from others with its ID: the place of the original message, and its time if it
// was received.
func (l *Letter) at() string {
	at := strconv.Itoa(l.Origin.Queue) + "/" + strconv.FormatInt(l.Origin.Offset, 10)
	if !l.born.IsZero() {
		at += " born " + strconv.FormatInt(l.born.UnixMilli(), 10)
	}
	return at
}

// Generation returns the number of earlier redrives of the message.
func (l *Letter) Generation() int { return l.Origin.Redrives }

// Fingerprint returns a hash of the original topic and the first line of the reason, as 12
// hexadecimal digits. It ignores upper and lower case, words with digits and quoted texts in the
// reason. For example, "order 17 not found" and "order 18 not found" have the same fingerprint.
func (l *Letter) Fingerprint() string {
	return protocol.Fingerprint(l.Origin.Topic, l.Origin.Reason)
}

// A Filter selects the dead letters that match all of its fields. A zero field matches every
// letter.
type Filter struct {
	Topic       string    // topic of the original send
	MessageIDs  []string  // any of these
	Reason      string    // a part of the reason; upper and lower case differ
	Fingerprint string    // see Letter.Fingerprint
	Since       time.Time // it became a dead letter at this time or later
	Before      time.Time // it became a dead letter before this time

	// Match is called for dead letters that match all other fields, and reports whether to select
	// them. Nil means no further condition.
	Match func(*Letter) bool
}

// matches reports whether the filter selects a letter.
func (f *Filter) matches(l *Letter) bool {
	return (f.Topic == "" || f.Topic == l.Origin.Topic) &&
		(len(f.MessageIDs) == 0 || slices.Contains(f.MessageIDs, l.Message.ID)) &&
		strings.Contains(l.Origin.Reason, f.Reason) &&
		(f.Fingerprint == "" || f.Fingerprint == l.Fingerprint()) &&
		(f.Since.IsZero() || !l.StoredAt.Before(f.Since)) &&
		(f.Before.IsZero() || l.StoredAt.Before(f.Before)) &&
		(f.Match == nil || f.Match(l))
}

// onBroker is the part of the filter that a broker applies itself.
func (f *Filter) onBroker() status.DeadLetterFilter {
	return status.DeadLetterFilter{Topic: f.Topic, MessageIDs: f.MessageIDs, Reason: f.Reason, Since: f.Since, Before: f.Before}
}

// A Source has the dead letters of a group: a [Broker] or a [Queue].
type Source interface {
	// letters yields all dead letters in order, the oldest of each queue first. An error ends the
	// sequence.
	letters(ctx context.Context, f *Filter, q query) iter.Seq2[*Letter, error]

	// remove removes a letter that was sent as id from the dead letters.
	remove(ctx context.Context, l *Letter, id string) error

	// group is the consumer group.
	group() string
}

// A query has the parameters of a listing.
type query struct {
	page   int  // letters in one request
	bodies bool // with bodies
}

const (
	listPage    = 1000
	redrivePage = 200 // the broker reads a page again for each of its batches
	bodiesPage  = 100
)

// List returns the dead letters that match a filter, the oldest of each queue first. An error ends
// the sequence. On a Queue the letters are leased while the loop runs, and released after it.
func List(ctx context.Context, src Source, f Filter, bodies bool) iter.Seq2[*Letter, error] {
	return func(yield func(*Letter, error) bool) {
		q := query{page: listPage, bodies: bodies}
		if bodies {
			q.page = bodiesPage
		}
		for l, err := range src.letters(ctx, &f, q) {
			if err != nil {
				yield(nil, err)
				return
			}
			if !bodies {
				l.Message.Body = nil // a Queue receives bodies in any case
			}
			if f.matches(l) && !yield(l, nil) {
				return
			}
		}
	}
}

// A Class describes the dead letters with one fingerprint.
type Class struct {
	Fingerprint string
	Topic       string         // of their original sends
	Reason      string         // reason of the latest letter
	Reasons     map[string]int // number of letters for each reason, up to 100 reasons
	Count       int
	Bytes       int64     // of their bodies
	First, Last time.Time // times at which the first and the last became dead letters
	MaxRedrives int       // the largest number of redrives
	Sample      []string  // up to 10 message IDs
}

const (
	maxReasons = 100
	maxSample  = 10
)

// Summarize returns the classes of the dead letters that match a filter, the largest class first.
func Summarize(ctx context.Context, src Source, f Filter) ([]Class, error) {
	classes := map[string]*Class{}
	for l, err := range List(ctx, src, f, false) {
		if err != nil {
			return nil, err
		}
		id := l.Fingerprint()
		c := classes[id]
		if c == nil {
			c = &Class{Fingerprint: id, Topic: l.Origin.Topic, Reasons: map[string]int{}, First: l.StoredAt}
			classes[id] = c
		}
		c.add(l)
	}
	list := make([]Class, 0, len(classes))
	for _, c := range classes {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b Class) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	return list, nil
}

func (c *Class) add(l *Letter) {
	c.Count++
	c.Bytes += int64(l.BodySize)
	c.MaxRedrives = max(c.MaxRedrives, l.Generation())
	if l.StoredAt.Before(c.First) {
		c.First = l.StoredAt
	}
	if !l.StoredAt.Before(c.Last) {
		c.Last, c.Reason = l.StoredAt, l.Origin.Reason
	}
	if _, known := c.Reasons[l.Origin.Reason]; known || len(c.Reasons) < maxReasons {
		c.Reasons[l.Origin.Reason]++
	}
	if len(c.Sample) < maxSample {
		c.Sample = append(c.Sample, l.Message.ID)
	}
}
