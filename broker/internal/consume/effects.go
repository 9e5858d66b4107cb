package consume

import (
	"fmt"
	"sync"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/internal/throttle"
)

// Effects are the actions that the caller takes after changes of a [Progress]. They accumulate
// until Reset, so the writes of several operations can share one batch.
type Effects struct {
	// Writes change the records of the groups database, in this order. The content of a record is
	// read from the lease or cursor when it is encoded.
	Writes []Write

	// Durable means that the operation is complete only when the writes are on disk. If it is
	// false, a crash may undo the writes.
	Durable bool

	Done        Amount // consumed, given up, removed or rewound over; negative after a rewind
	Drained     Amount // of Done: counts in the drain rate of the group
	LeasedBytes int64  // change of the bytes of leased and spilled messages

	Wakes    []Wake // receives that can take a message
	WakeRest bool   // wake as many receives as Available returns for each queue
	Fetch    bool   // NextFetch returns messages to read back
	Reread   []int  // queues: messages that were read ahead are outdated

	Departures []Departure     // messages that leave the topic
	Parked     []ParkedGroup   // message groups that were parked
	Failures   []Failure       // deliveries that failed
	Late       []time.Duration // from the due time of each retry to the moment it became ready

	buffer *[]Write // of Writes; nil while there are none
}

// A Failure is a delivery that failed, for the operators of the group.
type Failure struct {
	Lease   *Lease
	Event   Event
	To      State
	Blocked bool // the message blocks its message group
	Attempt int
	Client  string // that received the delivery; empty if it is not known
	Reason  string
	At      time.Time
	Delay   time.Duration // until it is delivered again
}

// writeBuffers are used again by all subscriptions: those that are idle have none.
var writeBuffers = sync.Pool{New: func() any { return new([]Write) }}

// A Wake ends the wait of up to N receives that may read a queue.
type Wake struct {
	Queue uint16
	N     int64
}

// A WriteKind is a change of one record in the groups database.
type WriteKind uint8

// The kinds, and the fields of Write that each uses beside Queue.
const (
	PutLease         WriteKind = iota // Lease
	DeleteLease                       // Offset
	PutCursor                         // -
	PutSpilled                        // Lease
	DeleteSpilled                     // Offset, Text: the message group
	PutParked                         // Offset, Text: the reason
	DeleteParked                      // Offset
	DeleteAllSpilled                  // -: all spilled messages of the queue
	DeleteProgress                    // -: the cursor, and all leases and spilled messages of the queue
)

// A Write is a change of one record.
type Write struct {
	Kind   WriteKind
	Queue  uint16
	Offset int64
	Lease  *Lease
	Text   string
}

// Encode adds the writes to a batch.
func (p *Progress) Encode(b *store.Batch) {
	group, topic := p.config.Group, p.config.Topic
	for i := range p.effects.Writes {
		w := &p.effects.Writes[i]
		place := store.Place{Topic: topic, Queue: w.Queue, Offset: w.Offset}
		switch w.Kind {
		case PutLease:
			b.PutLease(group, place, &w.Lease.Lease)
		case DeleteLease:
			b.DeleteLease(group, place)
		case PutCursor:
			b.PutCursor(group, topic, w.Queue, p.Cursor(int(w.Queue)))
		case PutSpilled:
			b.PutSpilled(group, place, &w.Lease.Lease)
		case DeleteSpilled:
			b.DeleteSpilled(group, place, w.Text)
		case PutParked:
			b.PutParked(group, place, w.Text)
		case DeleteParked:
			b.DeleteParked(group, place)
		case DeleteAllSpilled:
			b.DeleteAllSpilled(group, topic, w.Queue)
		case DeleteProgress:
			b.DeleteProgress(group, topic, w.Queue)
		}
	}
}

// Effects returns the accumulated effects. The value is valid until the next call of a method.
func (p *Progress) Effects() *Effects { return &p.effects }

// maxReused bounds the buffer of writes that is used again.
const maxReused = 1024

// Reset empties the effects.
func (e *Effects) Reset() {
	if e.buffer != nil && cap(e.Writes) <= maxReused {
		clear(e.Writes) // no lease is kept alive
		*e.buffer = e.Writes[:0]
		writeBuffers.Put(e.buffer)
	}
	*e = Effects{Wakes: e.Wakes[:0]}
}

// add adds a write.
func (e *Effects) add(w Write) {
	if e.buffer == nil {
		e.buffer = writeBuffers.Get().(*[]Write)
		e.Writes = (*e.buffer)[:0]
	}
	e.Writes = append(e.Writes, w)
}

func (p *Progress) write(k WriteKind, l *Lease, text string) {
	p.effects.add(Write{Kind: k, Queue: l.cursor.number, Offset: l.offset, Lease: l, Text: text})
}

// fail notes a failure of a delivery with the effects. The lease has its state after the failure.
func (p *Progress) fail(l *Lease, f Failure) {
	f.Lease, f.To, f.Blocked, f.Reason = l, l.State(), l.Blocked, shortReason(f.Reason)
	if f.To == WaitingRetry {
		f.Delay = max(l.Due.Sub(f.At), 0)
	}
	p.effects.Failures = append(p.effects.Failures, f)
}

