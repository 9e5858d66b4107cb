package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/transport"
)

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
			if r := e.b.Send(t.Context(), []*tidegate.Message{{Topic: "normal", ID: fmt.Sprint(i), Body: body}}); r[0].Err != nil {
				t.Fatal(r[0].Err)
			}
			ds, err := e.b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "normal", Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Minute})
			if err != nil || len(ds) != 1 {
				t.Fatal(len(ds), err)
			}
			if _, err := e.b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "bad"}); err != nil {
				t.Fatal(err)
			}
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
			w := httptest.NewRecorder()
			e.s.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/v1/groups/g/dead-letters?"+query, nil))
			if w.Code == 200 {
				if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
					t.Fatal(err)
				}
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
		if len(seen) != letters || after != "" {
			t.Errorf("the pages have %d of %d letters", len(seen), letters)
		}
		p, status := get("")
		if status != 200 || len(p.Letters) != letters || p.Letters[0].Body != nil || p.Letters[0].Size != size {
			t.Errorf("%d, %d letters without bodies", status, len(p.Letters))
		}
		other := e.s.Parts().Bodies.Hold("other", nil)
		if err := other.Resize(14<<20, false); err != nil {
			t.Fatal(err)
		}
		third := e.s.Parts().Bodies.Hold("third", nil)
		if err := third.Resize(4<<20, false); err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/v1/groups/g/dead-letters?bodies=true", nil))
		if w.Code != 429 {
			t.Errorf("without memory for a page: %d", w.Code)
		}
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
		r := httptest.NewRequest(c.method, "https://h"+c.path, strings.NewReader(c.body))
		r.SetBasicAuth("admin", secretMark+"admin")
		r.Header.Set("Content-Type", server.TypeJSON)
		e.s.Handler().ServeHTTP(httptest.NewRecorder(), r)
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
