package conn

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
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
		"[fe80::1%eth0]:8081":  {rmqpb.AddressScheme_IPv6, "[fe80::1%eth0]:8081"},
		"mq_1.büro.example:80": {rmqpb.AddressScheme_DOMAIN_NAME, "mq_1.büro.example:80"},
		"1.2.3.4:1; 5.6.7.8:2": {rmqpb.AddressScheme_IPv4, "1.2.3.4:1;5.6.7.8:2"},
	} {
		pb, err := ParseAddresses(in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		addrs, _ := AddressesOf(pb)
		assert.That(t, pb.GetScheme() == want.scheme && strings.Join(addrs, ";") == want.key, "%s: %v", in, pb)
	}
}

// The error of an address that cannot be names the part and the remedy.
func TestBadEndpoints(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "the address is empty",
		" ; ":                     "host:port",
		"http://mq.example:8081":  "is a URL",
		"[::1:1":                  "host:port",
		"grpc://1.2.3.4:8081":     "is a URL",
		"my host:8081":            `the character ' '`,
		"a:1;b c:2":               `the character ' '`,
		"mq\t.example:8081":       `the character '\t'`,
		"user@mq.example:8081":    `the character '@'`,
		"mq.example/path:8081":    `the character '/'`,
		"mq%eth0.example:8081":    `the character '%'`,
		"[fe80::1%]:8081":         "the character",
		"fe80::1:8081":            "host:port",
		"mq.example":              "host:port",
		"mq.example:0":            "port of 1 to 65535",
		"mq.example:8081/v1":      "port of 1 to 65535",
		":8081":                   "host:port",
		"127.0.0.1:1;localhost:1": "one kind",
	} {
		pb, err := ParseAddresses(in)
		assert.That(t, err != nil && strings.Contains(err.Error(), want) && errors.Is(err, tidegate.ErrInvalid),
			"%q: %v, %v, want an error with %q", in, pb, err, want)
	}
}

// The number of a queue belongs to one broker permanently; that of a broker that is gone means
// none.
func TestPlacesAreUnique(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Places
		var next atomic.Uint64
		see := func(names ...string) *Route {
			r := &Route{}
			for _, name := range names {
				r.Readers = append(r.Readers, Broker{PB: &rmqpb.Broker{Name: name}})
			}
			l.Note(r, time.Minute)
			return r
		}
		expect := func(r *Route, number int, want string) {
			t.Helper()
			if b, id, ok := l.Source(r, &next, number<<brokerShift|7); ok != (want != "") || b.PB.GetName() != want || ok && id != 7 {
				t.Errorf("place %d: broker %q, queue %d, want %q", number, b.PB.GetName(), id, want)
			}
		}
		r := see("a", "b")
		expect(r, 0, "a")
		expect(r, 1, "b")
		r = see("b")
		expect(r, 0, "")
		expect(r, 1, "b")
		time.Sleep(ForgetAfter * time.Minute)
		r = see("a", "b") // back, just in time
		expect(r, 0, "a")
		time.Sleep(time.Minute)
		see("b")
		time.Sleep(ForgetAfter * time.Minute)
		see("b")
		r = see("b", "c", "a") // a was away for too long
		expect(r, 0, "")
		expect(r, 1, "b")
		expect(r, 2, "c")
		expect(r, 3, "a")
	})
}

// The memory for brokers that appear and vanish, each with a name of its own, does not grow.
func TestPlacesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Places
		for i := range 100 {
			l.Note(&Route{Readers: []Broker{{PB: &rmqpb.Broker{Name: fmt.Sprint("pod-", i)}}}}, time.Minute)
			time.Sleep(time.Minute)
		}
		n := len(l.byName)
		assert.That(t, n <= ForgetAfter+1, "%d places are kept after 100 brokers", n)
	})
}
