package engine

import (
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/retention"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/wallclock"
)

// An Contents is a number of messages, and the size of their bodies in bytes.
type Contents struct {
	Messages, Bytes int64
}

// A Topic is a running topic. Several goroutines can call its methods at the same time. A method
// whose comment names a lock needs that lock.
type Topic struct {
	config TopicConfig

	// RoundRobin counts the messages without a message group. It determines their queues.
	RoundRobin atomic.Uint32

	// Throttling is the state of the limits of sends to the topic.
	Throttling throttling

	// Recorded is the place of the topic in the history of rates and backlogs.
	Recorded recorded

	settings  atomic.Pointer[settings.Topic]
	address   atomic.Pointer[AddressPolicy]
	automatic atomic.Bool
	deleted   atomic.Bool

	queues atomic.Pointer[[]*Queue] // only grows
	lites  *liteTable               // of a topic of the type LITE; nil for others
	subs   atomic.Pointer[[]TopicSubscription]

	// All messages that were ever written, including those on their way to the disk. Changed only
	// within the message log's Add.
	messages, bytes atomic.Int64
	opened          Contents // messages and bytes when the broker was opened
	duplicates      atomic.Int64
	pending         PendingCounters
	arrivals        throttle.Sampled

	lowMessages, lowBytes    atomic.Int64 // before the beginnings of the queues
	leftovers, leftoverBytes atomic.Int64 // of lowMessages and lowBytes: still stored for a group
	removed                  [retention.Causes]atomic.Int64

	retentionDue atomic.Int64 // time of the next round in nanoseconds since 1970; 0 for none
	retentionRan atomic.Int64 // start of the last round
	watched      atomic.Bool  // a round is due when groups have consumed messages
	hasGaps      atomic.Bool  // messages may have been removed from the middle of a queue
	kept         atomic.Int64 // see KeepExpired
}

// A TopicConfig has the fixed parts of a topic.
type TopicConfig struct {
	ID   uint32
	Name string

	// IDs remembers the message IDs of the duplicate window. It is used only within the message
	// log's Add, and before other goroutines use the topic.
	IDs *Duplicates

	// Classes count the dead letters in the topic. Nil means a table of the topic alone.
	Classes *deadletter.Classes

	// Retention is the task that removes messages.
	Retention *Task

	// Clock decides whether the wall clock can be trusted. Nil means that it can.
	Clock *wallclock.Clock

	// Activity gets a note of each change that the history of rates and backlogs has. Nil means
	// that there is no history.
	Activity *Activity

	// Transaction has the broker's times of transaction checks, for zero fields of the settings.
	Transaction *atomic.Pointer[settings.Transaction]
}

// newTopic returns an empty topic.
func newTopic(c TopicConfig, s settings.Topic) *Topic {
	if c.Classes == nil {
		c.Classes = deadletter.NewClasses(c.ID, new(atomic.Int64))
	}
	t := &Topic{config: c}
	t.settings.Store(&s)
	t.address.Store(&AddressPolicy{})
	t.queues.Store(&[]*Queue{})
	t.subs.Store(&[]TopicSubscription{})
	t.Grow(s.Queues)
	if s.Type == settings.TopicLite {
		t.lites = &liteTable{byName: map[string]*liteTopic{}, free: []uint16{0}}
	}
	return t
}

// ID returns the number of the topic in stored records.
func (t *Topic) ID() uint32 { return t.config.ID }

// Name returns the name of the topic.
func (t *Topic) Name() string { return t.config.Name }

// IDs returns the memory of message IDs, TopicConfig.IDs.
func (t *Topic) IDs() *Duplicates { return t.config.IDs }

// Classes returns the counts of the dead letters in the topic, TopicConfig.Classes.
func (t *Topic) Classes() *deadletter.Classes { return t.config.Classes }

// RetentionTask returns the task that removes messages, TopicConfig.Retention.
func (t *Topic) RetentionTask() *Task { return t.config.Retention }

