package subscription

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/topic"
)

// AttemptBounds are the highest attempts of the classes of Status.Deliveries. The last class has no
// bound.
var AttemptBounds = [...]int{1, 2, 3, 8}

// A Subscription is the consumption of one topic by one group. Several goroutines can call its
// methods at the same time.
type Subscription struct {
	topic.Consumption
	env *Env

	original    string        // of a retry topic of redriven messages: the topic that it is for
	sourceRound atomic.Uint32 // of receives, over topic and retry topics
	sourceAge   atomic.Uint32 // how often a retry topic was added
	marked      atomic.Bool   // there may be marks of dead letters

	mu        sync.Mutex
	gone      error             // guarded by mu, as are all following fields: why receives fail after Close
	restoring bool              // Open still restores it, so due leases wait
	progress  *consume.Progress // apply follows each change
	readers   []*queueReader    // by queue number
	timer     *time.Timer       // fires when the first lease is due
	armed     time.Time         // due time of timer; zero if it is not set
	waiters   []*waiter
	watches   map[*Watch]int                // the queue of each, or transport.AnyQueue
	lastTake  time.Time                     // when a receive last looked or waited for messages, or had a watch
	receiving map[string]*repeatable        // receives under way, by attempt ID
	leaving   map[*consume.Lease]*Departure // departures under way
	fetching  bool                          // fetchSpilled runs
	leases    int64                         // that Env.Leases counts

	redelivered int64
	attempts    [len(AttemptBounds) + 1]int64
	deadLetters lastHour
}

var _ topic.Subscription = (*Subscription)(nil)

// Consumed returns the group and how much of the topic it has consumed.
func (s *Subscription) Consumed() *topic.Consumption { return &s.Consumption }

// Policy returns the retry settings of the group in the topic. Those of redriven messages are those
// of their original topic.
func (s *Subscription) Policy() topic.Policy {
	p := s.Consumption.Policy()
	if s.original != "" {
		if t := s.env.Topics.FindTopic(s.original); t != nil {
			p.Address = t.Address()
		}
	}
	return p
}

// AddSource has the receives that wait, or that have left a watch, take from a retry topic that was
// just created, too.
func (s *Subscription) AddSource() {
	s.sourceAge.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeAll()
}

// Wake ends the wait of up to n receives that may read the queue, and wakes its watches.
func (s *Subscription) Wake(n int64, queue uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake(n, queue)
}

// Idle reports whether no receive waits and none has left a watch, and none has looked for messages
// for a duration.
func (s *Subscription) Idle(since time.Duration, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiters) == 0 && len(s.watches) == 0 && now.Sub(s.lastTake) >= since
}

// ForgetReadAhead drops the messages that were read ahead.
func (s *Subscription) ForgetReadAhead() {
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
func (s *Subscription) Unconsumed(queue uint16, begin, end int64) (first, next int64, ok bool) {
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
func (s *Subscription) Marked() bool { return s.marked.Load() }

// Mark sets the result of Marked.
func (s *Subscription) Mark() { s.marked.Store(true) }

// A queueReader reads a queue for a group.
type queueReader struct {
	queue *topic.Queue
	ahead readAhead // of the receive that has claimed the queue
	head  stamp     // of the first message that was never delivered; zero if it is not known
	free  stamp     // of the first of these that is of no parked or blocked message group
}

// A waiter is a receive that waits.
type waiter struct {
	queue int // or transport.AnyQueue
	woken chan struct{}
}

// New returns the subscription of a group to a topic. It begins at the oldest message. With
// restoring it delivers nothing before Resume.
func New(env *Env, g *topic.Group, t *topic.Topic, restoring bool) *Subscription {
	s := &Subscription{env: env, restoring: restoring, receiving: map[string]*repeatable{}, leaving: map[*consume.Lease]*Departure{}}
	s.Init(g, t)
	retry := &g.Settings().RetryTopic
	if original, _ := retry.Original(t.Name(), g.Name()); retry.RedriveName(original, g.Name()) == t.Name() {
		s.original = original
	}
	s.progress = consume.New(consume.Config{
		Group: g.ID(), Topic: t.ID(), MaxInvisible: env.MaxInvisible, Owners: env.Owners, MaxHeld: env.MaxHeld,
	})
	s.timer = time.AfterFunc(time.Hour, s.expire)
	s.timer.Stop()
	s.AddQueues()
	return s
}

// Update changes the progress and applies the effects. It returns the write of the change, which is
// nil if there is nothing to write, and the messages that leave, whose steps the caller takes. f
// runs under the lock, and is not called after Close.
func (s *Subscription) Update(f func(*consume.Progress)) (*store.PendingWrite, []*Departure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return nil, nil
	}
	f(s.progress)
	rest := s.apply(time.Now())
	return rest.write, rest.leaving
}

// Look reads the progress. f runs under the lock and changes nothing.
func (s *Subscription) Look(f func(*consume.Progress)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.progress)
}

// Resume ends the restoring of a subscription.
func (s *Subscription) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress.Resume()
	s.restoring = false
	s.apply(time.Now())
}

// StartAtEnd begins a new subscription with the next message of each queue. It writes nothing: the
// next Update does. Only called within the message log's Add.
func (s *Subscription) StartAtEnd() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range s.readers {
		s.progress.StartAt(i, r.queue.Next())
	}
}

// AddQueues adds the queues that the topic has and the subscription has not. The caller has added
// queues to the topic, or the subscription to the topic.
func (s *Subscription) AddQueues() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addQueuesLocked()
}

// addQueuesLocked is AddQueues with mu held.
func (s *Subscription) addQueuesLocked() {
	for _, q := range s.Topic().Queues()[len(s.readers):] {
		s.readers = append(s.readers, &queueReader{queue: q})
		s.progress.AddQueue(q.Low())
	}
	s.apply(time.Now()) // messages may have been stored before the cursor
}

// extend passes the ends of the queues to the progress. mu is held.
func (s *Subscription) extend() {
	for i, r := range s.readers {
		s.progress.Extend(i, r.queue.End())
	}
}

// leave removes a waiter. If the waiter was woken meanwhile, leave wakes others instead.
func (s *Subscription) leave(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastTake = time.Now() // it waited until now
	if i := slices.Index(s.waiters, w); i >= 0 {
		s.waiters = slices.Delete(s.waiters, i, i+1)
		return
	}
	s.wakeRest()
}

// Close ends a subscription that is deleted: nothing is written for it any more. Receives fail with
// the reason.
func (s *Subscription) Close(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = reason
	s.timer.Stop()
	s.progress.Abandon()
	for i := range s.readers {
		s.progress.Outdate(i)
	}
	s.apply(time.Now())
	s.wakeAll()
}

// Stop stops the timer, because the broker closes.
func (s *Subscription) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer.Stop()
}
