package requests

import (
	"context"
	"errors"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/internal/wire"
)

// Names of the streaming RPCs, except for PullMessage, which is rejected.
const (
	RPCReceive   = "ReceiveMessage"
	RPCTelemetry = "Telemetry"
)

// Features are the headers of every response: the extensions of this broker beyond RocketMQ. They
// are shared and never changed. SingleFeatures lack "topics".
var (
	Features       = metadata.Pairs(wire.HeaderFeatures, singleFeatures+", "+wire.FeatureTopics)
	SingleFeatures = metadata.Pairs(wire.HeaderFeatures, singleFeatures)
)

// Watched is the trailer of a receive that has left a watch. It is shared and never changed.
var Watched = metadata.Pairs(wire.TrailerWatched, "true")

var singleFeatures = strings.Join(append([]string{
	wire.FeatureBatch, wire.FeaturePushBack, wire.FeatureSuspend, wire.FeatureDeadLetter, wire.FeatureRetry, wire.FeatureRepeat,
	wire.FeaturePacked, wire.FeatureStream, wire.FeatureBrief, wire.FeatureWatch, wire.FeatureHeartbeats, wire.FeatureQueues,
}, slices.Sorted(maps.Keys(wire.VerdictFeatures))...), ", ")

// Header returns the first value of a request header, or "".
func Header(ctx context.Context, name string) string {
	if v := metadata.ValueFromIncomingContext(ctx, name); len(v) > 0 {
		return v[0]
	}
	return ""
}

// MaxBytes returns the maximum size of the bodies of a receive that the client requests, or 0 if it
// requests none.
func MaxBytes(ctx context.Context) (int, error) {
	return number(ctx, wire.HeaderMaxBytes, "a number of bytes, or 0 for no bound")
}

// Arrived returns how many parts of an earlier receive with the same attempt ID the client has.
func Arrived(ctx context.Context) (int, error) {
	return number(ctx, wire.HeaderArrived, "how many parts of the earlier receive arrived")
}

func number(ctx context.Context, name, give string) (int, error) {
	text := Header(ctx, name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, refusal.New(tidegate.CodeBadRequest, name, "the header %s is %.40q; give %s", name, text, give)
	}
	return n, nil
}

// Announces reports whether the client announces a feature of its own.
func Announces(ctx context.Context, feature string) bool {
	for _, v := range metadata.ValueFromIncomingContext(ctx, wire.HeaderFeatures) {
		for name := range strings.SplitSeq(v, ",") {
			if strings.TrimSpace(name) == feature {
				return true
			}
		}
	}
	return false
}

// PeerAddress returns the address of the client of a gRPC request, or an empty text if it has none.
func PeerAddress(ctx context.Context) string {
	if from, ok := peer.FromContext(ctx); ok && from.Addr != nil {
		return from.Addr.String()
	}
	return ""
}

// Before503 reports whether a client's version is below 5.0.3, which is when
// clients learnt ILLEGAL_POLLING_TIME. Versions that cannot be read are new.
func Before503(version string) bool {
	v, ok := strings.CutPrefix(version, "5.0.")
	if !ok || v == "" {
		return false
	}
	return v[0] >= '0' && v[0] <= '2' && (len(v) == 1 || v[1] < '0' || v[1] > '9')
}

// PushBack returns the trailer with d, rounded up to a millisecond.
func PushBack(d time.Duration) metadata.MD {
	return metadata.Pairs(wire.TrailerPushBack, milliseconds(d))
}

// PushBacks returns the trailer with the wait of each topic, rounded up to a millisecond.
func PushBacks(waits []time.Duration) metadata.MD {
	text := make([]string, len(waits))
	for i, d := range waits {
		text[i] = milliseconds(d)
	}
	return metadata.Pairs(wire.TrailerPushBacks, strings.Join(text, ","))
}

func milliseconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}

// The values of wire.HeaderLanguage.
const (
	LanguageNode = "HTTP" // RocketMQ's Node client
	LanguageJava = "JAVA" // RocketMQ's Java client
	LanguageGo   = "GO"   // RocketMQ's Go client, and ours
)

