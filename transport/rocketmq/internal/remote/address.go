package remote

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// ParseAddresses reads addresses, host:port, joined by ";" or ",".
func ParseAddresses(text string) (*rmqpb.Endpoints, error) {
	pb := new(rmqpb.Endpoints)
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ';' || r == ',' }) {
		part = strings.TrimSpace(part)
		if strings.Contains(part, "://") {
			return nil, BadAddress(text, "%q is a URL; give host:port without a scheme", part)
		}
		host, port, err := net.SplitHostPort(part)
		if err != nil {
			return nil, BadAddress(text, "%q: %v; give host:port", part, err)
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || host == "" {
			return nil, BadAddress(text, "%q: give host:port with a port of 1 to 65535", part)
		}
		scheme := schemeOf(host)
		if at := strings.IndexFunc(host, illegal); scheme == rmqpb.AddressScheme_DOMAIN_NAME && at >= 0 {
			r, _ := utf8.DecodeRuneInString(host[at:])
			return nil, BadAddress(text, "the host %q has the character %q; give a host name or an IP address", host, r)
		}
		if pb.Scheme != 0 && pb.Scheme != scheme {
			return nil, BadAddress(text, "the addresses of one server must have one kind, but %s and %s are given", pb.Scheme, scheme)
		}
		pb.Scheme = scheme
		pb.Addresses = append(pb.Addresses, &rmqpb.Address{Host: host, Port: int32(n)})
	}
	if len(pb.Addresses) == 0 {
		return nil, BadAddress(text, "the address is empty; give host:port, several joined by ';'")
	}
	return pb, nil
}

// illegal reports whether no host name has the character. Names in other scripts are permitted.
func illegal(r rune) bool {
	return r != '-' && r != '.' && r != '_' && !unicode.IsLetter(r) && !unicode.IsMark(r) && !unicode.IsDigit(r)
}

// BadAddress returns the error of addresses that cannot be, which subject names.
func BadAddress(subject, format string, args ...any) error {
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

// AddressesOf returns pb's addresses in the form host:port, and false if any
// of them is none.
func AddressesOf(pb *rmqpb.Endpoints) ([]string, bool) {
	var list []string
	for _, a := range pb.GetAddresses() {
		if a.GetHost() == "" || a.GetPort() < 1 || a.GetPort() > 65535 {
			return nil, false
		}
		list = append(list, net.JoinHostPort(a.GetHost(), strconv.Itoa(int(a.GetPort()))))
	}
	return list, len(list) > 0
}
