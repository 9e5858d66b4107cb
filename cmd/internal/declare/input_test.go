package declare

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// readAll returns the bodies of all lines, and the error that ended them.
func readAll(text string, asJSON bool) (bodies []string, err error) {
	next := Lines(strings.NewReader(text), &tidegate.Message{}, asJSON)
	for {
		m, err := next()
		if err != nil {
			return bodies, err
		}
		bodies = append(bodies, string(m.Body))
	}
}

// Every line is a message, or an error that names it. The end of the input is the only end without
// an error.
func TestNoLineIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		n    int    // messages before the end or the error
		says string // empty: no error
	}{
		"white space":         {"{\"body_text\":\"1\"}\n \n\t\r\n\n{\"body_text\":\"2\"}\n", 2, ""},
		"no end of line":      {`{"body_text":"1"}`, 1, ""},
		"carriage returns":    {"{\"body_text\":\"1\"}\r\n{\"body_text\":\"2\"}\r\n", 2, ""},
		"white space around":  {" {\"body_text\":\"1\"} \n", 1, ""},
		"two values":          {`{"body_text":"1"}` + "\n" + `{"body_text":"2"}{"body_text":"3"}`, 1, "line 2: another text follows the JSON value at byte 18"},
		"two values, a space": {`{"body_text":"2"} {"body_text":"3"}`, 0, "line 1: another text follows the JSON value at byte 19"},
		"a bracket":           {`{"body_text":"2"}]`, 0, "line 1: another text follows"},
		"a word":              {`{"body_text":"2"} # comment`, 0, "line 1: another text follows"},
		"a zero byte":         {"{\"body_text\":\"1\"}\n\x00\n{\"body_text\":\"2\"}", 1, "line 2: byte 1: this is not JSON"},
		"Ctrl-Z":              {"{\"body_text\":\"1\"}\n\x1a\n{\"body_text\":\"2\"}", 1, "line 2: byte 1: this is not JSON"},
		"cut off":             {"{\"body_text\":\"1\"}\n{\"body_text\":", 1, "line 2: the JSON value has no end"},
		"several lines":       {"{\n\"body_text\":\"1\"}", 0, "line 1: the JSON value has no end"},
		"a list":              {`[{"body_text":"1"}]`, 0, "line 1: the value is a list; give an object"},
		"a no-break space":    {"{\"body_text\":\"1\"}\u00a0", 0, "line 1: another text follows"},

		"repeated":              {`{"body_text":"1","body_text":"2"}`, 0, `the name "body_text" is repeated`},
		"repeated, escaped":     {`{"body_text":"1","body_tex\u0074":"2"}`, 0, `the name "body_text" is repeated`},
		"repeated, other case":  {`{"body_text":"1","Body_Text":"2"}`, 0, `the name "Body_Text" is unknown`},
		"repeated property":     {`{"body_text":"1","properties":{"a":"1","a":"2"}}`, 0, `the name "a" is repeated`},
		"repeated, not used":    {`{"body_text":"1","origin":{"a":"1","a":"2"}}`, 0, `the name "a" is repeated`},
		"two IDs":               {`{"body_text":"1","id":"a","message_id":"b"}`, 0, "id and message_id differ"},
		"unknown":               {`{"body_text":"1","kyes":["a"]}`, 0, `the name "kyes" is unknown`},
		"a number as property":  {`{"body_text":"1","properties":{"a":1}}`, 0, "properties.a is a number; give a text"},
		"a key that is no list": {`{"body_text":"1","keys":"a"}`, 0, "keys is a text; give a list"},
		"not base64":            {`{"body":"a b"}`, 0, "body: illegal base64"},

		"Latin-1 body":      {"{\"body_text\":\"1\"}\n{\"body_text\":\"caf\xe9\"}", 1, "line 2: byte 18 is not UTF-8"},
		"Latin-1 key":       {"{\"body_text\":\"1\",\"keys\":[\"caf\xe9\"]}", 0, "is not UTF-8"},
		"Latin-1 property":  {"{\"body_text\":\"1\",\"properties\":{\"a\":\"caf\xe9\"}}", 0, "is not UTF-8"},
		"Latin-1 name":      {"{\"body_text\":\"1\",\"properties\":{\"caf\xe9\":\"a\"}}", 0, "is not UTF-8"},
		"Latin-1 tag":       {"{\"body_text\":\"1\",\"tag\":\"caf\xe9\"}", 0, "is not UTF-8"},
		"encoded surrogate": {"{\"body_text\":\"\xed\xa0\x80\"}", 0, "is not UTF-8"},
		"overlong":          {"{\"body_text\":\"\xc0\xaf\"}", 0, "is not UTF-8"},
		"first half":        {`{"body_text":"\ud83d"}`, 0, "half of a surrogate pair"},
		"second half":       {`{"body_text":"\ude00"}`, 0, "half of a surrogate pair"},
		"first half, text":  {`{"body_text":"\ud83dabcdef"}`, 0, "half of a surrogate pair"},
		"half in a key":     {`{"body_text":"1","keys":["\ud83d"]}`, 0, "half of a surrogate pair"},
		"half in a name":    {`{"body_text":"1","properties":{"\ud83d":"a"}}`, 0, "half of a surrogate pair"},
		"both halves":       {`{"body_text":"\ud83d\ude00"}`, 1, ""},
		"U+FFFD itself":     {"{\"body_text\":\"\ufffd\"}", 1, ""},

		"byte order mark": {"\xef\xbb\xbf{\"body_text\":\"1\"}", 0, "line 1: the text begins with a byte order mark"},
		"UTF-16":          {"\xff\xfe{\x00}\x00\n\x00", 0, "line 1: the text is UTF-16; convert it to UTF-8"},
		"UTF-16BE":        {"\xfe\xff\x00{\x00}\x00\n", 0, "line 1: the text is UTF-16BE"},
	} {
		bodies, err := readAll(c.text, true)
		if len(bodies) != c.n || c.says == "" && err != io.EOF || c.says != "" && (errors.Is(err, io.EOF) || !strings.Contains(err.Error(), c.says)) { // the end is io.EOF itself
			t.Errorf("%s: %q, %v; want %d messages and %q", name, bodies, err, c.n, c.says)
		}
	}
}

