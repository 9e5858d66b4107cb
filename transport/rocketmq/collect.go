package rocketmq

import (
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/wire"
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
	sent     time.Time            // when the request was sent
	began    time.Time            // arrival of the first frame
	server   time.Time            // start of the delivery, in the server's clock
	err      *tidegate.Error
}

func (c *Client) collector(s *session, r *transport.ReceiveRequest, most int) *collector {
	g := &collector{c: c, s: s, r: r, max: most, maxBytes: r.MaxBytes, sent: time.Now()}
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
		g.c.unread.log(g.c.opts.Logger, slog.LevelError, "rocketmq: message not received; the server will deliver it again", "topic", g.r.Topic,
			"group", g.r.Group, "message_id", d.ID, "endpoint", g.s.ep.Key, "error", err)
		return
	}
	if p.Invisible > 0 {
		d.InvisibleUntil = g.began.Add(p.Invisible) // see invisibleUntil
	}
	if len(g.list) > 0 && len(d.Body) > g.maxBytes-g.bytes {
		d.Body = nil
		g.excess = append(g.excess, d)
		return
	}
	g.bytes += len(d.Body)
	g.list = append(g.list, d)
}

// invisibleUntil returns the end of d's invisible time in the client's clock. It counts the
// remaining time that the server reports for d, or else the requested duration.
func (g *collector) invisibleUntil(d *tidegate.Delivery) time.Time {
	if left := d.InvisibleUntil.Sub(g.began); !d.InvisibleUntil.IsZero() {
		return d.InvisibleUntil.Add(-g.underWay(left))
	}
	if late := g.began.Sub(g.server); late >= 0 && late <= clocksAgree {
		return g.server.Add(g.r.InvisibleDuration)
	}
	return g.began.Add(g.r.InvisibleDuration - g.underWay(g.r.InvisibleDuration))
}

// underWay returns how long the response took to arrive, as far as it is known. A lease that counts
// from the arrival of a slow response ends after the server delivers the message again. The
// server's time is used only if it lies between the request and the response: otherwise the clocks
// differ. A clock that is behind looks like a slow response during a long poll, so a quarter of
// the invisible duration remains for the first extension.
func (g *collector) underWay(invisible time.Duration) time.Duration {
	d := g.began.Sub(g.server)
	if g.server.Before(g.sent) || d < 0 || d > invisible/4*3 {
		return 0
	}
	return d
}
