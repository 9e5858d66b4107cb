package server_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/broker/server"
)

// A page whose name resolves to this machine is of the same origin, and can do nothing. Names that
// the operator configures work.
func TestHostNamesOfOthers(t *testing.T) {
	anyone := server.AccessConfig{Anonymous: []server.Rule{{Actions: []server.Action{server.ActionAdmin}, Topics: []string{"*"}, Groups: []string{"*"}}}}
	loopback := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8082}
	other := &net.TCPAddr{IP: net.IPv4(172, 17, 0, 2), Port: 8082}
	for _, c := range []struct {
		host   string
		at     net.Addr
		o      server.Options
		status int
	}{
		{"evil.example:8082", loopback, server.Options{}, 403},
		{"evil.example", &net.TCPAddr{IP: net.IPv6loopback}, server.Options{}, 403},
		{"evil.example:8082", loopback, server.Options{Access: anyone}, 403},
		{"2130706433:8082", loopback, server.Options{}, 403},
		{"localhost.evil.example", loopback, server.Options{}, 403},
		{"notlocalhost", loopback, server.Options{}, 403},
		{"127.0.0.1:8082", loopback, server.Options{}, 200},
		{"[::1]:8082", loopback, server.Options{}, 200},
		{"[::1]", loopback, server.Options{}, 200},
		{"localhost:8082", loopback, server.Options{}, 200},
		{"LocalHost.:8082", loopback, server.Options{}, 200},
		{"broker.localhost", loopback, server.Options{}, 200},
		{"broker.example:8082", loopback, server.Options{Advertise: "Broker.example:8081"}, 200},
		{"evil.example:8082", loopback, server.Options{Advertise: "broker.example:8081"}, 403},
		{"tidegate:8082", loopback, server.Options{AnyHost: true}, 200},
		{"broker.example", loopback, server.Options{HTTPHosts: []string{"other.example", "Broker.Example."}}, 200}, // a reverse proxy's
		{"broker.example:443", loopback, server.Options{HTTPHosts: []string{"broker.example"}}, 200},
		{"a.broker.example", loopback, server.Options{HTTPHosts: []string{"broker.example"}}, 403},
		{"localhost", loopback, server.Options{HTTPHosts: []string{"broker.example"}}, 200},
		{"tidegate:8082", other, server.Options{}, 200}, // a container's, which is configured to be insecure
	} {
		e := start(t, c.o)
		for _, method := range []string{"PUT", "GET"} {
			r := httptest.NewRequest(method, "/v1/topics/normal", http.NoBody)
			r.Host = c.host
			r.Header.Set("Origin", "http://"+c.host)
			w := httptest.NewRecorder()
			e.s.Handler().ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, c.at)))
			if w.Code != c.status || c.status == 403 && (!strings.Contains(w.Body.String(), c.host) || !strings.Contains(w.Body.String(), "--http-hosts")) {
				t.Errorf("%s for %s at %s: %d %s, want %d", method, c.host, c.at, w.Code, w.Body, c.status)
			}
		}
	}
}

// Over TLS, a browser has compared the name with the certificate.
func TestNamesOverTLS(t *testing.T) {
	e := start(t, server.Options{})
	for url, status := range map[string]int{"https://tidegate.example/v1/topics/normal": 200, "http://tidegate.example/v1/topics/normal": 403} {
		r := httptest.NewRequest("GET", url, http.NoBody)
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv6loopback})))
		if w.Code != status {
			t.Errorf("%s: %d %s, want %d", url, w.Code, w.Body, status)
		}
	}
}

// A client with a key is no page in a browser, with any host name.
func TestKeysAreForAnyName(t *testing.T) {
	e := start(t, server.Options{Access: someAccess()})
	for key, status := range map[string]int{"admin": 200, "": 401} {
		r := httptest.NewRequest("GET", "https://evil.example/v1/topics/normal", http.NoBody)
		if key != "" {
			r.SetBasicAuth(key, secretMark+key)
		}
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv6loopback})))
		if w.Code != status {
			t.Errorf("with the key %q: %d %s, want %d", key, w.Code, w.Body, status)
		}
	}
}

// Attempts of pages in browsers are counted and logged, by reasons of their own.
func TestRequestsOfForeignPagesAreLogged(t *testing.T) {
	anyone := []server.Rule{{Actions: []server.Action{server.ActionAdmin}, Topics: []string{"*"}, Groups: []string{"*"}}}
	for name, access := range map[string]server.AccessConfig{
		"no keys":             {},
		"keys, and anonymous": {Keys: someAccess().Keys, Anonymous: anyone},
	} {
		logger, logged := testLog()
		e := start(t, server.Options{Logger: logger, Access: access})
		request := func(method, host, origin, key string) {
			r := httptest.NewRequest(method, "/v1/topics/normal", http.NoBody)
			r.Host, r.RemoteAddr = host, "127.0.0.1:4711"
			if r.Header.Set("Origin", origin); key != "" {
				r.SetBasicAuth(key, secretMark+key)
			}
			w := httptest.NewRecorder()
			ctx := context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv6loopback})
			if e.s.Handler().ServeHTTP(w, r.WithContext(ctx)); w.Code != 403 {
				t.Errorf("%s: %s for %s from %s: %d %s", name, method, host, origin, w.Code, w.Body)
			}
		}
		request("GET", "evil.example", "http://evil.example", "")
		request("PUT", "localhost:8082", "http://evil.example", "")
		request("PUT", "localhost:8082", "http://evil.example", "admin")
		n, _ := scrapedBy(t, e.s)
		for reason, want := range map[string]float64{"host": 1, "origin": 2, "forbidden": 0} {
			if got, ok := n[`tidegate_access_refusals_total{reason="`+reason+`"}`]; !ok || got != want {
				t.Errorf("%s: %v refusals for the reason %s, want %v", name, got, reason, want)
			}
		}
		known := "anonymous"
		if len(access.Keys) > 0 {
			known = "admin"
		}
		lines := strings.Split(strings.TrimSpace(logged.String()), "\n")
		for i, words := range []string{
			"operation=\"GET /v1/topics/{topic}\" key=anonymous peer=127.0.0.1:4711 reason=host not_logged=0",
			"operation=\"PUT /v1/topics/{topic}\" key=anonymous peer=127.0.0.1:4711 reason=origin not_logged=0",
			"key=" + known + " reason=origin not_logged=0",
		} {
			for w := range strings.FieldsSeq(words) {
				if len(lines) != 3 || !strings.Contains(lines[i], w) {
					t.Fatalf("%s: line %d does not contain %s:\n%s", name, i+1, w, logged)
				}
			}
		}
	}
}
