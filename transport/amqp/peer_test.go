package amqp

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// The frames of AMQP 1.0 that a peer reads, by the codes of their descriptors.
const (
	frameOpen     = 0x10
	frameBegin    = 0x11
	frameAttach   = 0x12
	frameTransfer = 0x14
	frameClose    = 0x18
	frameSASLInit = 0x41
)

// A peer is a scripted server of AMQP 1.0 in an in-memory network. It accepts every message.
type peer struct {
	// script returns the peer's reaction to a frame of a connection; n counts connections from 1.
	script func(n int, frame byte) reaction

	mu    sync.Mutex
	down  int // this number of further connections is refused
	conns int
}

// A reaction of a peer to a frame.
type reaction int

const (
	responds reaction = iota
	cuts              // closes the connection
	hangs             // neither reads nor writes any more
)

var errRefused = &net.OpError{Op: "dial", Net: "pipe", Err: errors.New("connection refused")}

// dial is an Options.Dialer.
func (p *peer) dial(context.Context, string) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down > 0 {
		p.down--
		return nil, errRefused
	}
	p.conns++
	near, far := net.Pipe()
	go p.serve(p.conns, far)
	return near, nil
}

// serve serves a connection until an end closes it, or until the peer hangs.
func (p *peer) serve(n int, c net.Conn) {
	hung := false
	defer func() {
		if !hung {
			c.Close()
		}
	}()
	for {
		var header [8]byte
		if _, err := io.ReadFull(c, header[:]); err != nil {
			return
		}
		var reply [][]byte
		if string(header[:4]) == "AMQP" {
			reply = append(reply, header[:])
			if header[4] == 3 { // SASL: sasl-mechanisms
				reply = append(reply, frame(1, 0, 0x40, symbol("ANONYMOUS")))
			}
		} else {
			body := make([]byte, binary.BigEndian.Uint32(header[:4])-8)
			if _, err := io.ReadFull(c, body); err != nil {
				return
			}
			if len(body) == 0 { // a heartbeat
				continue
			}
			if r := p.script(n, body[2]); r != responds {
				hung = r == hangs
				return
			}
			reply = respond(binary.BigEndian.Uint16(header[6:]), body[2], body[3:])
		}
		for _, b := range reply {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}
}

// respond returns the response to a frame.
func respond(channel uint16, code byte, list []byte) [][]byte {
	switch code {
	case frameSASLInit: // sasl-outcome
		return [][]byte{frame(1, 0, 0x44, []byte{0x50, 0})}
	case frameOpen:
		return [][]byte{frame(0, 0, frameOpen, text("peer"))}
	case frameBegin:
		return [][]byte{frame(0, channel, frameBegin, []byte{0x60, byte(channel >> 8), byte(channel)}, number(0), number(5000), number(5000))}
	case frameAttach: // name, handle; the reply has the role of a receiver and grants credit
		values := elements(list)
		handle := number(unsigned(values[1]))
		target := append([]byte{0x00, 0x53, 0x29}, listOf(text("orders"))...)
		return [][]byte{
			frame(0, channel, frameAttach, values[0], handle, []byte{0x41}, []byte{0x50, 0}, []byte{0x50, 0}, []byte{0x40}, target),
			frame(0, channel, 0x13, number(0), number(5000), number(0), number(5000), handle, number(0), number(1000)),
		}
	case frameTransfer: // handle, delivery-id; a disposition with the outcome accepted
		id := number(unsigned(elements(list)[1]))
		return [][]byte{frame(0, channel, 0x15, []byte{0x41}, id, id, []byte{0x41}, []byte{0x00, 0x53, 0x24, 0x45})}
	case frameClose:
		return [][]byte{frame(0, 0, frameClose)}
	}
	return nil
}

// frame returns a frame: kind is 0 for AMQP and 1 for SASL.
func frame(kind byte, channel uint16, code byte, values ...[]byte) []byte {
	body := append([]byte{0x00, 0x53, code}, listOf(values...)...)
	b := binary.BigEndian.AppendUint32(nil, uint32(8+len(body)))
	b = append(b, 2, kind, byte(channel>>8), byte(channel))
	return append(b, body...)
}

func listOf(values ...[]byte) []byte {
	b := []byte{0xc0, 1, byte(len(values))}
	for _, v := range values {
		b = append(b, v...)
	}
	b[1] = byte(len(b) - 2)
	return b
}

func symbol(s string) []byte { return append([]byte{0xa3, byte(len(s))}, s...) }

func text(s string) []byte { return append([]byte{0xa1, byte(len(s))}, s...) }

func number(n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0x70}, n) }

// elements returns the first two elements of a list: a string or a number, and a number.
func elements(list []byte) [2][]byte {
	switch list[0] {
	case 0xc0:
		list = list[3:]
	case 0xd0:
		list = list[9:]
	}
	var all [2][]byte
	for i := range all {
		n := 1 // 0x43 is zero
		switch list[0] {
		case 0xa1:
			n = 2 + int(list[1])
		case 0x52:
			n = 2
		case 0x70:
			n = 5
		}
		all[i], list = list[:n], list[n:]
	}
	return all
}

func unsigned(v []byte) uint32 {
	switch v[0] {
	case 0x52:
		return uint32(v[1])
	case 0x70:
		return binary.BigEndian.Uint32(v[1:])
	}
	return 0
}
