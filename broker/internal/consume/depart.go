package consume

import (
	"strings"
	"time"

	"github.com/tidegate/tidegate/broker/internal/handle"
)

// A Departure is a message on its way out of the topic: to the dead letters, to a retry topic, or
// to an expiry address. The caller writes it there and then calls Departed or Returned. Meanwhile
// the lease has the state DeadLetter, and no event applies to it.
type Departure struct {
	Lease   *Lease
	Event   Event // that caused it
	From    State // the state that Returned restores
	Tries   int   // deliveries, as the consumer counts them
	Rewound int64 // of its cursor
	Expired bool  // it was not delivered, because it was too old
	Early   bool  // it was requested before the last attempt, or has another maximum of attempts
	Reason  string

	attempt int // of the lease; Tries is larger if the consumer counted more attempts
}

// A Destination is the result of a Departure.
type Destination uint8

// The destinations.
const (
	ToNowhere        Destination = iota // the message was lost or removed meanwhile
	ToDeadLetters                       // a dead letter was written, or the message is one and stays
	ToRetryTopic                        // a new message was written: this one counts as acknowledged
	ToExpiryAddress                     // the message was older than the expiry delay
	ToBeRemovedAlone                    // the last attempt failed, and there is no topic for dead letters
)

// depart begins the departure of a message. Its lease must not be in the ready heap. d has the
// event, the reason, and whether the departure is early or expired.
func (p *Progress) depart(l *Lease, d Departure) *Departure {
	d.Lease, d.From, d.Tries, d.attempt, d.Rewound = l, l.State(), l.Attempt, l.Attempt, l.cursor.rewound
	d.Reason = shortReason(d.Reason)
	p.set(l, DeadLetter)
	p.effects.Departures = append(p.effects.Departures, d)
	return &p.effects.Departures[len(p.effects.Departures)-1]
}

// Reconsume ends a delivery because its message is sent again, to the retry topic or to the dead
// letter topic.
func (p *Progress) Reconsume(h handle.Receipt, reason string, now time.Time) error {
	l, err := p.Current(h, now)
	if err != nil {
		return err
	}
	p.depart(l, Departure{Event: EventReconsume, Reason: reason})
	return nil
}

// ExpireMessage ends a delivery that is not returned because its message is too old. A handle that
// is not valid changes nothing.
func (p *Progress) ExpireMessage(h handle.Receipt, reason string, now time.Time) {
	if l, err := p.Current(h, now); err == nil {
		p.depart(l, Departure{Event: EventDeliver, Expired: true, Reason: reason})
	}
}

// Departed removes the lease of a departure after the message has reached its destination. It
// returns false if a removal or a rewind has ended the lease already.
func (p *Progress) Departed(d Departure, to Destination) bool {
	l := d.Lease
	if l.cursor.leases[l.offset] != l {
		return false
	}
	if d.From == Parked {
		p.write(DeleteParked, l, "")
	}
	p.complete(l)
	p.effects.Durable = true
	switch to {
	case ToDeadLetters:
		p.stats.DeadLetters++
		if d.Asked() {
			p.stats.GivenUp++
		}
	case ToRetryTopic:
		p.stats.Acked++
	case ToExpiryAddress:
		p.stats.Expired++
	case ToBeRemovedAlone:
		p.stats.Discarded++
	}
	return true
}

// Asked reports whether a consumer or an operator requested the departure.
func (d *Departure) Asked() bool { return d.Event == EventDeadLetter || d.Event == EventRedrive }

// Returned undoes a departure after the write of its message failed. The lease has its previous
// state, and a receipt handle that was valid is valid again. A lease in flight or waiting for a
// retry is due in one second at the earliest. Returned returns false if a removal or a rewind has
// ended the lease.
func (p *Progress) Returned(d Departure, now time.Time) bool {
	l := d.Lease
	if l.cursor.leases[l.offset] != l {
		return false
	}
	l.Attempt = d.attempt
	if d.From == Inflight || d.From == WaitingRetry {
		if again := now.Add(time.Second); l.Due.Before(again) {
			l.setDue(now, time.Second)
		}
	}
	p.set(l, d.From)
	if d.From == Ready {
		p.wake(l)
	}
	return true
}

// maxReason bounds the reason of a dead letter or of a parked message group, in bytes.
const maxReason = 1 << 10

// shortReason bounds a reason, and keeps it valid UTF-8, which the protocols require.
func shortReason(reason string) string {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	return strings.ToValidUTF8(reason, "")
}
