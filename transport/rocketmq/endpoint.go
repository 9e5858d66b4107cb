package rocketmq

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/protomem"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/rmqpb"
)

const (
	// keepaliveTime is above the 5 min that gRPC servers demand by default
	// between the pings of a client.
	keepaliveTime    = 6 * time.Minute
	keepaliveTimeout = 20 * time.Second

	// oldConnection is how long calls may go on over a connection that the
	// server asked to replace.
	oldConnection = time.Minute
)

// An endpoint is a server that can be talked to. Goroutines share it.
type endpoint struct {
	key  string // its addresses, joined by ";"
	pb   *rmqpb.Endpoints
	link atomic.Pointer[link]

	features atomic.Pointer[transport.Capabilities] // that any connection announced last; nil until the first response
	born     time.Time
	unused   int          // refreshes in a row in which nothing named it; guarded by Client.mu
	knocked  atomic.Int64 // when the last knock was, by age; 0 before the first

	breaker *gobreaker.TwoStepCircuitBreaker[struct{}] // fed by sends only
	tripped atomic.Int64                               // the number of the trip by which it is not closed; 0 if it is
	probed  atomic.Int64                               // when a lane led to it to probe it, by age; 0 before the first
}

// age returns the time since the endpoint was made, in ns, at least 1. The
// machine's clock may be set back meanwhile; this goes on.
func (e *endpoint) age(now time.Time) int64 { return max(int64(now.Sub(e.born)), 1) }

func (e *endpoint) api() rmqpb.MessagingServiceClient { return e.link.Load().api }

// parseEndpoints reads addresses, host:port, joined by ";" or ",".
func parseEndpoints(text string) (*rmqpb.Endpoints, error) {
	pb := new(rmqpb.Endpoints)
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ';' || r == ',' }) {
		part = strings.TrimSpace(part)
		host, port, err := net.SplitHostPort(part)
		if err != nil {
			return nil, badEndpoint(text, "%q: %v; give host:port", part, err)
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || host == "" {
			return nil, badEndpoint(text, "%q: give host:port with a port of 1 to 65535", part)
		}
		scheme := schemeOf(host)
		if pb.Scheme != 0 && pb.Scheme != scheme {
			return nil, badEndpoint(text, "addresses of one server must be of one kind, but there are %s and %s", pb.Scheme, scheme)
		}
		pb.Scheme = scheme
		pb.Addresses = append(pb.Addresses, &rmqpb.Address{Host: host, Port: int32(n)})
	}
	if len(pb.Addresses) == 0 {
		return nil, badEndpoint(text, "there is no address; give host:port, several joined by ';'")
	}
	return pb, nil
}

func badEndpoint(subject, format string, args ...any) error {
	return &tidegate.Error{Op: "rocketmq.New", Subject: subject, Code: tidegate.CodeIllegalAccessPoint, Message: fmt.Sprintf(format, args...)}
}

func schemeOf(host string) rmqpb.AddressScheme {
	ip, err := netip.ParseAddr(host)
	switch {
	case err != nil:
		return rmqpb.AddressScheme_DOMAIN_NAME
	case ip.Is4():
		return rmqpb.AddressScheme_IPv4
	}
	return rmqpb.AddressScheme_IPv6
}

// addressesOf returns pb's addresses in the form host:port, and false if any
// of them is none.
func addressesOf(pb *rmqpb.Endpoints) ([]string, bool) {
	var list []string
	for _, a := range pb.GetAddresses() {
		if a.GetHost() == "" || a.GetPort() < 1 || a.GetPort() > 65535 {
			return nil, false
		}
		list = append(list, net.JoinHostPort(a.GetHost(), strconv.Itoa(int(a.GetPort()))))
	}
	return list, len(list) > 0
}

// endpoint returns the endpoint of pb's addresses, which it makes if there is
// none. It does not connect. The error is ErrClosed, or that pb is not usable.
func (c *Client) endpoint(pb *rmqpb.Endpoints) (*endpoint, error) {
	addrs, ok := addressesOf(pb)
	if !ok {
		return nil, badEndpoint(pb.String(), "there is no usable address")
	}
	key := strings.Join(addrs, ";")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, tidegate.ErrClosed
	}
	if e := c.endpoints[key]; e != nil {
		e.unused = 0
		return e, nil
	}
	l, err := c.dial(addrs)
	if err != nil {
		return nil, &tidegate.Error{Op: "connect", Endpoint: key, Err: err}
	}
	e := &endpoint{key: key, pb: pb, born: time.Now()}
	e.breaker = c.newBreaker(e)
	e.link.Store(l)
	c.endpoints[key] = e
	return e, nil
}

// dial makes a connection that is idle until its first call.
func (c *Client) dial(addrs []string) (*link, error) {
	o := &c.opts
	creds := insecure.NewCredentials()
	if o.TLS != nil {
		creds = credentials.NewTLS(o.TLS)
	}
	l := new(link)
	b := o.ConnectBackoff
	dialOpts := []grpc.DialOption{
		grpc.WithTransportCredentials(numbering{creds, l, o.TLS != nil, o.dialer(), c.ctx}),
		grpc.WithDisableRetry(), // but for transparent retry
		grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: grpcbackoff.Config{
				BaseDelay: b.Initial, Multiplier: b.Multiplier, Jitter: max(b.Jitter, 0), MaxDelay: b.Max,
			},
			MinConnectTimeout: b.MinConnectTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxReceiveSize), grpc.ForceCodecV2(frameCodec{})),
		experimental.WithBufferPool(protomem.Pool),
	}
	if o.Dialer != nil {
		dialOpts = append(dialOpts, grpc.WithContextDialer(o.Dialer))
	}
	// The resolver hands the addresses on as they are: names are looked up at
	// each attempt to connect.
	target := "passthrough:///" + addrs[0]
	if len(addrs) > 1 {
		r := manual.NewBuilderWithScheme("rocketmq")
		var state resolver.State
		for _, a := range addrs {
			state.Addresses = append(state.Addresses, resolver.Address{Addr: a, ServerName: a})
		}
		r.InitialState(state)
		dialOpts = append(dialOpts, grpc.WithResolvers(r))
		target = "rocketmq:///" + addrs[0]
	}
	conn, err := grpc.NewClient(target, dialOpts...)
	if err != nil {
		return nil, err
	}
	l.conn, l.api = conn, rmqpb.NewMessagingServiceClient(conn)
	return l, nil
}

// reconnect gives e a new connection in place of old, which it closes when the
// calls that are under way on it have had time to end. Where another session was
// asked for the same before, that is done.
func (c *Client) reconnect(e *endpoint, old *link) {
	if e.link.Load() != old {
		return
	}
	addrs, _ := addressesOf(e.pb)
	l, err := c.dial(addrs)
	if err != nil {
		return // cannot happen: the same call worked before
	}
	if !e.link.CompareAndSwap(old, l) {
		l.conn.Close()
		return
	}
	ok := c.spawn(func() {
		defer old.conn.Close()
		_ = backoff.Sleep(c.ctx, oldConnection)
	})
	if !ok {
		old.conn.Close()
	}
}
