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
)

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
