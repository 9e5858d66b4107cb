// Package consume is the state machine of one consumer group's consumption of one topic. It has no
// lock, no clock, no I/O and no goroutine. A [Progress] is the state; the caller passes the time,
// reads queues, and applies the [Effects] of each operation. The caller is engine.Subscription, in
// Subscription.apply.
//
// # The life of a message
//
//  1. A receive claims a queue ([Progress.Claim]), reads it, and moves the cursor over the messages
//     ([Progress.Admit]). Each message gets a lease, and is delivered.
//  2. In a FIFO group a message is held while an earlier message of its message group is unfinished
//     (joinGroup, promote).
//  3. Ready messages are delivered before new ones. A quarter of each receive is left for new
//     messages ([Progress.Begin]).
//  4. [Progress.Ack] ends the lease. Other settlements go through [Progress.Settle]: the state
//     table, then the attempts, then the new due time.
//  5. [Progress.Expire] applies invisible durations and retry intervals that are over.
//  6. The maximum of attempts is applied in one place: Policy.exhaustion in settle.go.
//  7. After the last attempt the message departs as a dead letter (depart), or its message group
//     is parked (park) or blocked (block). The messages behind such a head are spilled to disk
//     (spillHeld), and read back when it is done ([Progress.NextFetch]).
//  8. [Progress.Departed] ends the lease of a dead letter that is on disk. [Progress.Returned]
//     takes the message back if the write failed.
//
// # Files
//
//   - state.go: states, events, and the table of changes; message groups; heaps; the clients that
//     hold messages; redelivery settings of addresses
//   - progress.go: cursors, leases, counts; restarts, repeated receives, rewinds; parked and
//     blocked message groups
//   - receive.go: which messages a receive gets; missing messages; counts of new messages
//   - handle.go: which receipt handles are valid; heartbeats of owners; recall handles and IDs of
//     transactions
//   - settle.go: acknowledgements, verdicts, releases; departures to the dead letters; the maximum
//     of attempts and retry intervals ([Policy]); where one message is ([Fate])
//   - leases.go: timeouts and retries that are due; lists of leases; removed messages; spilled ones
//   - effects.go: the actions for the caller, and a check for tests
//
// Package consume uses the record types of package store, because the records are written
// unchanged. Separate types would repeat their fields, and need a copy for each write.
package consume

import (
	"container/heap"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
)

// A State is where a message is in a group's consumption (RocketMQ: consumption retry).
type State uint8

// The states. A message that was never delivered has no record and is Ready.
const (
	Ready State = iota + 1
	Inflight
	WaitingRetry
	Commit
	DeadLetter

	// Parked waits, with all later messages of its message group, until an operator redrives
	// them. Only in FIFO groups that park.
	Parked

	// Held is Ready, except that an earlier message of its message group is not done. Only in
	// FIFO groups.
	Held
)

// String returns the name used by RocketMQ.
func (s State) String() string {
	switch s {
	case Ready:
		return "Ready"
	case Inflight:
		return "Inflight"
	case WaitingRetry:
		return "WaitingRetry"
	case Commit:
		return "Commit"
	case DeadLetter:
		return "DeadLetter"
	case Parked:
		return "Parked"
	case Held:
		return "Held"
	}
	return "unknown"
}

// An Event is something that happens to a message.
type Event uint8

const (
	EventDeliver     Event = iota // a consumer receives it
	EventAck                      // the consumer has consumed it
	EventFail                     // the consumer reports a failure
	EventTimeout                  // the invisible duration is over without a settlement
	EventChange                   // the consumer changes the invisible duration
	EventRelease                  // it did not reach the consumer, or the consumer did not process it
	EventDue                      // the retry interval is over
	EventDeadLetter               // the consumer requests a dead letter
	EventNegativeAck              // the consumer requests a redelivery, which Policy.MaxRedeliveries limits
	EventSnooze                   // the consumer requests a redelivery; the attempt does not count
	EventReconsume                // the consumer requests a redelivery through the retry topic
	EventPromote                  // the message before it in its message group is done
	EventRedrive                  // an operator redrives the parked message group
)

// String returns the name in the table in the doc of package broker.
func (e Event) String() string {
	return [...]string{"deliver", "ack", "fail", "timeout", "change", "release", "due", "dead-letter", "negative-ack", "snooze", "reconsume", "promote", "redrive"}[e]
}

// An Exhaustion is the action for a message after its last attempt.
type Exhaustion uint8

const (
	AttemptsLeft Exhaustion = iota // the attempt was not the last one
	ThenDeadLetter
	ThenPark  // the message group is parked
	ThenBlock // the message is retried without end and blocks its message group
)

