package server

import (
	"fmt"
	"maps"
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/access"
)

// The administration of address settings (Artemis: undelivered messages). In a path, the pattern's
// '#' is %23.

// aPattern is the subject of address settings, in errors.
const aPattern = "pattern"

// ListAddressSettings returns the address settings of all patterns.
func (h *adminRoutes) ListAddressSettings(http.ResponseWriter, *http.Request) (int, any, error) {
	return http.StatusOK, struct {
		Settings []status.Address `json:"address_settings"`
	}{notNil(h.engine.AllAddressSettings())}, nil
}

// GetAddressSettings returns the address settings of one pattern.
func (h *adminRoutes) GetAddressSettings(w http.ResponseWriter, r *http.Request) (int, any, error) {
	a, err := h.engine.AddressSettings(r.PathValue("match"))
	setETag(w, a.Revision)
	return http.StatusOK, a, err
}

// PutAddressSettings sets the address settings of a pattern.
func (h *adminRoutes) PutAddressSettings(w http.ResponseWriter, r *http.Request) (int, any, error) {
	match := r.PathValue("match")
	var a settings.Address
	if err := readJSON(w, r, &a); err != nil {
		return 0, nil, err
	}
	may, err := ifMatch(r, aPattern, match)
	if err != nil {
		return 0, nil, err
	}
	_, missing := h.engine.AddressSettings(match)
	set, err := h.engine.PutAddressSettings(r.Context(), match, a, may)
	setETag(w, set.Revision)
	return putStatus(missing), set, err
}

// DeleteAddressSettings removes the address settings of a pattern.
func (h *adminRoutes) DeleteAddressSettings(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	match := r.PathValue("match")
	may, err := ifMatch(r, aPattern, match)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, h.engine.DeleteAddressSettings(r.Context(), match, may)
}

// GetTopicAddressSettings returns the address settings that apply to a topic, and the patterns that
// they come from.
func (h *adminRoutes) GetTopicAddressSettings(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return http.StatusOK, h.engine.TopicAddressSettings(r.PathValue("topic")), nil
}

// GetTopic returns one topic.
func (h *adminRoutes) GetTopic(w http.ResponseWriter, r *http.Request) (int, any, error) {
	t, err := h.engine.Topic(r.PathValue("topic"))
	setETag(w, t.Revision)
	return http.StatusOK, t, err
}

// PutTopic creates a topic, or changes its settings.
func (h *adminRoutes) PutTopic(w http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("topic")
	var c settings.Topic
	raw, err := readObject(w, r, maxAdminBody, &c)
	if err != nil {
		return 0, nil, err
	}
	if c.Queues == 0 && entryNames(raw, "queues") {
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "queues", "queues is 0; give 1 to %d, or leave it out for %d in a new topic", settings.MaxQueues, settings.Topic{}.WithDefaults().Queues)
	}
	may, err := ifMatch(r, "topic", name)
	if err != nil {
		return 0, nil, err
	}
	_, missing := h.engine.TopicSettings(name)
	defer h.surveys.Expire()
	t, err := h.engine.PutTopic(r.Context(), name, c, may)
	setETag(w, t.Revision)
	return putStatus(missing), t, err
}

// DeleteTopic removes a topic with its messages.
func (h *adminRoutes) DeleteTopic(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("topic")
	may, err := ifMatch(r, "topic", name)
	if err != nil {
		return 0, nil, err
	}
	defer h.surveys.Expire()
	return http.StatusNoContent, nil, h.engine.DeleteTopic(r.Context(), name, may)
}

// GetGroup returns one consumer group.
func (h *adminRoutes) GetGroup(w http.ResponseWriter, r *http.Request) (int, any, error) {
	g, err := h.engine.Group(r.PathValue("group"))
	setETag(w, g.Revision)
	return http.StatusOK, g, err
}

// PutGroup creates a consumer group, or changes its settings. The topics that the settings name
// need permissions of their own.
func (h *adminRoutes) PutGroup(w http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("group")
	var c settings.Group
	if err := readJSON(w, r, &c); err != nil {
		return 0, nil, err
	}
	if err := h.permitTopics(r, name, &c.RetryTopic); err != nil {
		return 0, nil, err
	}
	may, err := ifMatch(r, "group", name)
	if err != nil {
		return 0, nil, err
	}
	_, missing := h.engine.Group(name)
	defer h.surveys.Expire()
	g, err := h.engine.PutGroup(r.Context(), name, c, may)
	setETag(w, g.Revision)
	return putStatus(missing), g, err
}

