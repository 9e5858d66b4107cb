package engine

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/deadletter"
	"github.com/tidegate/tidegate/broker/internal/filter"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/tally"
	"github.com/tidegate/tidegate/internal/wallclock"
	"github.com/tidegate/tidegate/transport"
)

// AttemptBounds are the highest attempts of the classes of Status.Deliveries. The last class has no
// bound.
var AttemptBounds = [...]int{1, 2, 3, 8}

// A Subscription is the consumption of one topic by one group. Several goroutines can call its
// methods at the same time.
type Subscription struct {
	Consumption
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
	lite      *liteConsumers                // of a topic with lite topics; nil for others, which have waiters
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

var _ TopicSubscription = (*Subscription)(nil)

// Consumed returns the group and how much of the topic it has consumed.
func (s *Subscription) Consumed() *Consumption { return &s.Consumption }

// Policy returns the retry settings of the group in the topic. Those of redriven messages are those
// of their original topic.
func (s *Subscription) Policy() Policy {
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
	return s.waiting() == 0 && len(s.watches) == 0 && now.Sub(s.lastTake) >= since
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
	queue *Queue
	ahead readAhead // of the receive that has claimed the queue
	head  stamp     // of the first message that was never delivered; zero if it is not known
	free  stamp     // of the first of these that is of no parked or blocked message group
}

// A waiter is a receive that waits.
type waiter struct {
	queue int           // or transport.AnyQueue
	lite  *liteConsumer // nil for a receive that is not from lite topics
	woken chan struct{}
}

// newSubscription returns the subscription of a group to a topic. It begins at the oldest message.
// With restoring it delivers nothing before Resume.
func newSubscription(env *Env, g *Group, t *Topic, restoring bool) *Subscription {
	s := &Subscription{env: env, restoring: restoring, receiving: map[string]*repeatable{}, leaving: map[*consume.Lease]*Departure{}}
	s.Init(g, t)
	retry := &g.Settings().RetryTopic
	if original, _ := retry.Original(t.Name(), g.Name()); retry.RedriveName(original, g.Name()) == t.Name() {
		s.original = original
	}
	s.progress = consume.New(consume.Config{
		Group: g.ID(), Topic: t.ID(), MaxInvisible: env.MaxInvisible, Owners: env.Owners, Ranked: t.ranked(), Lite: t.lite(),
	})
	if t.lite() {
		s.lite = newLiteConsumers()
	}
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
	if c := w.lite; c != nil {
		c.heard = s.lastTake
		if i := slices.Index(c.waiters, w); i >= 0 {
			c.waiters = slices.Delete(c.waiters, i, i+1)
			return
		}
		s.wakeShared(c)
		return
	}
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
	if s.lite != nil {
		s.Topic().unpinLite(s.closeLite(), time.Now())
	}
}

// Stop stops the timer, because the broker closes.
func (s *Subscription) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer.Stop()
}

// An Env has the parts of a broker that all its subscriptions share.
type Env struct {
	Store  *store.Store
	Logger *slog.Logger
	Reads  *Reads

	Clock    *wallclock.Clock // nil: the wall clock is always trusted
	Activity *Activity        // for the history of rates and backlogs; nil: there is none

	Endpoint, Host string // of deliveries: Endpoint and StoreHost

	MaxInvisible time.Duration // bound of a delivery with all changes of its invisible duration
	Leases       *Leases

	Owners  *Owners
	Limits  *Limits // count cold reads
	Delayed *delayed
	Events  *tally.Log // of the ends of messages

	Failures deadletter.FailureLog // the latest ones of each group

	// Life ends when the broker closes.
	Life context.Context //nolint:containedctx // the broker's own life, not a request's

	Calls  subscriptionCalls
	Topics subscriptionTopics // set by NewCatalog

	Damaged *atomic.Int64 // counts messages that cannot be read

	// Lateness has the times from the end of a retry interval to the moment at which the message
	// was ready, in seconds.
	Lateness *store.Histogram
}

// subscriptionCalls count the work under way, which the end of the broker waits for.
type subscriptionCalls interface {
	// Begin counts work as under way, and returns false if the broker is closing. End is deferred
	// and ends that work. Begin can be called under the lock.
	Begin() bool
	End()
}

