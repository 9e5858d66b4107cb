package consume

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