// Settings returns the settings of the topic. The caller must not change them.
func (t *Topic) Settings() *settings.Topic { return t.settings.Load() }

// SetSettings replaces the settings. Grow adds the queues.
func (t *Topic) SetSettings(s settings.Topic) { t.settings.Store(&s) }

// Address returns the address settings that apply to the topic.
func (t *Topic) Address() *AddressPolicy { return t.address.Load() }

// SetAddress replaces the address settings that apply to the topic.
func (t *Topic) SetAddress(p *AddressPolicy) { t.address.Store(p) }

// Automatic reports whether the topic is an automatic dead letter queue. Explicitly created topics
// are not.
func (t *Topic) Automatic() bool { return t.automatic.Load() }

// SetAutomatic sets the result of Automatic.
func (t *Topic) SetAutomatic(automatic bool) { t.automatic.Store(automatic) }

// Deleted reports whether the topic was deleted. Within the message log's Add the result is exact.
func (t *Topic) Deleted() bool { return t.deleted.Load() }

// Delete marks the topic as deleted. Only called within the message log's Add.
func (t *Topic) Delete() {
	t.deleted.Store(true)
	t.config.Classes.Close()
}

// Queues returns the queues by number. The caller must not change the slice.
func (t *Topic) Queues() []*Queue { return *t.queues.Load() }

// Grow adds queues up to the number n. One call runs at a time: of a topic with lite topics under the
// lock of their table.
func (t *Topic) Grow(n int) {
	queues := slices.Clone(t.Queues())
	for len(queues) < n {
		queues = append(queues, newQueue(uint16(len(queues))))
	}
	t.queues.Store(&queues)
}

// Subscriptions returns the subscriptions of all groups. The caller must not change the slice.
func (t *Topic) Subscriptions() []TopicSubscription { return slices.Clip(*t.subs.Load()) }

// AddSubscription adds the subscription of a further group. One change of the subscriptions runs at
// a time. The slices that Subscriptions has returned do not change: they end before the new one.
func (t *Topic) AddSubscription(s TopicSubscription) {
	subs := append(*t.subs.Load(), s)
	t.subs.Store(&subs)
}

// RemoveSubscription removes a subscription. One change of the subscriptions runs at a time.
func (t *Topic) RemoveSubscription(s TopicSubscription) {
	subs := slices.DeleteFunc(slices.Clone(t.Subscriptions()), func(o TopicSubscription) bool { return o == s })
	t.subs.Store(&subs)
}

// ForgetReadAhead drops the messages that groups have read ahead, because some were removed.
func (t *Topic) ForgetReadAhead() {
	for _, s := range t.Subscriptions() {
		s.ForgetReadAhead()
	}
}

// Unused reports whether an automatic dead letter queue can be deleted: groups have consumed all of
// it, and no client has received from it for the duration idle.
func (t *Topic) Unused(idle time.Duration, now time.Time) bool {
	subs := t.Subscriptions()
	if t.Address().NoAutoDelete || !t.Automatic() || len(subs) == 0 {
		return false
	}
	for _, s := range subs {
		if !s.Idle(idle, now) || s.Consumed().Backlog().Messages > 0 {
			return false
		}
	}
	return true
}

// isDeadLetter reports whether a name is that of the dead letter topic of a group.
func isDeadLetter(name string) bool {
	_, ok := deadLetterGroup(name)
	return ok
}

// deadLetterGroup returns the group whose dead letter topic has a name. ok is false if the name is
// that of another topic.
func deadLetterGroup(name string) (group string, ok bool) {
	group, ok = strings.CutPrefix(name, protocol.DeadLetterPrefix)
	return group, ok && group != ""
}

const _ = uint(maxQueues - settings.MaxQueues) // the memory of IDs has all queue numbers

