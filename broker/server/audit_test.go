package server_test

import (
	"net/http/httptest"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/status"
)

// GET /v1/audit has the requests that changed something, or failed to, with their key and address.
func TestAuditList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, log := testLog()
		e := start(t, server.Options{Access: someAccess(), Logger: logger})
		h := checkHTTP(t, e.s.Handler())
		as := func(key, method, path string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(method, "https://h"+path, nil)
			r.SetBasicAuth(key, secretMark+key)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		list := func(query string) status.AuditPage {
			t.Helper()
			w := as("admin", "GET", "/v1/audit"+query)
			if w.Code != 200 {
				t.Fatalf("GET /v1/audit%s: %d %s", query, w.Code, w.Body)
			}
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
		if len(got) != len(want) {
			t.Fatalf("%+v, want %+v", got, want)
		}
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
