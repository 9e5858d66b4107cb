package engine

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
)

// serverList are the serverList of a broker. The zero value is ready for use.
type serverList struct {
	mu  sync.Mutex
	all []Server // guarded by mu: in the order of Attach; replaced by each change
}

// Attach adds a server.
func (e *Engine) Attach(s Server) {
	e.servers.mu.Lock()
	defer e.servers.mu.Unlock()
	e.servers.all = append(slices.Clip(e.servers.all), s)
}

// Detach removes a server. A check or a change that is under way can still call the server, and
// Detach does not wait for it.
func (e *Engine) Detach(s Server) {
	e.servers.mu.Lock()
	defer e.servers.mu.Unlock()
	e.servers.all = slices.DeleteFunc(slices.Clone(e.servers.all), func(t Server) bool { return t == s })
}

func (s *serverList) list() []Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all
}

// check passes a check on to the first server that has a producer for it. It returns false if none
// has.
func (s *serverList) check(c TransactionCheck) bool {
	m := *c.Message
	for _, server := range s.list() {
		own := m // a server may change its message
		c.Message = &own
		if server.CheckTransaction(c) {
			return true
		}
	}
	return false
}

// ConsumerSettingsChanged implements engine.servers.
func (s *serverList) ConsumerSettingsChanged(group string) {
	for _, server := range s.list() {
		server.ConsumerSettingsChanged(group)
	}
}

// A Server serves the clients of an engine.
type Server interface {
	// CheckTransaction sends a check to a producer of the message's topic. It returns false if
	// there is none; the engine then asks the next server, in the order of Attach. Several
	// goroutines can call it at the same time, and it can call the engine. It must return soon,
	// because other checks wait for it. Close of the broker does not wait for a call under way. A
	// panic ends the process.
	CheckTransaction(c TransactionCheck) bool

	// ConsumerSettingsChanged is called after each change of settings that consumers follow: with
	// the name of a changed group, or with "" for address settings, which can concern every group.
	// The change returns after ConsumerSettingsChanged, which must not wait and must not change
	// settings.
	ConsumerSettingsChanged(group string)
}

// Touch records a heartbeat of a client: the deliveries that the client received with Poll.Owner
// stay invisible. It does nothing for a client that received none.
func (e *Engine) Touch(owner string) { e.owners.Touch(owner, time.Now()) }

// Forget reports that a client has ended: the unacknowledged deliveries that the client received
// with Poll.Owner time out in a second.
func (e *Engine) Forget(owner string) {
	if !e.calls.Begin() {
		return
	}
	defer e.calls.End()
	until := time.Now().Add(time.Second)
	places, many := e.owners.Forget(owner)
	if many {
		_, subs := e.catalog.All()
		for _, s := range subs {
			s.Disown(owner, until)
		}
		return
	}
	for _, p := range places {
		if s := e.catalog.Find(p.Group, p.Topic); s != nil {
			s.Disown(owner, until)
		}
	}
}

const (
	// memory is how long a client without heartbeats is remembered.
	memory = 10 * time.Minute

	// mostPlaces bounds the places that are remembered of a client.
	mostPlaces = 256
)

// A OwnerPlace is a subscription: the numbers of a group and a topic.
type OwnerPlace struct{ Group, Topic uint32 }

// A client is an owner of messages.
type client struct {
	at    time.Time           // of its last heartbeat
	first OwnerPlace          // where it received first; most clients have no other place
	more  map[OwnerPlace]bool // the other places
	many  bool                // there are more than mostPlaces; more is nil then
}

// Owners has the time of the last heartbeat of each client that received messages as their owner.
// It does not remember other clients, so its size is bounded by the clients that receive. Several
// goroutines can call its methods at the same time. Each method takes one lock, for one read or
// change. The zero value is ready for use.
type Owners struct {
	mu       sync.Mutex
	seen     map[string]*client // guarded by mu
	expireAt time.Time          // guarded by mu: when Own next removes old clients
}

