package session

import (
	"bytes"
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

const (
	// maxTopics bounds the topics that a page shows of a client.
	maxTopics = 16

	// maxFilter bounds the bytes of a filter's expression that a page shows.
	maxFilter = 256

	// maxVersions bounds the versions of a page, and maxCounted those that a request counts:
	// clients choose them.
	maxVersions = 100
	maxCounted  = 1000
)

// Kinds are the kinds of clients.
var Kinds = []string{"producer", "push_consumer", "simple_consumer", "lite_push_consumer", "http", "consumer"}

// A Listing is a query of clients.
type Listing struct {
	status.ClientQuery // its Limit and Match are valid

	Keyed bool // an access key precedes the IDs
}

// An Observer is the principal of a request.
type Observer interface {
	Broker() bool           // may observe the whole broker
	Topic(name string) bool // may observe a topic
	Group(name string) bool // may observe a group
}

// permissions are the permissions of an observer, each looked up once.
type permissions struct {
	of             Observer
	all            bool            // may observe the whole broker
	groups, topics map[string]bool // by name: may observe it
}

func permissionsOf(o Observer) *permissions {
	return &permissions{of: o, all: o.Broker(), groups: map[string]bool{}, topics: map[string]bool{}}
}

func (p *permissions) group(name string) bool { return lookedUp(p.groups, name, p.of.Group) }
func (p *permissions) topic(name string) bool { return lookedUp(p.topics, name, p.of.Topic) }

// lookedUp returns the permission for a name, and asks for it once.
func lookedUp(known map[string]bool, name string, ask func(string) bool) bool {
	may, found := known[name]
	if !found {
		may = ask(name)
		known[name] = may
	}
	return may
}

// A listed client is one of a page.
type listed struct {
	*Client
	publishes []string
	seen      time.Time
	version   version
}

// Page returns a page of the clients that an observer may know of. It looks at all clients, but
// decodes the settings only of those of the page, and of those that may match a topic.
func (r *Clients) Page(q *Listing, o Observer) status.ClientPage {
	now := time.Now()
	may := permissionsOf(o)
	newest, known := map[string]version{}, versions{}
	visible := slices.DeleteFunc(r.all(), func(c listed) bool { return !may.see(&c) })
	for i := range visible {
		c := &visible[i]
		c.version = known.of(c.Profile())
		if v, ok := newest[c.version.language]; c.version.newer(&v) && (ok || len(newest) < maxCounted) {
			newest[c.version.language] = c.version
		}
	}
	outdated := func(v *version) bool { n := newest[v.language]; return n.newer(v) }
	out := status.ClientPage{Clients: []status.Client{}, AsOf: now}
	counts := map[[2]string]*status.ClientVersion{}
	var page []listed
	byID := func(x, y listed) int { return cmp.Compare(x.id, y.id) }
	left := 0
	for i := range visible {
		c := &visible[i]
		old := outdated(&c.version)
		if q.Outdated && !old || !q.wants(c, now) {
			continue
		}
		out.Total++
		countVersion(counts, &c.version, old)
		if c.id <= q.After {
			continue
		}
		left++
		if page = append(page, *c); len(page) >= 2*q.Limit { // the rest cannot be on the page
			slices.SortFunc(page, byID)
			page = page[:q.Limit]
		}
	}
	slices.SortFunc(page, byID)
	page = page[:min(len(page), q.Limit)]
	for i := range page {
		c := r.describe(&page[i], q, may)
		c.Outdated = outdated(&page[i].version)
		out.Clients = append(out.Clients, c)
	}
	if left > len(page) {
		out.Next = page[len(page)-1].id
	}
	out.Versions = mostUsed(counts)
	return out
}

// CountGroups returns the number of clients of each consumer group. It is called once a second at
// most, and looks at all clients.
func (r *Clients) CountGroups() map[string]int64 {
	counts := map[string]int64{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.byID {
		if group := c.group(); group != "" && !c.goneLocked() {
			counts[group]++
		}
	}
	return counts
}

// all returns all clients that are not gone, with the topics that they publish.
func (r *Clients) all() []listed {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]listed, 0, len(r.byID))
	for _, c := range r.byID {
		if c.goneLocked() {
			continue
		}
		out = append(out, listed{Client: c, publishes: c.topics, seen: c.lastSeenLocked()}) // topics only grows, or is replaced
	}
	return out
}

// see reports whether the observer may know of a client.
func (p *permissions) see(c *listed) bool {
	if p.all {
		return true
	}
	if name := c.group(); name != "" {
		return p.group(name)
	}
	return slices.ContainsFunc(c.publishes, p.topic)
}

// wants reports whether the query selects a client.
func (q *Listing) wants(c *listed, now time.Time) bool {
	if q.Match != "" {
		if ok, _ := path.Match(noSlash(q.Match), noSlash(c.id)); !ok { // the pattern is valid
			return false
		}
	}
	return (q.Kind == "" || q.Kind == c.kind()) &&
		(q.Group == "" || q.Group == c.group()) &&
		(q.Language == "" || strings.EqualFold(q.Language, c.version.language)) &&
		(q.Version == "" || q.Version == c.version.text) &&
		(q.Idle == 0 || now.Sub(c.seen) >= q.Idle) &&
		(q.Topic == "" || c.uses(q.Topic))
}

