package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/admission"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// Each settlement calls the engine once, with the operation of the equivalent RPC for the
// middleware, and has the response of openapi.yaml.
func TestSettlements(t *testing.T) {
	t.Parallel()
	again := transport.RetryResult{Fate: transport.FateAgain, Delay: 30 * time.Second}
	for name, c := range map[string]struct {
		do      func(*env) messageHandler
		body    string
		settled transport.RetryResult
		call    string // to the engine
		op      string // for the middleware
		status  int
		want    string // the response
	}{
		"release":                 {func(e *env) messageHandler { return e.ChangeInvisible }, `{"handle":"h","invisible_duration":"0s"}`, again, "change g h 0s", "ChangeInvisibleDuration", 200, `"handle":"next"`},
		"longer":                  {func(e *env) messageHandler { return e.ChangeInvisible }, `{"handle":"h","invisible_duration":"1m"}`, again, "change g h 1m0s", "ChangeInvisibleDuration", 200, `"invisible_until":`},
		"snooze":                  {func(e *env) messageHandler { return e.Snooze }, `{"handle":"h","delay":"5s"}`, again, "Snooze g h attempt 0 delay 5s: ", "ChangeInvisibleDuration", 204, `null`},
		"retry after":             {func(e *env) messageHandler { return e.Retry }, `{"handle":"h","after":"5s","reason":"r"}`, again, "Retry g h attempt 0 delay 5s: r", "ChangeInvisibleDuration", 200, `{"fate":"again","delay":"30s"}`},
		"retry by attempt":        {func(e *env) messageHandler { return e.Retry }, `{"handle":"h","attempt":3}`, again, "Retry g h attempt 3 delay 30s: ", "ChangeInvisibleDuration", 200, `{"fate":"again","delay":"30s"}`},
		"last retry":              {func(e *env) messageHandler { return e.Retry }, `{"handle":"h","after":"5s"}`, transport.RetryResult{Fate: transport.FateDeadLetter}, "Retry g h attempt 0 delay 5s: ", "ChangeInvisibleDuration", 200, `{"fate":"dead_letter"}`},
		"last retry of a group":   {func(e *env) messageHandler { return e.Retry }, `{"handle":"h","after":"5s"}`, transport.RetryResult{Fate: transport.FateParked}, "Retry g h attempt 0 delay 5s: ", "ChangeInvisibleDuration", 200, `{"fate":"parked"}`},
		"retry of a finished one": {func(e *env) messageHandler { return e.Retry }, `{"handle":"h","after":"5s"}`, transport.RetryResult{}, "Retry g h attempt 0 delay 5s: ", "ChangeInvisibleDuration", 200, `{}`},
		"dead letter":             {func(e *env) messageHandler { return e.DeadLetter }, `{"handle":"h","reason":"bad","attempt":2}`, transport.RetryResult{Fate: transport.FateDeadLetter}, "DeadLetter g h attempt 2 delay 0s: bad", "ForwardMessageToDeadLetterQueue", 200, `{"fate":"dead_letter"}`},
		"negative":                {func(e *env) messageHandler { return e.NegativeAcknowledge }, `{"handle":"h","delay":"5s"}`, again, "NegativeAck g h attempt 0 delay 5s: ", "NegativeAck", 200, `{"fate":"again","delay":"30s"}`},
		"later by level":          {func(e *env) messageHandler { return e.ReconsumeLater }, `{"handle":"h","level":2}`, again, "later g h delay 0s level 2", "ReconsumeLater", 200, ""},
		"recall":                  {func(e *env) messageHandler { return e.RecallMessage }, `{"recall_handle":"r"}`, again, "recall t r", "RecallMessage", 200, `{"id":"id"}`},
	} {
		e := newEnv(t)
		e.engine.settled = c.settled
		status, body, err := e.call(c.do(e), c.body)
		if err != nil || status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s, %v; want %d %s", name, status, body, err, c.status, c.want)
		}
		if got := strings.Join(e.engine.calls, ", "); got != c.call {
			t.Errorf("%s: the engine got %q, want %q", name, got, c.call)
		}
		if len(e.server.calls) != 1 || e.server.calls[0].Op != c.op {
			t.Errorf("%s: the middleware got %+v, want one call of %s", name, e.server.calls, c.op)
		}
	}
}

