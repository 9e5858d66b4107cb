// Package amqppeer is a scripted server of AMQP 1.0, for tests. It keeps the messages of an address
// in memory for each queue until their delivery time, creates addresses and queues on demand, and
// can reject, throttle or break the requests of a client, as Apache ActiveMQ Artemis does.
package amqppeer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// The frames of AMQP 1.0 that a peer reads, by the codes of their descriptors.
const (
	Open        = 0x10
	Begin       = 0x11
	Attach      = 0x12
	Flow        = 0x13
	Transfer    = 0x14
	Disposition = 0x15
	Detach      = 0x16
	End         = 0x17
	Close       = 0x18
	SASLInit    = 0x41
)

// window is the number of transfers that a session takes: a peer never announces more.
const window = 1<<31 - 1

// A Peer is a server. Its fields must not change while it serves. The zero value accepts every
// client, address and message.
type Peer struct {
	// Script returns the reaction to a frame of a connection; n counts connections from 1. Nil
	// means Responds.
	Script func(n int, frame byte) Reaction

	// Users are the users that may connect, with their passwords, by SASL PLAIN. Nil means that
	// all clients may, by SASL ANONYMOUS.
	Users map[string]string

	// Refuse returns the error for a link to an address or a queue, "topic::queue"; receives is
	// true for a client that receives. Nil, and a nil error, permit the link.
	Refuse func(address string, receives bool) *Fault

	// Reject returns the error for a message to an address. Nil, and a nil error, accept it.
	Reject func(address string) *Fault

	// NoCredit lists the addresses that grant no credit to senders.
	NoCredit []string

	mu    sync.Mutex
	down  int // the number of further connections to refuse
	conns int
	store store
}

// A Fault is an error of AMQP.
type Fault struct {
	Condition   string // for example amqp:not-found
	Description string
}

func (f *Fault) value() any { return described{0x1d, []any{symbol(f.Condition), f.Description}} }

// A Reaction is a peer's reaction to a frame.
type Reaction int

// The reactions.
const (
	Responds Reaction = iota
	Cuts              // closes the connection
	Hangs             // neither reads nor writes any more
	Ignores           // does not respond to the frame
)

var errRefused = &net.OpError{Op: "dial", Net: "pipe", Err: errors.New("connection refused")}

// Dial returns a connection in memory.
func (p *Peer) Dial(context.Context, string) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down > 0 {
		p.down--
		return nil, errRefused
	}
	near, far := net.Pipe()
	p.conns++
	go p.serve(p.conns, far)
	return near, nil
}

// Create creates a queue of an address: "topic::queue". It gets the messages that are sent to the
// address from now on.
func (p *Peer) Create(queue string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.store.queue(queue)
}

// RefuseNext refuses the next n connections of Dial.
func (p *Peer) RefuseNext(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = n
}

// Serve accepts connections until the listener is closed.
func (p *Peer) Serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.conns++
		n := p.conns
		p.mu.Unlock()
		go p.serve(n, c)
	}
}

// A conn is a connection of a client.
type conn struct {
	net.Conn
	peer  *Peer
	links map[[2]uint32]*link // by channel and handle, guarded by Peer.mu

	mu   sync.Mutex
	out  [][]byte      // guarded by mu: frames to write
	more chan struct{} // has an element if out may have some
}

// serve serves a connection until an end closes it, or until the peer hangs.
func (p *Peer) serve(n int, raw net.Conn) {
	c := &conn{Conn: raw, peer: p, links: map[[2]uint32]*link{}, more: make(chan struct{}, 1)}
	ended := make(chan struct{})
	go c.write(ended)
	hung := c.read(n)
	close(ended)
	p.mu.Lock()
	for key := range c.links {
		c.detach(key)
	}
	p.mu.Unlock()
	if !hung {
		raw.Close()
	}
}

