package letters

import (
	"math"

	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/topic"
	"github.com/tidegate/tidegate/broker/status"
)

// A Query selects dead letters of a group.
type Query struct {
	status.DeadLetterFilter
	In    string // topic with the dead letters; empty means %DLQ%group
	After string // position of the previous page; empty means the beginning
	Limit int    // maximum number of dead letters

	Newest bool // the newest letter of each queue first, and the queues in descending order

	NoBodies bool  // omit the bodies
	MaxBytes int64 // ends a page that has so many bytes; 0 means no limit beside that of a call
}

// Browse returns one page of dead letters, in the order of the query, and the position of the
// next page, which is empty after the last one. A call reads a bounded number of messages, so any
// page can have fewer dead letters than the limit. The error is 40403 if there is neither such a
// group nor a dead letter of it, 40402 if the query names an unknown topic, and 40000 if After is
// invalid.
func (l *Letters) Browse(group string, q Query) (page []deadletter.Letter, next string, err error) {
	_, scan, err := l.scan(group, &q)
	if err != nil || scan == nil {
		return nil, "", err
	}
	left := q.MaxBytes
	if left == 0 {
		left = math.MaxInt64
	}
	for len(page) < q.Limit && left > 0 && !scan.Over() {
		scan.AtATime = left
		found, err := scan.Next(q.Limit - len(page))
		if err != nil {
			return page, "", refusal.Store(err)
		}
		for i := range found {
			l := &found[i]
			l.BodySize = len(l.Body)
			if q.NoBodies {
				l.Body = nil
			}
			left -= int64(l.Size())
		}
		page = append(page, found...)
	}
	return page, scan.Position(), nil
}

// Count returns the number of the dead letters that a query selects, and the position to continue
// at, which is empty at the end. Limits of the query do not apply; a call reads a bounded number of
// messages. The errors are those of Browse.
func (l *Letters) Count(group string, q Query) (n int64, next string, err error) {
	_, scan, err := l.scan(group, &q)
	if err != nil || scan == nil {
		return 0, "", err
	}
	for !scan.Over() {
		found, err := scan.Next(deadletter.Chunk)
		if err != nil {
			return n, "", refusal.Store(err)
		}
		n += int64(len(found))
	}
	return n, scan.Position(), nil
}

// scan begins the scan of a query. It returns nil if the group has no topic of dead letters yet.
func (l *Letters) scan(group string, q *Query) (*topic.Topic, *deadletter.Scan, error) {
	at, err := parsePosition(q.After)
	if err != nil {
		return nil, nil, err
	}
	t, err := l.topicOf(group, q.In)
	if err != nil || t == nil {
		return nil, nil, err
	}
	if q.Newest && q.After == "" {
		at = deadletter.Last(source{t, l})
	}
	return t, &deadletter.Scan{
		Topic: source{t, l}, Group: group, Filter: q.DeadLetterFilter, At: at, Newest: q.Newest,
		Messages: deadletter.BrowseMessages, Bytes: deadletter.BrowseBytes,
	}, nil
}