// An invalid request has the code of its fault and does not reach the engine.
func TestInvalidSettlements(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(*env) messageHandler
		body string
		want tidegate.Code
	}{
		"no body":                     {func(e *env) messageHandler { return e.Retry }, ``, tidegate.CodeBadRequest},
		"an unknown key":              {func(e *env) messageHandler { return e.Retry }, `{"handle":"h","x":1}`, tidegate.CodeBadRequest},
		"no invisible duration":       {func(e *env) messageHandler { return e.ChangeInvisible }, `{"handle":"h"}`, tidegate.CodeIllegalInvisibleTime},
		"no delay of a snooze":        {func(e *env) messageHandler { return e.Snooze }, `{"handle":"h"}`, tidegate.CodeIllegalInvisibleTime},
		"a delay and an attempt":      {func(e *env) messageHandler { return e.Retry }, `{"handle":"h","after":"1s","attempt":1}`, tidegate.CodeBadRequest},
		"a negative attempt":          {func(e *env) messageHandler { return e.Retry }, `{"handle":"h","attempt":-1}`, tidegate.CodeBadRequest},
		"no handles":                  {func(e *env) messageHandler { return e.Acknowledge }, `{"handles":[]}`, tidegate.CodeBadRequest},
		"handles of the wrong type":   {func(e *env) messageHandler { return e.Acknowledge }, `{"handles":"h"}`, tidegate.CodeBadRequest},
		"a duration without its unit": {func(e *env) messageHandler { return e.Snooze }, `{"handle":"h","delay":"5"}`, tidegate.CodeBadRequest},
	} {
		e := newEnv(t)
		if status, body, err := e.call(c.do(e), c.body); codeOfMessages(err) != c.want {
			t.Errorf("%s: %d %s, %v; want code %d", name, status, body, err, c.want)
		}
		if len(e.engine.calls)+len(e.server.calls) > 0 {
			t.Errorf("%s: it reached the engine: %q", name, e.engine.calls)
		}
	}
}

// A retry without a delay or an attempt is an error for an unknown group, which has no interval.
func TestRetryByTheIntervalNeedsTheGroup(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.engine.failing["group g"] = &tidegate.Error{Code: tidegate.CodeConsumerGroupNotFound}
	if _, _, err := e.call(e.Retry, `{"handle":"h"}`); codeOfMessages(err) != tidegate.CodeConsumerGroupNotFound {
		t.Errorf("%v, want code %d", err, tidegate.CodeConsumerGroupNotFound)
	}
	if _, _, err := e.call(e.Retry, `{"handle":"h","after":"1s"}`); err != nil {
		t.Errorf("with a delay: %v", err)
	}
}

// A negative or zero delay of a retry reaches the engine as a delay, which rejects it. It never
// means the group's interval.
func TestShortDelaysAreNotTheInterval(t *testing.T) {
	t.Parallel()
	for _, after := range []string{"-1s", fmt.Sprint(int64(transport.BySchedule)) + "ns"} {
		e := newEnv(t)
		if _, _, err := e.call(e.Retry, `{"handle":"h","after":"`+after+`"}`); err != nil {
			t.Fatal(after, err)
		}
		if got := e.engine.calls[0]; strings.Contains(got, "delay "+transport.BySchedule.String()+":") {
			t.Errorf("%s: %s", after, got)
		}
	}
}

// Each handle of an acknowledgement has its own result: 200 if all succeeded, 207 if some failed,
// and the error of all if they have the same code.
func TestAcknowledge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		failing []string
		status  int
		code    tidegate.Code
	}{
		"all succeeded": {nil, 200, 0},
		"one failed":    {[]string{"b"}, 207, 0},
		"all failed":    {[]string{"a", "b", "c"}, 200, tidegate.CodeInvalidReceiptHandle},
	} {
		e := newEnv(t)
		for _, h := range c.failing {
			e.engine.failing[h] = &tidegate.Error{Code: tidegate.CodeInvalidReceiptHandle}
		}
		status, body, err := e.call(e.Acknowledge, `{"handles":["a","b","c"]}`)
		if codeOfMessages(err) != c.code || err == nil && status != c.status {
			t.Errorf("%s: %d, %v; want %d, code %d", name, status, err, c.status, c.code)
		}
		assert.That(t, err != nil || strings.Count(body, `"error"`) == len(c.failing), "%s: %s", name, body)
		if got := strings.Join(e.engine.calls, ", "); got != "ack g a, ack g b, ack g c" {
			t.Errorf("%s: the engine got %q", name, got)
		}
	}
}

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

// However a query is, it is a message or a rejection that names the parameter.
func FuzzHTTPQuery(f *testing.F) {
	f.Add("id=a&key=b&key=c&property.x=y&deliver_after=1s")
	f.Add("tag=a&tag=b")
	f.Add("deliver_at=&=&property.")
	f.Fuzz(func(t *testing.T, query string) {
		r := assert.Value(http.NewRequest("POST", "http://h/?", nil))(t)
		r.URL.RawQuery = query
		values := r.URL.Query()
		if _, err := messageOfQuery(values); err != nil {
			if e, ok := errors.AsType[*tidegate.Error](err); !ok || values[e.Subject] == nil {
				t.Errorf("%q: %v", query, err)
			}
		}
	})
}