// Pick returns the queue for a message. Messages of one message group have the same queue, as have
// those of one priority in a ranked topic. For others the calls take the queues in turn. In a topic
// with lite topics only calls within the message log's Add are right until Put.
func (t *Topic) Pick(m *tidegate.Message) *Queue {
	if t.lite() {
		return t.liteQueue(m)
	}
	queues := t.Queues()
	switch {
	case t.ranked():
		return queues[min(m.Priority, len(queues)-1)]
	case m.MessageGroup == "":
		return queues[t.RoundRobin.Add(1)%uint32(len(queues))]
	}
	h := fnv.New32a()
	h.Write([]byte(m.MessageGroup))
	return queues[h.Sum32()%uint32(len(queues))]
}

// ranked reports whether each queue has the messages of one priority.
func (t *Topic) ranked() bool { return t.Settings().Type == settings.TopicPriority }

// Put writes a message as the next one of a queue, and returns its offset. It remembers the message
// ID for the duplicate window. Only called within the message log's Add.
func (t *Topic) Put(w *store.Batch, q *Queue, m *store.Message, now time.Time) int64 {
	if t.lite() {
		t.storeLite(w, liteName(&m.Message), now)
	}
	offset := q.nextOffset
	q.nextOffset++
	q.nextBytes += int64(len(m.Body))
	clock := t.config.Clock.At(now)
	now = clock.Stamp()
	m.Cumulative, m.StoredAt = q.nextBytes, now
	t.messages.Add(1)
	t.bytes.Add(int64(len(m.Body)))
	t.config.Activity.Note()
	w.PutMessage(store.Place{Topic: t.config.ID, Queue: q.number, Offset: offset}, m)
	t.config.IDs.Put(w, m, q.number, offset, t.Settings().IDWindow(), now)
	return offset
}

// PutLetter is Put for a dead letter, which it also counts. All letters in the dead letter topic of
// a group count for this group.
func (t *Topic) PutLetter(w *store.Batch, q *Queue, m *store.Message, l deadletter.Classified, now time.Time) {
	if group, ok := deadLetterGroup(t.config.Name); ok {
		l.Group = group
	}
	offset := t.Put(w, q, m, now)
	t.config.Classes.Add(w, store.Place{Topic: t.config.ID, Queue: q.number, Offset: offset}, l, now)
}

// Publish returns a function that makes the next message of a queue visible to groups, if it is
// called without an error.
func (t *Topic) Publish(q *Queue) func(error) {
	return func(err error) {
		if err == nil {
			q.end.Add(1)
			t.Wake(q, 1)
		}
	}
}

// Wake ends the wait of receives for n new messages of a queue, and sets the time of the next round
// of retention.
func (t *Topic) Wake(q *Queue, n int64) {
	for _, s := range t.Subscriptions() {
		s.Wake(n, q.number)
	}
	t.Added()
}

// Remove removes a message from the middle of a queue. size is that of its body. Only called within
// the message log's Add, at most once for a message.
func (t *Topic) Remove(w *store.Batch, queue int, offset, size int64) {
	q := t.Queues()[queue]
	q.removedMessages.Add(1)
	q.removedBytes.Add(size)
	w.DeleteMessage(store.Place{Topic: t.config.ID, Queue: q.number, Offset: offset})
	w.PutRemoved(t.config.ID, q.number, q.Removed())
	t.config.Activity.Note()
}

// NextOffset returns the offset of the next message of a queue, and 0 if there is no such queue.
// Only called within the message log's Add.
func (t *Topic) NextOffset(queue uint16) int64 {
	if queues := t.Queues(); int(queue) < len(queues) {
		return queues[queue].nextOffset
	}
	return 0
}

// A Queue is one sequence of messages.
type Queue struct {
	number uint16
	low    atomic.Pointer[store.Mark]

	// Retention has the leftovers before the beginning of the queue. It is used by the holder
	// of the task of retention, and before the topic is in use.
	Retention retention.Queue

	// Messages that were removed from the middle, from low on. Changed only within the message
	// log's Add.
	removedMessages, removedBytes atomic.Int64

	nextOffset, nextBytes int64 // of the next message; changed only within the message log's Add

	end atomic.Int64 // offset after the last message that is on disk
}

func newQueue(number uint16) *Queue {
	q := &Queue{number: number}
	q.low.Store(&store.Mark{})
	return q
}