// PatchGroup changes the settings of a consumer group that the body names.
func (h *adminRoutes) PatchGroup(w http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("group")
	patch, err := readPatch[settings.Group](w, r)
	if err != nil {
		return 0, nil, err
	}
	may, err := ifMatch(r, "group", name)
	if err != nil {
		return 0, nil, err
	}
	defer h.surveys.Expire()
	g, err := h.engine.PatchGroup(r.Context(), name, func(c *settings.Group) error {
		if err := patch(c); err != nil {
			return err
		}
		return h.permitTopics(r, name, &c.RetryTopic)
	}, may)
	setETag(w, g.Revision)
	return http.StatusOK, g, err
}

// permitTopics checks the permissions for the topics that retry settings of a group name.
func (h *adminRoutes) permitTopics(r *http.Request, group string, c *settings.RetryTopic) error {
	var needs []access.Need // for topics that are not the group's own by their names
	if to := c.Topic; to != "" {
		needs = append(needs, access.ToSend(to), access.ToReceive(to, group)) // receives of the group take from it
	}
	if to := c.DeadLetterTopic; to != "" {
		needs = append(needs, access.ToSend(to))
	}
	return h.gate.Permit(r, needs...)
}

// DeleteGroup removes a consumer group with its progress.
func (h *adminRoutes) DeleteGroup(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("group")
	may, err := ifMatch(r, "group", name)
	if err != nil {
		return 0, nil, err
	}
	defer h.surveys.Expire()
	return http.StatusNoContent, nil, h.engine.DeleteGroup(r.Context(), name, may)
}

func putStatus(missing error) int {
	if missing != nil {
		return http.StatusCreated
	}
	return http.StatusOK
}

func notNil[T any](s []T) []T {
	if s == nil {
		return []T{} // [] in JSON, not null
	}
	return s
}

// PurgeTopic responds to POST /v1/topics/{topic}/purge with the removed messages.
func (h *adminRoutes) PurgeTopic(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	q := queryOf(r, "dry_run")
	dry := q.Yes("dry_run")
	if q.Err != nil {
		return 0, nil, q.Err
	}
	type result struct {
		Removed status.Backlog `json:"removed"`
	}
	if dry {
		removed, err := h.engine.CountPurge(r.PathValue("topic"))
		return http.StatusOK, plan{result{removed}}, err
	}
	defer h.surveys.Expire()
	removed, err := h.engine.PurgeTopic(r.Context(), r.PathValue("topic"))
	return http.StatusOK, result{removed}, err
}

// GetThrottle returns the limits that reject sends now, the other ones, and the broker's own.
func (h *adminRoutes) GetThrottle(w http.ResponseWriter, _ *http.Request) (int, any, error) {
	a := status.Throttles{Throttles: []status.LimitState{}, NotReached: []status.LimitState{}}
	a.Limits, a.Revision = h.engine.LimitsRevision()
	setETag(w, a.Revision)
	for _, l := range h.engine.Throttles() {
		if l.On {
			a.Throttles = append(a.Throttles, l)
		} else {
			a.NotReached = append(a.NotReached, l)
		}
	}
	return http.StatusOK, a, nil
}

// PutThrottle sets the limits of the whole broker; those that are left out
// get their defaults.
func (h *adminRoutes) PutThrottle(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var l settings.Limits
	if err := readJSON(w, r, &l); err != nil {
		return 0, nil, err
	}
	return h.changeLimits(w, r, func(now *settings.Limits) error { *now = l; return nil })
}

// PatchThrottle changes the limits of the whole broker that the body names.
func (h *adminRoutes) PatchThrottle(w http.ResponseWriter, r *http.Request) (int, any, error) {
	patch, err := readPatch[settings.Limits](w, r)
	if err != nil {
		return 0, nil, err
	}
	return h.changeLimits(w, r, patch)
}

func (h *adminRoutes) changeLimits(w http.ResponseWriter, r *http.Request, change func(*settings.Limits) error) (int, any, error) {
	may, err := ifMatch(r, "broker", "limits")
	if err != nil {
		return 0, nil, err
	}
	if err := h.engine.PatchLimits(r.Context(), change, may); err != nil {
		return 0, nil, err
	}
	return h.GetThrottle(w, r)
}