// noSlash replaces the slash after the access key, which path.Match would not match with *.
func noSlash(text string) string { return strings.ReplaceAll(text, "/", "\x00") }

// describe returns a client of a page.
func (r *Clients) describe(c *listed, q *Listing, may *permissions) status.Client {
	r.mu.Lock()
	streams, waiting := len(c.streams), len(c.polls)
	r.mu.Unlock()
	out := status.Client{
		ID: c.id, Kind: c.kind(), Language: c.version.language, Version: c.version.text, Group: c.group(),
		Since: c.since, LastSeen: c.seen, Online: streams+waiting > 0, Waiting: int64(waiting), Inflight: c.holder.Inflight(),
	}
	if q.Keyed {
		out.Key, _, _ = strings.Cut(c.id, "/")
	}
	if at := c.address.Load(); at != nil && may.all {
		out.Address = *at
	}
	in, _ := c.Profile().Settings() // it cannot fail
	out.Host = cut(in.GetUserAgent().GetHostname())
	for _, name := range c.allTopics(in) {
		switch {
		case len(out.Topics) == maxTopics, out.Group == "" && !may.all && !may.topic(name):
			out.Hidden++
		default:
			out.Topics = append(out.Topics, name)
		}
	}
	out.Filters = c.filters(in, func(topic string) bool {
		return slices.Contains(out.Topics, topic) && (may.all || may.topic(topic))
	})
	return out
}

// filters returns the filters of a consumer for the shown topics. That of its last receive goes
// before that of its settings, because clients change their subscriptions while they run.
func (c *listed) filters(in *rmqpb.Settings, shown func(topic string) bool) map[string]string {
	out := map[string]string{}
	note := func(topic, expression string, kind rmqpb.FilterType) {
		delete(out, topic)
		switch expression = strings.TrimSpace(strings.ToValidUTF8(expression[:min(len(expression), maxFilter)], "")); {
		case expression == "" || expression == "*" || !shown(topic):
		case kind == rmqpb.FilterType_SQL:
			out[topic] = "SQL92: " + expression
		case kind == rmqpb.FilterType_TAG, kind == rmqpb.FilterType_FILTER_TYPE_UNSPECIFIED:
			out[topic] = tagsOf(expression)
		default: // of a newer client, whose receives are rejected
			out[topic] = fmt.Sprintf("unknown type %d: %s", kind, expression)
		}
	}
	for _, e := range in.GetSubscription().GetSubscriptions() {
		f := e.GetExpression()
		note(e.GetTopic().GetName(), f.GetExpression(), f.GetType())
	}
	if at := c.reception.Load(); at != nil {
		kind := rmqpb.FilterType_TAG
		if at.filter.SQL {
			kind = rmqpb.FilterType_SQL
		}
		note(at.topic, at.filter.Expression, kind)
	}
	return out
}

// tagsOf returns a filter by tags in the form that all filters for the same tags have. Empty parts
// are ignored, as in the engine.
func tagsOf(expression string) string {
	var tags []string
	for tag := range strings.SplitSeq(expression, "||") {
		if tag = strings.TrimSpace(tag); tag != "" {
			tags = append(tags, tag)
		}
	}
	slices.Sort(tags)
	return strings.Join(slices.Compact(tags), " || ")
}

// allTopics returns the topics that a client names in its settings, publishes, or received from.
func (c *listed) allTopics(in *rmqpb.Settings) []string {
	names := slices.Clone(c.publishes)
	for _, t := range in.GetPublishing().GetTopics() {
		names = append(names, t.GetName())
	}
	for _, e := range in.GetSubscription().GetSubscriptions() {
		names = append(names, e.GetTopic().GetName())
	}
	if at := c.reception.Load(); at != nil {
		names = append(names, at.topic)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// uses reports whether allTopics has a topic.
func (c *listed) uses(topic string) bool {
	if at := c.reception.Load(); slices.Contains(c.publishes, topic) || at != nil && at.topic == topic {
		return true
	}
	p := c.Profile()
	if p == nil || !bytes.Contains(p.settings, []byte(topic)) {
		return false
	}
	in, _ := p.Settings() // it cannot fail
	return slices.Contains(c.allTopics(in), topic)
}

// countVersion counts a client.
func countVersion(counts map[[2]string]*status.ClientVersion, v *version, outdated bool) {
	if v.language == "" && v.text == "" {
		return
	}
	key := [2]string{v.language, v.text}
	n := counts[key]
	if n == nil {
		if len(counts) == maxCounted {
			return
		}
		n = &status.ClientVersion{Language: v.language, Version: v.text, Outdated: outdated}
		counts[key] = n
	}
	n.Clients++
}

// mostUsed returns the versions with the most clients.
func mostUsed(counts map[[2]string]*status.ClientVersion) []status.ClientVersion {
	out := make([]status.ClientVersion, 0, len(counts))
	for _, v := range counts {
		out = append(out, *v)
	}
	slices.SortFunc(out, func(x, y status.ClientVersion) int {
		return cmp.Or(cmp.Compare(y.Clients, x.Clients), cmp.Compare(x.Language, y.Language), cmp.Compare(x.Version, y.Version))
	})
	return out[:min(len(out), maxVersions)]
}
