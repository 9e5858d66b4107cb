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
	ErrNoQueue   = errors.New("its topic or consumer group is not there any more")
	errSettled   = errors.New("the message was acknowledged or given up already")
	errReplaced  = errors.New("a later delivery of the message, or a change of its invisible duration, replaced it")
	errInvisible = errors.New("its invisible duration is over")
)

// Current returns the lease that a receipt handle names, or an error that says why the handle is
// not valid: the message must be in flight, and this must be its last delivery and the last change
// of its invisible duration.
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

// Replacement returns the handle that replaced h if a change of the invisible duration did, and h
// otherwise.
func (p *Progress) Replacement(h handle.Receipt) handle.Receipt {
	if int(h.Place.Queue) >= len(p.cursors) {
		return h
	}
	if l := p.cursors[h.Place.Queue].leases[h.Place.Offset]; l != nil && l.Changed && l.Serial == h.Serial+1 {
		h.Serial = l.Serial
	}
	return h
}

// forDeadLetter is Current for requests for a dead letter. Official clients repeat the request
// until it succeeds. So it succeeds if there is nothing left to do: then done is true, and the
// lease, if there is one, becomes a dead letter or is parked. It may also come after the invisible
// duration, as long as there was no other delivery.
func (p *Progress) forDeadLetter(h handle.Receipt, now time.Time) (l *Lease, done bool, err error) {
	if l, err = p.Current(h, now); err == nil || errors.Is(err, ErrNoQueue) {
		return l, false, err
	}
	c := p.cursors[h.Place.Queue]
	l = c.leases[h.Place.Offset]
	switch {
	case h.Place.Offset >= c.next:
		return nil, false, err // a power failure took back the delivery: the message will be delivered again
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

// renew postpones the end of a lease in flight whose owner sends heartbeats, and reports whether it
// did.
func (p *Progress) renew(l *Lease, now time.Time) bool {
	if l.Owner == "" {
		return false
	}
	seen, ok := p.config.LastHeartbeat(l.Owner)
	until := renewedUntil(seen, l.Since, p.config.MaxInvisible)
	if !ok || !until.After(now) {
		return false
	}
	l.Due = until
	heap.Fix(&p.due, l.dueIndex)
	return true
}

// renewedUntil returns the end of a lease whose owner sent its last heartbeat at lastSeen:
// OwnedLease later, but no more after the delivery than maxOwnedLease and longest, which is the
// broker's maximum.
func renewedUntil(lastSeen, delivered time.Time, longest time.Duration) time.Time {
	until := lastSeen.Add(OwnedLease)
	if limit := delivered.Add(min(maxOwnedLease, longest)); until.After(limit) {
		return limit
	}
	return until
}

// Disown ends, at a time, the leases in flight that an owner's heartbeats kept invisible.
func (p *Progress) Disown(owner string, until time.Time) {
	var changed []*Lease
	for _, l := range p.due {
		if l.Owner == owner && l.State() == Inflight {
			changed = append(changed, l)
		}
	}
	for _, l := range changed {
		l.Owner = ""
		l.Due = until
		heap.Fix(&p.due, l.dueIndex)
		p.putLease(l)
	}
}
