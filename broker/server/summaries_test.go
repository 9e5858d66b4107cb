package server_test

import (
	"fmt"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// backlogs creates topics and groups, the i-th with i messages.
func (e *env) backlogs(n int, name func(i int) string) {
	e.t.Helper()
	for i := range n {
		if _, err := e.b.PutTopic(e.t.Context(), name(i), settings.Topic{Queues: 1}); err != nil {
			e.t.Fatal(err)
		}
		r := transport.ReceiveRequest{Group: fmt.Sprintf("group-%02d", i%5), Topic: name(i), Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Hour}
		if _, err := e.b.Receive(e.t.Context(), r); err != nil {
			e.t.Fatal(err)
		}
		var ms []*tidegate.Message
		for j := range i {
			ms = append(ms, &tidegate.Message{ID: fmt.Sprint(j), Topic: name(i), Body: []byte("12345")})
		}
		for _, res := range e.b.Send(e.t.Context(), ms) {
			if res.Err != nil {
				e.t.Fatal(res.Err)
			}
		}
	}
}

// The summary view has pages in each order, with conditions, and the number of rows.
func TestSummaryPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		e.backlogs(30, func(i int) string { return fmt.Sprintf("topic-%02d", i) })
		var names []string
		for next := ""; ; {
			var page server.TopicSummaries
			e.requestJSON("GET", "/v1/topics?view=summary&sort=-backlog&state=backlog&match=topic-*&limit=7&after="+url.QueryEscape(next), 200, &page)
			if page.Total != 29 || page.AsOf.IsZero() {
				t.Fatalf("%+v", page)
			}
			for _, row := range page.Topics {
				names = append(names, row.Name)
			}
			if next = page.Next; next == "" {
				break
			}
		}
		var want []string
		for i := 29; i > 0; i-- {
			want = append(want, fmt.Sprintf("topic-%02d", i))
		}
		if !slices.Equal(names, want) {
			t.Errorf("%v, want %v", names, want)
		}

		var groups server.GroupSummaries
		e.requestJSON("GET", "/v1/groups?view=summary&topic=topic-07", 200, &groups)
		if len(groups.Groups) != 1 || groups.Groups[0].Group != "group-02" || groups.Groups[0].Backlog.Messages != 7 || groups.Groups[0].Backlog.Bytes != 35 {
			t.Errorf("%+v", groups)
		}
		e.requestJSON("GET", "/v1/groups?view=summary&sort=-ready&match=group-01&limit=2", 200, &groups)
		if groups.Total != 6 || len(groups.Groups) != 2 || groups.Groups[0].Topic != "topic-26" || groups.Groups[1].Topic != "topic-21" {
			t.Errorf("%+v", groups)
		}
		e.requestJSON("GET", "/v1/groups?view=summary&state=parked", 200, &groups)
		if groups.Groups == nil || len(groups.Groups) != 0 {
			t.Errorf("without rows: %+v, want an empty list", groups)
		}
		for _, query := range []string{"view=x", "sort=name", "state=backlog", "view=summary&sort=x", "view=summary&state=x", "view=summary&after=x", "view=summary&limit=1001", "view=summary&sort=-"} {
			for _, list := range []string{"topics", "groups"} {
				if query == "view=summary&sort=-" {
					continue // the names, the last first
				}
				e.requestJSON("GET", "/v1/"+list+"?"+query, 400, nil)
			}
		}
		e.requestJSON("GET", "/v1/topics?view=summary&topic=x", 400, nil)
	})
}

// A page of 100 rows has at most 40 KB, also with the longest names.
func TestSummaryPageIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		e.backlogs(100, func(i int) string { return fmt.Sprintf("%s-%03d", strings.Repeat("x", 116), i) })
		time.Sleep(time.Hour)
		for _, list := range []string{"topics", "groups"} {
			if n := e.requestJSON("GET", "/v1/"+list+"?view=summary&limit=100", 200, nil).Body.Len(); n > 40_000 {
				t.Errorf("a page of %s has %d bytes", list, n)
			}
		}
	})
}

// The summary view has only the names that the key may observe, also in the total.
func TestSummaryPagesOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: tableAccess()})
		for key, want := range map[string][]string{"owner": {"normal"}, "producer": {}, "monitor": {"fifo", "normal"}} {
			r := httptest.NewRequest("GET", "https://h/v1/topics?view=summary", nil)
			r.SetBasicAuth(key, secretMark+key)
			w := httptest.NewRecorder()
			e.s.Handler().ServeHTTP(w, r)
			var page server.TopicSummaries
			decode(t, w.Body.Bytes(), &page)
			got := []string{}
			for _, topic := range page.Topics {
				got = append(got, topic.Name)
			}
			if !slices.Equal(got, want) || page.Total != int64(len(want)) {
				t.Errorf("%s sees %v of %d, want %v", key, got, page.Total, want)
			}
		}
	})
}

// A list shows the changes of topics and groups at once, also within the second of a list before.
func TestSummariesAfterChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		change := func(method, path, body string) {
			t.Helper()
			r := httptest.NewRequest(method, path, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			if e.s.Handler().ServeHTTP(w, r); w.Code >= 300 {
				t.Errorf("%s %s: %d %s", method, path, w.Code, w.Body)
			}
		}
		expect := func(when, wantTopics, wantGroups string) {
			t.Helper()
			var topics server.TopicSummaries
			e.requestJSON("GET", "/v1/topics?view=summary&match=orders", 200, &topics)
			var groups server.GroupSummaries
			e.requestJSON("GET", "/v1/groups?view=summary", 200, &groups)
			var names [2][]string
			for _, row := range topics.Topics {
				names[0] = append(names[0], fmt.Sprint(row.Name, row.Stored.Messages))
			}
			for _, row := range groups.Groups {
				names[1] = append(names[1], row.Group)
			}
			if got := strings.Join(names[0], " ") + "|" + strings.Join(names[1], " "); got != wantTopics+"|"+wantGroups {
				t.Errorf("%s the lists are %q, want %q", when, got, wantTopics+"|"+wantGroups)
			}
		}
		expect("at first", "", "")
		change("PUT", "/v1/topics/orders", `{}`)
		expect("with a topic", "orders0", "")
		change("PUT", "/v1/groups/billing", `{}`)
		expect("with a group", "orders0", "billing")
		change("POST", "/v1/topics/orders/messages", `{"body_text":"x"}`)
		change("PUT", "/v1/topics/orders", `{}`)
		expect("after a message", "orders1", "billing")
		change("POST", "/v1/topics/orders/purge", "")
		expect("after a purge", "orders0", "billing")
		change("DELETE", "/v1/groups/billing", "")
		expect("without the group", "orders0", "")
		change("DELETE", "/v1/topics/orders", "")
		expect("without the topic", "", "")
	})
}
