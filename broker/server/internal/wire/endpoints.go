package wire

import (
	"errors"
	"net"
	"net/netip"
	"strconv"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

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
