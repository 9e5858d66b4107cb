package broker

import (
	"slices"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/status"
)

// TopicsPage returns up to limit topics by name, of those after a name that wanted accepts, and
// reports whether there are more. It looks at the state of the returned topics only.
func (b served) TopicsPage(after string, limit int, wanted func(name string) bool) (page []status.Topic, more bool) {
	ts, _ := b.catalog.All()
	first, more := firstNames(ts, (*engine.Topic).Name, after, limit, wanted)
	for _, t := range first {
		page = append(page, b.describe(t))
	}
	return page, more
}

// GroupsPage is TopicsPage for consumer groups.
func (b served) GroupsPage(after string, limit int, wanted func(name string) bool) (page []status.Group, more bool) {
	first, more := firstNames(b.catalog.AllGroups(), (*engine.Group).Name, after, limit, wanted)
	looks := new(int64(engine.MaxLook))
	for _, g := range first {
		page = append(page, b.describeGroup(g, looks))
	}
	return page, more
}

// firstNames returns the first subjects by name, of those after a name that wanted accepts.
func firstNames[T any](all []T, name func(T) string, after string, limit int, wanted func(name string) bool) (first []T, more bool) {
	byName := func(x, y T) int {
		switch a, b := name(x), name(y); {
		case a < b:
			return -1
		case a > b:
			return 1
		}
		return 0
	}
	for _, s := range all {
		n := name(s)
		if n <= after || len(first) >= limit && n > name(first[limit-1]) && more || !wanted(n) {
			continue
		}
		if first = append(first, s); len(first) == 2*limit { // the rest cannot be among the first
			slices.SortFunc(first, byName)
			first, more = first[:limit], true
		}
	}
	slices.SortFunc(first, byName)
	if len(first) > limit {
		return first[:limit], true
	}
	return first, more
}
