// Package conn has what a client knows of its servers: addresses, connections with their announced
// features, faults of TLS and the circuit breaker of sends (Server, Link, Connection); the routes
// of topics (Route, Places); the headers of requests (Identity, Signer); and the errors of
// responses and calls (OfStatus, OfCall). It knows no sessions.
package conn

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
	"github.com/tidegate/tidegate/transport"
)

// A Link is a gRPC channel, which makes one connection after the other, with the stub over it. The
// first call creates the channel, because a server may name thousands of servers that are never
// used.
type Link struct {
	mu     sync.Mutex // guards closed and the creation of channel
	closed bool
	open   func() *grpc.ClientConn
	made   atomic.Pointer[channel] // nil before the first call

	count   atomic.Int64               // of connections made
	current atomic.Pointer[Connection] // the latest that is of use; nil before the first
	Fault   atomic.Pointer[SetupFault] // of the latest attempt to connect; nil if it had none
	probed  atomic.Int64               // when the server was asked whether it expects TLS
	unnamed atomic.Bool                // the latest attempt to connect failed because DNS does not have the host name
	worked  atomic.Bool                // a server responded at the addresses, over this link or one before it
}

type channel struct {
	conn *grpc.ClientConn
	api  rmqpb.MessagingServiceClient
}

// channel returns the gRPC channel, and creates it before the first call. After Close it is a
// closed one.
func (l *Link) channel() *channel {
	if c := l.made.Load(); c != nil {
		return c
	}
	c, closed := l.make()
	if closed {
		c.conn.Close()
	}
	return c
}

// make creates the channel unless there is one, and reports whether the link was closed before.
func (l *Link) make() (c *channel, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.made.Load(); c != nil {
		return c, l.closed
	}
	conn := l.open()
	c = &channel{conn, rmqpb.NewMessagingServiceClient(conn)}
	l.made.Store(c)
	return c, l.closed
}

// API returns the stub over the channel.
func (l *Link) API() rmqpb.MessagingServiceClient { return l.channel().api }

// State returns the state of the channel.
func (l *Link) State() connectivity.State {
	c := l.made.Load()
	if c == nil {
		return connectivity.Idle
	}
	return c.conn.GetState()
}

// ResetConnectBackoff ends the current wait between attempts to connect.
func (l *Link) ResetConnectBackoff() {
	if c := l.made.Load(); c != nil {
		c.conn.ResetConnectBackoff()
	}
}

// Close closes the channel. Calls under way and later ones fail.
func (l *Link) Close() {
	l.mu.Lock()
	l.closed = true
	c := l.made.Load()
	l.mu.Unlock()
	if c != nil {
		c.conn.Close()
	}
}

// A Connection is one network connection to a server. Features belong to it: the
// next connection to the same address may lead to another kind of server. gRPC
// carries it as the AuthInfo of the connection's requests.
type Connection struct {
	credentials.AuthInfo
	number   int64                    // in the order in which the link made them
	Features atomic.Pointer[Features] // announced; nil before the first response
}

// Features are the announcements of a server on a connection.
type Features struct {
	transport.Capabilities

	// Topics: the messages of one request may have different topics.
	Topics bool

	// Heartbeats: a heartbeat counts for all clients whose Telemetry streams use its connection.
	Heartbeats bool

	// Queues: the queues of a group change only with the route of the topic, and with the setting
	// FIFO of the group.
	Queues bool
}

// GetCommonAuthInfo implements the optional interface of a credentials.AuthInfo.
func (c *Connection) GetCommonAuthInfo() credentials.CommonAuthInfo {
	if i, ok := c.AuthInfo.(interface {
		GetCommonAuthInfo() credentials.CommonAuthInfo
	}); ok {
		return i.GetCommonAuthInfo()
	}
	return credentials.CommonAuthInfo{}
}

// batch reports whether messages of one request keep their identity on c.
func (c *Connection) batch() bool { return c.features().Batch }

// topics reports whether the messages of one request may have different topics on c.
func (c *Connection) topics() bool { return c.features().Topics }

// features returns the features that c announced, and none before its first response.
func (c *Connection) features() (none Features) {
	if c == nil {
		return none
	}
	if f := c.Features.Load(); f != nil {
		return *f
	}
	return none
}

