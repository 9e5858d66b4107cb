package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
)

// ifMatch makes a request with the header If-Match; "" means without it.
func ifMatch(t *testing.T, h http.Handler, method, path, body, match string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", server.TypeJSON)
	}
	if match != "" {
		r.Header.Set("If-Match", match)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// A change on a revision happens only if the settings still have it.
func TestIfMatchOfSettings(t *testing.T) {
	e := start(t, server.Options{})
	h := checkHTTP(t, e.s.Handler())
	for _, path := range []string{"/v1/topics/revised", "/v1/groups/revised"} {
		body := func(messages int) string { return fmt.Sprintf(`{"max_backlog": {"messages": %d}}`, messages) }
		if w := ifMatch(t, h, "PUT", path, body(1), "*"); w.Code != 412 {
			t.Errorf("PUT %s with * before it exists: %d %s", path, w.Code, w.Body)
		}
		if w := ifMatch(t, h, "GET", path, "", ""); w.Code != 404 || w.Header().Get("ETag") != "" {
			t.Errorf("GET %s before it exists: %d with ETag %s", path, w.Code, w.Header().Get("ETag"))
		}
		created := ifMatch(t, h, "PUT", path, body(1), "")
		first := created.Header().Get("ETag")
		if created.Code != 201 || first == "" {
			t.Fatalf("PUT %s: %d %s, ETag %s", path, created.Code, created.Body, first)
		}
		var got struct{ Revision string }
		w := ifMatch(t, h, "GET", path, "", "")
		decode(t, w.Body.Bytes(), &got)
		if w.Header().Get("ETag") != first || `"`+got.Revision+`"` != first {
			t.Errorf("GET %s: ETag %s, revision %s; want %s", path, w.Header().Get("ETag"), got.Revision, first)
		}
		w = ifMatch(t, h, "PUT", path, body(2), first)
		second := w.Header().Get("ETag")
		if w.Code != 200 || second == first || second == "" {
			t.Errorf("PUT %s: %d %s, ETag %s after %s", path, w.Code, w.Body, second, first)
		}
		// The second operator still has the first revision.
		changes := []string{"PUT", "DELETE"}
		if strings.HasPrefix(path, "/v1/groups") {
			changes = append(changes, "PATCH")
		}
		for _, method := range changes {
			given := body(3)
			if method == "DELETE" {
				given = ""
			}
			w := ifMatch(t, h, method, path, given, first)
			var p server.Problem
			decode(t, w.Body.Bytes(), &p)
			if w.Code != 412 || p.Code != 42800 || w.Header().Get("ETag") != "" || !strings.Contains(p.Detail, "revised") || !strings.Contains(p.Detail, "read the") {
				t.Errorf("%s %s on an old revision: %d %+v", method, path, w.Code, p)
			}
			if w := ifMatch(t, h, method, path, given, "x"); w.Code != 400 {
				t.Errorf("%s %s with If-Match x: %d %s", method, path, w.Code, w.Body)
			}
		}
		var now struct {
			Max settings.Limit `json:"max_backlog"`
		}
		w = ifMatch(t, h, "GET", path, "", "")
		decode(t, w.Body.Bytes(), &now)
		if now.Max.Messages != 2 || w.Header().Get("ETag") != second {
			t.Errorf("%s has changed to %+v, ETag %s, want %s", path, now, w.Header().Get("ETag"), second)
		}
		// The same settings again have the same revision.
		if back := ifMatch(t, h, "PUT", path, body(1), second).Header().Get("ETag"); back != first {
			t.Errorf("%s with the first settings has ETag %s, want %s", path, back, first)
		}
		if w := ifMatch(t, h, "DELETE", path, "", first); w.Code != 204 {
			t.Errorf("DELETE %s: %d %s", path, w.Code, w.Body)
		}
		if w := ifMatch(t, h, "DELETE", path, "", first); w.Code != 404 {
			t.Errorf("DELETE %s again: %d %s", path, w.Code, w.Body)
		}
	}
	if w := ifMatch(t, h, "POST", "/v1/topics/revised/purge", "", `"x"`); w.Code != 400 {
		t.Errorf("a change without revisions with If-Match: %d %s", w.Code, w.Body)
	}
}

// Two operators read the same address settings, or the same limits. The change of the second one is
// rejected.
func TestIfMatchOfAddressesAndLimits(t *testing.T) {
	e := start(t, server.Options{})
	h := checkHTTP(t, e.s.Handler())
	const pattern, limits = "/v1/address-settings/orders.%23", "/v1/throttle"
	if w := ifMatch(t, h, "PUT", pattern, `{"max-delivery-attempts": 1}`, "*"); w.Code != 412 {
		t.Errorf("PUT of a new pattern with *: %d %s", w.Code, w.Body)
	}
	if w := ifMatch(t, h, "PUT", pattern, `{"max-delivery-attempts": 1}`, ""); w.Code != 201 || w.Header().Get("ETag") == "" {
		t.Fatalf("PUT of a new pattern: %d %s, ETag %s", w.Code, w.Body, w.Header().Get("ETag"))
	}
	for _, c := range []struct{ path, method, first, second string }{
		{pattern, "PUT", `{"max-delivery-attempts": 2}`, `{"max-delivery-attempts": 3}`},
		{limits, "PATCH", `{"max_backlog": {"messages": 2}}`, `{"max_backlog": {"messages": 3}}`},
		{limits, "PUT", `{"max_backlog": {"bytes": 2000000}}`, `{"max_backlog": {"bytes": 3000000}}`},
	} {
		read := ifMatch(t, h, "GET", c.path, "", "")
		etag := read.Header().Get("ETag")
		var got struct{ Revision string }
		decode(t, read.Body.Bytes(), &got)
		if etag == "" || etag != `"`+got.Revision+`"` {
			t.Errorf("GET %s: ETag %s, revision %s", c.path, etag, got.Revision)
		}
		won := ifMatch(t, h, c.method, c.path, c.first, etag)
		if won.Code != 200 || won.Header().Get("ETag") == etag {
			t.Errorf("%s %s: %d %s, ETag %s", c.method, c.path, won.Code, won.Body, won.Header().Get("ETag"))
		}
		if w := ifMatch(t, h, c.method, c.path, c.second, etag); w.Code != 412 || w.Header().Get("ETag") != "" {
			t.Errorf("%s %s on the revision before: %d %s", c.method, c.path, w.Code, w.Body)
		}
		if now := ifMatch(t, h, "GET", c.path, "", "").Header().Get("ETag"); now != won.Header().Get("ETag") {
			t.Errorf("%s has ETag %s after the rejected change, want %s", c.path, now, won.Header().Get("ETag"))
		}
	}
	if w := ifMatch(t, h, "DELETE", pattern, "", `"x"`); w.Code != 412 {
		t.Errorf("DELETE on another revision: %d %s", w.Code, w.Body)
	}
	if w := ifMatch(t, h, "DELETE", pattern, "", ifMatch(t, h, "GET", pattern, "", "").Header().Get("ETag")); w.Code != 204 {
		t.Errorf("DELETE: %d %s", w.Code, w.Body)
	}
}

// Many operators read a revision and change a different value each: exactly one of them succeeds
// for each revision, so no change is lost.
func TestOperatorsAtOnce(t *testing.T) {
	const operators, rounds = 8, 5
	e := startWith(t, broker.Options{}, server.Options{})
	h := e.s.Handler()
	for path, method := range map[string]string{"/v1/topics/shared": "PUT", "/v1/groups/put": "PUT", "/v1/groups/patched": "PATCH"} {
		etag := ifMatch(t, h, "PUT", path, `{}`, "").Header().Get("ETag")
		for round := range rounds {
			responses := make([]*httptest.ResponseRecorder, operators)
			var wg sync.WaitGroup
			for i := range operators {
				wg.Go(func() {
					body := fmt.Sprintf(`{"max_backlog": {"messages": %d}}`, 1+round*operators+i)
					responses[i] = ifMatch(t, h, method, path, body, etag)
				})
			}
			wg.Wait()
			var won []int
			for i, w := range responses {
				switch w.Code {
				case 200:
					won, etag = append(won, i), w.Header().Get("ETag")
				case 412:
				default:
					t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
				}
			}
			if len(won) != 1 {
				t.Fatalf("%s %s: operators %v changed the same revision, want one", method, path, won)
			}
			var now struct {
				Max settings.Limit `json:"max_backlog"`
			}
			if err := json.Unmarshal(ifMatch(t, h, "GET", path, "", "").Body.Bytes(), &now); err != nil || now.Max.Messages != int64(1+round*operators+won[0]) {
				t.Fatalf("%s has %+v, %v; operator %d of round %d changed it", path, now, err, won[0], round)
			}
		}
		var wg sync.WaitGroup // one deletes and one changes
		var deleted, changed int
		wg.Go(func() { deleted = ifMatch(t, h, "DELETE", path, "", etag).Code })
		wg.Go(func() { changed = ifMatch(t, h, method, path, `{"max_backlog": {"messages": 1000}}`, etag).Code })
		wg.Wait()
		lost := 412
		if method == "PATCH" {
			lost = 404
		}
		if !(deleted == 204 && (changed == 412 || changed == lost) || deleted == 412 && changed == 200) {
			t.Errorf("%s: a deletion and a change of one revision: %d and %d", path, deleted, changed)
		}
	}
}
