package server

import (
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
)

// One message has the response of its send; many have one result each: 200 if all are stored, 207
// if some failed, and the error of all if they have the same code.
func TestSends(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body    string
		failing []string
		call    string // to the engine
		status  int
		code    tidegate.Code
	}{
		"one message":      {`{"id":"a","body_text":"x"}`, nil, "append a t x", 200, 0},
		"two messages":     {`{"messages":[{"id":"a","body_text":"x"},{"id":"b","body_text":"y"}]}`, nil, "append a t x, append b t y", 200, 0},
		"one of two fails": {`{"messages":[{"id":"a","body_text":"x"},{"id":"b","body_text":"y"}]}`, []string{"b"}, "append a t x, append b t y", 207, 0},
		"both fail":        {`{"messages":[{"id":"a","body_text":"x"},{"id":"b","body_text":"y"}]}`, []string{"a", "b"}, "append a t x, append b t y", 0, tidegate.CodeTooManyRequests},
		"the only fails":   {`{"id":"a","body_text":"x"}`, []string{"a"}, "append a t x", 0, tidegate.CodeTooManyRequests},
		"no messages":      {`{"messages":[]}`, nil, "", 0, tidegate.CodeBadRequest},
		"one and many":     {`{"id":"a","messages":[{"id":"b","body_text":"y"}]}`, nil, "", 0, tidegate.CodeBadRequest},
		"an unknown key":   {`{"id":"a","text":"x"}`, nil, "", 0, tidegate.CodeBadRequest},
	} {
		e := newEnv(t)
		for _, id := range c.failing {
			e.engine.failing[id] = &tidegate.Error{Code: tidegate.CodeTooManyRequests}
		}
		status, body, err := e.call(e.SendMessages, c.body)
		if codeOfMessages(err) != c.code || c.code == 0 && status != c.status {
			t.Errorf("%s: %d %s, %v; want %d, code %d", name, status, body, err, c.status, c.code)
		}
		if got := strings.Join(e.engine.calls, ", "); got != c.call {
			t.Errorf("%s: the engine got %q, want %q", name, got, c.call)
		}
		if c.call != "" && (len(e.server.calls) != 1 || e.server.calls[0].Op != "SendMessage" || e.server.calls[0].Topic != "t") {
			t.Errorf("%s: the middleware got %+v", name, e.server.calls)
		}
	}
}