// CarryOut runs work to its end, even if ctx ends before. The caller has begun its own work. While
// the broker is closing, which waits for the caller, CarryOut waits for the work.
func (e *Env) CarryOut(ctx context.Context, work func() error) error {
	if !e.Calls.Begin() {
		return work()
	}
	done := make(chan error, 1)
	go func() {
		defer e.Calls.End()
		done <- work()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return refusal.Unsettled(ctx, context.Cause(ctx))
	}
}

// subscriptionTopics find and create the topics that messages leave for.
type subscriptionTopics interface {
	// FindTopic returns a topic, and nil if there is none. It takes one lock, and holds it only for
	// the look.
	FindTopic(name string) *Topic

	// CreateOwnTopic creates a topic that the broker itself writes to, unless it exists. automatic
	// means that it is an automatic dead letter queue. It waits for other changes of settings.
	CreateOwnTopic(name string, c settings.Topic, automatic bool) error

	// RetrySubscriptions returns the subscriptions of the same group to its retry topics for the
	// topic of a subscription, at most two.
	RetrySubscriptions(ctx context.Context, s *Subscription) ([]*Subscription, error)
}

// Bounds of the messages that receives have read and not admitted yet.
const (
	maxReads     = 8       // receives that read at a time
	maxReadBytes = 1 << 20 // of one read; the last message can exceed it
)

// Reads bounds the messages in memory that all receives together have read.
type Reads struct {
	slots chan struct{} // has a value for each receive that reads
	ahead atomic.Int64  // bytes of bodies that were read ahead
}

// NewReads returns the bounds of a broker.
func NewReads() *Reads { return &Reads{slots: make(chan struct{}, maxReads)} }

// Add changes the size of the bodies that were read ahead.
func (r *Reads) Add(bytes int64) { r.ahead.Add(bytes) }

// Ahead returns the size of the bodies that were read ahead.
func (r *Reads) Ahead() int64 { return r.ahead.Load() }

// maxReceiveBytes bounds the bodies of one receive, in bytes; the first may be larger.
const maxReceiveBytes = 16 << 20

// A Request is a receive, with what servers add to it.
type Request struct {
	transport.ReceiveRequest

	// Owner identifies the receiving client. Its heartbeats ([Engine.Touch]) keep its deliveries
	// invisible, in place of InvisibleDuration: for a minute after the last heartbeat, and for 3
	// hours in all. Empty means that InvisibleDuration applies.
	Owner string

	// Holder counts the deliveries in flight of the receiving client, and names it in the failures
	// of the group. Nil means that the client is not known.
	Holder *consume.Holder

	// Encoder encodes a response while the attempts of its deliveries are written. The caller must
	// discard the result unless Poll returns the deliveries without an error. Prepare must not wait
	// or call the broker. If it panics, Poll returns an error, and the messages are delivered again
	// after their invisible duration. Nil means none.
	Encoder Encoder

	// Stream takes messages while Poll waits for further ones, if p.Wait is not 0: up to half of
	// p.Max and p.MaxBytes. Poll returns the last part of the messages, which may be empty. The next
	// part follows after Stream has returned, which a repetition of the receive does not wait for.
	// Without more or with an error Poll ends; after an error the caller returns the messages of the
	// part to the queue. Nil means that Poll returns the first messages.
	Stream func(part []*tidegate.Delivery) (more bool, err error)

	// Memory is the memory for the bodies that Poll keeps for the caller. If Admit returns an
	// error, Poll returns fewer messages, or the error if there are none. Admit must not wait or
	// call the broker. Nil means that Poll admits all.
	Memory Memory

	// Watch stays behind if Poll has taken all messages that it could take; then Watch.Left is
	// true. The caller ends each watch. Nil means none.
	Watch *Watch

	rest   *rest          // set by Receive
	match  *filter.Filter // of Filter, set by Poll; nil matches all messages
	retry  bool           // from the group's retry topic for Topic
	shared bool           // the retry topic is one for other topics too
}

// An Encoder encodes the response to a receive.
type Encoder interface {
	// Prepare is called with the deliveries while they are written, and must not wait. The result
	// counts only if the receive returns these deliveries, or with more, if Request.Stream gets
	// them.
	Prepare(ds []*tidegate.Delivery, more bool)
}

