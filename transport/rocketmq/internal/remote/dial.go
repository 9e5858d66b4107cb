package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/internal/protomem"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/wire"
)

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
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxReceiveSize), grpc.ForceCodecV2(wire.FrameCodec{})),
		experimental.WithBufferPool(protomem.Pool),
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
