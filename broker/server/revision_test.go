package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/transport"
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
	h := e.s.Handler()
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
		assert.MustThat(t, created.Code == 201 && first != "", "PUT %s: %d %s, ETag %s", path, created.Code, created.Body, first)
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
	h := e.s.Handler()
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
		assert.That(t, etag != "" && etag == `"`+got.Revision+`"`, "GET %s: ETag %s, revision %s", c.path, etag, got.Revision)
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
			assert.MustThat(t, len(won) == 1, "%s %s: operators %v changed the same revision, want one", method, path, won)
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

// The pages of a list have all names once, in order, with any size; match selects names.
func TestListPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := start(t, server.Options{})
		get := func(path string, status int, out any) {
			t.Helper()
			w := x.serve(httptest.NewRequest("GET", path, nil))
			assert.MustThat(t, w.Code == status, "GET %s: %d %s, want %d", path, w.Code, w.Body, status)
			if out != nil {
				decode(t, w.Body.Bytes(), out)
			}
		}
		var topics, groups []string
		for _, known := range x.b.Topics() {
			topics = append(topics, known.Name)
		}
		for i := range 117 {
			name := fmt.Sprintf("list-%03d", (i*31)%117)
			assert.Must(t, assert.Err(x.b.PutTopic(t.Context(), name, settings.Topic{Queues: 1})))
			assert.Must(t, assert.Err(x.b.PutGroup(t.Context(), name, settings.Group{})))
			topics, groups = append(topics, name), append(groups, name)
		}
		for _, known := range x.b.Groups() {
			if !slices.Contains(groups, known.Name) {
				groups = append(groups, known.Name)
			}
		}
		slices.Sort(topics)
		slices.Sort(groups)
		for _, limit := range []int{7, 116, 117, 118, 1000} {
			var got []string
			for next, more := "", true; more; more = next != "" {
				var page server.TopicList
				get(fmt.Sprintf("/v1/topics?limit=%d&after=%s", limit, url.QueryEscape(next)), 200, &page)
				assert.MustThat(t, len(page.Topics) <= limit, "a page of %d has %d topics", limit, len(page.Topics))
				for _, topic := range page.Topics {
					got = append(got, topic.Name)
				}
				next = page.Next
			}
			assert.That(t, slices.Equal(got, topics), "pages of %d have the topics %v, want %v", limit, got, topics)
			got = nil
			for next, more := "", true; more; more = next != "" {
				var page server.GroupList
				get(fmt.Sprintf("/v1/groups?limit=%d&after=%s", limit, url.QueryEscape(next)), 200, &page)
				for _, group := range page.Groups {
					got = append(got, group.Name)
				}
				next = page.Next
			}
			assert.That(t, slices.Equal(got, groups), "pages of %d have the groups %v, want %v", limit, got, groups)
		}
		var page server.TopicList
		get("/v1/topics?match=list-01*&limit=3&after=list-014", 200, &page)
		assert.That(t, len(page.Topics) == 3 && page.Topics[0].Name == "list-015" && page.Next == "list-017", "the page is %+v", page)
		get("/v1/topics?match=list-*", 200, &page)
		assert.Equal(t, "the topics of a page without a limit are", len(page.Topics), 100)
		for _, query := range []string{"limit=1001", "limit=-1", "limit=x", "match=[a", "names=1"} {
			get("/v1/topics?"+query, 400, nil)
			get("/v1/groups?"+query, 400, nil)
		}
	})
}