// A rest is what a receive may still return. The copies of its request for the retry topics share
// it.
type rest struct {
	messages int
	bytes    int64
	part     int // number of the next part
	replayed int64

	// What may be streamed. Then the receive ends, so that the client can ask for as much as it has
	// room for.
	spareMessages int
	spareBytes    int64
}

// begin sets the rest. A receive with a Stream may stream half of its messages and bytes.
func (p *Request) begin() {
	p.rest = &rest{messages: p.Max, bytes: maxReceiveBytes, part: p.Arrived}
	if p.MaxBytes > 0 {
		p.rest.bytes = min(int64(p.MaxBytes), maxReceiveBytes)
	}
	if p.Stream != nil && p.Wait > 0 && !p.Repeat {
		p.rest.spareMessages, p.rest.spareBytes = (p.rest.messages-1)/2, p.rest.bytes/2
	}
}

// goesOn reports whether the receive streams these deliveries and waits for further ones.
func (r *rest) goesOn(ds []*tidegate.Delivery) bool {
	return len(ds) <= r.spareMessages && bodies(ds) <= r.spareBytes
}

// streamed subtracts a part of the response.
func (r *rest) streamed(ds []*tidegate.Delivery) {
	size := bodies(ds)
	r.messages -= len(ds)
	r.bytes -= size
	r.spareMessages -= len(ds)
	r.spareBytes -= size
	r.part++
}

// replay ends streaming: the repetition of an earlier receive returns its deliveries at once.
func (r *rest) replay(ds []*tidegate.Delivery) {
	r.spareMessages = 0
	r.replayed += bodies(ds)
}

func bodies(ds []*tidegate.Delivery) (n int64) {
	for _, d := range ds {
		n += int64(len(d.Body))
	}
	return n
}

// Memory is the memory for the bodies of a receive.
type Memory interface {
	// Admit is called with the size in bytes of all bodies that the receive is about to keep. An
	// error rejects the last of them. Admit must not wait.
	Admit(bytes int64) error
}

// wants reports whether the receive gets a message. The filter applies to messages of its topic. In
// a retry topic of several topics, the receive also takes the messages of other topics, because no
// other receive skips them. In a retry topic of one topic, messages of another topic belong to
// another group whose retry topic has the same name: topic-group-RETRY can be split in two ways.
func (p *Request) wants(m *store.Message) bool {
	if of := deadletter.RealTopic(m, ""); p.shared && of != p.Topic {
		return true
	} else if p.retry && of != "" && of != p.Topic {
		return false
	}
	return p.match.Match(m.Tag, m.Properties)
}

// admit returns an error if the receive may not keep so many bytes of bodies.
func (p *Request) admit(bytes int64) error {
	if p.Memory == nil {
		return nil
	}
	return p.Memory.Admit(p.rest.replayed + bytes)
}

// grantedBytes returns the size of the bodies of grants.
func grantedBytes(grants []consume.Grant) (n int64) {
	for i := range grants {
		n += grants[i].Lease.Size
	}
	return n
}

// A requestFilter is the filter of a receive.
type requestFilter Request

// Wants implements consume.Filter.
func (f *requestFilter) Wants(m *store.Message) bool { return (*Request)(f).wants(m) }

// A Status is the state of a subscription, and its counts since the broker was opened.
type Status struct {
	consume.Summary
	consume.Stats

	Redelivered int64 // deliveries with attempt 2 and above
	Waiting     int64 // receives that wait for a message

	// Deliveries are the deliveries by the classes of AttemptBounds.
	Deliveries [len(AttemptBounds) + 1]int64

	DeadLettersHour int64 // in the last hour, of at most 65 minutes

	Held *consume.Holding // by the client with the delivery in flight that began first; nil for none
}

// Status returns the state.
func (s *Subscription) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extend()
	now := time.Now()
	out := Status{
		Summary: s.progress.Summary(), Stats: s.progress.Stats(),
		Redelivered: s.redelivered, Waiting: s.waiting(), Deliveries: s.attempts,
		DeadLettersHour: s.deadLetters.count(now),
	}
	if held, ok := s.progress.LongestHeld(now); ok {
		out.Held = &held
	}
	return out
}

