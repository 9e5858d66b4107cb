package server_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
)

// Every JSON body is decoded without loss, or rejected as a bad request with a text. Every stored
// message is received.
func FuzzHTTPSend(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `{"body":"eA=="}`, `{"id":"i","body_text":"é\u00e9","keys":["a"],"properties":{"a":"b"},"message_group":"g"}`,
		`{"messages":[{"body":"eA=="},{"bodi":1}]}`, `{"body_text":"\ud800"}`, "{\"tag\":\"\xff\"}", `{"deliver_at":"2026-01-01T00:00:00Z","born_at":null}`,
		`{"messages":[[[`, `{"deliver_after":"1h","deliver_at":1}`, `{"TAG":"a","body":"eA=="}`,
	} {
		f.Add([]byte(s))
	}
	e := start(f, server.Options{})
	e.s.WrapHTTP(func(h http.Handler) http.Handler { return h }) // without the comparison, which is for the other tests
	f.Fuzz(func(t *testing.T, text []byte) {
		var m server.Message
		err := server.Decode(text, &m)
		var plain map[string]any
		if err == nil && json.Unmarshal(text, &plain) != nil {
			t.Errorf("it is not JSON, but decoded to %+v", m)
		}
		if err != nil && (refusal.CodeOf(err) != tidegate.CodeBadRequest || len(err.Error()) < 20) {
			t.Errorf("refused with %v", err)
		}
		for _, kind := range []string{server.TypeJSON, server.TypeNDJSON} {
			r := httptest.NewRequest("POST", "/v1/topics/normal/messages", bytes.NewReader(text))
			r.Header.Set("Content-Type", kind)
			w := httptest.NewRecorder()
			e.s.Handler().ServeHTTP(w, r)
			if w.Code >= 500 {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			for line := range bytes.Lines(w.Body.Bytes()) {
				if kind == server.TypeNDJSON && json.Unmarshal(line, new(server.SendResult)) != nil {
					t.Errorf("the response is %q", line)
				}
			}
		}
	})
}