// announce notes the features of a response on c. A connection that responded once
// without batch is never given several messages again, since something on its way
// leads to different servers. The same holds for the features that are not capabilities.
func (c *Connection) announce(f Features) {
	for {
		old := c.Features.Load()
		if old != nil {
			f.Batch, f.Topics = f.Batch && old.Batch, f.Topics && old.Topics
			f.Heartbeats, f.Queues = f.Heartbeats && old.Heartbeats, f.Queues && old.Queues
			if *old == f {
				return
			}
		}
		if c.Features.CompareAndSwap(old, &f) {
			return
		}
	}
}

// ConnectionOf returns the connection of a request's peer, nil if it had none.
func ConnectionOf(p *peer.Peer) *Connection {
	if p == nil {
		return nil
	}
	c, _ := p.AuthInfo.(*Connection)
	return c
}

// Saw notes a connection in use. An older one replaces a newer one only if that has
// never responded: of two that are made at the same time, gRPC may drop the newer.
func (l *Link) Saw(c *Connection) {
	for {
		cur := l.current.Load()
		if cur == c || cur != nil && cur.number > c.number && cur.Features.Load() != nil {
			return
		}
		if l.current.CompareAndSwap(cur, c) {
			return
		}
	}
}

// numbering numbers the connections of a link, and finds faults of the set-up.
type numbering struct {
	credentials.TransportCredentials
	link   *Link
	secure bool
	dial   func(ctx context.Context, addr string) (net.Conn, error)
	ctx    context.Context //nolint:containedctx // the client's own
}

// Clone returns a copy that numbers for the same link.
func (n numbering) Clone() credentials.TransportCredentials {
	n.TransportCredentials = n.TransportCredentials.Clone()
	return n
}

// A BatchGate lets a request pass only over a connection that announced batch, and topics if that
// is set. gRPC asks it for metadata when the connection is chosen, and before it writes anything.
type BatchGate struct {
	Topics  bool // the messages may have different topics
	Refused *Connection
}

// GetRequestMetadata rejects the request unless its connection announced the features that it
// needs.
func (g *BatchGate) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	info, _ := credentials.RequestInfoFromContext(ctx)
	c, _ := info.AuthInfo.(*Connection)
	if c.batch() && (!g.Topics || c.topics()) {
		return nil, nil
	}
	if g.Refused = c; c == nil {
		g.Refused = new(Connection) // cannot happen: every connection is numbered
	}
	return nil, status.Error(codes.Unavailable, transport.ErrLaneChanged.Error())
}

// RequireTransportSecurity returns false: the gate adds no secret.
func (*BatchGate) RequireTransportSecurity() bool { return false }

// Learn stores the features that a response on c announced.
func (e *Server) Learn(c *Connection, header metadata.MD) {
	f := parseFeatures(header.Get(wire.HeaderFeatures))
	if old := e.features.Load(); old == nil || *old != f.Capabilities {
		e.features.Store(&f.Capabilities)
	}
	l := e.Link.Load()
	l.worked.Store(true)
	if c != nil {
		c.announce(f)
		l.Saw(c)
	}
}

// Replace replaces the link old by l, unless another caller has replaced it.
func (e *Server) Replace(old, l *Link) bool {
	l.worked.Store(old.worked.Load())
	return e.Link.CompareAndSwap(old, l)
}

// Unknown reports whether the connection in use has announced nothing yet.
func (e *Server) Unknown() bool {
	c := e.Link.Load().current.Load()
	return c == nil || c.Features.Load() == nil
}

// Batch reports whether a request may have several messages, as far as known now. The
// gate has the last word.
func (e *Server) Batch() bool { return e.Link.Load().current.Load().batch() }

// Topics reports whether the messages of a request may have different topics, as far as known now.
// The gate has the last word.
func (e *Server) Topics() bool { return e.Link.Load().current.Load().topics() }

// SharesHeartbeats reports whether a heartbeat on the current connection counts for all clients
// with a stream on it.
func (e *Server) SharesHeartbeats() bool { return e.Link.Load().current.Load().features().Heartbeats }

// KeepsQueues reports whether the server assigns a group other queues only with another route or
// another setting FIFO.
func (e *Server) KeepsQueues() bool { return e.Link.Load().current.Load().features().Queues }