// Number returns the number of the queue in its topic.
func (q *Queue) Number() uint16 { return q.number }

// Low returns the beginning of the queue. No group has its cursor before it.
func (q *Queue) Low() store.Mark { return *q.low.Load() }

// SetLow moves the beginning of the queue. The caller holds the lock of the
// catalog's Directory, and does not change at afterwards.
func (q *Queue) SetLow(at *store.Mark) { q.low.Store(at) }

// End returns the offset after the last message that is on disk. Groups receive messages before it.
func (q *Queue) End() int64 { return q.end.Load() }

// Publish sets End.
func (q *Queue) Publish(end int64) { q.end.Store(end) }

// Next returns the offset of the next message, and the size of all bodies before it. Only called
// within the message log's Add.
func (q *Queue) Next() store.Mark { return store.Mark{Offset: q.nextOffset, Bytes: q.nextBytes} }

// Gaps returns how many messages were removed from the middle of the queue.
func (q *Queue) Gaps() Contents {
	return Contents{Messages: q.removedMessages.Load(), Bytes: q.removedBytes.Load()}
}

// CloseGaps subtracts gaps that are now before the beginning of the queue. Only called within the
// message log's Add.
func (q *Queue) CloseGaps(gaps store.Removed) {
	q.removedMessages.Add(-gaps.Messages)
	q.removedBytes.Add(-gaps.Bytes)
}

// Removed returns the record of the gaps. Only called within the message log's Add.
func (q *Queue) Removed() store.Removed {
	return store.Removed{Messages: q.removedMessages.Load(), Bytes: q.removedBytes.Load(), End: q.nextOffset, Sum: q.nextBytes}
}

// Appended returns the end of a queue, including messages on their way to the disk. It waits for
// the lock of the message log.
func (q *Queue) Appended(st *store.Store) (end store.Mark) {
	st.Messages.Add(func(*store.Batch) { end = q.Next() }, nil)
	return end
}

// BytesBefore reads the size of all bodies before an offset of a queue. If no message from the
// offset on is stored, it is the size of all bodies that the queue ever had.
func (t *Topic) BytesBefore(st *store.Store, q *Queue, offset int64) (int64, error) {
	if low := q.Low(); low.Offset == offset {
		return low.Bytes, nil
	}
	bytes, ok, err := st.BytesBefore(t.ID(), q.Number(), offset)
	if ok || err != nil {
		return bytes, err
	}
	var all int64
	if err := st.Messages.Add(func(*store.Batch) { all = q.Next().Bytes }, nil).Wait(); err != nil {
		return 0, err
	}
	// The message at the offset may have been on its way to the disk.
	if bytes, ok, err = st.BytesBefore(t.ID(), q.Number(), offset); ok || err != nil {
		return bytes, err
	}
	return all, nil
}

// throttling is the state of the limits of sends to a topic. Only [Limits] uses it.
type throttling struct {
	Backlog gates
	Age     throttle.Age // of the backlog, used while the topic has no group

	Mu     sync.Mutex
	Cold   throttle.Cold // guarded by Mu: of settings.Pressure.MaxColdReads
	Rate   throttle.Rate // guarded by Mu: of settings.Topic.MaxRate
	ColdOn atomic.Bool   // the limit of cold reads rejected sends at the last check
}

// InRate returns the messages that are stored in a second, from the counts at the calls of the last
// minute. It is 0 if there was no other call.
func (t *Topic) InRate(now time.Time) float64 { return t.arrivals.Rate(t.messages.Load(), now) }

// gates are the limits of one backlog in use.
type gates struct {
	Used  atomic.Bool // Gates has seen a limit; without one no goroutine locks Mu
	Mu    sync.Mutex
	Gates throttle.Backlog // guarded by Mu
}

var _ pendingTopic = (*Topic)(nil)

// Counters returns the counters of delayed messages and half messages.
func (t *Topic) Counters() *PendingCounters { return &t.pending }

