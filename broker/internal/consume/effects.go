package consume

import (
	"sync"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
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