// Capabilities returns the features that the current connection announced. Before its first
// response these are the features of the previous connection, except for Batch.
func (e *Server) Capabilities() transport.Capabilities {
	if c := e.Link.Load().current.Load(); c != nil {
		if f := c.Features.Load(); f != nil {
			return f.Capabilities
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
func parseFeatures(values []string) Features {
	var f Features
	for _, v := range values {
		for name := range strings.SplitSeq(v, ",") {
			switch name = strings.ToLower(strings.TrimSpace(name)); name {
			case wire.FeatureBatch:
				f.Batch = true
			case wire.FeaturePushBack:
				f.PushBack = true
			case wire.FeatureSuspend:
				f.Suspend = true
			case wire.FeatureDeadLetter:
				f.IdempotentDeadLetter = true
			case wire.FeatureRetry:
				f.RetryResult = true
			case wire.FeatureTopics:
				f.Topics = true
			case wire.FeatureHeartbeats:
				f.Heartbeats = true
			case wire.FeatureQueues:
				f.Queues = true
			case wire.FeatureWatch:
				f.Watch = true
			case wire.FeatureRepeat:
				f.RepeatReceive, f.RepeatChange = true, true
			default:
				f.Verdicts |= wire.VerdictFeatures[name]
			}
		}
	}
	return f
}

// knockGap is the least time between two knocks for calls that wait for a
// connection. gRPC tries again by itself one initial backoff after a knock. With an
// initial backoff of 1 s both together try once a second.
func knockGap(initial time.Duration) time.Duration {
	if initial > time.Second {
		return time.Second
	}
	return 2 * time.Second
}

// knockOnce has gRPC connect now instead of at the end of its backoff, unless another
// caller did that within gap.
func (e *Server) knockOnce(l *Link, gap time.Duration) {
	now, last := e.age(time.Now()), e.knocked.Load()
	if (last == 0 || time.Duration(now-last) >= gap) && e.knocked.CompareAndSwap(last, now) {
		l.ResetConnectBackoff()
	}
}

// Knock starts a new attempt for a failed connection, and waits a moment for it. It is for
// consumers, which wait between two receives for the requested time and must not also wait for
// gRPC's backoff: after some minutes of failures it is longer than two minutes. A server that is
// down gets at most one such attempt at a time.
func (e *Server) Knock(ctx context.Context) {
	l := e.Link.Load()
	if l.State() != connectivity.TransientFailure {
		return
	}
	e.knockOnce(l, connectWait)
	ctx, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	// gRPC stays in this state, over attempts that fail too, until one does not.
	l.channel().conn.WaitForStateChange(ctx, connectivity.TransientFailure)
}

// Lack completes the error e of a call that was written to no connection: it sets NotConnected if
// the call had none, and describes the outage. err is gRPC's error.
func (l *Link) Lack(e *tidegate.Error, err error) {
	if e.NotConnected = l.lacked(e, err); e.NotConnected {
		e.Message = cmp.Or(l.Outage(), e.Message)
	}
}

// lacked is false after Close, and for a fault of the set-up or of the host name at addresses that
// have never worked.
func (l *Link) lacked(e *tidegate.Error, err error) bool {
	switch status.Code(err) {
	case codes.Unavailable:
	case codes.Canceled, codes.DeadlineExceeded: // the call may have waited for a free stream
		if l.ready() {
			return false
		}
	default:
		return false
	}
	return e.Code == 0 && !errors.Is(e, tidegate.ErrClosed) && !l.misconfigured()
}

// Missing reports whether there is no connection, for a reason other than a fault of the set-up or
// of the host name at addresses that have never worked.
func (l *Link) Missing() bool { return !l.ready() && !l.misconfigured() }

func (l *Link) ready() bool { return l.State() == connectivity.Ready }

// misconfigured reports a fault of the set-up or of the host name that waiting does not cure. At
// addresses that have worked such a fault is an outage: a certificate has expired or is being
// replaced, a name server has lost the name, or a gateway responds instead of the server.
func (l *Link) misconfigured() bool {
	return !l.worked.Load() && (l.Fault.Load() != nil || l.unnamed.Load())
}

// Misconfigured returns the fault of the set-up of the latest attempt to connect, nil if there is
// none or if the addresses have worked before.
func (l *Link) Misconfigured() *SetupFault {
	if l.worked.Load() {
		return nil
	}
	return l.Fault.Load()
}

// Outage describes the fault of the set-up of the latest attempt to connect to addresses that have
// worked before; empty if there is none.
func (l *Link) Outage() string {
	f := l.Fault.Load()
	if f == nil || !l.worked.Load() {
		return ""
	}
	return f.Text + " (the address has worked before, so this counts as an outage)"
}

// Await waits for a connection until ctx ends, and has it tried about once a second
// meanwhile. The error is the cause of ctx; nil with a channel that was closed, since
// the call that follows reports that.
func (e *Server) Await(ctx context.Context) error {
	for {
		l := e.Link.Load()
		state := l.State()
		switch state {
		case connectivity.Ready, connectivity.Shutdown:
			return nil
		case connectivity.Idle:
			l.channel().conn.Connect()
		case connectivity.TransientFailure:
			if l.Misconfigured() != nil {
				return nil // no connection will come; the call that follows reports why
			}
			e.knockOnce(l, e.gap)
		case connectivity.Connecting:
		}
		// The state stays TransientFailure over attempts that fail, so the wait ends in
		// time for the next knock.
		wait, cancel := context.WithTimeout(ctx, e.gap)
		l.channel().conn.WaitForStateChange(wait, state)
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// A Dialing has the settings of connections to servers.
type Dialing struct {
	TLS            *tls.Config                                              // nil: plain text
	Dialer         func(ctx context.Context, addr string) (net.Conn, error) // nil: TCP
	Backoff        backoff.Exponential                                      // between attempts to connect
	MaxReceiveSize int                                                      // bytes of every response but a receive's
	KeepOrder      bool                                                     // of several addresses of a server
	Life           context.Context                                          //nolint:containedctx // the client's own: probes of TLS end with it
}

// dialer returns the function that makes a network connection.
func (o *Dialing) dialer() func(ctx context.Context, addr string) (net.Conn, error) {
	if o.Dialer != nil {
		return o.Dialer
	}
	return func(ctx context.Context, addr string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
}

// proxied reports whether the environment names an HTTP proxy for one of the addresses. gRPC then
// connects to the proxy, unless it has a dialer, and the proxy resolves the names.
func proxied(addrs []string) bool {
	return slices.ContainsFunc(addrs, func(addr string) bool {
		proxy, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: "https", Host: addr}})
		return proxy != nil || err != nil
	})
}

// observed returns dial, and notes whether DNS has the host name.
func (l *Link) observed(dial func(context.Context, string) (net.Conn, error)) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := dial(ctx, addr)
		fault, ok := errors.AsType[*net.DNSError](err)
		l.unnamed.Store(ok && fault.IsNotFound)
		return conn, err
	}
}

// Dial returns a link to the server at addrs, host:port each. It neither connects nor creates a
// gRPC channel: the first call does.
func (o *Dialing) Dial(addrs []string) (*Link, error) {
	// The resolver hands the addresses on as they are: names are looked up at
	// each attempt to connect.
	target := "passthrough:///" + addrs[0]
	if len(addrs) > 1 {
		target = "rocketmq:///" + addrs[0]
		if !o.KeepOrder { // gRPC tries the addresses in this order, and keeps to one that works
			addrs = slices.Clone(addrs)
			rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
		}
	}
	target = strings.ReplaceAll(target, "%", "%25") // of an IPv6 zone; the target is a URL
	if _, err := url.Parse(target); err != nil {
		return nil, err
	}
	l := new(Link)
	l.open = func() *grpc.ClientConn {
		opts := o.options(l, addrs)
		conn, err := grpc.NewClient(target, opts...)
		if err != nil { // gRPC rejects no target that url.Parse accepts; a server's addresses must not end the program
			conn, _ = grpc.NewClient("passthrough:///unusable.invalid:1", opts...)
		}
		return conn
	}
	return l, nil
}

// options returns the options of the channel of l to the server at addrs.
func (o *Dialing) options(l *Link, addrs []string) []grpc.DialOption {
	creds := insecure.NewCredentials()
	if o.TLS != nil {
		creds = credentials.NewTLS(o.TLS)
	}
	b := o.Backoff
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(numbering{creds, l, o.TLS != nil, o.dialer(), o.Life}),
		grpc.WithDisableRetry(), // except for the transparent retry
		grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: grpcbackoff.Config{
				BaseDelay: b.Initial, Multiplier: b.Multiplier, Jitter: max(b.Jitter, 0), MaxDelay: b.Max,
			},
			MinConnectTimeout: b.MinConnectTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxReceiveSize), grpc.ForceCodecV2(wire.Codec{})),
		experimental.WithBufferPool(wire.Pool),
	}
	if o.Dialer != nil || !proxied(addrs) {
		opts = append(opts, grpc.WithContextDialer(l.observed(o.dialer())))
	}
	if len(addrs) > 1 {
		r := manual.NewBuilderWithScheme("rocketmq")
		var state resolver.State
		for _, a := range addrs {
			state.Addresses = append(state.Addresses, resolver.Address{Addr: a, ServerName: a})
		}
		r.InitialState(state)
		opts = append(opts, grpc.WithResolvers(r))
	}
	return opts
}
