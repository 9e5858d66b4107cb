package deadletter

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"time"
)

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