// Pages of dead letters with bodies hold memory of the budget for requests and responses, are
// rejected if there is none, and end before they take more than a part of it. Pages without bodies
// need little.
func TestDeadLettersHoldMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 512 << 10
		letters := model.Rounds(40)
		e := startWith(t, broker.Options{MaxBodySize: 1 << 20, MinInvisibleDuration: 1}, server.Options{MaxTransitBytes: 28 << 20})
		body := bytes.Repeat([]byte{1}, size)
		for i := range letters {
			assert.Must(t, e.b.Send(t.Context(), []*tidegate.Message{{Topic: "normal", ID: fmt.Sprint(i), Body: body}})[0].Err)
			ds := e.lease(1, transport.ReceiveRequest{Group: "g", Topic: "normal", Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Minute})
			assert.Must(t, assert.Err(e.b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "bad"})))
		}
		type page struct {
			Letters []struct {
				ID   string `json:"message_id"`
				Body []byte `json:"body"`
				Size int    `json:"body_size"`
			} `json:"dead_letters"`
			Next string `json:"next"`
		}
		get := func(query string) (p page, status int) {
			w := e.serve(httptest.NewRequest("GET", "/v1/groups/g/dead-letters?"+query, nil))
			if w.Code == 200 {
				assert.Must(t, json.Unmarshal(w.Body.Bytes(), &p))
			}
			if n := e.s.Parts().Bodies.Held(); n != 0 {
				t.Errorf("%s: afterwards %d bytes are held", query, n)
			}
			return p, w.Code
		}
		seen, after := map[string]bool{}, ""
		for range letters {
			p, status := get("bodies=true&after=" + url.QueryEscape(after))
			if sum := len(p.Letters) * size; status != 200 || sum > 2<<20 {
				t.Fatalf("%d, a page has %d bytes of bodies", status, sum)
			}
			for _, l := range p.Letters {
				seen[l.ID] = true
				if !bytes.Equal(l.Body, body) || l.Size != size {
					t.Errorf("letter %s has %d bytes of body and the size %d", l.ID, len(l.Body), l.Size)
				}
			}
			if after = p.Next; after == "" {
				break
			}
		}
		assert.That(t, len(seen) == letters && after == "", "the pages have %d of %d letters", len(seen), letters)
		p, status := get("")
		if status != 200 || len(p.Letters) != letters || p.Letters[0].Body != nil || p.Letters[0].Size != size {
			t.Errorf("%d, %d letters without bodies", status, len(p.Letters))
		}
		other := e.s.Parts().Bodies.Hold("other", nil)
		assert.Must(t, other.Resize(14<<20, false))
		third := e.s.Parts().Bodies.Hold("third", nil)
		assert.Must(t, third.Resize(4<<20, false))
		w := e.serve(httptest.NewRequest("GET", "/v1/groups/g/dead-letters?bodies=true", nil))
		assert.Equal(t, "without memory for a page", w.Code, 429)
		other.Release()
		third.Release()
	})
}

// Each change of topics, groups, limits and stored messages is one line of the log, with success or
// an error. Requests that only read and dry runs have none.
func TestAudit(t *testing.T) {
	log, text := testLog()
	e := start(t, server.Options{Logger: log, Access: someAccess()})
	for _, c := range []struct {
		method, path, body string
		want               string // of the line; empty: there is none
	}{
		{"DELETE", "/v1/topics/fifo", "", `operation=deleteTopic subject=fifo key=admin peer=192.0.2.1:1234 result=ok`},
		{"DELETE", "/v1/topics/nowhere", "", `operation=deleteTopic subject=nowhere key=admin peer=192.0.2.1:1234 result="`},
		{"POST", "/v1/topics/normal/purge", "", `operation=purgeTopic subject=normal`},
		{"POST", "/v1/topics/normal/purge?dry_run=true", "", ""},
		{"PUT", "/v1/groups/g", "{}", `operation=putGroup subject=g`},
		{"POST", "/v1/groups/g/rewind", `{"topic":"normal","to":"latest","dry_run":true}`, ""},
		{"DELETE", "/v1/groups/g", "", `operation=deleteGroup subject=g`},
		{"DELETE", "/v1/groups/g/dead-letters?all=true", "", `query="all=true"`},
		{"DELETE", "/v1/groups/g/dead-letters?all=true&dry_run=true", "", ""},
		{"POST", "/v1/groups/g/dead-letters/redrive", `{}`, `operation=redriveDeadLetters subject=g`},
		{"POST", "/v1/groups/g/dead-letters/redrive", `{"dry_run":true}`, ""},
		{"PUT", "/v1/throttle", `{}`, `operation=putThrottle subject=broker`},
		{"GET", "/v1/topics", "", ""},
	} {
		before := len(text.String())
		e.asKey("admin", c.method, c.path, c.body)
		added := text.String()[before:]
		if n := strings.Count(added, "msg=audit"); n != min(len(c.want), 1) || !strings.Contains(added, c.want) {
			t.Errorf("%s %s: %q, want %q", c.method, c.path, added, c.want)
		}
	}
	for _, rt := range e.s.Routes() {
		data := strings.HasPrefix(rt.Path, "/v1/groups/{group}/") && !strings.Contains(rt.Path, "letters") && !strings.Contains(rt.Path, "parked") && rt.Op != "rewindGroup" ||
			strings.HasSuffix(rt.Path, "/messages") || strings.HasSuffix(rt.Path, "/recall")
		if want := rt.Method != "GET" && !data; rt.Audited != want {
			t.Errorf("%s is audited: %t, want %t", rt.Op, !want, want)
		}
	}
}

