package consume

import (
	"container/heap"
	"errors"
	"time"

	"github.com/tidegate/tidegate/broker/internal/handle"
)

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
func (p *Progress) Current(h handle.Receipt, now time.Time) (*Lease, error) {
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
func (p *Progress) Replacement(h handle.Receipt) handle.Receipt {
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
func (p *Progress) forDeadLetter(h handle.Receipt, now time.Time) (l *Lease, done bool, err error) {
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
