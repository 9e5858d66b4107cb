package server_test

import (
	"fmt"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
)

// The pages of a list have all names once, in order, with any size; match selects names.
func TestListPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := start(t, server.Options{})
		get := func(path string, status int, out any) {
			t.Helper()
			w := httptest.NewRecorder()
			x.s.Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			if w.Code != status {
				t.Fatalf("GET %s: %d %s, want %d", path, w.Code, w.Body, status)
			}
			if out != nil {
				decode(t, w.Body.Bytes(), out)
			}
		}
		var topics, groups []string
		for _, known := range x.b.Topics() {
			topics = append(topics, known.Name)
		}
		for i := range 57 {
			name := fmt.Sprintf("list-%02d", (i*31)%57)
			if _, err := x.b.PutTopic(t.Context(), name, settings.Topic{Queues: 1}); err != nil {
				t.Fatal(err)
			}
			if _, err := x.b.PutGroup(t.Context(), name, settings.Group{}); err != nil {
				t.Fatal(err)
			}
			topics, groups = append(topics, name), append(groups, name)
		}
		for _, known := range x.b.Groups() {
			if !slices.Contains(groups, known.Name) {
				groups = append(groups, known.Name)
			}
		}
		slices.Sort(topics)
		slices.Sort(groups)
		for _, limit := range []int{1, 2, 7, 56, 57, 58, 1000} {
			var got []string
			for next, more := "", true; more; more = next != "" {
				var page server.TopicList
				get(fmt.Sprintf("/v1/topics?limit=%d&after=%s", limit, url.QueryEscape(next)), 200, &page)
				if len(page.Topics) > limit {
					t.Fatalf("a page of %d has %d topics", limit, len(page.Topics))
				}
				for _, topic := range page.Topics {
					got = append(got, topic.Name)
				}
				next = page.Next
			}
			if !slices.Equal(got, topics) {
				t.Errorf("pages of %d have the topics %v, want %v", limit, got, topics)
			}
			got = nil
			for next, more := "", true; more; more = next != "" {
				var page server.GroupList
				get(fmt.Sprintf("/v1/groups?limit=%d&after=%s", limit, url.QueryEscape(next)), 200, &page)
				for _, group := range page.Groups {
					got = append(got, group.Name)
				}
				next = page.Next
			}
			if !slices.Equal(got, groups) {
				t.Errorf("pages of %d have the groups %v, want %v", limit, got, groups)
			}
		}
		var page server.TopicList
		get("/v1/topics?match=list-1*&limit=3&after=list-14", 200, &page)
		if len(page.Topics) != 3 || page.Topics[0].Name != "list-15" || page.Next != "list-17" {
			t.Errorf("the page is %+v", page)
		}
		for _, query := range []string{"limit=1001", "limit=-1", "limit=x", "match=[a", "names=1"} {
			get("/v1/topics?"+query, 400, nil)
			get("/v1/groups?"+query, 400, nil)
		}
	})
}

// A page has only the names that the key may observe; the list of all needs everything.
func TestListPagesOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: tableAccess()})
		for key, want := range map[string][]string{"owner": {"normal"}, "producer": {}} {
			r := httptest.NewRequest("GET", "https://h/v1/topics?limit=1000", nil)
			r.SetBasicAuth(key, secretMark+key)
			w := httptest.NewRecorder()
			e.s.Handler().ServeHTTP(w, r)
			var page server.TopicList
			decode(t, w.Body.Bytes(), &page)
			got := []string{}
			for _, topic := range page.Topics {
				got = append(got, topic.Name)
			}
			if w.Code != 200 || !slices.Equal(got, want) {
				t.Errorf("%s sees %d %v, want %v", key, w.Code, got, want)
			}
		}
	})
}
