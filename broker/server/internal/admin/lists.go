package admin

import (
	"fmt"
	"net/http"
	"path"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/web"
	"github.com/tidegate/tidegate/broker/status"
)

// The sizes of a page of topics or groups.
const (
	defaultList = 100
	maxList     = 1000
)

// A TopicList is a page of topics, or all of them.
type TopicList struct {
	Topics []status.Topic `json:"topics"`
	Next   string         `json:"next,omitempty"`
}

// A GroupList is a page of consumer groups, or all of them.
type GroupList struct {
	Groups []status.Group `json:"groups"`
	Next   string         `json:"next,omitempty"`
}

// A listing is the query of a page.
type listing struct {
	after, match string
	limit        int
	all          bool // no page: the form without parameters

	// The summary view only.
	summary            bool
	sort, state, topic string
}

// listingOf reads the query. more are the parameters of the summary view in addition to the common
// ones.
func listingOf(r *http.Request, more ...string) (l listing, err error) {
	if r.URL.RawQuery == "" {
		return listing{all: true}, nil
	}
	more = append(more, "sort", "state")
	q := web.QueryOf(r, append([]string{"after", "limit", "match", "view"}, more...)...)
	l = listing{
		after: q.Text("after"), match: q.Text("match"), limit: q.Number("limit"),
		sort: q.Text("sort"), state: q.Text("state"), topic: q.Text("topic"),
	}
	switch view := q.Text("view"); view {
	case viewSummary:
		l.summary = true
	case "":
		for _, name := range more {
			if q.Err == nil && q.Text(name) != "" {
				return l, refusal.New(tidegate.CodeBadRequest, name, name+" needs view="+viewSummary)
			}
		}
	default:
		return l, refusal.New(tidegate.CodeBadRequest, "view", fmt.Sprintf("view is %.100q; give %s, or leave it out", view, viewSummary))
	}
	if q.Err != nil {
		return l, q.Err
	}
	if _, err := path.Match(l.match, ""); err != nil {
		return l, refusal.New(tidegate.CodeBadRequest, "match", fmt.Sprintf("match is %.100q: %v; give a name with *, ? and [a-z]", l.match, err))
	}
	if l.limit < 0 || l.limit > maxList {
		return l, refusal.New(tidegate.CodeBadRequest, "limit", fmt.Sprintf("limit is %d; give 1 to %d, or leave it out for %d", l.limit, maxList, defaultList))
	}
	if l.limit == 0 {
		l.limit = defaultList
	}
	return l, nil
}

// wants reports whether the pattern selects a name.
func (l *listing) wants(name string) bool {
	if l.match == "" {
		return true
	}
	ok, _ := path.Match(l.match, name) // the pattern is valid
	return ok
}

// ListTopics returns all topics, or a page of those that the key may observe.
func (h *Handlers) ListTopics(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	l, err := listingOf(r)
	if err != nil {
		return 0, nil, err
	}
	if l.summary {
		return h.topicSummaries(r, &l)
	}
	if l.all {
		return http.StatusOK, TopicList{Topics: notNil(h.engine.Topics())}, nil
	}
	observer := h.gate.Observer(r)
	page, more := h.engine.TopicsPage(l.after, l.limit, func(name string) bool {
		return l.wants(name) && observer.Topic(name)
	})
	out := TopicList{Topics: notNil(page)}
	if more {
		out.Next = page[len(page)-1].Name
	}
	return http.StatusOK, out, nil
}

// ListGroups returns all consumer groups, or a page of those that the key may observe.
func (h *Handlers) ListGroups(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	l, err := listingOf(r, "topic")
	if err != nil {
		return 0, nil, err
	}
	if l.summary {
		return h.groupSummaries(r, &l)
	}
	if l.all {
		return http.StatusOK, GroupList{Groups: notNil(h.engine.Groups())}, nil
	}
	observer := h.gate.Observer(r)
	page, more := h.engine.GroupsPage(l.after, l.limit, func(name string) bool {
		return l.wants(name) && observer.Group(name)
	})
	out := GroupList{Groups: notNil(page)}
	if more {
		out.Next = page[len(page)-1].Name
	}
	return http.StatusOK, out, nil
}
