package broker

import "github.com/tidegate/tidegate/broker/internal/store"

// admit returns an error if the receive may not keep so many bytes of bodies.
func (p *Poll) admit(bytes int64) error {
	if p.Admit == nil {
		return nil
	}
	return p.Admit(bytes)
}

// keptBytes returns the size of the bodies of grants.
func keptBytes(grants []grant) (n int64) {
	for i := range grants {
		n += grants[i].lease.Size
	}
	return n
}

// readAdmitted reads new messages of a queue as read does, and returns those that the receive may
// keep beside kept bytes. refused is why it may not keep the others. mu is not held.
func (s *subscription) readAdmitted(p *Poll, c *cursor, from, to int64, limit int, maxBytes, kept int64) (ms []store.Message, offsets []int64, refused, err error) {
	s.broker.reads <- struct{}{}
	defer func() { <-s.broker.reads }()
	ms, offsets, err = s.read(c, from, to, limit, min(maxBytes, maxReadBytes))
	for i := range ms {
		kept += int64(len(ms[i].Body))
		if refused := p.admit(kept); refused != nil {
			return ms[:i], offsets[:i], refused, err
		}
	}
	return ms, offsets, nil, err
}
