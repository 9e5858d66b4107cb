package server_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
)

// A trace has the contents of the message if the query asks for them, as text or in base64.
func TestTraceContents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{})
		for id, body := range map[string]string{"text": "häßlich", "bytes": "\x00\xff"} {
			m := &tidegate.Message{ID: id, Topic: "normal", Keys: []string{"k7"}, Properties: map[string]string{"shop": "5"}, Body: []byte(body)}
			if err := e.b.Send(t.Context(), []*tidegate.Message{m})[0].Err; err != nil {
				t.Fatal(err)
			}
		}
		const path = "/v1/topics/normal/messages/"
		for _, c := range []struct {
			query string
			want  []string
			not   []string
		}{
			{"text", []string{`"body_size": 9`}, []string{`"body`, "k7", "shop"}},
			{"text?contents=true", []string{`"body": "aMOkw59saWNo"`, "k7", "shop"}, []string{"body_text"}},
			{"text?text=true", []string{`"body_text": "häßlich"`, "k7", "shop"}, []string{`"body": `}},
			{"bytes?text=true", []string{`"body": "AP8="`, "k7"}, []string{"body_text"}},
		} {
			got := strings.ReplaceAll(adminCall(t, e, "GET", path+c.query, "", 200, c.want...), `"body_size"`, "size")
			for _, not := range c.not {
				if strings.Contains(got, not) {
					t.Errorf("%s has %s: %s", c.query, not, got)
				}
			}
		}
	})
}

// A key that may observe a message, and not receive it, sees neither the body nor the keys and
// properties of the message, also if it is a dead letter.
func TestTraceShowsNoContentsToObservers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{Access: someAccess()})
		putGroup(t, e, settings.Group{MaxAttempts: 1})
		fail(t, e, "normal", "", 1)
		for key, sees := range map[string]bool{"monitor": false, "root": true} {
			r := httptest.NewRequestWithContext(t.Context(), "GET", "https://h/v1/topics/normal/messages/normal0", nil)
			r.SetBasicAuth(key, secretMark+key)
			w := httptest.NewRecorder()
			e.s.Handler().ServeHTTP(w, r)
			text := w.Body.String()
			if w.Code != 200 || !strings.Contains(text, `"dead_letter": {`) || strings.Contains(text, `"k": "v"`) != sees {
				t.Errorf("%s: %d, %s", key, w.Code, text)
			}
		}
	})
}
