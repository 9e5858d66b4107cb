package letters

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/classes"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// A ClassPage is a page of the classes of dead letters of a group in a topic.
type ClassPage struct {
	Letters int64 // of all classes, Rest included
	Classes []store.LetterClass
	Rest    store.LetterClass // its Count is 0 if there is none
	Next    string            // empty on the last page
}

// Classes returns a page of the classes of a group in the topic in, or in %DLQ%group if in is
// empty, the largest first. from is the topic of the original sends; empty means all. It reads only
// memory. The errors are those of Browse.
func (l *Letters) Classes(group, in, from, after string, limit int) (p ClassPage, err error) {
	at, err := parseClassPosition(after)
	if err != nil {
		return p, err
	}
	t, err := l.topicOf(group, in)
	if err != nil || t == nil {
		return p, err
	}
	all, rest := t.Classes().Of(group)
	p.Rest, p.Letters = rest, rest.Count
	for i := range all {
		p.Letters += all[i].Count
	}
	p.Classes = slices.DeleteFunc(all, func(c store.LetterClass) bool {
		return from != "" && c.Topic != from || after != "" && classes.Compare(c, at) <= 0
	})
	if len(p.Classes) > limit {
		p.Classes = p.Classes[:limit:limit]
		last := &p.Classes[limit-1]
		p.Next = fmt.Sprintf("%d-%s", last.Count, last.Fingerprint)
	}
	return p, nil
}

// parseClassPosition reads the position of a page, which has the count and the fingerprint of the
// class before it.
func parseClassPosition(text string) (at store.LetterClass, err error) {
	if text == "" {
		return at, nil
	}
	count, fingerprint, ok := strings.Cut(text, "-")
	at.Fingerprint = fingerprint
	n, nerr := strconv.ParseInt(count, 10, 64)
	if at.Count = n; !ok || nerr != nil || n <= 0 || fingerprint == "" {
		return at, refusal.New(tidegate.CodeBadRequest, "after", "%.40q is not the position of a page; give the value next of the previous page, or nothing for the first page", text)
	}
	return at, nil
}
