package server

import (
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
)

// Missing keys of a receive have the defaults of openapi.yaml. The wait is at most that of the
// server.
func TestReceiveRequests(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body string
		call string
		code tidegate.Code
	}{
		"the defaults":            {`{}`, "poll g t max 1 wait 0s invisible 30s filter  sql false", 0},
		"all keys":                {`{"max":5,"wait":"3s","invisible_duration":"1m","filter":{"type":"SQL92","expression":"a = 1"}}`, "poll g t max 5 wait 3s invisible 1m0s filter a = 1 sql true", 0},
		"a tag":                   {`{"filter":{"type":"TAG","expression":"x"}}`, "poll g t max 1 wait 0s invisible 30s filter x sql false", 0},
		"a wait above the limit":  {`{"wait":"1h"}`, "poll g t max 1 wait 20s invisible 30s filter  sql false", 0},
		"a negative wait":         {`{"wait":"-1s"}`, "", protocol.CodeIllegalPollingTime},
		"another type of filters": {`{"filter":{"type":"XPATH"}}`, "", tidegate.CodeIllegalFilterExpression},
		"no messages":             {`{"max":0}`, "", tidegate.CodeBadRequest},
		"too many messages":       {`{"max":100000}`, "", tidegate.CodeBadRequest},
		"negative bytes":          {`{"max_bytes":-1}`, "", tidegate.CodeBadRequest},
		"an unknown key":          {`{"maximum":1}`, "", tidegate.CodeBadRequest},
	} {
		e := newEnv(t)
		status, body, err := e.call(e.ReceiveMessages, c.body)
		if codeOfMessages(err) != c.code || c.code == 0 && (err != nil || status != 200) {
			t.Errorf("%s: %d %s, %v; want code %d", name, status, body, err, c.code)
		}
		if got := strings.Join(e.engine.calls, ", "); got != c.call {
			t.Errorf("%s: the engine got %q, want %q", name, got, c.call)
		}
		if shortened := strings.Contains(body, "longest_wait"); shortened != strings.Contains(c.call, "wait 20s") {
			t.Errorf("%s: the response has a shorter wait: %t", name, shortened)
		}
	}
}
