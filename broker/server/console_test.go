package server_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/broker/server"
)

// The files of the console have no data: they need no credentials, and any host name will do. Their
// data is from the API, which checks both.
func TestConsoleIsOpen(t *testing.T) {
	for name, o := range map[string]server.Options{"no keys": {}, "keys": {Access: someAccess()}} {
		e := start(t, o)
		srv := httptest.NewServer(e.s.Handler())
		t.Cleanup(srv.Close)
		for _, host := range []string{"", "proxy.example"} {
			r, err := http.NewRequestWithContext(t.Context(), "GET", srv.URL+"/console", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = host
			resp, err := srv.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != 200 || !strings.Contains(string(text), "<!doctype html>") ||
				!strings.Contains(resp.Header.Get("Content-Security-Policy"), "default-src 'none'") || resp.Request.URL.Path != "/console/" {
				t.Errorf("%s, host %q: %s %s %v %s, %v", name, host, resp.Status, resp.Request.URL, resp.Header, text, err)
			}
		}
	}
}

// consoleRequests are requests for the console and beside it, with their status with and without
// the console.
var consoleRequests = []struct {
	method, path string
	on, off      int
}{
	{"GET", "/console/", 200, 404},
	{"HEAD", "/console/", 200, 404},
	{"GET", "/console", 301, 404},
	{"GET", "/console/nothing.js", 404, 404},
	{"POST", "/console/", 405, 404},
	{"PUT", "/console/x", 405, 404},
	{"GET", "/", 404, 404},
	{"GET", "/consoles", 404, 404},
	{"GET", "/v1/topics", 200, 200},
}

func TestConsoleOnAndOff(t *testing.T) {
	for off, o := range map[bool]server.Options{false: {}, true: {NoConsole: true}} {
		e := start(t, o)
		for _, c := range consoleRequests {
			w := httptest.NewRecorder()
			e.s.Handler().ServeHTTP(w, httptest.NewRequest(c.method, "http://127.0.0.1"+c.path, http.NoBody))
			if want := map[bool]int{false: c.on, true: c.off}[off]; w.Code != want {
				t.Errorf("NoConsole %v, %s %s: %d %s, want %d", off, c.method, c.path, w.Code, w.Body, want)
			}
		}
	}
}

// Responses have names, counts and bodies, which no cache on the way may keep.
func TestResponsesAreNotStored(t *testing.T) {
	e := start(t, server.Options{})
	for _, path := range []string{"/v1/topics", "/v1/topics/normal", "/v1/topics/nowhere", "/readyz", "/nowhere"} {
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1"+path, http.NoBody))
		if w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("GET %s: %v", path, w.Header())
		}
	}
}