// The sizes of a page of topics or groups.
const (
	defaultList = 100
	maxList     = 1000
)

// A topicList is a page of topics, or all of them.
type topicList struct {
	Topics []status.Topic `json:"topics"`
	Next   string         `json:"next,omitempty"`
}

// A groupList is a page of consumer groups, or all of them.
type groupList struct {
	Groups []status.Group `json:"groups"`
	Next   string         `json:"next,omitempty"`
}

// A pageQuery is the query of a page.
type pageQuery struct {
	after, match string
	limit        int
	all          bool // no page: the form without parameters

	// The summary view only.
	summary            bool
	sort, state, topic string
}

// pageQueryOf reads the query. more are the parameters of the summary view in addition to the
// common ones.
func pageQueryOf(r *http.Request, more ...string) (l pageQuery, err error) {
	if r.URL.RawQuery == "" {
		return pageQuery{all: true}, nil
	}
	more = append(more, "sort", "state")
	q := queryOf(r, append([]string{"after", "limit", "match", "view"}, more...)...)
	l = pageQuery{
		after: q.Text("after"), match: q.Text("match"), limit: q.Number("limit"),
		sort: q.Text("sort"), state: q.Text("state"), topic: q.Text("topic"),
	}
	switch view := q.Text("view"); view {
	case viewSummary:
		l.summary = true
	case "":
		for _, name := range more {
			if q.Err == nil && q.Text(name) != "" {
				return l, refusal.New(tidegate.CodeBadRequest, name, "%s", name+" needs view="+viewSummary)
			}
		}
	default:
		return l, refusal.New(tidegate.CodeBadRequest, "view", "view is %.100q; give %s, or leave it out", view, viewSummary)
	}
	if q.Err != nil {
		return l, q.Err
	}
	if _, err := path.Match(l.match, ""); err != nil {
		return l, refusal.New(tidegate.CodeBadRequest, "match", "match is %.100q: %v; give a name with *, ? and [a-z]", l.match, err)
	}
	if l.limit < 0 || l.limit > maxList {
		return l, refusal.New(tidegate.CodeBadRequest, "limit", "limit is %d; give 1 to %d, or leave it out for %d", l.limit, maxList, defaultList)
	}
	if l.limit == 0 {
		l.limit = defaultList
	}
	return l, nil
}

// wants reports whether the pattern selects a name.
func (l *pageQuery) wants(name string) bool {
	if l.match == "" {
		return true
	}
	ok, _ := path.Match(l.match, name) // the pattern is valid
	return ok
}

// ListTopics returns all topics, or a page of those that the key may observe.
func (h *adminRoutes) ListTopics(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	l, err := pageQueryOf(r)
	if err != nil {
		return 0, nil, err
	}
	if l.summary {
		return h.topicSummaries(r, &l)
	}
	if l.all {
		return http.StatusOK, topicList{Topics: notNil(h.engine.Topics())}, nil
	}
	observer := h.gate.Observer(r)
	page, more := h.engine.TopicsPage(l.after, l.limit, func(name string) bool {
		return l.wants(name) && observer.Topic(name)
	})
	out := topicList{Topics: notNil(page)}
	if more {
		out.Next = page[len(page)-1].Name
	}
	return http.StatusOK, out, nil
}

// ListGroups returns all consumer groups, or a page of those that the key may observe.
func (h *adminRoutes) ListGroups(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	l, err := pageQueryOf(r, "topic")
	if err != nil {
		return 0, nil, err
	}
	if l.summary {
		return h.groupSummaries(r, &l)
	}
	if l.all {
		return http.StatusOK, groupList{Groups: notNil(h.engine.Groups())}, nil
	}
	observer := h.gate.Observer(r)
	page, more := h.engine.GroupsPage(l.after, l.limit, func(name string) bool {
		return l.wants(name) && observer.Group(name)
	})
	out := groupList{Groups: notNil(page)}
	if more {
		out.Next = page[len(page)-1].Name
	}
	return http.StatusOK, out, nil
}

// viewSummary is the value of view for rows of figures without settings.
const viewSummary = "summary"