// GET /v1/audit has the requests that changed something, or failed to, with their key and address.
func TestAuditList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, log := testLog()
		e := start(t, server.Options{Access: someAccess(), Logger: logger})
		as := func(key, method, path string) *httptest.ResponseRecorder { return e.asKey(key, method, path, "") }
		list := func(query string) status.AuditPage {
			t.Helper()
			w := as("admin", "GET", "/v1/audit"+query)
			assert.MustThat(t, w.Code == 200, "GET /v1/audit%s: %d %s", query, w.Code, w.Body)
			var page status.AuditPage
			decode(t, w.Body.Bytes(), &page)
			return page
		}
		if page := list(""); page.Records == nil || len(page.Records) != 0 || page.Next != "" {
			t.Errorf("before a change: %+v, want an empty list", page)
		}
		begin := time.Now()
		as("admin", "POST", "/v1/topics/normal/purge")
		time.Sleep(time.Minute)
		as("admin", "DELETE", "/v1/topics/nowhere")
		as("monitor", "DELETE", "/v1/topics/fifo") // which it may not
		as("admin", "GET", "/v1/topics")
		as("admin", "DELETE", "/v1/groups/g/dead-letters?all=true")
		as("admin", "DELETE", "/v1/groups/g/dead-letters?message_id=M1&sent_as=M1.redrive-1")
		want := []status.AuditRecord{
			{Time: begin.Add(time.Minute), Operation: "purgeDeadLetters", Subject: "g", Query: "message_id=M1&sent_as=M1.redrive-1"},
			{Time: begin.Add(time.Minute), Operation: "purgeDeadLetters", Subject: "g", Query: "all=true"},
			{Time: begin.Add(time.Minute), Operation: "deleteTopic", Subject: "nowhere"},
			{Time: begin, Operation: "purgeTopic", Subject: "normal", Result: "ok"},
		}
		var got []status.AuditRecord
		for next := ""; ; {
			page := list("?limit=1&after=" + url.QueryEscape(next))
			if got = append(got, page.Records...); len(got) > len(want) {
				t.Fatalf("%+v", got)
			}
			if next = page.Next; next == "" {
				break
			}
		}
		assert.MustThat(t, len(got) == len(want), "%+v, want %+v", got, want)
		for i, w := range want {
			g := got[i]
			if g.Key != "admin" || g.Peer != "192.0.2.1:1234" || !g.Time.Equal(w.Time) || g.Operation != w.Operation || g.Subject != w.Subject || g.Query != w.Query ||
				(g.Result == "ok") != (w.Result == "ok") || g.Result == "" {
				t.Errorf("record %d is %+v, want %+v", i, g, w)
			}
		}
		for query, n := range map[string]int{
			"?subject=normal": 1, "?operation=deleteTopic": 1, "?operation=purgeDeadLetters": 2, "?key=admin": 4, "?key=monitor": 0,
			"?since=" + url.QueryEscape(begin.Add(time.Second).Format(time.RFC3339)): 3,
		} {
			if page := list(query); len(page.Records) != n {
				t.Errorf("GET /v1/audit%s has %d records, want %d", query, len(page.Records), n)
			}
		}
		for _, query := range []string{"?limit=1001", "?limit=x", "?after=x", "?since=x", "?who=x"} {
			if w := as("admin", "GET", "/v1/audit"+query); w.Code != 400 {
				t.Errorf("GET /v1/audit%s: %d %s", query, w.Code, w.Body)
			}
		}
		if w := as("monitor", "GET", "/v1/audit"); w.Code != 403 {
			t.Errorf("by a key that may observe: %d %s", w.Code, w.Body)
		}

		// A logout is a record if it ends a session; any client can send others.
		lines := len(log.String())
		for range 10 {
			as("producer", "DELETE", "/v1/session")
		}
		if n := len(list("?key=producer").Records); n != 0 || len(log.String()) != lines {
			t.Errorf("%d records and %d bytes of log of logouts without a session", n, len(log.String())-lines)
		}
		p := &page{e: e}
		p.login("producer", secretMark+"producer", 200)
		for range 2 {
			if w := p.do("DELETE", "/v1/session"); w.Code != 204 && w.Code != 401 {
				t.Errorf("logout: %d %s", w.Code, w.Body)
			}
		}
		if got := list("?key=producer").Records; len(got) != 2 || got[0].Operation != "logout" || got[1].Operation != "login" {
			t.Errorf("the records of a login and a logout are %+v", got)
		}
	})
}