// push adds frames to those to write.
func (c *conn) push(frames ...[]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = append(c.out, frames...)
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// write writes the frames until the connection ends.
func (c *conn) write(ended <-chan struct{}) {
	for {
		select {
		case <-c.more:
		case <-ended:
			return
		}
		c.mu.Lock()
		out := c.out
		c.out = nil
		c.mu.Unlock()
		for _, b := range out {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}
}

// read reads frames and responds to them. It reports whether the connection hangs.
func (c *conn) read(n int) (hung bool) {
	for {
		var header [8]byte
		if _, err := io.ReadFull(c, header[:]); err != nil {
			return false
		}
		if string(header[:4]) == "AMQP" {
			c.push(header[:])
			if header[4] == 3 { // SASL: sasl-mechanisms
				mechanism := symbol("ANONYMOUS")
				if c.peer.Users != nil {
					mechanism = "PLAIN"
				}
				c.push(frame(1, 0, 0x40, []any{mechanism}, nil))
			}
			continue
		}
		size := binary.BigEndian.Uint32(header[:4])
		if size < 8 || size > 16<<20 {
			return false // not AMQP
		}
		body := make([]byte, size-8)
		if _, err := io.ReadFull(c, body); err != nil {
			return false
		}
		if len(body) == 0 { // a heartbeat
			continue
		}
		value, payload, err := decode(body)
		performative, ok := value.(described)
		if err != nil || !ok {
			return false
		}
		code := byte(performative.code)
		if c.peer.Script != nil {
			switch r := c.peer.Script(n, code); r {
			case Cuts, Hangs:
				return r == Hangs
			case Ignores:
				continue
			}
		}
		list, _ := performative.value.([]any)
		c.respond(binary.BigEndian.Uint16(header[6:]), code, list, payload)
	}
}

// respond responds to a frame.
func (c *conn) respond(channel uint16, code byte, list []any, payload []byte) {
	p := c.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	switch code {
	case SASLInit: // mechanism, initial response; sasl-outcome
		outcome := byte(0)
		if p.Users != nil {
			parts := strings.Split(string(field[[]byte](list, 1)), "\x00")
			if len(parts) != 3 || p.Users[parts[1]] != parts[2] || parts[2] == "" {
				outcome = 1 // the credentials are wrong
			}
		}
		c.push(frame(1, 0, 0x44, []any{outcome}, nil))
	case Open:
		c.push(frame(0, 0, Open, []any{"peer"}, nil))
	case Begin:
		c.push(frame(0, channel, Begin, []any{channel, uint32(0), uint32(window), uint32(window)}, nil))
	case Attach:
		c.attach(channel, list)
	case Flow: // … handle, delivery-count, link-credit
		if len(list) < 7 || list[4] == nil {
			return // of the session
		}
		if l := c.links[[2]uint32{uint32(channel), uint32(field[uint64](list, 4))}]; l != nil && l.receives {
			l.credit = uint32(field[uint64](list, 5)) + uint32(field[uint64](list, 6)) - l.count
			p.store.deliver(l.queue)
		}
	case Transfer: // handle, delivery-id; a disposition with the outcome
		l := c.links[[2]uint32{uint32(channel), uint32(field[uint64](list, 0))}]
		if l == nil {
			return
		}
		state := described{0x24, []any{}}
		if p.Reject != nil {
			if f := p.Reject(l.address); f != nil {
				state = described{0x25, []any{f.value()}}
			}
		}
		id := uint32(field[uint64](list, 1))
		c.push(frame(0, channel, Disposition, []any{true, id, id, true, state}, nil))
		if state.code == 0x24 {
			p.accept(l.address, payload)
		}
	case Disposition: // role, first, last, settled, state
		first, last := uint32(field[uint64](list, 1)), uint32(field[uint64](list, 1))
		if len(list) > 2 && list[2] != nil {
			last = uint32(field[uint64](list, 2))
		}
		p.store.settle(c, uint32(channel), first, last, field[described](list, 4).code == 0x24)
	case Detach:
		handle := uint32(field[uint64](list, 0))
		if key := [2]uint32{uint32(channel), handle}; c.links[key] != nil { // else it ends a refused link
			c.detach(key)
			c.push(frame(0, channel, Detach, []any{handle, true}, nil))
		}
	case End:
		for key := range c.links {
			if key[0] == uint32(channel) {
				c.detach(key)
			}
		}
		c.push(frame(0, channel, End, []any{}, nil))
	case Close:
		c.push(frame(0, 0, Close, []any{}, nil))
	}
}

// A symbol is a string of ASCII characters.
type symbol string

// A mapping is a map: keys and values in turns.
type mapping []any

// A described value is a value with the code of its type, for example 0x24 for the outcome
// accepted.
type described struct {
	code  uint64
	value any
}

var errShort = errors.New("the value ends early")

// decode returns the first value of b and the bytes behind it: nil, bool, uint64, []byte, string,
// symbol, []any, mapping or described. Integers of all widths are uint64. It skips arrays.
func decode(b []byte) (value any, rest []byte, err error) {
	if len(b) == 0 {
		return nil, nil, errShort
	}
	code, b := b[0], b[1:]
	take := func(n int) []byte {
		if n < 0 || n > len(b) {
			err = errShort
			return nil
		}
		head := b[:n]
		b = b[n:]
		return head
	}
	sized := func() []byte { // the size has 4 bytes in the upper half of the codes
		if code&0xf0 == 0xa0 || code&0xf0 == 0xc0 || code&0xf0 == 0xe0 {
			if n := take(1); err == nil {
				return take(int(n[0]))
			}
			return nil
		}
		if n := take(4); err == nil {
			return take(int(binary.BigEndian.Uint32(n)))
		}
		return nil
	}
	switch code {
	case 0x00:
		return decodeDescribed(b)
	case 0x40:
		return nil, b, nil
	case 0x41, 0x42:
		return code == 0x41, b, nil
	case 0x56:
		v := take(1)
		return err == nil && v[0] == 1, b, err
	case 0x43, 0x44:
		return uint64(0), b, nil
	case 0x45:
		return []any{}, b, nil
	}
	switch code & 0xf0 {
	case 0x50, 0x60, 0x70, 0x80, 0x90: // of 1, 2, 4, 8 and 16 bytes
		var n uint64
		for _, digit := range take(1 << (code>>4 - 5)) {
			n = n<<8 | uint64(digit)
		}
		return n, b, err
	case 0xa0, 0xb0:
		v := sized()
		switch code & 0x0f {
		case 1:
			return string(v), b, err
		case 3:
			return symbol(v), b, err
		}
		return v, b, err
	case 0xc0, 0xd0:
		v := sized()
		if err != nil {
			return nil, b, err
		}
		list, err := decodeList(v, map[bool]int{true: 1, false: 4}[code&0xf0 == 0xc0])
		if code&0x0f == 1 {
			return mapping(list), b, err
		}
		return list, b, err
	case 0xe0, 0xf0:
		sized()
		return nil, b, err
	}
	return nil, nil, fmt.Errorf("the format code %#x is not of AMQP 1.0", code)
}

func decodeDescribed(b []byte) (value any, rest []byte, err error) {
	descriptor, b, err := decode(b)
	if err != nil {
		return nil, nil, err
	}
	value, b, err = decode(b)
	code, _ := descriptor.(uint64) // zero for a symbol
	return described{code, value}, b, err
}

func decodeList(b []byte, width int) ([]any, error) {
	if len(b) < width {
		return nil, errShort
	}
	list := []any{}
	for b = b[width:]; len(b) > 0; {
		value, rest, err := decode(b)
		if err != nil {
			return nil, err
		}
		list, b = append(list, value), rest
	}
	return list, nil
}

// encode appends a value: nil, bool, byte, uint16, uint32, []byte, string, symbol, []any or
// described.
func encode(b []byte, value any) []byte {
	switch v := value.(type) {
	case nil:
		return append(b, 0x40)
	case bool:
		return append(b, map[bool]byte{true: 0x41, false: 0x42}[v])
	case byte:
		return append(b, 0x50, v)
	case uint16:
		return binary.BigEndian.AppendUint16(append(b, 0x60), v)
	case uint32:
		return binary.BigEndian.AppendUint32(append(b, 0x70), v)
	case []byte:
		return append(binary.BigEndian.AppendUint32(append(b, 0xb0), uint32(len(v))), v...)
	case string:
		return append(binary.BigEndian.AppendUint32(append(b, 0xb1), uint32(len(v))), v...)
	case symbol:
		return append(binary.BigEndian.AppendUint32(append(b, 0xb3), uint32(len(v))), v...)
	case described:
		return encode(append(b, 0x00, 0x53, byte(v.code)), v.value)
	case []any:
		var all []byte
		for _, element := range v {
			all = encode(all, element)
		}
		b = binary.BigEndian.AppendUint32(append(b, 0xd0), uint32(len(all)+4))
		return append(binary.BigEndian.AppendUint32(b, uint32(len(v))), all...)
	}
	panic(fmt.Sprintf("amqppeer: %T has no encoding here", value))
}

// frame returns a frame: kind is 0 for AMQP and 1 for SASL. The payload follows the list.
func frame(kind byte, channel uint16, code byte, list []any, payload []byte) []byte {
	body := append(encode(nil, described{uint64(code), list}), payload...)
	b := binary.BigEndian.AppendUint32(nil, uint32(8+len(body)))
	return append(append(b, 2, kind, byte(channel>>8), byte(channel)), body...)
}

// field returns an element of a list; nil if the list is shorter.
func field[T any](list []any, i int) (value T) {
	if i < len(list) {
		value, _ = list[i].(T) // the zero value for nil
	}
	return value
}

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