// A LineReader returns the lines of a text, in any pieces, except those that are too long.
func FuzzLines(f *testing.F) {
	for _, s := range []string{"", "\n", "a\nb", "a\r\n\n\nb\n", strings.Repeat("x", 21) + "\ny", strings.Repeat("x", 20) + "\r\ny"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text)), iotest.DataErrReader(strings.NewReader(text))} {
			var got, want []string
			for line := range strings.Lines(text) {
				if line = strings.TrimRight(line, "\r\n"); len(line) > 20 {
					line = "too long"
				}
				want = append(want, line)
			}
			l := newLines(t, r, 20)
			for {
				line, err := l.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if errors.Is(err, errLineTooLong) {
					line, err = []byte("too long"), nil
				}
				assert.Must(t, err)
				got = append(got, string(line))
			}
			assert.That(t, slices.Equal(got, want) && l.Number == len(want), "%q: lines %q, want %q", text, got, want)
		}
		l := newLines(t, io.MultiReader(strings.NewReader(text), iotest.ErrReader(io.ErrUnexpectedEOF)), 20)
		n := 0
		for {
			if _, err := l.Next(); errors.Is(err, io.ErrUnexpectedEOF) {
				break
			}
			n++
		}
		assert.That(t, n == strings.Count(text, "\n"), "%q, cut off there, has %d lines", text, n)
	})
}

// A long line costs no more than its limit.
func TestLongLine(t *testing.T) {
	l := newLines(t, io.MultiReader(io.LimitReader(endless{}, 100<<20), strings.NewReader("\nb")), 1<<10)
	if _, err := l.Next(); !errors.Is(err, errLineTooLong) || cap(l.buf) > 1<<20 {
		t.Errorf("%v, %d bytes kept", err, cap(l.buf))
	}
	if line, err := l.Next(); err != nil || string(line) != "b" {
		t.Errorf("%q, %v", line, err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

func newLines(t *testing.T, r io.Reader, limit int) *lineReader {
	t.Helper()
	l := assert.Value(newLineReader(r, limit, admission.HoldOf(t.Context())))(t)
	return l
}

// A text that has a key twice is not decoded to a message. The case of letters counts.
func TestDecodeRejectsKeysTwice(t *testing.T) {
	many := func(last string) string {
		var b strings.Builder
		for i := range 40 {
			fmt.Fprintf(&b, `"k%d":"",`, i)
		}
		return `{"properties":{` + b.String() + last + `:""}}`
	}
	for text, want := range map[string]string{
		`{"messages":[{"tag":"a","properties":{"x":"1"}}],"messages":[{"body":"eA=="}]}`: `key "messages" is repeated; give it once`,
		`{"tag":"a","tag":"a"}`:                           `key "tag" is repeated`,
		`{"tag":"a","TAG":"b"}`:                           `key "TAG" is unknown: did you mean tag?`,
		`{"tag":"a","t\u0061g":"b"}`:                      `key "tag" is repeated`,
		`{"keys":["a"],"key\u017f":["b"]}`:                `key "keyſ" is unknown: did you mean keys?`,
		`{"messages":[{},{"id":"a","id":"b"}]}`:           `key "id" is repeated in messages[1]`,
		`{"properties":{"a":"1","b":"","a":"2"}}`:         `key "a" is repeated in properties`,
		`{"properties":{"a":"1"},"properties":{}}`:        `key "properties" is repeated`,
		`{"properties":null,"properties":{}}`:             `key "properties" is repeated`,
		many(`"k39"`):                                     `key "k39" is repeated in properties`,
		many(`"k\u0033"`):                                 `key "k3" is repeated in properties`,
		many(`"K3"`):                                      "",
		`{"properties":{"a":"1","A":"2","ä":"Ä"}}`:        "",
		`{"properties":{"tag":"1","id":"2"},"tag":""}`:    "",
		`{"messages":[{"id":"a"},{"id":"a"}],"tag":"id"}`: "",
		`{"keys":["a","a","keys"],"tag":"keys"}`:          "",
		`{"Tag":"a"}`:                                     `key "Tag" is unknown: did you mean tag?`,
	} {
		err := decodeJSON([]byte(text), new(struct {
			jsonMessage
			Messages []jsonMessage `json:"messages"`
		}))
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("%.90s: %v, want %q", text, err, want)
		}
	}
}

// A text without a repeated key is not rejected for it, and the reverse.
func FuzzKeysTwice(f *testing.F) {
	for _, s := range []string{`{"a":"1","A":"2"}`, `{"a":"","\u0061":""}`, `{"é":"","\u00e9":""}`, `{"\\":"","\u005c":""}`, `{"a":"\"","b":"}{,"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var v map[string]string
		if json.Unmarshal(raw, &v) != nil || len(v) == 0 {
			return
		}
		n := 0
		d := json.NewDecoder(bytes.NewReader(raw))
		for {
			token, err := d.Token()
			if err != nil {
				break
			}
			if _, text := token.(string); text || token == nil {
				n++
			}
		}
		err := decodeJSON(raw, &v)
		if twice := n != 2*len(v); err == nil == twice || err != nil && !twice {
			if !strings.Contains(fmt.Sprint(err), "not UTF-8") && !strings.Contains(fmt.Sprint(err), "surrogate") {
				t.Errorf("%q: %v, %d texts in %d members", raw, err, n, len(v))
			}
		}
	})
}

// Millions of empty messages are found before they are decoded.
func TestCrowdedJSON(t *testing.T) {
	list := func(n int, of string) string { return "[" + strings.TrimSuffix(strings.Repeat(of+",", n), ",") + "]" }
	for text, want := range map[string]int{
		`{"messages":` + list(3, "{}") + `}`:           -1,
		`{"messages":` + list(4, "{}") + `}`:           12,
		`{"m":[{},{"keys":` + list(4, `""`) + `}]}`:    17,
		`{"a":1,"b":2,"c":3}`:                          -1,
		`{"a":1,"b":2,"c":3,"d":4}`:                    0,
		`{"a":",,,,\",,,,\\","b":"[,,,,"}`:             -1,
		`{"a":"\\",` + `"b":` + list(4, "1") + `}`:     14,
		`{"a":"no end \",,,,,`:                         -1,
		`{"a":"no end \`:                               -1,
		`]]],,,,`:                                      -1,
		`,,,,`:                                         -1,
		strings.Repeat("[", maxNesting+2) + `1,2,3,4,`: -1,
	} {
		if got := crowded([]byte(text), 3); got != want {
			t.Errorf("%.60s: %d, want %d", text, got, want)
		}
	}
	raw := []byte(`{"messages":` + list(5_000_000, "{}") + `}`)
	var err error
	if n := assert.AllocatedBytes(func() {
		err = decodeJSON(raw, new(struct {
			Messages []jsonMessage `json:"messages"`
		}))
	}); n > 1<<20 {
		t.Errorf("5 000 000 messages cost %d bytes", n)
	}
	if refusal.CodeOf(err) != tidegate.CodeBadRequest || !strings.Contains(err.Error(), "16384") || !strings.Contains(err.Error(), "byte 12") {
		t.Errorf("5 000 000 messages: %v", err)
	}
}

// A decoder also finds faults other than lists or objects with too many members.
func FuzzCrowded(f *testing.F) {
	for _, s := range []string{`[1,2,3,4]`, `["\"",[]]`, `[[1,2],[3,4,5]]`, `[["\\",",,,,"],"[,,,"]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		const most = 2
		got := crowded(raw, most)
		var v any
		if json.Unmarshal(raw, &v) != nil || bytes.IndexByte(raw, '{') >= 0 {
			return // the keys of an object may repeat
		}
		if want := overfull(v, most); (got >= 0) != want {
			t.Errorf("%q: %d, want %v", raw, got, want)
		}
	})
}

