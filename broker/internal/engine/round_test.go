package engine

import (
	"testing"

	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// progress is a subscription with a fixed progress in each queue.
type progress struct {
	TopicSubscription // nil: the tests call no other method

	unfinished int64 // the first message that the group has received and not finished; -1: none
	next       int64 // the next new message
	noQueue    bool  // the subscription does not have the queue yet
}

func (p progress) Unconsumed(_ uint16, begin, end int64) (first, next int64, ok bool) {
	if first = max(p.unfinished, begin); p.unfinished < 0 {
		first = end
	}
	return first, p.next, !p.noQueue
}

// Consumed messages are removed before the slowest group. A few unfinished messages of a group do
// not prevent the removal of the others.
func TestConsumedBefore(t *testing.T) {
	t.Parallel()
	const begin, end = 10, 10_000
	for name, c := range map[string]struct {
		groups []TopicSubscription
		want   int64
	}{
		"no group":                                {nil, begin},
		"all consumed":                            {[]TopicSubscription{progress{unfinished: -1, next: end}}, end},
		"half received":                           {[]TopicSubscription{progress{unfinished: -1, next: 5000}}, 5000},
		"one unfinished":                          {[]TopicSubscription{progress{unfinished: 4500, next: 5000}}, 4500},
		"one unfinished far behind":               {[]TopicSubscription{progress{unfinished: 100, next: 5000}}, 5000},
		"unfinished far behind another group":     {[]TopicSubscription{progress{unfinished: 100, next: 5000}, progress{unfinished: -1, next: 600}}, 100},
		"the slowest of two groups":               {[]TopicSubscription{progress{unfinished: -1, next: end}, progress{unfinished: -1, next: 20}}, 20},
		"a group without the queue":               {[]TopicSubscription{progress{unfinished: -1, next: end}, progress{unfinished: -1, next: end, noQueue: true}}, begin},
		"a group that starts before the messages": {[]TopicSubscription{progress{unfinished: -1, next: 0}}, begin},
	} {
		q := &retention.QueuePlan{Begin: store.Mark{Offset: begin}, End: end}
		if got := consumedBefore(c.groups, q); got != c.want {
			t.Errorf("%s: removed before %d, want %d", name, got, c.want)
		}
	}
}