// A line has a lite topic, or that of the flag.
func TestLiteTopicOfALine(t *testing.T) {
	next := Lines(strings.NewReader(`{"body_text":"1","lite_topic":"a"}`+"\n"+`{"body_text":"2"}`), &tidegate.Message{LiteTopic: "b"}, true)
	for _, want := range []string{"a", "b"} {
		m, err := next()
		assert.MustThat(t, err == nil && m.LiteTopic == want, "the message is %+v, %v; want the lite topic %s", m, err, want)
	}
}

// Bodies of lines that are no JSON keep their bytes.
func TestLinesKeepBytes(t *testing.T) {
	bodies, err := readAll("caf\xe9\n \n\x00\x1a\nlast", false)
	if want := "caf\xe9| |\x00\x1a|last"; strings.Join(bodies, "|") != want || err != io.EOF { // the end is io.EOF itself
		t.Errorf("%q, %v; want %q", bodies, err, want)
	}
	for _, text := range []string{"\xef\xbb\xbfa\n", "\xff\xfea\x00\n\x00", "\xfe\xff\x00a\x00\n"} {
		if bodies, err := readAll(text, false); len(bodies) != 0 || errors.Is(err, io.EOF) {
			t.Errorf("%q: %q, %v", text, bodies, err)
		}
	}
}

// A failing reader, and a line above the limit, are no end of the input.
func TestReadErrorIsNoEnd(t *testing.T) {
	next := Lines(io.MultiReader(strings.NewReader("a\nb"), failing{}), &tidegate.Message{}, false)
	m, err := next()
	assert.MustThat(t, err == nil && string(m.Body) == "a", "%v, %v", m, err)
	if m, err := next(); err == nil || !strings.Contains(err.Error(), "line 2: the disk fails") {
		t.Errorf("after the failure: %v, %v", m, err)
	}
	if _, err := readAll(strings.Repeat("a", maxLine+1), false); err == nil || !strings.Contains(err.Error(), "line 1 is longer than the limit of 67108864 bytes") {
		t.Errorf("a long line: %v", err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the disk fails") }

// The units are those of IEC 80000-13 and of the SI.
func TestDigits(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"max_backlog_bytes", "1GiB", "1073741824"},
		{"max_backlog.bytes", "512MiB", "536870912"},
		{"retention\x00bytes", "1.5 KiB", "1536"},
		{"bytes_per_second", "10MB", "10000000"},
		{"max_cold_reads_bytes_per_second", "2kB", "2000"},
		{"min_free_disk_bytes", "-1", "-1"},
		{"bytes", "4096", "4096"},
		{"bytes", "7B", "7"},
		{"queues", "1GiB", "1GiB"},
		{"max_backlog.messages", "many", "many"},
	} {
		if got, err := Digits(c.name, c.value); got != c.want || err != nil {
			t.Errorf("%q of %q is %q and %v, want %q", c.value, c.name, got, err, c.want)
		}
	}
	for _, value := range []string{"", "GiB", "1 Gib", "-1GiB", "0.3B", "9999999TiB", "NaNKiB", "InfB", "much"} {
		if got, err := Digits("bytes", value); err == nil || !strings.Contains(err.Error(), "512MiB") {
			t.Errorf("%q is %q and %v, want an error with an example", value, got, err)
		}
	}
}

func TestEach(t *testing.T) {
	s := map[string]any{"queues": 4, "max_backlog": map[string]any{"bytes": "1GiB", "messages": 5}, "type": "1GiB"}
	assert.Must(t, each(s, ""))
	below := s["max_backlog"].(map[string]any)
	assert.That(t, below["bytes"] == int64(1<<30) && below["messages"] == 5 && s["type"] == "1GiB", "the settings are %v", s)
	err := each(map[string]any{"retention": map[string]any{"bytes": "much"}}, "")
	assert.That(t, err != nil && strings.HasPrefix(err.Error(), `retention.bytes is "much": give`), "the error is %v", err)
}
