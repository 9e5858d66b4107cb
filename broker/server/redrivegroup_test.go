package server_test

import (
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
		if _, err := e.b.DeadLetter(t.Context(), receive("g")[0], "no"); err != nil {
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