// waiting returns the number of receives that wait. mu is held.
func (s *Subscription) waiting() (n int64) {
	if s.lite != nil {
		for _, c := range s.lite.byID {
			n += int64(len(c.waiters))
		}
	}
	return n + int64(len(s.waiters))
}

// Recordable returns the counters and gauges that the history of rates and backlogs has.
func (s *Subscription) Recordable() (c Counts, g Gauges) {
	g[Backlog] = s.Backlog().Messages
	s.mu.Lock()
	defer s.mu.Unlock()
	g[Retrying] = s.progress.WaitingRetry()
	stats := s.progress.Stats()
	c[Acked], c[Dead], c[Redelivered] = stats.Acked, stats.DeadLetters, s.redelivered
	for _, n := range s.attempts {
		c[Delivered] += n
	}
	return c, g
}

// MaxLook is the number of new messages that the looks of one survey read, for all subscriptions
// together.
const MaxLook = 1 << 16

// The bounds of one read of LookAhead.
const (
	lookMessages = 1024
	lookBytes    = 64 << 20 // of bodies, which are not read
)

// LookAhead reads the message groups of new messages that no receive has reached, at most budget
// messages, and reduces budget by their number. It reads only if message groups are parked or
// blocked: Status then does not count their new messages as ready. Corrupt messages count as ready.
func (s *Subscription) LookAhead(budget *int64) {
	for *budget > 0 {
		look, queue, ok := s.nextLook(min(*budget, lookMessages))
		if !ok || !s.readHeaders(look, queue) {
			return
		}
		*budget -= look.To - look.From
	}
}

// readHeaders reads the message groups of a look. It returns false if it cannot read them.
func (s *Subscription) readHeaders(look consume.Look, queue *Queue) bool {
	if !s.env.Calls.Begin() {
		return false
	}
	defer s.env.Calls.End()
	hs, _, err := s.env.Store.Headers(store.Range{Topic: s.Topic().ID(), Queue: queue.Number(), From: look.From, To: look.To}, false, lookMessages, lookBytes)
	if err != nil {
		return false // the receive that reaches the messages reports it
	}
	groups, offsets := make([]string, len(hs)), make([]int64, len(hs))
	read := int64(0)
	for i := range hs {
		groups[i], offsets[i] = hs[i].OrderKey(), hs[i].Offset
		read += hs[i].Size
	}
	if read >= lookBytes {
		look.To = offsets[len(offsets)-1] + 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress.Looked(look, groups, offsets)
	return true
}

func (s *Subscription) nextLook(limit int64) (look consume.Look, queue *Queue, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return look, nil, false
	}
	s.extend()
	if look, ok = s.progress.NextLook(limit); ok {
		queue = s.readers[look.Queue].queue
	}
	return look, queue, ok
}

// attemptClass returns the index in Status.Deliveries.
func attemptClass(attempt int) int {
	i := 0
	for i < len(AttemptBounds) && attempt > AttemptBounds[i] {
		i++
	}
	return i
}

const (
	// lastHourStep is the resolution of a lastHour.
	lastHourStep = 5 * time.Minute

	// lastHourSteps cover an hour at any moment within the newest step.
	lastHourSteps = int64(time.Hour/lastHourStep) + 1
)

// A lastHour counts the events of the last hour: of at least 60 minutes, and at most 65. The zero
// value has none.
type lastHour struct {
	counts [lastHourSteps]uint32
	newest int64 // number of the newest step since 1970
}

// add counts an event.
func (h *lastHour) add(now time.Time) {
	step := now.UnixNano() / int64(lastHourStep)
	h.advance(step)
	h.counts[step%lastHourSteps]++
}

// count returns the number of events.
func (h *lastHour) count(now time.Time) (n int64) {
	h.advance(now.UnixNano() / int64(lastHourStep))
	for _, c := range h.counts {
		n += int64(c)
	}
	return n
}

// advance clears the steps that are over. If the clock goes back, later steps stay.
func (h *lastHour) advance(step int64) {
	for from := max(h.newest+1, step-lastHourSteps+1); from <= step; from++ {
		h.counts[from%lastHourSteps] = 0
	}
	h.newest = max(h.newest, step)
}

