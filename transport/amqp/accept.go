package amqp

import (
	"encoding/binary"
	"errors"
	"slices"
)

// Performatives of AMQP 1.0.
const (
	performBegin       = 0x11
	performAttach      = 0x12
	performDisposition = 0x15
	performEnd         = 0x17
)

// A channel is a session, as the frames show it that go-amqp writes. traffic.mu guards it.
type channel struct {
	number uint16
	link   string // name of the last link
	ended  bool   // another session can have the number from now on
}

// note follows the sessions by a frame of go-amqp. traffic.mu is held.
func (t *traffic) note(frame []byte) {
	if len(frame) < 11 || frame[5] != 0 || frame[8] != 0 || frame[9] != 0x53 { // type AMQP, a described value, a small code
		return
	}
	number := binary.BigEndian.Uint16(frame[6:])
	switch frame[10] {
	case performBegin:
		t.channels[number] = &channel{number: number}
	case performAttach:
		if c := t.channels[number]; c != nil {
			c.link = linkName(frame[11:])
		}
	case performEnd:
		if c := t.channels[number]; c != nil {
			c.ended = true
			delete(t.channels, number)
		}
	}
}

// linkName returns the first field of the list of an attach, which is a string of less than 256
// bytes; otherwise nothing.
func linkName(list []byte) string {
	fields := 3 // behind the code, the size and the number of the fields, of 1 or 4 bytes
	if len(list) > 0 && list[0] == 0xd0 {
		fields = 9
	}
	if len(list) < fields+2 || list[fields] != 0xa1 {
		return ""
	}
	n := int(list[fields+1])
	if len(list) < fields+2+n {
		return ""
	}
	return string(list[fields+2 : fields+2+n])
}

// An acceptor accepts the deliveries of the session of a link. go-amqp passes the outcome of each
// message through three goroutines and writes a frame for each; an Acceptor writes one frame for a
// range of deliveries.
type acceptor struct {
	traffic *traffic
	channel *channel
}

// Acceptor returns an Acceptor of the session whose last link has a name; nil if there is none.
func (l *connection) Acceptor(link string) *acceptor {
	t := l.traffic
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.channels {
		if c.link == link && link != "" {
			return &acceptor{t, c}
		}
	}
	return nil
}

// errEnded is the error of Accept after the end of the session.
var errEnded = errors.New("the session has ended")

// A sessionDelivery is a delivery of a session. Its link settles first (mode first of AMQP).
type sessionDelivery struct {
	ID uint32 // of the transfer

	accepted bool // guarded by traffic.mu
}

// Accept queues the outcome accepted for deliveries that do not have it yet. Live.Flush waits until
// it is written. After an error Accept has queued nothing. It may reorder list.
func (a *acceptor) Accept(list []*sessionDelivery) error {
	t := a.traffic
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.err(); err != nil {
		return err
	}
	if a.channel.ended {
		return errEnded
	}
	list = slices.DeleteFunc(list, func(d *sessionDelivery) bool { return d.accepted })
	slices.SortFunc(list, func(x, y *sessionDelivery) int { return int(int32(x.ID - y.ID)) }) // serial numbers of RFC 1982
	before := len(t.unwritten)
	for i := 0; i < len(list); {
		first, last := list[i].ID, list[i].ID
		for ; i < len(list) && list[i].ID-last <= 1; i++ {
			last = list[i].ID
			list[i].accepted = true
		}
		t.unwritten = appendAccepted(t.unwritten, a.channel.number, first, last)
	}
	t.queued += int64(len(t.unwritten) - before)
	t.work.Signal()
	return nil
}

// Accepted reports whether the outcome of a delivery is accepted.
func (a *acceptor) Accepted(d *sessionDelivery) bool {
	a.traffic.mu.Lock()
	defer a.traffic.mu.Unlock()
	return d.accepted
}

// appendAccepted appends the frame that accepts a range of deliveries.
func appendAccepted(b []byte, channel uint16, first, last uint32) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0, 2, 0)
	b = binary.BigEndian.AppendUint16(b, channel)
	b = append(b, 0x00, 0x53, performDisposition, 0xc0, 0, 5, 0x41) // a list of 5 fields: the role is receiver
	b = binary.BigEndian.AppendUint32(append(b, 0x70), first)
	b = binary.BigEndian.AppendUint32(append(b, 0x70), last)
	b = append(b, 0x41, 0x00, 0x53, 0x24, 0x45) // settled, accepted
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start))
	b[start+12] = byte(len(b) - start - 13)
	return b
}