func overfull(v any, most int) bool {
	list, _ := v.([]any)
	for _, x := range list {
		if overfull(x, most) {
			return true
		}
	}
	return len(list) > most
}

// The status over HTTP is that of the code where HTTP means the same by it.
func TestProblemStatus(t *testing.T) {
	for code, want := range map[tidegate.Code]int{
		40000: 400, 40018: 400, 40100: 401, 40200: 402, 40300: 403, 40402: 404, 40800: 408, 41301: 413, 42800: 412, 42900: 429, 42901: 429, 43101: 431,
		50001: 500, 50100: 501, 50401: 504,
		50500: 501, 50501: 501, 50502: 501, // HTTP's 505 is about HTTP itself
		60000: 500, 20001: 500,
	} {
		p := problemOf(&tidegate.Error{Code: code, Message: "x"})
		if p.Status != want || p.Code != int(code) {
			t.Errorf("code %d: status %d, code %d; want status %d", code, p.Status, p.Code, want)
		}
		if wait := p.RetryAfter; (wait != 0) != (want == 429) {
			t.Errorf("code %d: Retry-After %v", code, wait)
		}
	}
	if p := problemOf(&tidegate.Error{Code: 42900, RetryAfter: time.Minute}); p.RetryAfter != settings.Duration(time.Minute) {
		t.Errorf("an estimate of 1m is returned as %v", p.RetryAfter)
	}
}

// An error of readiness names its cause and matches it.
func TestNotReady(t *testing.T) {
	cause := errors.New("the log is broken")
	err := error(&notReady{cause})
	assert.That(t, err.Error() == "not ready: the log is broken" && errors.Is(err, cause), "%v", err)
	assert.Equal(t, "problem", problemOf(err).Status, 503)
}
