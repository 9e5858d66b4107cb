package server

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A page whose name was made to point at this machine is of the same origin,
// and can do nothing. Where names are given out by whoever runs the broker, they work.
func TestNamesThatOthersGiveOut(t *testing.T) {
	anyone := AccessConfig{Anonymous: []Rule{{Actions: []Action{ActionAdmin}, Topics: []string{"*"}, Groups: []string{"*"}}}}
	loopback := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8082}
	other := &net.TCPAddr{IP: net.IPv4(172, 17, 0, 2), Port: 8082}
	for _, c := range []struct {
		host   string
		at     net.Addr
		o      Options
		status int
	}{
		{"evil.example:8082", loopback, Options{}, 403},
		{"evil.example", &net.TCPAddr{IP: net.IPv6loopback}, Options{}, 403},
		{"evil.example:8082", loopback, Options{Access: anyone}, 403},
		{"2130706433:8082", loopback, Options{}, 403},
		{"localhost.evil.example", loopback, Options{}, 403},
		{"notlocalhost", loopback, Options{}, 403},
		{"127.0.0.1:8082", loopback, Options{}, 200},
		{"[::1]:8082", loopback, Options{}, 200},
		{"[::1]", loopback, Options{}, 200},
		{"localhost:8082", loopback, Options{}, 200},
		{"LocalHost.:8082", loopback, Options{}, 200},
		{"broker.localhost", loopback, Options{}, 200},
		{"broker.example:8082", loopback, Options{Advertise: "Broker.example:8081"}, 200},
		{"evil.example:8082", loopback, Options{Advertise: "broker.example:8081"}, 403},
		{"tidegate:8082", loopback, Options{AnyHost: true}, 200},
		{"tidegate:8082", other, Options{}, 200}, // a container's, which was told to be insecure
	} {
		e := start(t, c.o)
		for _, method := range []string{"PUT", "GET"} {
			r := httptest.NewRequest(method, "/v1/topics/normal", http.NoBody)
			r.Host = c.host
			r.Header.Set("Origin", "http://"+c.host)
			w := httptest.NewRecorder()
			e.s.Handler().ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, c.at)))
			if w.Code != c.status || c.status == 403 && (!strings.Contains(w.Body.String(), c.host) || !strings.Contains(w.Body.String(), "--advertise")) {
				t.Errorf("%s for %s at %s: %d %s, want %d", method, c.host, c.at, w.Code, w.Body, c.status)
			}
		}
	}
}

// Who shows a key is no page in a browser, whatever the host is called.
func TestKeysAreForAnyName(t *testing.T) {
	e := start(t, Options{Access: someAccess()})
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
