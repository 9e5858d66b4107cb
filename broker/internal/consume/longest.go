package consume

import "time"

// A Holding is the client with the delivery in flight that began first, and the deliveries in
// flight that it has in one Progress.
type Holding struct {
	Client   string    // see Lease.Receiver; empty if it is not known
	Messages int64     // that the client has in flight
	Since    time.Time // begin of its first delivery; a change of the invisible duration is no new begin
	Due      time.Time // end of the invisible duration of that delivery
}

// scanPause is the least time between two searches for the longest delivery, for each lease that a
// search looks at. So the searches take about a hundredth of the time of a processor at most.
const scanPause = 10 * time.Microsecond

// A longest is the result of the last search.
type longest struct {
	Holding
	lease *Lease    // of Since; nil for none
	again time.Time // the next search begins at this time or later
}

// LongestHeld returns the client with the delivery in flight that began first. ok is false if no
// delivery is in flight. It is also false if the delivery of the last search has ended and the next
// search has to wait, 1 s for each 100 000 leases. Until then Messages can be old too.
func (p *Progress) LongestHeld(now time.Time) (h Holding, ok bool) {
	if p.counts[Inflight] == 0 {
		p.longest = longest{}
		return Holding{}, false
	}
	if l := &p.longest; now.Before(l.again) {
		if l.lease == nil || l.lease.State() != Inflight || !l.lease.Since.Equal(l.Since) || p.Lease(int(l.lease.Queue()), l.lease.Offset()) != l.lease {
			return Holding{}, false
		}
		l.Due = l.lease.Due
		return l.Holding, true
	}
	p.longest = p.searchLongest()
	p.longest.again = now.Add(time.Duration(len(p.due)) * scanPause)
	return p.longest.Holding, p.longest.lease != nil
}

func (p *Progress) searchLongest() (found longest) {
	for _, l := range p.due {
		if l.State() == Inflight && (found.lease == nil || l.Since.Before(found.Since)) {
			found.lease, found.Since = l, l.Since
		}
	}
	if found.lease == nil {
		return found
	}
	found.Client, found.Due = found.lease.Receiver(), found.lease.Due
	for _, l := range p.due {
		if l.State() == Inflight && l.Receiver() == found.Client {
			found.Messages++
		}
	}
	return found
}
