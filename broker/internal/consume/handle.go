package consume

import (
	"container/heap"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

const (
	version = 1 // the first byte of each

	receiptLen     = 1 + 4 + 4 + 2 + 8 + 4
	recallLen      = 1 + 8 + 4 + 8
	transactionLen = 1 + 4 + 8
)

var (
	encoding = base64.RawURLEncoding.Strict()

	errForeign = errors.New("this broker did not issue it")
)

// A Handle names one delivery of one message to one group.
type Handle struct {
	Group  uint32 // its number
	Place  store.Place
	Serial uint32 // changes with every delivery and every change of the invisible duration
}

// String returns the receipt handle.
func (r Handle) String() string {
	var b [receiptLen]byte
	binary.BigEndian.PutUint32(b[1:], r.Group)
	binary.BigEndian.PutUint32(b[5:], r.Place.Topic)
	binary.BigEndian.PutUint16(b[9:], r.Place.Queue)
	binary.BigEndian.PutUint64(b[11:], uint64(r.Place.Offset))
	binary.BigEndian.PutUint32(b[19:], r.Serial)
	return encode(b[:])
}

// ParseHandle is the inverse of Handle.String. The error explains why text is not a receipt
// handle.
func ParseHandle(text string) (Handle, error) {
	var b [receiptLen]byte
	if err := decode(b[:], text); err != nil {
		return Handle{}, err
	}
	return Handle{
		Group: binary.BigEndian.Uint32(b[1:]),
		Place: store.Place{
			Topic:  binary.BigEndian.Uint32(b[5:]),
			Queue:  binary.BigEndian.Uint16(b[9:]),
			Offset: int64(binary.BigEndian.Uint64(b[11:])),
		},
		Serial: binary.BigEndian.Uint32(b[19:]),
	}, nil
}

// RecallHandle returns the handle by which a delayed message can be recalled.
func RecallHandle(d store.Delayed) string {
	var b [recallLen]byte
	binary.BigEndian.PutUint64(b[1:], uint64(d.Due.UnixNano()))
	binary.BigEndian.PutUint32(b[9:], d.Topic)
	binary.BigEndian.PutUint64(b[13:], d.Number)
	return encode(b[:])
}

// ParseRecallHandle is the inverse of RecallHandle. Its errors are like those of ParseHandle.
func ParseRecallHandle(text string) (store.Delayed, error) {
	var b [recallLen]byte
	if err := decode(b[:], text); err != nil {
		return store.Delayed{}, err
	}
	return store.Delayed{
		Due:    time.Unix(0, int64(binary.BigEndian.Uint64(b[1:]))),
		Topic:  binary.BigEndian.Uint32(b[9:]),
		Number: binary.BigEndian.Uint64(b[13:]),
	}, nil
}

// TransactionID returns the ID of the transaction of a half message, as producers see it.
func TransactionID(id store.HalfID) string {
	var b [transactionLen]byte
	binary.BigEndian.PutUint32(b[1:], id.Topic)
	binary.BigEndian.PutUint64(b[5:], id.Number)
	return encode(b[:])
}

// ParseTransactionID is the inverse of TransactionID. Its errors are like those of ParseHandle.
func ParseTransactionID(text string) (store.HalfID, error) {
	var b [transactionLen]byte
	if err := decode(b[:], text); err != nil {
		return store.HalfID{}, err
	}
	return store.HalfID{Topic: binary.BigEndian.Uint32(b[1:]), Number: binary.BigEndian.Uint64(b[5:])}, nil
}

// encode encodes b. It sets the first byte of b to the version.
func encode(b []byte) string {
	b[0] = version
	return encoding.EncodeToString(b)
}

// decode decodes text, which must encode exactly len(b) bytes, into b. The base64 decoder skips
// line breaks and then fills only a part of b, so decode checks the number of decoded bytes.
func decode(b []byte, text string) error {
	if len(text) != encoding.EncodedLen(len(b)) {
		return fmt.Errorf("%w: it has %d characters", errForeign, len(text))
	}
	if n, err := encoding.Decode(b, []byte(text)); err != nil || n != len(b) || b[0] != version {
		return errForeign
	}
	return nil
}

const (
	// OwnedLease is the invisible duration of a delivery that its owner's heartbeats keep invisible
	// (auto_renew; RocketMQ's proxy: 60 s).
	OwnedLease = time.Minute

	// maxOwnedLease bounds the time that heartbeats keep one delivery invisible.
	maxOwnedLease = 3 * time.Hour
)

// Why a receipt handle is not valid.
var (
	ErrNoQueue   = errors.New("its topic or consumer group no longer exists")
	errSettled   = errors.New("the message was already acknowledged, or removed after its last attempt")
	errReplaced  = errors.New("a later delivery of the message, or a change of its invisible duration, replaced the handle")
	errInvisible = errors.New("its invisible duration has ended")
)

// Current returns the lease of a receipt handle. The handle is valid if
//   - the message is in flight,
//   - there was no later delivery of the message, and
//   - there was no later change of the invisible duration.
//
// Otherwise Current returns an error with the reason.
func (p *Progress) Current(h Handle, now time.Time) (*Lease, error) {
	if int(h.Place.Queue) >= len(p.cursors) {
		return nil, ErrNoQueue
	}
	l := p.cursors[h.Place.Queue].leases[h.Place.Offset]
	switch {
	case l == nil || l.State() == DeadLetter:
		return nil, errSettled
	case l.Serial != h.Serial:
		return nil, errReplaced
	case l.State() != Inflight || !now.Before(l.Due) && !p.renew(l, now):
		return nil, errInvisible
	}
	return l, nil
}

// Replacement returns the receipt handle that a change of the invisible duration issued in place of
// h. It returns h if there was no such change.
func (p *Progress) Replacement(h Handle) Handle {
	if int(h.Place.Queue) >= len(p.cursors) {
		return h
	}
	if l := p.cursors[h.Place.Queue].leases[h.Place.Offset]; l != nil && l.Changed && l.Serial == h.Serial+1 {
		h.Serial = l.Serial
	}
	return h
}

// forDeadLetter returns the lease for a request for a dead letter. It accepts more receipt handles
// than Current:
//   - Official clients repeat the request until it succeeds, so a repeated request succeeds. Then
//     done is true, and l is nil or the lease of a message that is parked or becoming a dead
//     letter.
//   - A request after the invisible duration succeeds if there was no other delivery.
func (p *Progress) forDeadLetter(h Handle, now time.Time) (l *Lease, done bool, err error) {
	if l, err = p.Current(h, now); err == nil || errors.Is(err, ErrNoQueue) {
		return l, false, err
	}
	c := p.cursors[h.Place.Queue]
	l = c.leases[h.Place.Offset]
	switch {
	case h.Place.Offset >= c.next:
		return nil, false, err // a power failure undid the delivery: the message will be delivered again
	case l == nil || l.State() == DeadLetter:
		return l, true, nil
	case l.Serial != h.Serial:
		return nil, false, err
	case l.State() == Parked: // only a redrive moves it
		return l, true, nil
	}
	return l, false, nil
}

// firstSerial returns the serial number of a message's first delivery. Handles from before a
// rewind, or of a deleted group of the same name, have other numbers.
func firstSerial(now time.Time, rewound int64) uint32 {
	return uint32(now.UnixMicro()) + uint32(rewound)*0x9E3779B1
}

// renew extends a lease in flight while its owner sends heartbeats. It reports whether it extended
// the lease.
func (p *Progress) renew(l *Lease, now time.Time) bool {
	if l.Owner == "" {
		return false
	}
	seen, ok := p.config.Owners.Last(l.Owner)
	until := renewedUntil(seen, l.Since, p.config.MaxInvisible)
	if !ok || !until.After(now) {
		return false
	}
	l.setDue(now, until.Sub(now))
	heap.Fix(&p.due, l.dueIndex)
	return true
}

// renewedUntil returns the end of a lease after a heartbeat of its owner at lastSeen: OwnedLease
// later. The end is at most maxOwnedLease, and at most longest (the broker's maximum), after the
// delivery.
func renewedUntil(lastSeen, delivered time.Time, longest time.Duration) time.Time {
	until := lastSeen.Add(OwnedLease)
	if limit := delivered.Add(min(maxOwnedLease, longest)); until.After(limit) {
		return limit
	}
	return until
}

// Disown stops the renewal of an owner's leases in flight. These leases end at until.
func (p *Progress) Disown(owner string, until, now time.Time) {
	var changed []*Lease
	for _, l := range p.due {
		if l.Owner == owner && l.State() == Inflight {
			changed = append(changed, l)
		}
	}
	for _, l := range changed {
		l.Owner = ""
		l.setDue(now, until.Sub(now))
		heap.Fix(&p.due, l.dueIndex)
		p.putLease(l)
	}
}
