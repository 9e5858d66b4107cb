package rocketmq

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protomem"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// A frame is one encoded ReceiveMessageResponse. It is to be freed.
type frame struct {
	data []byte
	room *[]byte // of frameRooms, that data lies in; nil: of none
}

// maxRoom is the size in bytes of the largest frame whose memory is used again.
const maxRoom = 2 << 20

// frameRooms has memory for frames. gRPC's own pool clears the memory that it gives out,
// which for small frames takes as long as reading them.
var frameRooms = sync.Pool{New: func() any { return new([]byte) }}

func newFrame(data mem.BufferSlice) frame {
	n := data.Len()
	if n > maxRoom {
		return frame{data: data.Materialize()}
	}
	room := frameRooms.Get().(*[]byte)
	if cap(*room) < n {
		*room = make([]byte, max(n, min(2*cap(*room), maxRoom)))
	}
	f := frame{data: (*room)[:n], room: room}
	data.CopyTo(f.data)
	return f
}

func (f *frame) free() {
	if f.room != nil {
		frameRooms.Put(f.room)
	}
	*f = frame{}
}

// A frameCodec leaves a *frame encoded.
type frameCodec struct{ protomem.Codec }

// Unmarshal implements encoding.CodecV2.
func (c frameCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*frame); ok {
		*f = newFrame(data)
		return nil
	}
	return c.Codec.Unmarshal(data, v)
}

// A collector gathers the messages that a receive brings, within its bounds. Frames may come
// in any order.
type collector struct {
	c        *Client
	s        *session
	r        *transport.ReceiveRequest
	max      int // messages
	maxBytes int // of their bodies; the first may be larger
	decoder

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
func (g *collector) add(f *frame, now time.Time) error {
	defer f.free()
	if g.began.IsZero() {
		g.began = now
	}
	r := fieldReader{rest: f.data}
	for !g.full && r.next() {
		switch r.tag {
		case tagResponseStatus:
			g.status = &rmqpb.Status{}
			if err := proto.Unmarshal(r.bytes, g.status); err != nil {
				return unreadable(err)
			}
		case tagResponseTime:
			server, err := moment(r.bytes)
			if err != nil {
				return unreadable(err)
			}
			g.server = server
		case tagResponseMessage, tagResponsePacked:
			if g.full = g.messages == g.max; !g.full {
				g.messages++
				g.message(r.bytes)
			}
		}
	}
	if r.err != nil {
		return unreadable(r.err)
	}
	return nil
}

// unreadable is the error that gRPC has for a frame that is no protobuf.
func unreadable(err error) error {
	return status.Errorf(codes.Internal, "a frame of the response is no ReceiveMessageResponse: %v", err)
}

// message takes a message in, unless it cannot be delivered.
func (g *collector) message(raw []byte) {
	p, err := g.parse(raw)
	d := p.delivery
	d.ConsumerGroup = g.r.Group
	d.Endpoint = g.s.ep.key
	if d.Topic == "" {
		d.Topic = g.r.Topic // or it could never be settled
	}
	if len(g.excess) > 0 && err == nil && d.Handle != "" {
		g.excess = append(g.excess, d) // the order of a message group is kept
		return
	}
	if err == nil {
		err = p.unpack(g.c.opts.MaxReceiveSize)
	}
	if err != nil {
		g.c.opts.Logger.Error("rocketmq: message not delivered; the server will deliver it again", "topic", g.r.Topic,
			"group", g.r.Group, "message", d.ID, "endpoint", g.s.ep.key, "err", err)
		return
	}
	// A server's clock has no part in this; one that is 3 s behind would end a lease of 2 s.
	if p.invisible > 0 {
		d.InvisibleUntil = g.began.Add(p.invisible)
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
