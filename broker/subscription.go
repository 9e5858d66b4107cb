package broker

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
)

// A subscription is a group's consumption of one topic. Package consume decides; a subscription has
// the lock, the timer, the waiting receives, the reading of queues and the writes.
type subscription struct {
	broker *Broker
	group  *group
	topic  *topic

	// What is done, in messages and bytes since the topic's beginning.
	doneMessages, doneBytes atomic.Int64
	sourceRound             atomic.Uint32 // of receives, over topic and retry topic
	drain                   throttle.Drain
	leasedBytes             atomic.Int64 // of the messages that have a lease, in memory or spilled
	age                     throttle.Age
	cold                    throttle.Flow // bytes read while far behind
	limits                  backlogLimits // of the group's backlog here

	marked atomic.Bool // there may be marks of dead letters

	mu        sync.Mutex
	gone      bool              // guarded by mu, as is all below: deleted
	restoring bool              // Open is not done with it: what is due waits
	progress  *consume.Progress // apply follows each change
	encode    func(*store.Batch)
	readers   []*queueReader // by queue number
	timer     *time.Timer    // fires when the first lease is due
	armed     time.Time      // what timer is set to; zero if it is not
	waiters   []*waiter
	lastTake  time.Time                      // when a receive last looked for messages, or waited for them
	receiving map[string]*repeatable         // receives under way, by attempt ID
	dying     map[*consume.Lease]*deadLetter // departures under way
	fetching  bool                           // fetchSpilled runs

	redelivered int64
	attempts    [len(AttemptBounds) + 1]int64
}

// A queueReader reads a queue for a group.
type queueReader struct {
	queue *queue
	ahead readAhead // of the receive that has claimed the queue
	head  stamp     // of the first message that was never delivered, if it was looked at
}

// A waiter is a receive that waits.
type waiter struct {
	queue int // or transport.AnyQueue
	woken chan struct{}
}

func newSubscription(b *Broker, g *group, t *topic) *subscription {
	s := &subscription{broker: b, group: g, topic: t, receiving: map[string]*repeatable{}, dying: map[*consume.Lease]*deadLetter{}}
	s.progress = consume.New(consume.Config{
		Group: g.id, Topic: t.id, MaxInvisible: b.opts.MaxInvisibleDuration, LastHeartbeat: b.owners.lastSeen,
		MaxHeld: b.opts.maxHeld,
	})
	s.encode = s.progress.Encode
	s.timer = time.AfterFunc(time.Hour, s.expire)
	s.timer.Stop()
	s.addQueues()
	return s
}

// addQueues adds the queues that the topic got meanwhile. The caller has given the topic queues, or
// has added the subscription to those of the topic.
func (s *subscription) addQueues() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addQueuesLocked()
}

// addQueuesLocked is addQueues with mu held.
func (s *subscription) addQueuesLocked() {
	for _, q := range (*s.topic.queues.Load())[len(s.readers):] {
		s.readers = append(s.readers, &queueReader{queue: q})
		s.progress.AddQueue(*q.low.Load())
	}
	s.apply(time.Now()) // messages may have come before their cursor
}

// extend notes where the queues end now. mu is held.
func (s *subscription) extend() {
	for i, r := range s.readers {
		s.progress.Extend(i, r.queue.end.Load())
	}
}

// locked calls f with mu held, and gives mu back even if f panics.
func (s *subscription) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// backlog is what the topic has and the group has not consumed.
func (s *subscription) backlog() Backlog {
	return Backlog{Messages: s.topic.messages.Load() - s.doneMessages.Load(), Bytes: s.topic.bytes.Load() - s.doneBytes.Load()}
}

func (s *subscription) describe() Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extend()
	n, stats := s.progress.Summary(), s.progress.Stats()
	return Subscription{
		Topic: s.topic.name,
		Ready: n.Ready, Inflight: n.Inflight, WaitingRetry: n.WaitingRetry,
		Parked: n.Parked, ParkedGroups: n.ParkedGroups, BlockedGroups: n.BlockedGroups,
		Backlog: s.backlog(),
		Acked:   stats.Acked, Redelivered: s.redelivered, DeadLetters: stats.DeadLetters,
		Overtaken: stats.Overtaken, Discarded: stats.Discarded, Expired: stats.Expired,
	}
}

// leave takes a waiter out. If it was woken meanwhile, that is passed on.
func (s *subscription) leave(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastTake = time.Now() // it waited until now
	if i := slices.Index(s.waiters, w); i >= 0 {
		s.waiters = slices.Delete(s.waiters, i, i+1)
		return
	}
	s.wakeRest()
}

// goneError tells a receive what was deleted.
func (s *subscription) goneError() error {
	if s.broker.group(s.group.name) != s.group {
		return fail.GroupNotFound(s.group.name)
	}
	return fail.TopicNotFound(s.topic.name)
}

// close ends a subscription that is deleted: nothing is written for it any more.
func (s *subscription) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	s.timer.Stop()
	for i := range s.readers {
		s.progress.Outdate(i)
	}
	s.apply(time.Now())
	s.wakeAll()
}

func (s *subscription) stopTimer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer.Stop()
}

// subscriptionsByID finds subscriptions by group and topic.
type subscriptionsByID map[[2]uint32]*subscription

func (m subscriptionsByID) remove(s *subscription) { delete(m, [2]uint32{s.group.id, s.topic.id}) }

func (m subscriptionsByID) all() []*subscription {
	out := make([]*subscription, 0, len(m))
	for _, s := range m {
		out = append(out, s)
	}
	return out
}

func (m subscriptionsByID) of(group uint32) []*subscription {
	var out []*subscription
	for k, s := range m {
		if k[0] == group {
			out = append(out, s)
		}
	}
	return out
}
