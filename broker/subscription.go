package broker

import (
	"container/heap"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
)

// maxHeld is how many messages a subscription holds in memory that wait for
// the one before them in their message group; beyond it, what is behind waits
// in its queue. What is set aside behind a parked or blocked message does not count.
const maxHeld = 1 << 16

// A subscription is a group's consumption of one topic: a cursor for each
// queue, and a lease for each message before a cursor that is not done.
type subscription struct {
	broker *Broker
	group  *group
	topic  *topic

	// What is done, in messages and bytes since the topic's beginning.
	doneMessages, doneBytes atomic.Int64
	sourceTurn              atomic.Uint32 // of receives, over topic and retry topic
	drain                   throttle.Drain
	leasedBytes             atomic.Int64 // of the messages that have a lease, in memory or set aside
	age                     throttle.Age
	cold                    throttle.Flow // bytes read while far behind
	limits                  backlogLimits // of the group's backlog here

	marked atomic.Bool // there may be marks of dead letters

	mu        sync.Mutex
	gone      bool                     // guarded by mu, as is all below: deleted
	cursors   []*cursor                // by queue number
	turn      int                      // the cursor to look at first for new messages
	shares    int                      // receives that had both new messages and others to choose from
	readyTurn int                      // the cursor to look at first for others
	timers    leaseHeap                // Inflight and WaitingRetry, by due time
	timer     *time.Timer              // fires when the first of timers is due
	armed     time.Time                // what timer is set to; zero if it is not
	counts    [consume.Held + 1]int64  // leases by state
	fifo      map[string]*messageGroup // FIFO groups: message groups with a message that is not done
	aside     asides
	waiters   []*waiter
	lastTake  time.Time          // when a receive last looked for messages, or waited for them
	replays   map[string][]grant // the deliveries of each attempt ID
	replaysUp int                // how many replays there may be before those that are over are removed
	turns     map[string]*turn   // receives under way, by attempt ID

	acked, redelivered, deadLetters int64
	givenUp                         int64 // of deadLetters: a consumer asked for it
	overtaken                       int64 // removed before they were consumed
	discarded, expired              int64
	attempts                        [len(AttemptBounds) + 1]int64
}

// A cursor is how far a group is in a queue.
type cursor struct {
	queue    *queue
	next     int64 // first offset that was never handed out
	bytes    int64 // of the messages before next
	rewound  int64 // when the group was last rewound here, in nanoseconds since 1970; 0 for never
	claimed  bool  // a receive reads from next on
	outdated bool  // what that receive reads; false while there is none
	leases   map[int64]*lease
	ready    offsetHeap    // leases in StateReady
	ages     throttle.Ages // of leases
	head     stamp         // of next, if it was looked at
	ahead    ahead         // of the receive that has claimed the cursor
}

// A lease is a message that was handed out, or passed over, and is not done.
type lease struct {
	store.Lease
	cursor *cursor
	offset int64
	timer  int         // index in subscription.timers, -1 if not there
	dying  *deadLetter // what becomes of it, in StateDeadLetter
}

func (l *lease) state() State { return State(l.State) }

// renumber makes every handle of the lease invalid, and none that replaced another one is left.
func (l *lease) renumber() {
	l.Serial++
	l.Changed = false
}

// A messageGroup is the unfinished messages of one message group, in order.
type messageGroup struct {
	head *lease   // the only one that may be delivered; nil while it is read from rest
	held []*lease // those after it
	rest *rest    // those after held, on disk only; nil if there are none
}

// A waiter is a receive that waits.
type waiter struct {
	queue int // or transport.AnyQueue
	woken chan struct{}
}

func newSubscription(b *Broker, g *group, t *topic) *subscription {
	s := &subscription{broker: b, group: g, topic: t, fifo: map[string]*messageGroup{}, replays: map[string][]grant{}, turns: map[string]*turn{}}
	s.timer = time.AfterFunc(time.Hour, s.expire)
	s.timer.Stop()
	s.growCursors()
	return s
}

// growCursors adds cursors for queues that the topic got meanwhile. Whoever
// gives the topic queues calls it for the subscriptions that are there, and who adds one for that.
func (s *subscription) growCursors() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grow()
}

// grow is growCursors with mu held.
func (s *subscription) grow() {
	for _, q := range (*s.topic.queues.Load())[len(s.cursors):] {
		low := q.low.Load()
		s.cursors = append(s.cursors, &cursor{queue: q, next: low.Offset, bytes: low.Bytes, leases: map[int64]*lease{}})
		s.doneMessages.Add(low.Offset)
		s.doneBytes.Add(low.Bytes)
	}
	s.wakeRest() // messages may have come before their cursor
}

// locked calls f with mu held, and gives mu back even if f panics.
func (s *subscription) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *subscription) place(l *lease) store.Place {
	return store.Place{Topic: s.topic.id, Queue: l.cursor.queue.number, Offset: l.offset}
}

// set moves a lease to a state and puts it where leases of that state are. mu is held.
func (s *subscription) set(l *lease, to State) {
	if l.State != 0 {
		s.counts[l.State]--
	}
	l.State = uint8(to)
	s.counts[to]++
	timed := to == StateInflight || to == StateWaitingRetry
	switch {
	case timed && l.timer >= 0:
		heap.Fix(&s.timers, l.timer)
	case timed:
		heap.Push(&s.timers, l)
	case l.timer >= 0:
		heap.Remove(&s.timers, l.timer)
	}
	if to == StateReady {
		heap.Push(&l.cursor.ready, l)
	}
}