// Two snapshots over HTTP are two data directories, each named in its response. A server without a
// directory for snapshots, and one in memory, reject the request with the remedy.
func TestSnapshotOverHTTP(t *testing.T) {
	post := func(e *env) (status int, text string) {
		t.Helper()
		srv := httptest.NewServer(e.s.Handler())
		defer srv.Close()
		resp := assert.Value(http.Post(srv.URL+"/v1/snapshot", "", nil))(t)
		defer resp.Body.Close()
		body := assert.Value(io.ReadAll(resp.Body))(t)
		return resp.StatusCode, string(body)
	}
	dir := t.TempDir()
	snapshots := filepath.Join(dir, "snapshots")
	here, err := os.Getwd()
	assert.Must(t, err)
	relative, err := filepath.Rel(here, snapshots) // the response names the absolute path
	assert.Must(t, err)
	e := startWith(t, broker.Options{Dir: filepath.Join(dir, "data")}, server.Options{SnapshotDir: relative})
	for range 2 {
		status, text := post(e)
		var s struct{ Path string }
		if err := json.Unmarshal([]byte(text), &s); status != 201 || err != nil || filepath.Dir(s.Path) != snapshots {
			t.Fatalf("status %d, %s", status, text)
		}
		b := assert.Value(broker.Open(broker.Options{Dir: s.Path}))(t)
		assert.NoError(t, assert.Err(b.Topic("fifo")))
		assert.NoError(t, b.Close())
	}
	if names, err := os.ReadDir(snapshots); err != nil || len(names) != 2 {
		t.Errorf("the directory of snapshots has %v, %v", names, err)
	}
	for want, e := range map[string]*env{
		"--snapshot-dir": startWith(t, broker.Options{Dir: filepath.Join(dir, "other")}, server.Options{}),
		"in memory":      start(t, server.Options{SnapshotDir: snapshots}),
	} {
		if status, text := post(e); status != 400 || !strings.Contains(text, want) {
			t.Errorf("status %d, and the response does not contain %q: %s", status, want, text)
		}
	}
}
