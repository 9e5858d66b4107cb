package catalog

import (
	"maps"
	"slices"
	"sync"
)

// watchers are the functions that are called after a change of settings of consumers. The zero
// value is ready for use.
type watchers struct {
	mu  sync.Mutex
	all map[*func(string)]struct{} // guarded by mu
}

// OnConsumerSettings adds a function that is called after each change of settings that consumers
// follow: with the name of a changed group, or with "" for address settings, which can concern
// every group. The caller of f holds the token of LockAdmin. f must not wait and must not change
// settings. After remove no new call begins; remove does not wait for a call under way.
func (c *Catalog) OnConsumerSettings(f func(group string)) (remove func()) {
	w := &c.watchers
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[*func(string)]struct{}{}
	}
	w.all[&f] = struct{}{}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.all, &f)
	}
}

// notify calls all functions with the name of a changed group, or with "" for all groups.
func (w *watchers) notify(group string) {
	w.mu.Lock()
	all := slices.Collect(maps.Keys(w.all))
	w.mu.Unlock()
	for _, f := range all {
		(*f)(group)
	}
}
