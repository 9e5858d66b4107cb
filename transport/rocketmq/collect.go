package rocketmq

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/wire"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// A collector gathers the messages that a receive brings, within its bounds. Frames may come
// in any order.
type collector struct {
	c        *Client
	s        *session
	r        *transport.ReceiveRequest
	max      int // messages
	maxBytes int // of their bodies; the first may be larger
	wire.Decoder

	status   *rmqpb.Status
	messages int                  // that came
	bytes    int                  // of the bodies of list
	list     []*tidegate.Delivery // the messages to return
	excess   []*tidegate.Delivery // those beyond maxBytes, without their bodies
	full     bool                 // there came more than max
	began    time.Time            // of the first frame's arrival
	server   time.Time            // when the server began to deliver, by its clock
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

// message takes a message in, unless it cannot be delivered.
func (g *collector) message(raw []byte) {
	p, err := g.Parse(raw)
	d := p.Delivery
	d.ConsumerGroup = g.r.Group
	d.Endpoint = g.s.ep.Key
	if d.Topic == "" {
		d.Topic = g.r.Topic // or it could never be settled
	}
	if len(g.excess) > 0 && err == nil && d.Handle != "" {
		g.excess = append(g.excess, d) // the order of a message group is kept
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
	// A server's clock has no part in this; one that is 3 s behind would end a lease of 2 s.
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

// handedOut returns when the messages' invisible time began, where they do not say
// what is left of it: by the server's clock if it agrees with ours, else when the
// first frame came, which is a little late, but not by hours.
func (g *collector) handedOut() time.Time {
	if late := g.began.Sub(g.server); late >= 0 && late <= clocksAgree {
		return g.server
	}
	return g.began
}