// RetryPolicy returns a policy as a client of the language reads it.
// RocketMQ's Node client knows only exponential policies, the others read
// ladders (and Python nothing else).
func RetryPolicy(p engine.RetryPolicy, language string) *rmqpb.RetryPolicy {
	steps := p.Ladder
	if len(steps) == 0 { // a ladder without steps: every delay is 0; clients reject an empty list
		steps = []time.Duration{0}
	}
	out := &rmqpb.RetryPolicy{MaxAttempts: math.MaxInt32} // for ever
	if p.MaxAttempts > 0 {
		out.MaxAttempts = int32(min(p.MaxAttempts, math.MaxInt32))
	}
	if language == LanguageNode {
		multiplier := 2.0
		if len(steps) == 1 {
			multiplier = 1
		}
		out.Strategy = Exponential(steps[0], max(steps[0], steps[len(steps)-1]), multiplier)
		return out
	}
	next := make([]*durationpb.Duration, len(steps))
	for i, d := range steps {
		next[i] = durationpb.New(d)
	}
	out.Strategy = &rmqpb.RetryPolicy_CustomizedBackoff{CustomizedBackoff: &rmqpb.CustomizedBackoff{Next: next}}
	return out
}

// Exponential returns a policy whose delays grow by multiplier from initial up to longest.
func Exponential(initial, longest time.Duration, multiplier float64) *rmqpb.RetryPolicy_ExponentialBackoff {
	return &rmqpb.RetryPolicy_ExponentialBackoff{ExponentialBackoff: &rmqpb.ExponentialBackoff{
		Initial: durationpb.New(initial), Max: durationpb.New(longest), Multiplier: float32(multiplier),
	}}
}

// ParseEndpoints parses host:port with a numeric port. Its error names the expected form.
func ParseEndpoints(hostport string) (*rmqpb.Endpoints, error) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, errors.New("give host:port")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || host == "" {
		return nil, errors.New("give host:port with a host and a port from 1 to 65535")
	}
	return &rmqpb.Endpoints{
		Scheme:    schemeOf(host),
		Addresses: []*rmqpb.Address{{Host: host, Port: int32(n)}},
	}, nil
}

// EndpointsFor returns the address of this broker for a client: the address in the client's
// request, because the client can reach that one. A client with a list of addresses gets the
// address of its connection if the list has it, because the others can be other brokers. Without a
// usable address it gets the address of the connection.
func EndpointsFor(asked *rmqpb.Endpoints, local net.Addr) *rmqpb.Endpoints {
	var usable []*rmqpb.Address
	for _, a := range asked.GetAddresses() {
		if a.GetHost() != "" && a.GetPort() > 0 && a.GetPort() < 1<<16 {
			usable = append(usable, a)
		}
	}
	var here *rmqpb.Endpoints
	if local != nil {
		here, _ = ParseEndpoints(local.String())
	}
	if len(usable) > 1 && here != nil {
		for _, a := range usable {
			if a.GetPort() == here.Addresses[0].GetPort() && sameHost(a.GetHost(), here.Addresses[0].GetHost()) {
				return &rmqpb.Endpoints{Scheme: schemeOf(a.GetHost()), Addresses: []*rmqpb.Address{a}}
			}
		}
	}
	switch {
	case len(usable) > 0:
		scheme := schemeOf(usable[0].GetHost())
		for _, a := range usable {
			if schemeOf(a.GetHost()) != scheme {
				scheme = rmqpb.AddressScheme_DOMAIN_NAME
			}
		}
		if scheme == rmqpb.AddressScheme_DOMAIN_NAME {
			usable = usable[:1] // Java and Python reject more than one name
		}
		return &rmqpb.Endpoints{Scheme: scheme, Addresses: usable}
	case here != nil:
		return here
	}
	// A network without addresses, such as one in memory: any name will do.
	return &rmqpb.Endpoints{
		Scheme:    rmqpb.AddressScheme_DOMAIN_NAME,
		Addresses: []*rmqpb.Address{{Host: "localhost", Port: 8081}},
	}
}

func sameHost(a, b string) bool {
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	if errX == nil && errY == nil {
		return x.Unmap() == y.Unmap()
	}
	return a == b
}

func schemeOf(host string) rmqpb.AddressScheme {
	switch ip, err := netip.ParseAddr(host); {
	case err != nil:
		return rmqpb.AddressScheme_DOMAIN_NAME
	case ip.Unmap().Is4():
		return rmqpb.AddressScheme_IPv4
	default:
		return rmqpb.AddressScheme_IPv6
	}
}
