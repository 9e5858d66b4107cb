package record

import (
	"encoding/binary"
	"fmt"
	"time"
)

// leaseVersion is the first byte of a stored lease.
const leaseVersion = 1

// The bits of a lease's third byte.
const (
	leasePush     = 1
	leaseNegative = 2
	leaseRetain   = 4
	leaseBlocked  = 8
	leaseChanged  = 16
	leaseSpan     = 32 // Span follows the message group; records of earlier versions have none
)

// A Cursor is how far a group is in a queue.
type Cursor struct {
	Next  int64 // the offset of the first message that was never handed out
	Bytes int64 // of the queue's messages before Next

	// Rewound is when the group was last rewound in the queue, in nanoseconds
	// since 1970; 0 for never.
	Rewound int64
}

// A Lease is a group's state of one message that was delivered or skipped and is not finished.
type Lease struct {
	State    uint8         // the engine's number for the state
	Push     bool          // taken by a push consumer
	Negative bool          // waits after a negative acknowledgement or a snooze: the maximum of attempts does not end it
	Retain   bool          // retention does not remove the message before it is done: its message group was parked or blocked
	Blocked  bool          // its message group is blocked by it
	Changed  bool          // Serial is of a change of the invisible duration: one less is of the handle that it replaced
	Attempt  int           // deliveries made
	Serial   uint32        // of the handle that is valid
	Due      time.Time     // when the lease or the wait ends
	Span     time.Duration // from the moment at which Due was set to Due; 0 if it is not known
	Since    time.Time     // of the delivery, for leases that are renewed
	Stored   int64         // when the message was stored, in nanoseconds since 1970
	Size     int64         // bytes of the body
	Owner    string        // the client that keeps the lease alive; empty for none
	Group    string        // the message group; empty for none
}

// EncodedSize returns how many bytes AppendTo appends.
func (l *Lease) EncodedSize() int {
	n := 3 + uvarintLen(uint64(l.Attempt)) + 4 + 24 + uvarintLen(uint64(l.Size)) + stringLen(l.Owner) + stringLen(l.Group)
	if l.Span > 0 {
		n += uvarintLen(uint64(l.Span))
	}
	return n
}

// AppendTo appends the lease's record to b.
func (l *Lease) AppendTo(b []byte) []byte {
	flags := byte(0)
	if l.Push {
		flags |= leasePush
	}
	if l.Negative {
		flags |= leaseNegative
	}
	if l.Retain {
		flags |= leaseRetain
	}
	if l.Blocked {
		flags |= leaseBlocked
	}
	if l.Changed {
		flags |= leaseChanged
	}
	if l.Span > 0 {
		flags |= leaseSpan
	}
	b = append(b, leaseVersion, l.State, flags)
	b = binary.AppendUvarint(b, uint64(l.Attempt))
	b = binary.BigEndian.AppendUint32(b, l.Serial)
	b = binary.BigEndian.AppendUint64(b, uint64(Nanos(l.Due)))
	b = binary.BigEndian.AppendUint64(b, uint64(Nanos(l.Since)))
	b = binary.BigEndian.AppendUint64(b, uint64(l.Stored))
	b = binary.AppendUvarint(b, uint64(l.Size))
	b = appendString(b, l.Owner)
	b = appendString(b, l.Group)
	if l.Span > 0 {
		b = binary.AppendUvarint(b, uint64(l.Span))
	}
	return b
}

// DecodeLease reads a stored lease into l. It keeps nothing of v.
func DecodeLease(v []byte, l *Lease) error {
	r := reader{b: v, s: string(v)}
	if version := r.byte(); r.err == nil && version != leaseVersion {
		return fmt.Errorf("%w: it is not a lease of version %d", ErrCorrupt, leaseVersion)
	}
	l.State = r.byte()
	flags := r.byte()
	if flags&^(leasePush|leaseNegative|leaseRetain|leaseBlocked|leaseChanged|leaseSpan) != 0 {
		r.fail("it has an unknown flag")
	}
	l.Push, l.Negative, l.Retain = flags&leasePush != 0, flags&leaseNegative != 0, flags&leaseRetain != 0
	l.Blocked, l.Changed = flags&leaseBlocked != 0, flags&leaseChanged != 0
	attempt := r.uvarint()
	if attempt > 1<<31 {
		r.fail("the attempt number is too large")
	}
	l.Attempt = int(attempt)
	if len(v)-r.off < 28 {
		r.fail("it ends within the times")
		return r.err
	}
	l.Serial = binary.BigEndian.Uint32(v[r.off:])
	l.Due = fromNanos(binary.BigEndian.Uint64(v[r.off+4:]))
	l.Since = fromNanos(binary.BigEndian.Uint64(v[r.off+12:]))
	l.Stored = int64(binary.BigEndian.Uint64(v[r.off+20:]))
	r.off += 28
	l.Size = int64(r.uvarint())
	l.Owner, l.Group, l.Span = r.string(), r.string(), 0
	if flags&leaseSpan != 0 {
		l.Span = r.span()
	}
	if r.err == nil && r.off != len(v) {
		r.fail("unexpected bytes at the end")
	}
	return r.err
}

// DecodeCursor reads a stored cursor: Next, Bytes and Rewound.
func DecodeCursor(v []byte) (Cursor, error) {
	if len(v) != 24 {
		return Cursor{}, fmt.Errorf("%w: a cursor has %d bytes, not 24", ErrCorrupt, len(v))
	}
	c := Cursor{
		Next: int64(binary.BigEndian.Uint64(v)), Bytes: int64(binary.BigEndian.Uint64(v[8:])), Rewound: int64(binary.BigEndian.Uint64(v[16:])),
	}
	if c.Next < 0 || c.Bytes < 0 {
		return Cursor{}, fmt.Errorf("%w: a cursor is negative", ErrCorrupt)
	}
	return c, nil
}
