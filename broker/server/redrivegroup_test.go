package server_test

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// A redrive to one group needs the right to administer this group alone, because no other group
// receives the message. Its dry run counts without a change.
func TestRedriveToOneGroupOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		access := someAccess()
		access.Keys = append(access.Keys, server.Key{Name: "team", Secrets: []server.Secret{server.NewSecret(secretMark + "team")}, Allow: []server.Rule{{Actions: []server.Action{server.ActionAdmin}, Groups: []string{"g"}}}})
		e := start(t, server.Options{Access: access})
		post := func(group, body string) (int, status.DeadLetterRedrive) {
			t.Helper()
			r := httptest.NewRequest("POST", "https://h/v1/groups/"+group+"/dead-letters/redrive", strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			r.SetBasicAuth("team", secretMark+"team")
			w := httptest.NewRecorder()
			checkHTTP(t, e.s.Handler()).ServeHTTP(w, r)
			var done status.DeadLetterRedrive
			if w.Code == 200 {
				decode(t, w.Body.Bytes(), &done)
			}
			return w.Code, done
		}
		receive := func(group string) []*tidegate.Delivery {
			t.Helper()
			ds, err := e.b.Receive(t.Context(), transport.ReceiveRequest{Group: group, Topic: "normal", Queue: -1, InvisibleDuration: 1e9})
			if err != nil {
				t.Fatal(err)
			}
			return ds
		}
		e.b.Send(t.Context(), []*tidegate.Message{{ID: "m", Topic: "normal", Body: []byte("x")}})
		if _, err := e.b.Settle(t.Context(), receive("g")[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "no"}); err != nil {
			t.Fatal(err)
		}
		if err := e.b.Ack(t.Context(), receive("h"))[0]; err != nil {
			t.Fatal(err)
		}
		for body, want := range map[string]int{`{}`: 403, `{"topic": "normal"}`: 403, `{"to_group_only": true, "to": "normal"}`: 400} {
			if code, _ := post("g", body); code != want {
				t.Errorf("%s: %d, want %d", body, code, want)
			}
		}
		if code, _ := post("h", `{"to_group_only": true}`); code != 403 {
			t.Errorf("of another group: %d", code)
		}
		for _, body := range []string{`{"to_group_only": true, "dry_run": true}`, `{"to_group_only": true}`} {
			if code, done := post("g", body); code != 200 || done.Redriven != 1 {
				t.Errorf("%s: %d %+v", body, code, done)
			}
		}
		if ds := receive("h"); len(ds) > 0 {
			t.Errorf("another group received %+v", ds[0])
		}
		if ds := receive("g"); len(ds) != 1 || ds[0].ID != "m" || ds[0].Topic != "normal" {
			t.Errorf("the group received %+v", ds)
		}
	})
}

// An edit of a dead letter is a message of the key. It needs the right to send to the topic, also
// to the group alone. The audit has the new ID.
func TestEditedRedriveOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		access := someAccess()
		admin := server.Rule{Actions: []server.Action{server.ActionAdmin}, Groups: []string{"g"}}
		send := server.Rule{Actions: []server.Action{server.ActionSend}, Topics: []string{"normal"}}
		access.Keys = append(access.Keys, server.Key{Name: "team", Secrets: []server.Secret{server.NewSecret(secretMark + "team")}, Allow: []server.Rule{admin}},
			server.Key{Name: "sender", Secrets: []server.Secret{server.NewSecret(secretMark + "sender")}, Allow: []server.Rule{admin, send}})
		e := start(t, server.Options{Access: access})
		e.b.Send(t.Context(), []*tidegate.Message{{ID: "m", Topic: "normal", Body: []byte("x")}})
		ds, err := e.b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "normal", Queue: -1, InvisibleDuration: 1e9})
		if err != nil || len(ds) != 1 {
			t.Fatal(ds, err)
		}
		if _, err := e.b.Settle(t.Context(), ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "no"}); err != nil {
			t.Fatal(err)
		}
		page, err := e.b.DeadLetters("g", status.DeadLetterQuery{})
		if err != nil || len(page.DeadLetters) != 1 {
			t.Fatal(page, err)
		}
		large := strings.Repeat("y", 1<<20) // more than a request of the administration may have
		edit := fmt.Sprintf(`"message_ids": ["m"], "to_group_only": true, "edit": {"queue": %d, "offset": %d, "body_text": %q, "keys": ["k"], "properties": {"p": "v", "gone": null}}`,
			page.DeadLetters[0].Queue, page.DeadLetters[0].Offset, large)
		for _, tt := range []struct {
			key, body string
			code      int
		}{
			{"team", `{` + edit + `}`, 403},
			{"team", `{"topic": "normal", ` + edit + `}`, 403},
			{"sender", `{` + edit + `}`, 403},
			{"sender", `{"topic": "other", ` + edit + `}`, 403},
			{"sender", `{"topic": "normal", "message_ids": ["m"], "to_group_only": true, "edit": {"body_text": "z"}}`, 400},
			{"sender", `{"topic": "normal", "dry_run": true, ` + edit + `}`, 200},
			{"sender", `{"topic": "normal", ` + edit + `}`, 200},
			{"sender", `{"topic": "normal", ` + edit + `}`, 200},
		} {
			r := httptest.NewRequest("POST", "https://h/v1/groups/g/dead-letters/redrive", strings.NewReader(tt.body))
			r.Header.Set("Content-Type", "application/json")
			r.SetBasicAuth(tt.key, secretMark+tt.key)
			w := httptest.NewRecorder()
			if tt.code == 400 { // the description does not allow it either
				e.s.Handler().ServeHTTP(w, r)
			} else {
				checkHTTP(t, e.s.Handler()).ServeHTTP(w, r)
			}
			if w.Code != tt.code {
				t.Errorf("%s, %.100s: %d, want %d: %s", tt.key, tt.body, w.Code, tt.code, w.Body)
			}
		}
		ds, err = e.b.Receive(t.Context(), transport.ReceiveRequest{Group: "g", Topic: "normal", Queue: -1, Max: 32, InvisibleDuration: 1e9})
		if err != nil || len(ds) != 1 || ds[0].ID != "m.redrive-1" || string(ds[0].Body) != large || ds[0].Properties["p"] != "v" {
			t.Errorf("%d messages came (%v), want the edited one", len(ds), err)
		}
		r := httptest.NewRequest("GET", "https://h/v1/audit?operation=redriveDeadLetters", nil)
		r.SetBasicAuth("root", secretMark+"root")
		w := httptest.NewRecorder()
		e.s.Handler().ServeHTTP(w, r)
		var records status.AuditPage
		decode(t, w.Body.Bytes(), &records)
		var with int
		for _, a := range records.Records {
			if a.Query == "sent_as=m.redrive-1" && a.Key == "sender" && a.Result == "ok" {
				with++
			}
		}
		if with != 1 {
			t.Errorf("the audit has %+v, want one record of the new ID", records.Records)
		}
	})
}