// Delayed returns the messages that wait for their delivery time.
func (t *Topic) Delayed() (a Contents) {
	a.Messages, a.Bytes = t.pending.Delayed()
	return a
}

// Transaction returns the times of transaction checks. Every field is set.
func (t *Topic) Transaction() settings.Transaction {
	return t.Settings().Transaction.Or(*t.config.Transaction.Load())
}

// Schedule implements pendingTopic.
func (t *Topic) Schedule() CheckSchedule {
	c := t.Transaction()
	return CheckSchedule{Timeout: time.Duration(c.Timeout), Interval: time.Duration(c.CheckInterval), Max: c.CheckMax}
}

// Deliver implements pendingTopic.
func (t *Topic) Deliver(w *store.Batch, m *store.Message, now time.Time) (publish func(error)) {
	q := t.Pick(&m.Message)
	t.Put(w, q, m, now)
	return t.Publish(q)
}

// Remember implements pendingTopic.
func (t *Topic) Remember(m *store.Message, at PendingLocation, now time.Time) {
	t.config.IDs.Remember(m, at, t.Settings().IDWindow(), now)
}

// HashID implements pendingTopic.
func (t *Topic) HashID(m *store.Message) { t.config.IDs.HashID(m) }

// Forget implements pendingTopic.
func (t *Topic) Forget(idHash uint64) { t.config.IDs.Forget(idHash) }

// FirstQueue is a topic for the messages of transactions that were given up. They are dead letters,
// and all go to its first queue.
type FirstQueue struct{ *Topic }

// Deliver implements pendingTopic.
func (t FirstQueue) Deliver(w *store.Batch, m *store.Message, now time.Time) (publish func(error)) {
	q := t.Queues()[0]
	t.PutLetter(w, q, m, deadletter.NewLetter(m), now)
	return t.Publish(q)
}

// recorded is the place of a topic in the history of rates and backlogs, with its counters as of
// the last round. Only the sampler of package broker uses it.
type recorded struct {
	Track
	meter
}

// Written returns all messages that were ever written, including those on their way to the disk.
func (t *Topic) Written() Contents { return Contents{t.messages.Load(), t.bytes.Load()} }

// Accepted returns the messages that were written since the broker was opened.
func (t *Topic) Accepted() Contents {
	return Contents{t.messages.Load() - t.opened.Messages, t.bytes.Load() - t.opened.Bytes}
}

// Before returns the messages before the beginnings of the queues. They were removed, except for
// the leftovers.
func (t *Topic) Before() Contents { return Contents{t.lowMessages.Load(), t.lowBytes.Load()} }

// Leftovers returns the messages before the beginnings of the queues that are still stored for a
// group.
func (t *Topic) Leftovers() Contents { return Contents{t.leftovers.Load(), t.leftoverBytes.Load()} }

// Stored returns the messages on disk, consumed or not. Its bytes include messages on their way to
// the disk.
func (t *Topic) Stored() Contents {
	a := Contents{Bytes: t.bytes.Load() - t.lowBytes.Load() + t.leftoverBytes.Load()}
	for _, q := range t.Queues() {
		a.Messages += q.end.Load() - q.low.Load().Offset - q.removedMessages.Load()
		a.Bytes -= q.removedBytes.Load()
	}
	a.Messages += t.leftovers.Load()
	return a
}

// Backlog returns the backlog of the slowest group, or all messages if the topic has no group.
func (t *Topic) Backlog() Contents {
	subs := t.Subscriptions()
	if len(subs) == 0 {
		all := Contents{Messages: t.messages.Load() - t.lowMessages.Load(), Bytes: t.bytes.Load() - t.lowBytes.Load()}
		if t.hasGaps.Load() {
			for _, q := range t.Queues() {
				all.Messages -= q.removedMessages.Load()
				all.Bytes -= q.removedBytes.Load()
			}
		}
		return all
	}
	var most Contents
	for _, s := range subs {
		l := s.Consumed().Backlog()
		most.Messages, most.Bytes = max(most.Messages, l.Messages), max(most.Bytes, l.Bytes)
	}
	return most
}

