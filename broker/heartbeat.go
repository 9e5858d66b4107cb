package broker

import "time"

// Touch records a heartbeat of a client: the deliveries that the client received with Poll.Owner
// stay invisible. It does nothing for a client that received none.
func (b served) Touch(owner string) { b.owners.Touch(owner, time.Now()) }

// Forget reports that a client has ended: the unacknowledged deliveries that the client received
// with Poll.Owner time out in a second.
func (b served) Forget(owner string) {
	if !b.calls.Begin() {
		return
	}
	defer b.calls.End()
	until := time.Now().Add(time.Second)
	places, many := b.owners.Forget(owner)
	if many {
		_, subs := b.catalog.All()
		for _, s := range subs {
			s.Disown(owner, until)
		}
		return
	}
	for _, p := range places {
		if s := b.catalog.Find(p.Group, p.Topic); s != nil {
			s.Disown(owner, until)
		}
	}
}
