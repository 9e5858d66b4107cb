package broker

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/fail"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// A subscription is a group's consumption of one topic. Package consume decides; a subscription has
// the lock, the timer, the waiting receives, the reading of queues and the writes.
type subscription struct {
	broker *Broker
	topic.Consumption

	sourceRound atomic.Uint32 // of receives, over topic and retry topic

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
	lastTake  time.Time                   // when a receive last looked for messages, or waited for them
	receiving map[string]*repeatable      // receives under way, by attempt ID
	leaving   map[*consume.Lease]*leaving // departures under way
	fetching  bool                        // fetchSpilled runs

	redelivered int64
	attempts    [len(AttemptBounds) + 1]int64
}

var _ topic.Subscription = (*subscription)(nil)

// Consumed returns the group and how much of the topic it has consumed.
func (s *subscription) Consumed() *topic.Consumption { return &s.Consumption }

// Wake ends the wait of up to n receives that may read the queue.
func (s *subscription) Wake(n int64, queue uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake(n, queue)
}

// Idle reports whether no receive waits, and none has looked for messages for a duration.
func (s *subscription) Idle(since time.Duration, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiters) == 0 && now.Sub(s.lastTake) >= since
}

// ForgetReadAhead drops the messages that were read ahead.
func (s *subscription) ForgetReadAhead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.readers {
		s.progress.Outdate(i)
	}
	s.apply(time.Now())
}

// Unconsumed returns the first offset from begin on that the group has received and not consumed,
// or end if there is none, and the offset of its next new message. ok is false if the subscription
// does not have the queue yet.
func (s *subscription) Unconsumed(queue uint16, begin, end int64) (first, next int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(queue) >= s.progress.Queues() {
		return 0, 0, false
	}
	first = end
	for o := range s.progress.Leases(int(queue)) {
		if o >= begin {
			first = min(first, o)
		}
	}
	return first, s.progress.Cursor(int(queue)).Next, true
}

// Marked reports whether there may be marks of dead letters.
func (s *subscription) Marked() bool { return s.marked.Load() }

// Mark sets the result of Marked.
func (s *subscription) Mark() { s.marked.Store(true) }

// A queueReader reads a queue for a group.
type queueReader struct {
	queue *topic.Queue
	ahead readAhead // of the receive that has claimed the queue
	head  stamp     // of the first message that was never delivered, if it was looked at
}

// A waiter is a receive that waits.
type waiter struct {
	queue int // or transport.AnyQueue
	woken chan struct{}
}

func newSubscription(b *Broker, g *topic.Group, t *topic.Topic) *subscription {
	s := &subscription{broker: b, receiving: map[string]*repeatable{}, leaving: map[*consume.Lease]*leaving{}}
	s.Init(g, t)
	s.progress = consume.New(consume.Config{
		Group: g.ID(), Topic: t.ID(), MaxInvisible: b.opts.MaxInvisibleDuration, LastHeartbeat: b.owners.lastSeen,
		MaxHeld: b.opts.maxHeld,
	})
	s.encode = s.progress.Encode
	s.timer = time.AfterFunc(time.Hour, s.expire)
	s.timer.Stop()
	s.AddQueues()
	return s
}

// AddQueues adds the queues that the topic got meanwhile. The caller has given the topic queues, or
// has added the subscription to those of the topic.
func (s *subscription) AddQueues() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addQueuesLocked()
}

// addQueuesLocked is AddQueues with mu held.
func (s *subscription) addQueuesLocked() {
	for _, q := range s.Topic().Queues()[len(s.readers):] {
		s.readers = append(s.readers, &queueReader{queue: q})
		s.progress.AddQueue(q.Low())
	}
	s.apply(time.Now()) // messages may have come before their cursor
}

// extend notes where the queues end now. mu is held.
func (s *subscription) extend() {
	for i, r := range s.readers {
		s.progress.Extend(i, r.queue.End())
	}
}

// locked calls f with mu held, and gives mu back even if f panics.
func (s *subscription) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *subscription) describe() Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extend()
	n, stats := s.progress.Summary(), s.progress.Stats()
	return Subscription{
		Topic: s.Topic().Name(),
		Ready: n.Ready, Inflight: n.Inflight, WaitingRetry: n.WaitingRetry,
		Parked: n.Parked, ParkedGroups: n.ParkedGroups, BlockedGroups: n.BlockedGroups,
		Backlog: Backlog(s.Backlog()),
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
	if s.broker.group(s.Group().Name()) != s.Group() {
		return fail.GroupNotFound(s.Group().Name())
	}
	return fail.TopicNotFound(s.Topic().Name())
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

func (m subscriptionsByID) remove(s *subscription) {
	delete(m, [2]uint32{s.Group().ID(), s.Topic().ID()})
}

func (m subscriptionsByID) all() []*subscription {
	out := make([]*subscription, 0, len(m))
	for _, s := range m {
		out = append(out, s)
	}
	return out
}

// to returns the subscriptions to a topic.
func (m subscriptionsByID) to(topic uint32) []*subscription {
	var out []*subscription
	for k, s := range m {
		if k[1] == topic {
			out = append(out, s)
		}
	}
	return out
}

// of returns the subscriptions of a group.
func (m subscriptionsByID) of(group uint32) []*subscription {
	var out []*subscription
	for k, s := range m {
		if k[0] == group {
			out = append(out, s)
		}
	}
	return out
}
