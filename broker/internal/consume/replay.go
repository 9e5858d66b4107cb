package consume

import "time"

// minReplays is the number of remembered attempt IDs at which Remember begins to remove those
// without a delivery in flight. The deliveries of one receive take up to 32 KiB.
const minReplays = 64

// Remember keeps the deliveries of an attempt ID, for a client that lost the response. It keeps
// grants, and drops their messages. Whenever the number of attempt IDs has doubled, it removes
// those without a delivery in flight. So the number of attempt IDs grows with the number of
// messages in flight, not with the number of receives.
func (p *Progress) Remember(attemptID string, grants []Grant, now time.Time) {
	for i := range grants {
		grants[i].Message = nil // read again for a repetition
	}
	if len(p.replays) >= max(p.replaysCap, minReplays) {
		for id, before := range p.replays {
			if !p.anyInFlight(before, now) {
				delete(p.replays, id)
			}
		}
		p.replaysCap = 2 * len(p.replays)
	}
	p.replays[attemptID] = grants
}

// Replays returns the number of attempt IDs that are remembered.
func (p *Progress) Replays() int { return len(p.replays) }

// Replay returns the deliveries of an attempt ID that are still in flight. They get new receipt
// handles, so that a release of the lost response has no effect.
func (p *Progress) Replay(attemptID string, now time.Time) (out []Grant) {
	for _, g := range p.replays[attemptID] {
		if p.anyInFlight([]Grant{g}, now) {
			g.Lease.renumber()
			p.putLease(g.Lease)
			out = append(out, p.grant(g.Lease))
		}
	}
	if out == nil {
		delete(p.replays, attemptID)
	}
	return out
}

// anyInFlight reports whether one of the grants is still the current delivery of its message.
func (p *Progress) anyInFlight(grants []Grant, now time.Time) bool {
	for i := range grants {
		g := &grants[i]
		l := g.Lease
		if l.cursor.leases[l.offset] == l && l.State() == Inflight && l.Serial == g.Receipt.Serial && now.Before(l.Due) {
			return true
		}
	}
	return false
}
