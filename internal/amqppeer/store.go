package amqppeer

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"
)

// A store has the queues of all addresses. Peer.mu guards it.
type store struct {
	queues map[string]*queue // by address, or address::queue
	next   uint32            // delivery ID, and the tag of a delivery
}

// A queue has the messages of a group, or of an address without groups.
type queue struct {
	ready   [][]byte
	links   []*link
	unended []delivery
}

// A delivery is a message that a client has not settled.
type delivery struct {
	link    *link
	id      uint32
	message []byte
}

// A link is a sender or a receiver of a client.
type link struct {
	conn     *conn
	channel  uint16
	handle   uint32
	address  string
	receives bool
	queue    *queue // of a receiver
	credit   uint32
	count    uint32 // of deliveries
}

// queue returns the queue of a name, which it creates on demand.
func (s *store) queue(name string) *queue {
	if s.queues == nil {
		s.queues = map[string]*queue{}
	}
	if s.queues[name] == nil {
		s.queues[name] = &queue{}
	}
	return s.queues[name]
}

// accept adds a message when its delivery time comes.
func (p *Peer) accept(address string, message []byte) {
	wait := time.Until(due(message, time.Now()))
	if wait <= 0 {
		p.store.add(address, message)
		return
	}
	time.AfterFunc(wait, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.store.add(address, message)
	})
}

// due returns the delivery time of a message by its annotations x-opt-delivery-time and
// x-opt-delivery-delay, in milliseconds, as Artemis reads them.
func due(message []byte, now time.Time) time.Time {
	for len(message) > 0 {
		value, rest, err := decode(message)
		section, ok := value.(described)
		if err != nil || !ok {
			break
		}
		message = rest
		annotations, _ := section.value.(mapping)
		if section.code != 0x72 {
			continue
		}
		for i := 0; i+1 < len(annotations); i += 2 {
			n, _ := annotations[i+1].(uint64)
			switch annotations[i] {
			case symbol("x-opt-delivery-time"):
				return time.UnixMilli(int64(n))
			case symbol("x-opt-delivery-delay"):
				return now.Add(time.Duration(n) * time.Millisecond)
			}
		}
	}
	return now
}

// add adds a message to all queues of an address, to the queue that the address names, or without
// groups to the queue of the address itself.
func (s *store) add(address string, message []byte) {
	found := false
	if !strings.Contains(address, "::") {
		for name, q := range s.queues {
			if strings.HasPrefix(name, address+"::") {
				q.ready = append(q.ready, message)
				s.deliver(q)
				found = true
			}
		}
	}
	if !found {
		q := s.queue(address)
		q.ready = append(q.ready, message)
		s.deliver(q)
	}
}

// deliver sends ready messages to the receivers that have credit.
func (s *store) deliver(q *queue) {
	for _, l := range q.links {
		for l.credit > 0 && len(q.ready) > 0 {
			message := q.ready[0]
			q.ready = q.ready[1:]
			s.next++
			l.credit--
			l.count++
			q.unended = append(q.unended, delivery{l, s.next, message})
			tag := binary.BigEndian.AppendUint32(nil, s.next)
			l.conn.push(frame(0, l.channel, Transfer, []any{l.handle, s.next, tag, uint32(0), false, false}, message))
		}
	}
}

// settle ends deliveries of a session. A message that the client did not accept is ready again.
func (s *store) settle(c *conn, channel, first, last uint32, accepted bool) {
	for key, l := range c.links {
		if key[0] != channel || !l.receives {
			continue
		}
		q := l.queue
		var back [][]byte // they keep their order, before the later ones
		q.unended = slices.DeleteFunc(q.unended, func(d delivery) bool {
			mine := d.link == l && d.id >= first && d.id <= last
			if mine && !accepted {
				back = append(back, d.message)
			}
			return mine
		})
		q.ready = append(back, q.ready...)
		s.deliver(q)
	}
}

// attach responds to an attach: name, handle, role, and the source or the target with the address.
func (c *conn) attach(channel uint16, list []any) {
	p := c.peer
	name, handle, receives := field[string](list, 0), uint32(field[uint64](list, 1)), field[bool](list, 2)
	terminus := field[described](list, map[bool]int{true: 5, false: 6}[receives])
	values, _ := terminus.value.([]any)
	l := &link{conn: c, channel: channel, handle: handle, address: field[string](values, 0), receives: receives}
	var fault *Fault
	if p.Refuse != nil {
		fault = p.Refuse(l.address, receives)
	}
	var source, target any = described{0x28, []any{l.address}}, described{0x29, []any{l.address}}
	if fault != nil {
		source, target = nil, nil
	}
	// The settlement modes are unsettled and first; the initial delivery count follows two maps.
	c.push(frame(0, channel, Attach, []any{name, handle, !receives, byte(0), byte(0), source, target, nil, nil, uint32(0)}, nil))
	if fault != nil {
		c.push(frame(0, channel, Detach, []any{handle, true, fault.value()}, nil))
		return
	}
	c.links[[2]uint32{uint32(channel), handle}] = l
	if receives {
		l.queue = p.store.queue(l.address)
		l.queue.links = append(l.queue.links, l)
		return
	}
	credit := uint32(1 << 20)
	if slices.Contains(p.NoCredit, l.address) {
		credit = 0
	}
	c.push(frame(0, channel, Flow, []any{uint32(0), uint32(window), uint32(0), uint32(window), handle, uint32(0), credit}, nil))
}

// detach ends a link. Its unsettled messages are ready again.
func (c *conn) detach(key [2]uint32) {
	l := c.links[key]
	if l == nil {
		return
	}
	delete(c.links, key)
	if !l.receives {
		return
	}
	q := l.queue
	q.links = slices.DeleteFunc(q.links, func(other *link) bool { return other == l })
	var back [][]byte
	q.unended = slices.DeleteFunc(q.unended, func(d delivery) bool {
		if d.link == l {
			back = append(back, d.message)
		}
		return d.link == l
	})
	q.ready = append(back, q.ready...)
	c.peer.store.deliver(q)
}
