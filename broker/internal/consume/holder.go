package consume

import "sync/atomic"

// A Holder is a client that receives messages, with the number of its deliveries in flight in all
// topics. It lives in memory only: after a restart no delivery has a holder. Several goroutines can
// call its methods at the same time.
type Holder struct {
	id       string
	inflight atomic.Int64
}

// NewHolder returns the holder of a client without deliveries.
func NewHolder(id string) *Holder { return &Holder{id: id} }

// Inflight returns the number of the deliveries in flight.
func (h *Holder) Inflight() int64 { return h.inflight.Load() }

// hold counts the deliveries that begin (1) and end (-1). A nil holder counts nothing.
func (h *Holder) hold(n int64) {
	if h != nil {
		h.inflight.Add(n)
	}
}

// Receiver returns the ID of the client that received the last delivery, empty if it is not known.
func (l *Lease) Receiver() string {
	if l.holder != nil {
		return l.holder.id
	}
	return l.Owner
}

// Abandon ends the count of all deliveries in flight for their holders, because the subscription is
// deleted.
func (p *Progress) Abandon() {
	for _, l := range p.due {
		if l.State() == Inflight {
			l.holder.hold(-1)
			l.holder = nil
		}
	}
}

// uncount takes a lease out of the counts of its state, because it ends or changes its state.
func (p *Progress) uncount(l *Lease) {
	p.counts[l.Lease.State]--
	if l.State() == Inflight {
		l.holder.hold(-1)
	}
}
