package consumer

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
	"github.com/tidegate/tidegate/transport"
)

// A topic is one of the topics of a run.
type topic struct {
	name      string
	filter    tidegate.Filter
	number    int // from 0
	settings  atomic.Pointer[transport.ConsumerSettings]
	refusals  verdict.Refusals // guarded by run.mu
	warned    time.Time        // of the last line in slog's default log; guarded by run.mu
	warnPause time.Duration    // until the next such line; guarded by run.mu

	// Guarded by hand.mu.
	inHand    int // messages
	lastGrant int // the number of its last grant
}

// filters returns the topics of the subscription with their filters.
func (s *Subscription) filters() map[string]tidegate.Filter {
	all := maps.Clone(s.Topics)
	if all == nil {
		all = map[string]tidegate.Filter{}
	}
	if s.Topic != "" {
		all[s.Topic] = s.Filter
	}
	return all
}

// newTopics returns the topics of a new run, sorted by name.
func (s *Subscription) newTopics() (list []*topic) {
	filters := s.filters()
	for n, name := range slices.Sorted(maps.Keys(filters)) {
		list = append(list, &topic{name: name, filter: filters[name], number: n})
	}
	return list
}

// topicNames returns the names of the topics for logs.
func (r *run) topicNames() string {
	names := make([]string, len(r.topics))
	for i, t := range r.topics {
		names[i] = t.name
	}
	return strings.Join(names, ",")
}

// validateTopics validates the topics of a subscription.
func (f *faults) validateTopics(s *Subscription) {
	if _, twice := s.Topics[s.Topic]; twice && s.Topic != "" {
		f.add("Subscription.Topics", "%q is Subscription.Topic too; give it once", s.Topic)
	}
	if s.Topic == "" && s.Filter != (tidegate.Filter{}) && len(s.Topics) > 0 {
		f.add("Subscription.Filter", "it is the filter of Subscription.Topic, which is empty; set the filters in Topics")
	}
	if s.Topic != "" || len(s.Topics) == 0 {
		f.topic("Subscription.Topic", s.Topic)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Topics)) {
		f.topic("Subscription.Topics", name)
	}
}

// refused records a failed receive from t at now, and reports whether the failure ends the
// consumer. Rejected credentials end it once they are rejected for all topics.
func (r *run) refused(t *topic, err error, now time.Time) (end bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !t.refusals.Failed(err, now) {
		return false
	}
	return verdict.EndingOf(err) == verdict.AtOnce || !slices.ContainsFunc(r.topics, func(t *topic) bool { return !t.refusals.Lasting(now) })
}

// warnPause is the time between the first two lines in slog's default log about one topic. It
// doubles with each further line, up to maxWarnPause, until a receive succeeds.
const warnPause, maxWarnPause = time.Minute, time.Hour

// warnNow reports whether to write a line to slog's default log, and records it.
func (r *run) warnNow(t *topic, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !t.warned.IsZero() && now.Sub(t.warned) < t.warnPause {
		return false
	}
	t.warned, t.warnPause = now, min(max(2*t.warnPause, warnPause), maxWarnPause)
	return true
}

// received records a successful receive from t.
func (r *run) received(t *topic) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.refusals.Succeeded()
	t.warnPause = min(t.warnPause, warnPause)
}

// topicNumber returns the number of the subscribed topic of the delivery. The topic of the message
// can be another one, namely a retry topic.
func (it *item) topicNumber() int {
	if it.source == nil {
		return 0
	}
	return it.source.topic.number
}

// count counts a delivery of the subscribed topic.
func (it *item) count(n int) {
	if it.source != nil {
		it.source.topic.inHand += n
	}
}

func (f *faults) topic(field, name string) {
	if err := tidegate.ValidateTopic(name); err != nil {
		f.wrap(field, err)
	}
}