func (p *Progress) putLease(l *Lease)    { p.write(PutLease, l, "") }
func (p *Progress) deleteLease(l *Lease) { p.write(DeleteLease, l, "") }

func (p *Progress) putCursor(c *cursor) {
	p.effects.add(Write{Kind: PutCursor, Queue: c.number})
}

// wake wakes a receive for a message that became ready.
func (p *Progress) wake(l *Lease) {
	queue := l.cursor.number
	if n := len(p.effects.Wakes); n > 0 && p.effects.Wakes[n-1].Queue == queue {
		p.effects.Wakes[n-1].N++
		return
	}
	p.effects.Wakes = append(p.effects.Wakes, Wake{queue, 1})
}

// Audit compares all counts, heaps and message groups with the leases, and returns the first
// difference as an error. It is for tests, between operations.
func (p *Progress) Audit() error {
	var counts Counts
	timed := 0
	heads, held := map[string]int{}, map[string]int{}
	for _, c := range p.cursors {
		ready := 0
		ages, inAges := map[int64]int{}, map[int64]int{}
		for o, l := range c.leases {
			if l.cursor != c || l.offset != o || o >= c.next {
				return fmt.Errorf("queue %d has the lease %+v at %d; its next offset is %d", c.number, l, o, c.next)
			}
			counts[l.Lease.State]++
			ages[l.Stored/throttle.AgeTick]++
			switch l.State() {
			case Inflight, WaitingRetry:
				timed++
				if l.dueIndex < 0 || p.due[l.dueIndex] != l {
					return fmt.Errorf("offset %d of queue %d is %s, and is not among those that are due", o, c.number, l.State())
				}
			case Ready:
				ready++
			}
			if mg := p.groups[l.Group]; mg != nil && l.Group != "" {
				if l.State() == Held {
					held[l.Group]++
				} else {
					heads[l.Group]++
				}
			}
		}
		for stored, n := range c.ages.All() {
			inAges[stored/throttle.AgeTick] += n
		}
		for tick, n := range ages {
			if inAges[tick] != n {
				return fmt.Errorf("queue %d counts %d leases of the age %d; there are %d", c.number, inAges[tick], tick, n)
			}
		}
		if ready != len(c.ready) {
			return fmt.Errorf("queue %d has %d ready leases, and %d in its heap", c.number, ready, len(c.ready))
		}
		for i, l := range c.ready {
			if l.State() != Ready || c.leases[l.offset] != l || i > 0 && c.ready[(i-1)/2].offset > l.offset {
				return fmt.Errorf("the ready heap of queue %d has %+v at %d", c.number, l, i)
			}
		}
	}
	if counts != p.counts || timed != len(p.due) {
		return fmt.Errorf("the leases by state are %v, and %d are due; it counts %v and %d", counts, timed, p.counts, len(p.due))
	}
	for i, l := range p.due {
		if i > 0 && p.due[(i-1)/2].Due.After(l.Due) {
			return fmt.Errorf("the heap of those that are due is not in order at %d", i)
		}
	}
	return p.auditGroups(heads, held)
}

// auditGroups compares the message groups with their heads and held messages by the leases.
func (p *Progress) auditGroups(heads, held map[string]int) error {
	var spilled spilledCounts
	ahead := aheadCounts{round: p.ahead.round}
	for name, mg := range p.groups {
		if mg.head == nil && mg.spill == nil || mg.head == nil && len(mg.held) > 0 {
			return fmt.Errorf("message group %q has no head: %+v", name, mg)
		}
		if mg.head != nil && (heads[name] != 1 || mg.head.cursor.leases[mg.head.offset] != mg.head || mg.head.State() == Held) {
			return fmt.Errorf("message group %q has %d heads, of which it knows %+v", name, heads[name], mg.head)
		}
		if len(mg.held) != held[name] {
			return fmt.Errorf("message group %q has %d held messages, and knows %d", name, held[name], len(mg.held))
		}
		if mg.spill == nil {
			continue
		}
		var sum int64
		for _, part := range mg.spill.segments {
			sum += part.messages
		}
		spilled.messages += sum
		switch {
		case sum != mg.spill.messages:
			return fmt.Errorf("message group %q has %d spilled messages, and counts %d", name, sum, mg.spill.messages)
		case mg.spill.standstill && mg.spill.reason == "":
			spilled.blocked++
			spilled.still++
			spilled.behind += sum
			ahead.blocked += p.aheadOf(mg.spill)
		case mg.spill.standstill:
			spilled.still++
			spilled.parked += sum
			ahead.parked += p.aheadOf(mg.spill)
		}
		if mg.spill.standstill && len(mg.held) > 0 {
			return fmt.Errorf("message group %q stands still, and %d messages are held in memory", name, len(mg.held))
		}
	}
	if ahead != p.ahead {
		return fmt.Errorf("the new messages behind those are %+v; it counts %+v", ahead, p.ahead)
	}
	if spilled != p.spilled {
		return fmt.Errorf("the spilled messages are %+v; it counts %+v", spilled, p.spilled)
	}
	return nil
}