// A topicSummaries is a page of topics.
type topicSummaries struct {
	Topics []status.TopicSummary `json:"topics"`
	Total  int64                 `json:"total"`
	AsOf   time.Time             `json:"as_of"`
	Next   string                `json:"next,omitempty"`
}

// A groupSummaries is a page of groups.
type groupSummaries struct {
	Groups []status.GroupSummary `json:"groups"`
	Total  int64                 `json:"total"`
	AsOf   time.Time             `json:"as_of"`
	Next   string                `json:"next,omitempty"`
}

// topicSummaries returns a page of the topics that the key may observe.
func (h *adminRoutes) topicSummaries(r *http.Request, l *pageQuery) (int, any, error) {
	value, err := orderOf(l, topicValues)
	if err != nil {
		return 0, nil, err
	}
	state, err := stateOf(l, topicStates)
	if err != nil {
		return 0, nil, err
	}
	survey, err := h.surveys.Get(r.Context())
	if err != nil {
		return 0, nil, err
	}
	observer := h.gate.Observer(r)
	wanted := func(t *status.TopicSummary) bool { return state(t) && l.wants(t.Name) && observer.Topic(t.Name) }
	page, ok := selectPage(survey.Topics, wanted, value, l.query())
	if !ok {
		return 0, nil, badAfter(l)
	}
	return http.StatusOK, compact{Value: topicSummaries{page.Rows, page.Total, survey.At, page.Next}}, nil
}

// groupSummaries is topicSummaries for groups, each in each of its topics.
func (h *adminRoutes) groupSummaries(r *http.Request, l *pageQuery) (int, any, error) {
	value, err := orderOf(l, groupValues)
	if err != nil {
		return 0, nil, err
	}
	state, err := stateOf(l, groupStates)
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
	page, ok := selectPage(survey.Groups, wanted, value, l.query())
	if !ok {
		return 0, nil, badAfter(l)
	}
	return http.StatusOK, compact{Value: groupSummaries{page.Rows, page.Total, survey.At, page.Next}}, nil
}

func (l *pageQuery) query() summaryQuery {
	return summaryQuery{Descending: strings.HasPrefix(l.sort, "-"), After: l.after, Limit: l.limit}
}

// orderOf returns the order of a list, nil for that of names.
func orderOf[T any](l *pageQuery, values map[string]func(*T) float64) (func(*T) float64, error) {
	key := strings.TrimPrefix(l.sort, "-")
	if key == "" || key == "name" {
		return nil, nil //nolint:nilnil // the order of names
	}
	if f := values[key]; f != nil {
		return f, nil
	}
	return nil, refusal.New(tidegate.CodeBadRequest, "sort", "sort is %.100q; give name, %s, after a - for the highest first", l.sort, words(values))
}

// stateOf returns the condition of a list.
func stateOf[T any](l *pageQuery, states map[string]func(*T) bool) (func(*T) bool, error) {
	if l.state == "" {
		return func(*T) bool { return true }, nil
	}
	if f := states[l.state]; f != nil {
		return f, nil
	}
	return nil, refusal.New(tidegate.CodeBadRequest, "state", "state is %.100q; give %s", l.state, words(states))
}

func words[V any](m map[string]V) string {
	all := slices.Sorted(maps.Keys(m))
	return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
}

func badAfter(l *pageQuery) error {
	return refusal.New(tidegate.CodeBadRequest, "after", "after is %.100q; give next of the page before, with the same sort", l.after)
}

// A snapshotResult is a consistent copy of the data directory.
type snapshotResult struct {
	Path string `json:"path"` // absolute
}

// PostSnapshot writes a snapshot into a new directory below the configured one. The directory is
// named for the time, so that a list of names is in the order of the snapshots.
func (h *adminRoutes) PostSnapshot(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	if h.snapshots == "" {
		return 0, nil, refusal.New(tidegate.CodeBadRequest, "snapshot", "no directory for snapshots is configured; set snapshot_dir (--snapshot-dir) to a directory on the file system of the data")
	}
	dir, err := filepath.Abs(h.snapshots) // the client has another working directory
	if err != nil {
		return 0, nil, fmt.Errorf("the path of the snapshot: %w", err)
	}
	s := snapshotResult{filepath.Join(dir, "snapshot-"+time.Now().UTC().Format("20060102T150405.000000Z"))}
	return http.StatusCreated, s, h.engine.Snapshot(r.Context(), s.Path)
}
