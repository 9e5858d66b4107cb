package remote

import (
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

func TestParseEndpoints(t *testing.T) {
	for in, want := range map[string]struct {
		scheme rmqpb.AddressScheme
		key    string
	}{
		"127.0.0.1:8081":       {rmqpb.AddressScheme_IPv4, "127.0.0.1:8081"},
		"[::1]:8081":           {rmqpb.AddressScheme_IPv6, "[::1]:8081"},
		"mq.example:80":        {rmqpb.AddressScheme_DOMAIN_NAME, "mq.example:80"},
		"1.2.3.4:1; 5.6.7.8:2": {rmqpb.AddressScheme_IPv4, "1.2.3.4:1;5.6.7.8:2"},
	} {
		pb, err := ParseAddresses(in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		addrs, _ := AddressesOf(pb)
		if pb.GetScheme() != want.scheme || strings.Join(addrs, ";") != want.key {
			t.Errorf("%s: %v", in, pb)
		}
	}
}
