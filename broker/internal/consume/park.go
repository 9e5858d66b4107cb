package consume

import (
	"time"

	"github.com/tidegate/tidegate/broker/internal/store"
)

// A ParkedGroup is a message group that is parked or blocked.
type ParkedGroup struct {
	MessageGroup string
	Place        store.Place // of the failed message
	State        State       // of the failed message: Parked, or another one if it blocks its message group
	Attempts     int         // of the failed message
	Since        time.Time   // parked: when it was parked
	Due          time.Time   // blocked: end of the lease or of the retry interval; zero if it is ready
	Reason       string      // parked: the reason
	Messages     int64       // the failed one, and the later ones that a cursor has passed or Looked has counted
}

// park parks the message group whose head is l. The head is not in the ready heap.
func (p *Progress) park(l *Lease, reason string, now time.Time) {
	if reason = shortReason(reason); reason == "" {
		reason = "no reason given"
	}
	l.setDue(now, 0) // parked since
	l.Owner, l.Blocked = "", false
	p.set(l, Parked)
	p.putLease(l)
	p.write(PutParked, l, reason)
	p.spillHeld(p.groups[l.Group], reason)
	p.effects.Durable = true
	p.effects.Parked = append(p.effects.Parked, p.parkedGroup(l.Group, l))
}

func (p *Progress) parkedGroup(name string, l *Lease) ParkedGroup {
	s := p.groups[name].spill
	g := ParkedGroup{MessageGroup: name, Place: p.Place(l), State: l.State(), Attempts: l.Attempt, Reason: s.reason, Messages: 1 + s.messages + p.aheadOf(s)}
	switch {
	case g.State == Parked:
		g.Since = l.Due
	case l.dueIndex >= 0:
		g.Due = l.Due
	}
	return g
}

// ParkedGroups returns the message groups that are parked or blocked, in no order. Those whose
// failed message is becoming a dead letter are not among them.
func (p *Progress) ParkedGroups() (out []ParkedGroup) {
	if p.spilled.still == 0 {
		return nil
	}
	for name, mg := range p.groups {
		if l := mg.head; l != nil && mg.spill != nil && mg.spill.standstill && l.State() != DeadLetter {
			out = append(out, p.parkedGroup(name, l))
		}
	}
	return out
}

// block marks the lease of a message that is retried after its last attempt, and spills the
// messages behind it. Retention keeps the marked message until it is done.
func (p *Progress) block(l *Lease) {
	if !l.Blocked {
		l.Blocked = true
		p.putLease(l)
	}
	if mg := p.groups[l.Group]; mg.spill == nil || !mg.spill.standstill {
		p.spillHeld(mg, "")
	}
}

// Redrive makes the failed messages of parked message groups ready, with new attempts. With
// deadLetter the failed messages depart as dead letters instead, and their message groups stay
// parked until Departed. messageGroup selects one message group; empty selects all. Redrive returns
// the number of message groups, the number of their messages and, for each departure, the number of
// messages behind it.
func (p *Progress) Redrive(messageGroup string, deadLetter bool, now time.Time) (groups, messages int64, behind []int64) {
	p.effects.Durable = true
	for name, mg := range p.groups {
		l := mg.head
		if l == nil || l.State() != Parked || messageGroup != "" && name != messageGroup {
			continue
		}
		groups++
		later := mg.spill.messages + p.aheadOf(mg.spill)
		messages += 1 + later
		if deadLetter {
			behind = append(behind, later)
			p.depart(l, Departure{Event: EventRedrive, Early: true, Reason: mg.spill.reason})
			continue
		}
		p.endStandstill(mg)
		to, _ := l.State().Next(EventRedrive, AttemptsLeft, false)
		l.Attempt, l.Push, l.Due, l.Retain = 0, false, now, true
		l.renumber()
		p.set(l, to)
		p.wake(l)
		p.putLease(l)
		p.write(DeleteParked, l, "")
	}
	return groups, messages, behind
}
