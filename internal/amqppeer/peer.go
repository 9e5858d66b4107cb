// Package amqppeer is a scripted server of AMQP 1.0, for tests. It keeps the messages of an address
// in memory for each queue until their delivery time, creates addresses and queues on demand, and
// can reject, throttle or break the requests of a client, as Apache ActiveMQ Artemis does.
package amqppeer

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
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