// transitions is the state machine of consumption retry. For a pair of state and event that is not
// in the table, the broker rejects the request with INVALID_RECEIPT_HANDLE. Two tables take
// precedence:
//   - exhaustedTransitions, if the attempts are exhausted;
//   - then pushTransitions, for a push consumer.
//
// The doc of package broker has the same table, and a test compares the two.
var transitions = map[State]map[Event]State{
	Ready: {
		EventDeliver:    Inflight,
		EventDeadLetter: DeadLetter, // the request is late, but there was no other delivery
	},
	Inflight: {
		EventAck:         Commit,
		EventReconsume:   Commit, // TDMQ for Pulsar: retry and dead letters: "the original message in the topic is acknowledged"
		EventFail:        WaitingRetry,
		EventNegativeAck: WaitingRetry,
		EventSnooze:      WaitingRetry,
		EventTimeout:     Ready, // RocketMQ: consumption retry, SimpleConsumer: "the retry interval is 0 ms"
		EventChange:      Inflight,
		EventRelease:     Ready,
		EventDeadLetter:  DeadLetter,
	},
	WaitingRetry: {
		EventDue:        Ready,
		EventDeadLetter: DeadLetter,
	},
	Parked: {
		EventRedrive:    Ready,
		EventDeadLetter: DeadLetter, // an operator redrives the message group to the dead letters
	},
	Held: {
		EventPromote: Ready,
	},
}

var pushTransitions = map[State]map[Event]State{
	Inflight: {
		EventTimeout: WaitingRetry, // RocketMQ: consumption retry, PushConsumer: failure and timeout alike
	},
}

// Some consumers make retries themselves, for example RocketMQ's push consumers of FIFO groups.
// They report exhausted attempts with a request for a dead letter.
var exhaustedTransitions = map[Exhaustion]map[State]map[Event]State{
	ThenDeadLetter: {
		Inflight: {
			EventFail:        DeadLetter,
			EventNegativeAck: DeadLetter,
			EventTimeout:     DeadLetter,
		},
		WaitingRetry: {
			EventDue: DeadLetter, // the maximum was lowered meanwhile
		},
	},
	ThenPark: {
		Ready: {
			EventDeadLetter: Parked,
		},
		Inflight: {
			EventFail:        Parked,
			EventNegativeAck: Parked,
			EventTimeout:     Parked,
			EventDeadLetter:  Parked,
		},
		WaitingRetry: {
			EventDue:        Parked,
			EventDeadLetter: Parked,
		},
	},
	ThenBlock: { // as if attempts were left
		Ready: {
			EventDeadLetter: Ready,
		},
		Inflight: {
			EventDeadLetter: WaitingRetry,
		},
		WaitingRetry: {
			EventDeadLetter: WaitingRetry,
		},
	},
}

// Next returns the state after e, and false if e cannot happen in s.
func (s State) Next(e Event, x Exhaustion, push bool) (State, bool) {
	kind := 0
	if push {
		kind = 1
	}
	to := next[x][kind][s][e]
	return to, to != 0
}

// next holds the state after each event, by exhaustion, kind of consumer (1: push) and state. 0
// means that the event cannot happen. Each delivery looks up a transition here, because a lookup in
// the maps took a tenth of a microsecond.
var next = func() (n [ThenBlock + 1][2][Held + 1][EventRedrive + 1]State) {
	for x := range n {
		for kind := range n[x] {
			for from := range n[x][kind] {
				for e := range n[x][kind][from] {
					n[x][kind][from][e] = after(State(from), Event(e), Exhaustion(x), kind == 1) //nolint:gosec // they fit
				}
			}
		}
	}
	return n
}()

// after returns the state after e according to the tables.
func after(s State, e Event, x Exhaustion, push bool) State {
	if to, ok := exhaustedTransitions[x][s][e]; ok {
		return to
	}
	if to, ok := pushTransitions[s][e]; ok && push {
		return to
	}
	return transitions[s][e]
}

// A messageGroup is the unfinished messages of one message group, in order: the head, the held ones
// in memory, and the spilled ones on disk.
type messageGroup struct {
	head  *Lease   // the only one that can be delivered; nil while it is read back
	held  []*Lease // those after it
	spill *spill   // those after held; nil if there are none
}

// joinGroup adds a new message to its message group. It returns false if the message is the head,
// and can be delivered.
func (p *Progress) joinGroup(l *Lease) bool {
	mg := p.groups[l.Group]
	switch {
	case mg == nil:
		p.groups[l.Group] = &messageGroup{head: l}
		return false
	case mg.spill != nil:
		l.Lease.State = uint8(Held)
		p.extendSpill(mg.spill, l.cursor, l.offset, l.Size)
		p.write(PutSpilled, l, "")
	default:
		mg.held = append(mg.held, l)
		p.addLease(l)
		p.set(l, Held)
		p.putLease(l)
	}
	return true
}

