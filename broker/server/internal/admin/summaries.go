package admin

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/overview"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
	"github.com/tidegate/tidegate/broker/server/internal/web"
	"github.com/tidegate/tidegate/broker/status"
)

// viewSummary is the value of view for rows of figures without settings.
const viewSummary = "summary"

// A TopicSummaries is a page of topics.
type TopicSummaries struct {
	Topics []status.TopicSummary `json:"topics"`
	Total  int64                 `json:"total"`
	AsOf   time.Time             `json:"as_of"`
	Next   string                `json:"next,omitempty"`
}

// A GroupSummaries is a page of groups.
type GroupSummaries struct {
	Groups []status.GroupSummary `json:"groups"`
	Total  int64                 `json:"total"`
	AsOf   time.Time             `json:"as_of"`
	Next   string                `json:"next,omitempty"`
}

// topicSummaries returns a page of the topics that the key may observe.
func (h *Handlers) topicSummaries(r *http.Request, l *listing) (int, any, error) {
	value, err := orderOf(l, overview.TopicValues)
	if err != nil {
		return 0, nil, err
	}
	state, err := stateOf(l, overview.TopicStates)
	if err != nil {
		return 0, nil, err
	}
	survey, err := h.surveys.Get(r.Context())
	if err != nil {
		return 0, nil, err
	}
	observer := h.gate.Observer(r)
	wanted := func(t *status.TopicSummary) bool { return state(t) && l.wants(t.Name) && observer.Topic(t.Name) }
	page, ok := overview.Select(survey.Topics, wanted, value, l.query())
	if !ok {
		return 0, nil, badAfter(l)
	}
	return http.StatusOK, web.Compact{Value: TopicSummaries{page.Rows, page.Total, survey.At, page.Next}}, nil
}

// groupSummaries is topicSummaries for groups, each in each of its topics.
func (h *Handlers) groupSummaries(r *http.Request, l *listing) (int, any, error) {
	value, err := orderOf(l, overview.GroupValues)
	if err != nil {
		return 0, nil, err
	}
	state, err := stateOf(l, overview.GroupStates)
	if err != nil {
		return 0, nil, err
	}
	survey, err := h.surveys.Get(r.Context())
	if err != nil {
		return 0, nil, err
	}
	observer := h.gate.Observer(r)
	wanted := func(g *status.GroupSummary) bool {
		return (l.topic == "" || g.Topic == l.topic) && state(g) && l.wants(g.Group) && observer.Group(g.Group)
	}
	page, ok := overview.Select(survey.Groups, wanted, value, l.query())
	if !ok {
		return 0, nil, badAfter(l)
	}
	return http.StatusOK, web.Compact{Value: GroupSummaries{page.Rows, page.Total, survey.At, page.Next}}, nil
}

func (l *listing) query() overview.Query {
	return overview.Query{Descending: strings.HasPrefix(l.sort, "-"), After: l.after, Limit: l.limit}
}

// orderOf returns the order of a list, nil for that of names.
func orderOf[T any](l *listing, values map[string]func(*T) float64) (func(*T) float64, error) {
	key := strings.TrimPrefix(l.sort, "-")
	if key == "" || key == "name" {
		return nil, nil //nolint:nilnil // the order of names
	}
	if f := values[key]; f != nil {
		return f, nil
	}
	return nil, refusal.New(tidegate.CodeBadRequest, "sort", fmt.Sprintf("sort is %.100q; give name, %s, after a - for the highest first", l.sort, words(values)))
}

// stateOf returns the condition of a list.
func stateOf[T any](l *listing, states map[string]func(*T) bool) (func(*T) bool, error) {
	if l.state == "" {
		return func(*T) bool { return true }, nil
	}
	if f := states[l.state]; f != nil {
		return f, nil
	}
	return nil, refusal.New(tidegate.CodeBadRequest, "state", fmt.Sprintf("state is %.100q; give %s", l.state, words(states)))
}

func words[V any](m map[string]V) string {
	all := slices.Sorted(maps.Keys(m))
	return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
}

func badAfter(l *listing) error {
	return refusal.New(tidegate.CodeBadRequest, "after", fmt.Sprintf("after is %.100q; give next of the page before, with the same sort", l.after))
}