// Own remembers a client that receives messages at a place as their owner. The receive counts as a
// heartbeat.
func (o *Owners) Own(owner string, p OwnerPlace, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen == nil {
		o.seen = map[string]*client{}
	}
	switch c := o.seen[owner]; {
	case c == nil:
		o.seen[owner] = &client{at: now, first: p}
	case c.many || c.first == p || c.more[p]:
		c.at = now
	case len(c.more) == mostPlaces-1:
		c.at, c.more, c.many = now, nil, true
	default:
		if c.more == nil {
			c.more = map[OwnerPlace]bool{}
		}
		c.at, c.more[p] = now, true
	}
	if now.Before(o.expireAt) {
		return
	}
	o.expireAt = now.Add(memory)
	for k, c := range o.seen {
		if now.Sub(c.at) > memory {
			delete(o.seen, k)
		}
	}
}

// Touch records a heartbeat. It does nothing for a client that is not remembered.
func (o *Owners) Touch(owner string, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c := o.seen[owner]; c != nil {
		c.at = now
	}
}

// Forget removes a client, and returns the places at which it received; many means that there are
// too many to remember. A client that is not remembered has no places: it received nothing, or its
// leases have ended.
func (o *Owners) Forget(owner string) (places []OwnerPlace, many bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.seen[owner]
	if c == nil {
		return nil, false
	}
	delete(o.seen, owner)
	return append(slices.Collect(maps.Keys(c.more)), c.first), c.many
}

// Last returns the time of the last heartbeat of a client. ok is false if the client is not
// remembered.
func (o *Owners) Last(owner string) (at time.Time, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c := o.seen[owner]; c != nil {
		return c.at, true
	}
	return time.Time{}, false
}

// stateNames are the names of the states of messages in the API.
var stateNames = map[consume.State]string{
	consume.Ready: "ready", consume.Inflight: "inflight", consume.WaitingRetry: "waiting_retry", consume.Commit: "done",
	consume.DeadLetter: "leaving", consume.Parked: "parked", consume.Held: "held",
}

// subscriptionOf returns the subscription of a group in a topic. The error is 40403 or 40402 if
// there is no such group or topic, or if the group has not received from the topic.
func (e *Engine) subscriptionOf(group, topic string) (*Subscription, error) {
	g, err := e.catalog.Group(group)
	if err != nil {
		return nil, err
	}
	t, err := e.catalog.Topic(topic)
	if err != nil {
		return nil, err
	}
	for _, s := range e.catalog.SubscriptionsOf(g) {
		if s.Topic() == t {
			return s, nil
		}
	}
	return nil, refusal.New(protocol.CodeConsumerGroupNotFound, group, "the group has not received from topic %s yet", topic)
}

// Leases returns a page of the leases of a group in a topic. It looks at all leases in memory,
// while the group waits, and reads the IDs of the messages of the page. The error is 40403 or
// 40402 if there is no such group or topic, or if the group has not received from the topic, and
// 40000 for an invalid query.
func (e *Engine) Leases(group, topic string, q status.LeaseQuery) (status.LeasePage, error) {
	if !e.calls.Begin() {
		return status.LeasePage{}, refusal.Closed()
	}
	defer e.calls.End()
	query, err := leaseQuery(&q)
	if err != nil {
		return status.LeasePage{}, err
	}
	s, err := e.subscriptionOf(group, topic)
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
		if m, ok, err := e.store.Header(store.Place{Topic: s.Topic().ID(), Queue: uint16(l.Queue), Offset: l.Offset}); err == nil && ok {
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
func (e *Engine) Schedule(group, topic string) (status.Schedule, error) {
	if !e.calls.Begin() {
		return status.Schedule{}, refusal.Closed()
	}
	defer e.calls.End()
	s, err := e.subscriptionOf(group, topic)
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
