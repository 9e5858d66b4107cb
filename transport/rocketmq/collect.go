package rocketmq

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/wire"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// A collector collects the messages of one receive, within its bounds. Frames may arrive in any
// order.
type collector struct {
	c        *Client
	s        *session
	r        *transport.ReceiveRequest
	max      int // largest number of messages
	maxBytes int // largest sum of their bodies; the first message may be larger
	wire.Decoder

	status   *rmqpb.Status
	messages int                  // messages that arrived
	bytes    int                  // sum of the bodies in list
	list     []*tidegate.Delivery // the messages to return
	excess   []*tidegate.Delivery // messages beyond maxBytes, without their bodies
	full     bool                 // more than max messages arrived
	began    time.Time            // arrival of the first frame
	server   time.Time            // start of the delivery, in the server's clock
	err      *tidegate.Error
}

func (c *Client) collector(s *session, r *transport.ReceiveRequest, most int) *collector {
	g := &collector{c: c, s: s, r: r, max: most, maxBytes: r.MaxBytes}
	if g.maxBytes <= 0 {
		g.maxBytes = defaultReceiveBytes
	}
	return g
}

// add reads a frame and frees it.
func (g *collector) add(f *wire.Frame, now time.Time) error {
	defer f.Free()
	if g.began.IsZero() {
		g.began = now
	}
	r := wire.FieldReader{Rest: f.Data}
	for !g.full && r.Next() {
		switch r.Tag {
		case wire.TagResponseStatus:
			g.status = &rmqpb.Status{}
			if err := proto.Unmarshal(r.Bytes, g.status); err != nil {
				return wire.Unreadable(err)
			}
		case wire.TagResponseTime:
			server, err := wire.Moment(r.Bytes)
			if err != nil {
				return wire.Unreadable(err)
			}
			g.server = server
		case wire.TagResponseMessage, wire.TagResponsePacked:
			if g.full = g.messages == g.max; !g.full {
				g.messages++
				g.message(r.Bytes)
			}
		}
	}
	if r.Err != nil {
		return wire.Unreadable(r.Err)
	}
	return nil
}

// message adds a message, unless it is corrupt or too large.
func (g *collector) message(raw []byte) {
	p, err := g.Parse(raw)
	d := p.Delivery
	d.ConsumerGroup = g.r.Group
	d.Endpoint = g.s.ep.Key
	if d.Topic == "" {
		d.Topic = g.r.Topic // without a topic the delivery could not be settled
	}
	if len(g.excess) > 0 && err == nil && d.Handle != "" {
		g.excess = append(g.excess, d) // keeps the order of a message group
		return
	}
	if err == nil {
		err = p.Unpack(g.c.opts.MaxReceiveSize)
	}
	if err != nil {
		g.c.opts.Logger.Error("rocketmq: message not delivered; the server will deliver it again", "topic", g.r.Topic,
			"group", g.r.Group, "message", d.ID, "endpoint", g.s.ep.Key, "err", err)
		return
	}
	// The deadline does not depend on the server's clock: a clock 3 s behind would end a lease of 2
	// s.
	if p.Invisible > 0 {
		d.InvisibleUntil = g.began.Add(p.Invisible)
	}
	if len(g.list) > 0 && len(d.Body) > g.maxBytes-g.bytes {
		d.Body = nil
		g.excess = append(g.excess, d)
		return
	}
	g.bytes += len(d.Body)
	g.list = append(g.list, d)
}

// handedOut returns the start of the messages' invisible time, for messages that do not state the
// remaining time. It is the server's time if the clocks agree, and otherwise the arrival of the
// first frame, which is slightly late.
func (g *collector) handedOut() time.Time {
	if late := g.began.Sub(g.server); late >= 0 && late <= clocksAgree {
		return g.server
	}
	return g.began
}