// promote makes the next message of a message group its head, because the head is done or gone.
func (p *Progress) promote(name string, mg *messageGroup) {
	mg.head = nil
	if mg.spill != nil {
		p.endStandstill(mg)
	}
	if len(mg.held) > 0 {
		full := p.full()
		mg.head, mg.held = mg.held[0], mg.held[1:]
		to, _ := mg.head.State().Next(EventPromote, AttemptsLeft, false)
		p.set(mg.head, to)
		p.wake(mg.head)
		if full {
			p.effects.WakeRest = true
		}
	}
	if mg.spill != nil && len(mg.held) < FewHeld {
		p.fetch(name, mg)
	} else if mg.head == nil && mg.spill == nil {
		delete(p.groups, name)
	}
}

// A dueHeap has the lease that is due first in front.
type dueHeap []*Lease

var _ heap.Interface = (*dueHeap)(nil)

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].Due.Before(h[j].Due) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].dueIndex, h[j].dueIndex = i, j
}

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) {
	l := x.(*Lease)
	l.dueIndex = len(*h)
	*h = append(*h, l)
}

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	l.dueIndex = -1
	return l
}

// An offsetHeap has the lease with the lowest offset in front.
type offsetHeap []*Lease

var _ heap.Interface = (*offsetHeap)(nil)

func (h offsetHeap) Len() int           { return len(h) }
func (h offsetHeap) Less(i, j int) bool { return h[i].offset < h[j].offset }
func (h offsetHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *offsetHeap) Push(x any) { *h = append(*h, x.(*Lease)) }

// Pop implements heap.Interface.
func (h *offsetHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return l
}

// A Holding is the client with the delivery in flight that began first, and the deliveries in
// flight that it has in one Progress.
type Holding struct {
	Client   string    // see Lease.Receiver; empty if it is not known
	Messages int64     // that the client has in flight
	Since    time.Time // begin of its first delivery; a change of the invisible duration is no new begin
	Due      time.Time // end of the invisible duration of that delivery
}

// scanPause is the least time between two searches for the longest delivery, for each lease that a
// search looks at. So the searches take about a hundredth of the time of a processor at most.
const scanPause = 10 * time.Microsecond

// A longest is the result of the last search.
type longest struct {
	Holding
	lease *Lease    // of Since; nil for none
	again time.Time // the next search begins at this time or later
}

// LongestHeld returns the client with the delivery in flight that began first. ok is false if no
// delivery is in flight. It is also false if the delivery of the last search has ended and the next
// search has to wait, 1 s for each 100 000 leases. Until then Messages can be old too.
func (p *Progress) LongestHeld(now time.Time) (h Holding, ok bool) {
	if p.counts[Inflight] == 0 {
		p.longest = longest{}
		return Holding{}, false
	}
	if l := &p.longest; now.Before(l.again) {
		if l.lease == nil || l.lease.State() != Inflight || !l.lease.Since.Equal(l.Since) || p.Lease(int(l.lease.Queue()), l.lease.Offset()) != l.lease {
			return Holding{}, false
		}
		l.Due = l.lease.Due
		return l.Holding, true
	}
	p.longest = p.searchLongest()
	p.longest.again = now.Add(time.Duration(len(p.due)) * scanPause)
	return p.longest.Holding, p.longest.lease != nil
}

func (p *Progress) searchLongest() (found longest) {
	for _, l := range p.due {
		if l.State() == Inflight && (found.lease == nil || l.Since.Before(found.Since)) {
			found.lease, found.Since = l, l.Since
		}
	}
	if found.lease == nil {
		return found
	}
	found.Client, found.Due = found.lease.Receiver(), found.lease.Due
	for _, l := range p.due {
		if l.State() == Inflight && l.Receiver() == found.Client {
			found.Messages++
		}
	}
	return found
}

// A Holder is a client that receives messages, with the number of its deliveries in flight in all
// topics. It lives in memory only: after a restart no delivery has a holder. Several goroutines can
// call its methods at the same time.
type Holder struct {
	id       string
	inflight atomic.Int64
}

// NewHolder returns the holder of a client without deliveries.
func NewHolder(id string) *Holder { return &Holder{id: id} }

// Inflight returns the number of the deliveries in flight.
func (h *Holder) Inflight() int64 { return h.inflight.Load() }

// hold counts the deliveries that begin (1) and end (-1). A nil holder counts nothing.
func (h *Holder) hold(n int64) {
	if h != nil {
		h.inflight.Add(n)
	}
}

