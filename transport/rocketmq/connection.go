package rocketmq

import (
	"context"
	"net"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

// featuresKey is the response header in which a server announces its features
// beyond RocketMQ 5.2.
const featuresKey = "x-tidegate-features"

// A link is a gRPC channel, which makes one connection after the other, with
// the stub over it.
type link struct {
	conn    *grpc.ClientConn
	api     rmqpb.MessagingServiceClient
	count   atomic.Int64               // of connections made
	current atomic.Pointer[connection] // the latest that is of use; nil before the first
	fault   atomic.Pointer[tlsFault]   // of the latest attempt to connect; nil if it had none
	probed  atomic.Int64               // when the server was asked whether it expects TLS
}

// A connection is one network connection to a server. Features belong to it: the
// next connection to the same address may lead to another kind of server. gRPC
// carries it as the AuthInfo of the connection's requests.
type connection struct {
	credentials.AuthInfo
	number   int64                                  // in the order in which the link made them
	features atomic.Pointer[transport.Capabilities] // announced; nil before the first response
}

// GetCommonAuthInfo implements the optional interface of a credentials.AuthInfo.
func (c *connection) GetCommonAuthInfo() credentials.CommonAuthInfo {
	if i, ok := c.AuthInfo.(interface {
		GetCommonAuthInfo() credentials.CommonAuthInfo
	}); ok {
		return i.GetCommonAuthInfo()
	}
	return credentials.CommonAuthInfo{}
}

// batch reports whether messages of one request keep their identity on c.
func (c *connection) batch() bool {
	if c == nil {
		return false
	}
	f := c.features.Load()
	return f != nil && f.Batch
}

// announce notes the features of a response on c. A connection that responded once
// without batch is never given several messages again, since something on its way
// leads to different servers.
func (c *connection) announce(f transport.Capabilities) {
	for {
		old := c.features.Load()
		if old != nil {
			f.Batch = f.Batch && old.Batch
			if *old == f {
				return
			}
		}
		if c.features.CompareAndSwap(old, &f) {
			return
		}
	}
}

// connectionOf returns the connection of a request's peer, nil if it had none.
func connectionOf(p *peer.Peer) *connection {
	if p == nil {
		return nil
	}
	c, _ := p.AuthInfo.(*connection)
	return c
}

// saw notes a connection in use. An older one replaces a newer one only if that has
// never responded: of two that are made at the same time, gRPC may drop the newer.
func (l *link) saw(c *connection) {
	for {
		cur := l.current.Load()
		if cur == c || cur != nil && cur.number > c.number && cur.features.Load() != nil {
			return
		}
		if l.current.CompareAndSwap(cur, c) {
			return
		}
	}
}

// numbering numbers the connections of a link, and finds faults of Options.TLS.
type numbering struct {
	credentials.TransportCredentials
	link   *link
	secure bool
	dial   func(ctx context.Context, addr string) (net.Conn, error)
	ctx    context.Context //nolint:containedctx // the client's own
}

// Clone returns a copy that numbers for the same link.
func (n numbering) Clone() credentials.TransportCredentials {
	n.TransportCredentials = n.TransportCredentials.Clone()
	return n
}

// A gate lets a request pass only over a connection that announced batch. gRPC asks
// it for metadata when the connection is chosen, and before it writes anything.
type gate struct{ refused *connection }

// GetRequestMetadata refuses the request unless its connection announced batch.
func (g *gate) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	info, _ := credentials.RequestInfoFromContext(ctx)
	c, _ := info.AuthInfo.(*connection)
	if c.batch() {
		return nil, nil
	}
	if g.refused = c; c == nil {
		g.refused = new(connection) // cannot happen: every connection is numbered
	}
	return nil, status.Error(codes.Unavailable, transport.ErrLaneChanged.Error())
}

// RequireTransportSecurity returns false: the gate adds no secret.
func (*gate) RequireTransportSecurity() bool { return false }

// learn notes what a response on c announced.
func (e *endpoint) learn(c *connection, header metadata.MD) {
	f := parseFeatures(header.Get(featuresKey))
	if old := e.features.Load(); old == nil || *old != f {
		e.features.Store(&f)
	}
	if c != nil {
		c.announce(f)
		e.link.Load().saw(c)
	}
}

// unknown reports whether the connection in use has announced nothing yet.
func (e *endpoint) unknown() bool {
	c := e.link.Load().current.Load()
	return c == nil || c.features.Load() == nil
}

// batch reports whether a request may have several messages, as far as known now. The
// gate has the last word.
func (e *endpoint) batch() bool { return e.link.Load().current.Load().batch() }

// capabilities returns what the connection in use announced. Until its first
// response that is what the connection before announced, except Batch.
func (e *endpoint) capabilities() transport.Capabilities {
	if c := e.link.Load().current.Load(); c != nil {
		if f := c.features.Load(); f != nil {
			return *f
		}
	}
	var f transport.Capabilities
	if last := e.features.Load(); last != nil {
		f = *last
	}
	f.Batch = false
	return f
}

// parseFeatures reads the values of x-tidegate-features.
func parseFeatures(values []string) transport.Capabilities {
	var f transport.Capabilities
	for _, v := range values {
		for name := range strings.SplitSeq(v, ",") {
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "batch":
				f.Batch = true
			case "pushback":
				f.PushBack = true
			case "suspend":
				f.Suspend = true
			case "deadletter":
				f.IdempotentDeadLetter = true
			case "retry":
				f.RetryResult = true
			case "snooze":
				f.Snooze = true
			case "reconsume":
				f.Reconsume = true
			case "repeat":
				f.RepeatReceive = true
			}
		}
	}
	return f
}
