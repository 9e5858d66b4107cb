package consume

import (
	"fmt"
	"time"
)

// Expire ends the invisible durations and retry intervals that are over.
//
// It writes only parked and blocked messages, and the messages that are spilled behind them. All
// other changes follow again from the same records after a restart.
func (p *Progress) Expire(policy *Policy, now time.Time) {
	for len(p.due) > 0 && !p.due[0].Due.After(now) {
		l := p.due[0]
		e := EventTimeout
		if l.State() == WaitingRetry {
			e = EventDue
		} else if p.renew(l, now) {
			continue
		}
		exhaustion := policy.exhaustion(e, l)
		to, _ := l.State().Next(e, exhaustion, l.Push)
		failed := Failure{Event: e, Attempt: l.Attempt, Client: l.Receiver(), At: now}
		if exhaustion == ThenBlock {
			p.block(l)
		}
		switch to {
		case WaitingRetry:
			l.setDue(l.Due, p.interval(l, policy)) // from the timeout on, even if it is noticed late
			p.set(l, to)
		case Ready:
			if e == EventDue {
				p.effects.Late = append(p.effects.Late, now.Sub(l.Due))
			}
			p.set(l, to)
			p.wake(l)
		case DeadLetter:
			p.depart(l, Departure{Event: e, Reason: lastDelivery(l, e)})
		case Parked:
			p.park(l, lastDelivery(l, e), now)
		}
		if e == EventTimeout {
			p.fail(l, failed)
		}
	}
}

// lastDelivery returns the reason for giving a message up.
func lastDelivery(l *Lease, e Event) string {
	end := "failed"
	if e == EventTimeout {
		end = "timed out"
	}
	return fmt.Sprintf("delivered %d times, the maximum; the last delivery %s", l.Attempt, end)
}
