package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

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
