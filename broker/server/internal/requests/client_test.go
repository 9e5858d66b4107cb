package requests

import (
	"fmt"
	"net"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

func TestBefore503(t *testing.T) {
	for version, want := range map[string]bool{
		"5.0.0": true, "5.0.2": true, "5.0.0-SNAPSHOT": true, "5.0.2.1": true,
		"5.0.3": false, "5.0.10": false, "5.0.20": false, "5.1.0": false, "5.1.4": false, "": false, "5.0.": false, "5": false, "x": false, "15.0.0": false,
	} {
		if got := Before503(version); got != want {
			t.Errorf("Before503(%q) = %v", version, got)
		}
	}
}

func TestEndpointsFor(t *testing.T) {
	pb := func(hosts ...string) *rmqpb.Endpoints {
		e := &rmqpb.Endpoints{}
		for _, h := range hosts {
			e.Addresses = append(e.Addresses, &rmqpb.Address{Host: h, Port: 8081})
		}
		return e
	}
	local := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 8081}
	for _, c := range []struct {
		name  string
		asked *rmqpb.Endpoints
		local net.Addr
		want  string
	}{
		{"the client's", pb("10.0.0.1"), local, "IPv4 10.0.0.1:8081"},
		{"a name", pb("broker.example"), local, "DOMAIN_NAME broker.example:8081"},
		{"IPv6", pb("::1"), local, "IPv6 ::1:8081"},
		{"one of many is here", pb("10.0.0.1", "10.0.0.2"), local, "IPv4 10.0.0.2:8081"},
		{"none of many is here", pb("10.0.0.1", "10.0.0.3"), local, "IPv4 10.0.0.1:8081 10.0.0.3:8081"},
		{"many names", pb("a.example", "b.example"), local, "DOMAIN_NAME a.example:8081"},
		{"names and numbers", pb("10.0.0.1", "b.example"), local, "DOMAIN_NAME 10.0.0.1:8081"},
		{"none", nil, local, "IPv4 10.0.0.2:8081"},
		{"unusable", &rmqpb.Endpoints{Addresses: []*rmqpb.Address{{Host: "x"}, {Port: 3}}}, local, "IPv4 10.0.0.2:8081"},
		{"none, in memory", nil, nil, "DOMAIN_NAME localhost:8081"},
	} {
		e := EndpointsFor(c.asked, c.local)
		got := e.GetScheme().String()
		for _, a := range e.GetAddresses() {
			got += fmt.Sprintf(" %s:%d", a.GetHost(), a.GetPort())
		}
		assert.That(t, got == c.want, "%s: %s; want %s", c.name, got, c.want)
	}
}
