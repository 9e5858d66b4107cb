package broker

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

// stateNames are the names of the states of messages in the API.
var stateNames = map[consume.State]string{
	consume.Ready: "ready", consume.Inflight: "inflight", consume.WaitingRetry: "waiting_retry", consume.Commit: "done",
	consume.DeadLetter: "leaving", consume.Parked: "parked", consume.Held: "held",
}

// subscriptionOf returns the subscription of a group in a topic. The error is 40403 or 40402 if
// there is no such group or topic, or if the group has not received from the topic.
func (b *Broker) subscriptionOf(group, topic string) (*engine.Subscription, error) {
	g, err := b.catalog.Group(group)
	if err != nil {
		return nil, err
	}
	t, err := b.catalog.Topic(topic)
	if err != nil {
		return nil, err
	}
	for _, s := range b.catalog.SubscriptionsOf(g) {
		if s.Topic() == t {
			return s, nil
		}
	}
	return nil, refusal.New(tidegate.CodeConsumerGroupNotFound, group, "the group has not received from topic %s yet", topic)
}

// Leases returns a page of the leases of a group in a topic. It looks at all leases in memory,
// while the group waits, and reads the IDs of the messages of the page. The error is 40403 or
// 40402 if there is no such group or topic, or if the group has not received from the topic, and
// 40000 for an invalid query.
func (b served) Leases(group, topic string, q status.LeaseQuery) (status.LeasePage, error) {
	if !b.calls.Begin() {
		return status.LeasePage{}, refusal.Closed()
	}
	defer b.calls.End()
	query, err := leaseQuery(&q)
	if err != nil {
		return status.LeasePage{}, err
	}
	s, err := b.subscriptionOf(group, topic)
	if err != nil {
		return status.LeasePage{}, err
	}
	var page []consume.LeaseState
	var more bool
	s.Look(func(p *consume.Progress) { page, more = p.LeasePage(query) })
	out := status.LeasePage{Leases: make([]status.Lease, len(page))}
	for i := range page {
		l := &page[i]
		out.Leases[i] = status.Lease{
			Queue: l.Queue, Offset: l.Offset, MessageGroup: l.MessageGroup, State: stateNames[l.State], Attempt: l.Attempt, Due: l.Due,
			Since: l.Since, Owner: l.Owner, Holder: l.Holder, BodySize: l.Size,
		}
		if m, ok, err := b.store.Header(store.Place{Topic: s.Topic().ID(), Queue: uint16(l.Queue), Offset: l.Offset}); err == nil && ok {
			out.Leases[i].MessageID = m.ID
		}
	}
	if more {
		last := &page[len(page)-1]
		due := int64(0)
		if query.ByDue && !last.Due.IsZero() {
			due = last.Due.UnixNano()
		}
		out.Next = fmt.Sprintf("%d-%d-%d", due, last.Queue, last.Offset)
	}
	return out, nil
}

func leaseQuery(q *status.LeaseQuery) (out consume.LeaseQuery, err error) {
	out.ByDue = q.ByDue
	if out.Limit, err = pageLimit(q.Limit); err != nil {
		return out, err
	}
	for state, name := range stateNames {
		if name == q.State && state != consume.Commit {
			out.State = state
		}
	}
	if q.State != "" && out.State == 0 {
		return out, refusal.New(tidegate.CodeBadRequest, "state", "%.40q is no state of a lease; give ready, held, inflight, waiting_retry, parked or leaving", q.State)
	}
	if q.After == "" {
		return out, nil
	}
	var numbers [3]int64
	parts := strings.Split(q.After, "-")
	for i := range numbers {
		if len(parts) == len(numbers) && err == nil {
			numbers[i], err = strconv.ParseInt(parts[i], 10, 64)
		}
	}
	if err != nil || len(parts) != len(numbers) {
		return out, refusal.New(tidegate.CodeBadRequest, "after", "%.40q is not the position of a page; give the value next of the previous page, or nothing for the first page", q.After)
	}
	out.After = &consume.LeaseState{Queue: int(numbers[1]), Offset: numbers[2]}
	if numbers[0] != 0 {
		out.After.Due = time.Unix(0, numbers[0])
	}
	return out, nil
}

// dueBounds are the bounds of the buckets of a schedule.
var dueBounds = []time.Duration{
	0, time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute,
	30 * time.Minute, time.Hour, 2 * time.Hour,
}

// Schedule returns when the messages of a group in a topic are due. It looks at the leases in
// memory, while the group waits. The errors are those of Leases.
func (b served) Schedule(group, topic string) (status.Schedule, error) {
	if !b.calls.Begin() {
		return status.Schedule{}, refusal.Closed()
	}
	defer b.calls.End()
	s, err := b.subscriptionOf(group, topic)
	if err != nil {
		return status.Schedule{}, err
	}
	now := time.Now()
	var due consume.DueCounts
	s.Look(func(p *consume.Progress) { due = p.Due(dueBounds, now) })
	out := status.Schedule{Now: now, NextRetry: due.NextRetry, NextLeaseEnd: due.NextLease}
	for i := range due.Inflight {
		bucket := status.DueBucket{WaitingRetry: due.WaitingRetry[i], Inflight: due.Inflight[i]}
		if i < len(dueBounds) {
			bucket.Until = new(settings.Duration(dueBounds[i]))
		}
		out.Buckets = append(out.Buckets, bucket)
	}
	return out, nil
}