// Limited returns the amount that backlog limits apply to: the backlog and the delayed messages,
// and the age of the oldest message at the last look.
func (t *Topic) Limited(now time.Time) throttle.Amount {
	subs := t.Subscriptions()
	l, waiting := t.Backlog(), t.Delayed()
	age := t.ageOf(&t.Throttling.Age, now)
	if len(subs) > 0 {
		age = 0
	}
	for _, s := range subs {
		age = max(age, t.ageOf(&s.Consumed().Age, now))
	}
	return throttle.Amount{l.Messages + waiting.Messages, l.Bytes + waiting.Bytes, age.Milliseconds()}
}

// ageOf returns an age at now. While the wall clock is not trusted, no message is older than it was
// by the time before.
func (t *Topic) ageOf(a *throttle.Age, now time.Time) time.Duration {
	if a.At(now) == 0 {
		return 0
	}
	clock := t.config.Clock.At(now)
	return a.At(clock.Ages())
}

// Drained returns the drain rate, per second, of the group with the largest backlog.
func (t *Topic) Drained(now time.Time) (messages, bytes float64) {
	var of *Consumption
	for _, s := range t.Subscriptions() {
		if c := s.Consumed(); of == nil || c.Backlog().Messages > of.Backlog().Messages {
			of = c
		}
	}
	if of == nil {
		return 0, 0
	}
	return of.Drained(now)
}

// DrainTime estimates how long it takes until the limited amount is down to resume. Zero means that
// there is no estimate.
func (t *Topic) DrainTime(m throttle.Measure, resume int64, now time.Time) time.Duration {
	subs, waiting := t.Subscriptions(), t.Delayed()
	groups := make([]throttle.Consumer, len(subs))
	for i, s := range subs {
		groups[i] = s.Consumed().consumer(now)
	}
	return throttle.UntilAll(m, throttle.Amount{waiting.Messages, waiting.Bytes, 0}, groups, resume)
}

// Duplicates returns the number of sends that got the receipt of an earlier send.
func (t *Topic) Duplicates() int64 { return t.duplicates.Load() }

// CountDuplicate adds one to Duplicates.
func (t *Topic) CountDuplicate() { t.duplicates.Add(1) }

// Removed returns how many messages were removed for a cause since the broker was opened.
func (t *Topic) Removed(cause retention.Cause) int64 { return t.removed[cause].Load() }

// CountRemoved adds to Removed.
func (t *Topic) CountRemoved(cause retention.Cause, messages int64) { t.removed[cause].Add(messages) }

// CountRound adds the result of a round of retention for one queue to the counters.
func (t *Topic) CountRound(c retention.Counts) {
	t.leftovers.Add(c.Leftovers)
	t.leftoverBytes.Add(c.LeftoversBytes)
	t.lowMessages.Add(c.Advanced)
	t.lowBytes.Add(c.AdvancedBytes)
	for i, n := range c.Removed {
		t.removed[i].Add(n)
	}
	t.config.Activity.Note()
}

// RetentionPolicy returns the rules of retention that apply now.
func (t *Topic) RetentionPolicy() retention.Policy {
	c := t.Settings()
	return retention.Policy{
		MaxAge: t.maxAge(), MaxBytes: c.Retention.Bytes, Consumed: c.Retention.Consumed,
		Window: c.IDWindow(), WindowMessages: 2 * idCapacity,
	}
}

const defaultRetention = 72 * time.Hour

// maxAge returns the age at which messages are removed; retention.Forever if they are not.
func (t *Topic) maxAge() time.Duration {
	d := time.Duration(t.Settings().Retention.Time)
	switch {
	case d == 0 && !isDeadLetter(t.Name()):
		return defaultRetention
	case d <= 0:
		return retention.Forever
	}
	return d
}

