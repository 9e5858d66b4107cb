package broker

import (
	"maps"
	"slices"
	"sync"
)

// watchers are who is told of changed settings of consumers. The zero value is ready for use.
type watchers struct {
	mu  sync.Mutex
	all map[*func(string)]struct{} // guarded by mu
}

// OnConsumerSettings has f called whenever settings that consumers follow were
// changed, by whomever: with the name of a group that was put, or with "" for address settings,
// which may concern any group. f is called before the change returns, so it must not
// wait and must not change settings itself. After remove no new call begins; one under way
// is not waited for.
func (b *Broker) OnConsumerSettings(f func(group string)) (remove func()) {
	w := &b.watchers
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

// tell tells everyone of changed settings of one group, or of any for "".
func (w *watchers) tell(group string) {
	w.mu.Lock()
	all := slices.Collect(maps.Keys(w.all))
	w.mu.Unlock()
	for _, f := range all {
		(*f)(group)
	}
}