// Receiver returns the ID of the client that received the last delivery, empty if it is not known.
func (l *Lease) Receiver() string {
	if l.holder != nil {
		return l.holder.id
	}
	return l.Owner
}

// Abandon ends the count of all deliveries in flight for their holders, because the subscription is
// deleted.
func (p *Progress) Abandon() {
	for _, l := range p.due {
		if l.State() == Inflight {
			l.holder.hold(-1)
			l.holder = nil
		}
	}
}

// uncount takes a lease out of the counts of its state, because it ends or changes its state.
func (p *Progress) uncount(l *Lease) {
	p.counts[l.Lease.State]--
	if l.State() == Inflight {
		l.holder.hold(-1)
	}
}

// RetryRules are the redelivery settings of an address with all defaults. No method changes them,
// so several goroutines may share them.
type RetryRules struct {
	Delay       time.Duration // redelivery-delay; 0 for none
	Longest     time.Duration // max-redelivery-delay
	Multiplier  float64       // redelivery-delay-multiplier, above 0
	Factor      float64       // redelivery-collision-avoidance-factor, 0 to 1
	MaxAttempts int           // max-delivery-attempts; -1 for ever

	DeadLetter     string // dead-letter-address; empty: a message without attempts left is removed
	AutoCreate     bool   // auto-create-dead-letter-resources
	Prefix, Suffix string // of automatic dead-letter queues
}

// After returns the delay after a failed delivery attempt: redelivery-delay, times the multiplier
// for each earlier failure. The random part is then added or subtracted. Both steps are limited to
// max-redelivery-delay.
func (r *RetryRules) After(attempt int, d Draw) time.Duration {
	if r.Delay <= 0 {
		return 0
	}
	longest := float64(r.Longest)
	delay := min(float64(r.Delay)*math.Pow(r.Multiplier, float64(max(attempt, 1)-1)), longest)
	factor := r.Factor
	if d.Negative {
		factor = -factor
	}
	delay = min(delay+delay*(factor*d.Number), longest)
	return min(time.Duration(math.Round(delay)), r.Longest) // a float64 may round up
}

// maxSteps bounds the steps of Ladder.
const maxSteps = 32

// Ladder returns the retry schedule without the random part: the delay after the first failure,
// after the second and so on. The last one repeats.
func (r *RetryRules) Ladder() backoff.Steps {
	steps := backoff.Steps{r.After(1, Draw{})}
	for n := 2; n <= maxSteps; n++ {
		steps = append(steps, r.After(n, Draw{}))
	}
	for len(steps) > 1 && steps[len(steps)-1] == steps[len(steps)-2] { // the last step repeats anyway
		steps = steps[:len(steps)-1]
	}
	return steps
}

// DeadLetterTopics returns the topics to which a message of a topic goes after its last attempt.
// own is the dead letter topic of the consumer group, and the destination of dead letters that fail
// again. early is Departure.Early of package consume. Without a dead-letter-address such a message
// goes to own, and any other message is removed. With AutoCreate a message also goes to the
// automatic dead-letter queue of its topic.
func (r *RetryRules) DeadLetterTopics(own, topic string, early bool) []string {
	switch {
	case early && r.DeadLetter == "":
		return []string{own}
	case r.DeadLetter == "":
		return nil
	case topic == r.DeadLetter || r.AutoCreate && r.isQueue(topic):
		return []string{own} // otherwise a dead letter that fails would return to its own topic
	}
	out := []string{r.DeadLetter}
	if q := r.Prefix + topic + r.Suffix; r.AutoCreate && q != topic && q != r.DeadLetter && tidegate.ValidateTopic(q) == nil {
		out = append(out, q)
	}
	return out
}

// isQueue reports whether a topic has the name of an automatic dead-letter queue.
func (r *RetryRules) isQueue(topic string) bool {
	return r.Prefix+r.Suffix != "" && len(topic) > len(r.Prefix+r.Suffix) &&
		strings.HasPrefix(topic, r.Prefix) && strings.HasSuffix(topic, r.Suffix)
}

// A Draw is the random part of redelivery-collision-avoidance-factor (Apache ActiveMQ Artemis):
// "either positive or negative at random", and "a random number between 0.0 and 1.0". The zero
// value means no random part.
type Draw struct {
	Negative bool
	Number   float64 // from 0, below 1
}

// drawFrom derives a draw from numbers that identify its purpose. Equal numbers give equal draws in
// every process, so a draw need not be stored for a restart.
func drawFrom(first uint64, more ...uint64) Draw {
	x := first
	for _, v := range more {
		x = mix(x + 0x9e3779b97f4a7c15 + v)
	}
	return Draw{Negative: x&1 == 1, Number: float64(x>>11) / (1 << 53)}
}

// mix spreads the bits of x over the result (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