// WakeRetention brings the next round of retention forward to a time.
func (t *Topic) WakeRetention(at time.Time) {
	want := at.UnixNano()
	for {
		before := t.retentionDue.Load()
		if before != 0 && before <= want {
			return
		}
		if t.retentionDue.CompareAndSwap(before, want) {
			break
		}
	}
	t.config.Retention.Wake(at.Round(0)) // stored times are of the wall clock
}

// GroupConsumed is called after a group has consumed messages. It brings the next round of
// retention forward if the round can remove them.
func (t *Topic) GroupConsumed(now time.Time) {
	if t.watched.Load() {
		t.WakeRetention(now.Add(retention.Pause))
	}
}

// Added is called after messages were added. It sets the time of the next round of retention if
// none is set, or if the topic has more bytes than its settings allow.
func (t *Topic) Added() {
	c := t.Settings()
	over := c.Retention.Bytes > 0 && t.HeldBytes() > c.Retention.Bytes
	if t.retentionDue.Load() != 0 && !over {
		return
	}
	now := time.Now()
	if at, ok := t.RetentionPolicy().Expires(now); ok {
		t.WakeRetention(at)
	} else {
		t.retentionDue.CompareAndSwap(0, math.MaxInt64) // no round is ever due
	}
	if over {
		t.WakeRetention(t.soon(now))
	}
}

// HeldBytes returns the size of the bodies from the beginnings of the queues on.
func (t *Topic) HeldBytes() int64 {
	n := t.bytes.Load() - t.lowBytes.Load()
	for _, q := range t.Queues() {
		n -= q.removedBytes.Load()
	}
	return n
}

// soon returns now, or a little later if the last round was just before.
func (t *Topic) soon(now time.Time) time.Time {
	if at := time.Unix(0, t.retentionRan.Load()).Add(retention.Pause); at.After(now) {
		return at
	}
	return now
}

// NextRound returns the time of the next round of retention. ok is false if none is due.
func (t *Topic) NextRound() (at time.Time, ok bool) {
	due := t.retentionDue.Load()
	return time.Unix(0, due), due != 0 && due != math.MaxInt64
}

// RoundIsSet reports whether the time of the next round is set, or no round is ever due.
func (t *Topic) RoundIsSet() bool { return t.retentionDue.Load() != 0 }

// BeginRound notes the start of a round, and clears the time of the next one.
func (t *Topic) BeginRound(now time.Time) {
	t.retentionDue.Store(0)
	t.retentionRan.Store(now.UnixNano())
}

// KeepExpired notes the number of messages that are too old and are kept because the wall clock is
// not trusted. It returns the number before.
func (t *Topic) KeepExpired(n int64) (before int64) { return t.kept.Swap(n) }

// KeptExpired returns the number that the last round of retention noted with KeepExpired.
func (t *Topic) KeptExpired() int64 { return t.kept.Load() }

// Watch determines whether GroupConsumed brings the next round forward.
func (t *Topic) Watch() { t.watched.Store(t.Settings().Retention.Consumed || t.leftovers.Load() > 0) }

// HasGaps reports whether messages may have been removed from the middle of a queue.
func (t *Topic) HasGaps() bool { return t.hasGaps.Load() }

// ExpectGaps sets HasGaps.
func (t *Topic) ExpectGaps() { t.hasGaps.Store(true) }

// Oldest reads when the oldest message of the topic was stored, in nanoseconds since 1970. Zero
// means that there is none.
func (t *Topic) Oldest(s *store.Store) (oldest int64) {
	for _, q := range t.Queues() {
		if end := q.End(); end > 0 {
			oldest = throttle.Lesser(oldest, t.FirstStored(s, q, 0, end))
		}
	}
	return oldest
}

// FirstStored reads when the first message of a queue between two offsets was stored, in
// nanoseconds since 1970. Zero means that there is none, or that it cannot be read.
func (t *Topic) FirstStored(s *store.Store, q *Queue, from, to int64) int64 {
	m, ok, err := s.FirstIn(store.Range{Topic: t.ID(), Queue: q.Number(), From: from, To: to})
	if !ok || err != nil {
		return 0
	}
	return m.At.UnixNano()
}
