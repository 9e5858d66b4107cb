package metrics

import (
	"net/http"
	"slices"

	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/status"
)

// allSubjects is the value of the labels topic and group of a sum. It is no name of a topic.
const allSubjects = "*"

// A selection is a part of the series with the labels topic and group. The zero value is all.
type selection struct {
	totals       bool   // only the sums, with the label "*"
	topic, group string // only these; empty means all
}

// selectionOf reads the query of a request. It ignores unknown parameters, as Prometheus may add
// some.
func selectionOf(r *http.Request) selection {
	q := r.URL.Query()
	return selection{totals: q.Get("totals") == "only", topic: q.Get("topic"), group: q.Get("group")}
}

// apply leaves the selected topics and subscriptions in st, or their sums.
func (s selection) apply(st *engine.Stats) {
	if s.topic != "" || s.group != "" {
		st.Groups = slices.DeleteFunc(st.Groups, func(x engine.GroupCount) bool {
			return s.topic != "" && x.Topic != s.topic || s.group != "" && x.Group != s.group
		})
		st.Topics = slices.DeleteFunc(st.Topics, func(x engine.TopicCount) bool {
			return s.topic != "" && x.Name != s.topic || s.topic == "" // a group alone selects no topic
		})
	}
	if !s.totals {
		return
	}
	t := engine.TopicCount{TopicSummary: status.TopicSummary{Name: allSubjects}, Removed: map[engine.RemovalCause]int64{}}
	for i := range st.Topics {
		addTopic(&t, &st.Topics[i])
	}
	g := engine.GroupCount{GroupSummary: status.GroupSummary{Group: allSubjects, Topic: allSubjects}}
	for i := range st.Groups {
		addSubscription(&g, &st.Groups[i])
	}
	st.Topics, st.Groups = []engine.TopicCount{t}, []engine.GroupCount{g}
}

func addBacklog(to *status.Backlog, b status.Backlog) {
	to.Messages += b.Messages
	to.Bytes += b.Bytes
}

// addTopic adds a topic to the sum. The throttle of the sum is one of those in force.
func addTopic(sum, t *engine.TopicCount) {
	addBacklog(&sum.Stored, t.Stored)
	addBacklog(&sum.Delayed, t.Delayed)
	addBacklog(&sum.Backlog, t.Backlog)
	sum.Accepted += t.Accepted
	sum.AcceptedBytes += t.AcceptedBytes
	sum.Half += t.Half
	sum.Duplicates += t.Duplicates
	for cause, n := range t.Removed {
		sum.Removed[cause] += n
	}
	if t.Throttle != nil {
		sum.Throttle = t.Throttle
	}
	if x := t.Transactions; x != nil {
		if sum.Transactions == nil {
			sum.Transactions = &engine.TransactionStats{}
		}
		to := sum.Transactions
		to.Committed += x.Committed
		to.RolledBack += x.RolledBack
		to.Abandoned += x.Abandoned
		to.Checks += x.Checks
		to.Unheard += x.Unheard
	}
}

// addSubscription adds a subscription to the sum. The ages of the sum are the highest.
func addSubscription(sum, s *engine.GroupCount) {
	addBacklog(&sum.Backlog, s.Backlog)
	sum.Ready += s.Ready
	sum.Inflight += s.Inflight
	sum.WaitingRetry += s.WaitingRetry
	sum.Parked += s.Parked
	sum.Blocked += s.Blocked
	sum.ParkedGroups += s.ParkedGroups
	sum.BlockedGroups += s.BlockedGroups
	sum.Acked += s.Acked
	sum.Redelivered += s.Redelivered
	sum.DeadLetters += s.DeadLetters
	sum.Overtaken += s.Overtaken
	sum.Discarded += s.Discarded
	sum.Expired += s.Expired
	sum.Filtered += s.Filtered
	sum.Waiting += s.Waiting
	sum.GivenUp += s.GivenUp
	for i, n := range s.Deliveries {
		sum.Deliveries[i] += n
	}
	sum.OldestMS, sum.UndeliveredMS = max(sum.OldestMS, s.OldestMS), max(sum.UndeliveredMS, s.UndeliveredMS)
}