// causes are the names of the events that count as failures.
var causes = map[consume.Event]string{
	consume.EventFail: "failed", consume.EventTimeout: deadletter.Timeout, consume.EventNegativeAck: "negative_ack", consume.EventDeadLetter: "dead_letter",
}

// noteFailure adds a failed delivery to the failures of the group. mu is held, after the departures
// have begun.
func (s *Subscription) noteFailure(f *consume.Failure) {
	fate := "retry"
	switch d := s.leaving[f.Lease]; {
	case f.To == consume.Parked:
		fate = "parked"
	case f.To == consume.DeadLetter && d != nil && len(d.topics) == 0 && !d.stays:
		fate = "removed"
	case f.To == consume.DeadLetter:
		fate = "dead_letter"
	case f.Blocked:
		fate = "blocked"
	}
	s.env.Failures.Add(s.Group().Name(), deadletter.Failure{
		At: f.At, Topic: s.Topic().Name(), Place: s.progress.Place(f.Lease), Attempt: f.Attempt, Client: f.Client,
		Reason: f.Reason, Cause: causes[f.Event], Fate: fate, Delay: f.Delay,
	})
}

// noteReconsumption is noteFailure for a message that is sent to a retry topic, or to the dead
// letter topic after the maximum of retries. mu is held.
func (s *Subscription) noteReconsumption(d *Departure, r *reconsumption, now time.Time) {
	fate := "retry_topic"
	if r.Retry.Dead {
		fate = "dead_letter"
	}
	s.env.Failures.Add(s.Group().Name(), deadletter.Failure{
		At: now, Topic: s.Topic().Name(), Place: d.place, Attempt: d.Tries, Client: d.Lease.Receiver(), Cause: "reconsume_later", Fate: fate, Delay: r.Delay,
	})
}

// leaseBytes is about the memory of one lease, with its places in maps and heaps.
const leaseBytes = 256

// Leases counts the leases in memory of all subscriptions of a broker, and bounds them: at the
// bound no receive takes new messages. Ready messages have a lease already, so they are delivered
// at the bound too, and each acknowledgement makes room. The bound can be exceeded by a batch of
// each receive under way, and up to twice by the leases of a store that a larger machine wrote. A
// store with more is not opened, because the process would use up its memory while it starts, again
// and again.
//
// No receive waits for the bound: it is rejected, and the client calls again.
type Leases struct {
	memory int64 // of the process, in bytes
	max    int64
	count  atomic.Int64
}

// NewLeases returns Leases that may use a quarter of the memory of the process, in bytes.
func NewLeases(memory int64) *Leases {
	return &Leases{memory: memory, max: max(1, memory/4/leaseBytes)}
}

// Restorable returns the largest number of leases of a store for which the memory suffices. They
// can use half of it.
func (l *Leases) Restorable() int64 { return 2 * l.max }

// CanRestore returns an error if the leases of a store are more than Restorable.
func (l *Leases) CanRestore(leases int64) error {
	if leases <= l.Restorable() {
		return nil
	}
	return fmt.Errorf("it has %d messages in flight or waiting for a retry, and a memory limit of %d bytes suffices for %d; "+
		"nothing was changed: start the broker with a memory limit of at least %d bytes (GOMEMLIMIT) and consume them there",
		leases, l.memory, l.Restorable(), 2*leases*leaseBytes)
}

// rejected returns the error of a receive of new messages at the bound, and nil below it.
func (l *Leases) rejected() error {
	n := l.count.Load()
	if n < l.max {
		return nil
	}
	return &tidegate.Error{
		Code: tidegate.CodeTooManyRequests, Subject: "deliveries in flight", RetryAfter: time.Second,
		Message: fmt.Sprintf("%d TOO_MANY_REQUESTS: the broker has %d messages in flight or waiting for a retry, and its memory suffices for %d; "+
			"acknowledge messages, or give the broker more memory", protocol.ReplyTooManyRequests, n, l.max),
	}
}

// countLeases passes the change of the subscription's leases to the leases of the broker. A deleted
// subscription has none. mu is held.
func (s *Subscription) countLeases() {
	n := int64(0)
	if s.gone == nil {
		for _, c := range s.progress.Counts() {
			n += c
		}
	}
	if n != s.leases {
		s.env.Leases.count.Add(n - s.leases)
		s.leases = n
	}
}