// finish ends a lease: the message is consumed or given up, as the caller
// counts. mu is held.
func (s *subscription) finish(l *lease, now time.Time) {
	if l.timer >= 0 {
		heap.Remove(&s.timers, l.timer)
	}
	s.counts[l.State]--
	s.drop(l)
	s.done(1, l.Size, now)
	if mg := s.fifo[l.Group]; mg != nil && mg.head == l {
		s.advance(l.Group, mg)
	}
}

// advance makes the next message of a message group its head. mu is held.
func (s *subscription) advance(name string, mg *messageGroup) {
	mg.head = nil
	if mg.rest != nil {
		s.callBack(mg)
	}
	if len(mg.held) > 0 {
		full := s.counts[consume.Held] >= maxHeld
		mg.head, mg.held = mg.held[0], mg.held[1:]
		to, _ := mg.head.state().Next(consume.EventPromote, consume.AttemptsLeft, false)
		s.set(mg.head, to)
		s.wake(1, mg.head.cursor.queue.number)
		if full {
			s.wakeRest()
		}
	}
	if mg.rest != nil && len(mg.held) < fewHeld {
		s.fetch(name, mg)
	} else if mg.head == nil && mg.rest == nil {
		delete(s.fifo, name)
	}
}

// done counts messages that are done.
func (s *subscription) done(messages, bytes int64, now time.Time) {
	s.doneMessages.Add(messages)
	s.doneBytes.Add(bytes)
	s.drain.Add(messages, bytes, s.backlog().Messages > 0, now)
	if s.topic.watched.Load() {
		s.topic.retention.wake(s.topic, now.Add(retention.Pause))
	}
}

// backlog is what the topic has and the group has not consumed.
func (s *subscription) backlog() Backlog {
	return Backlog{Messages: s.topic.messages.Load() - s.doneMessages.Load(), Bytes: s.topic.bytes.Load() - s.doneBytes.Load()}
}

func (s *subscription) describe() Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := Subscription{
		Topic:        s.topic.name,
		Ready:        s.counts[StateReady] + s.counts[consume.Held] + s.aside.messages - s.aside.parked,
		Inflight:     s.counts[StateInflight] + s.counts[StateDeadLetter],
		WaitingRetry: s.counts[StateWaitingRetry],
		Parked:       s.counts[StateParked] + s.aside.parked, ParkedGroups: s.counts[StateParked], BlockedGroups: s.aside.blocked,
		Backlog: s.backlog(),
		Acked:   s.acked, Redelivered: s.redelivered, DeadLetters: s.deadLetters,
		Overtaken: s.overtaken, Discarded: s.discarded, Expired: s.expired,
	}
	for _, c := range s.cursors {
		d.Ready += c.queue.end.Load() - c.next
	}
	return d
}

// save writes leases. mu is held, so that the writes are in the order of the changes.
func (s *subscription) save(ls ...*lease) *store.Flight {
	return s.broker.store.Groups.Add(func(w *store.Batch) { s.putLeases(w, ls) }, nil)
}

// saveLazily is save for changes that a crash may take back. mu is held.
func (s *subscription) saveLazily(ls ...*lease) *store.Flight {
	return s.broker.store.Groups.AddLazy(func(w *store.Batch) { s.putLeases(w, ls) })
}

func (s *subscription) putLeases(w *store.Batch, ls []*lease) {
	for _, l := range ls {
		w.PutLease(s.group.id, s.place(l), &l.Lease)
	}
}

// saveAdmitted writes, lazily, that a cursor has moved over messages: leases, of which
// some are set aside. mu is held.
func (s *subscription) saveAdmitted(c *cursor, aside, ls []*lease) *store.Flight {
	return s.broker.store.Groups.AddLazy(func(w *store.Batch) {
		for _, l := range ls {
			w.PutLease(s.group.id, s.place(l), &l.Lease)
		}
		for _, l := range aside {
			w.PutAside(s.group.id, s.place(l), &l.Lease)
		}
		w.PutCursor(s.group.id, s.topic.id, c.queue.number, store.Cursor{Next: c.next, Bytes: c.bytes, Rewound: c.rewound})
	})
}

// remove writes that leases are no more. mu is held.
func (s *subscription) remove(ls ...*lease) *store.Flight {
	return s.broker.store.Groups.Add(func(w *store.Batch) {
		for _, l := range ls {
			w.DeleteLease(s.group.id, s.place(l))
		}
	}, nil)
}

// wake ends the wait of up to n receives that may read the queue. mu is held.
func (s *subscription) wake(n int64, queue uint16) {
	for i := 0; n > 0 && i < len(s.waiters); {
		w := s.waiters[i]
		if w.queue >= 0 && w.queue != int(queue) {
			i++
			continue
		}
		s.waiters = slices.Delete(s.waiters, i, i+1)
		close(w.woken)
		n--
	}
}

// wakeRest ends waits for what is there and nobody takes: messages that are
// ready, and one receive for each queue that has new ones. mu is held.
func (s *subscription) wakeRest() {
	full := s.counts[consume.Held] >= maxHeld
	for _, c := range s.cursors {
		if len(s.waiters) == 0 {
			return
		}
		n := int64(len(c.ready))
		if !full && !c.claimed && c.next < c.queue.end.Load() {
			n++
		}
		if n > 0 {
			s.wake(n, c.queue.number)
		}
	}
}

// wakeAll ends the wait of all receives. mu is held.
func (s *subscription) wakeAll() {
	for _, w := range s.waiters {
		close(w.woken)
	}
	s.waiters = nil
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
		return groupNotFound(s.group.name)
	}
	return topicNotFound(s.topic.name)
}

// close ends a subscription that is deleted: nothing is written for it any more.
func (s *subscription) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	s.timer.Stop()
	for _, c := range s.cursors {
		s.outdate(c)
	}
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
