package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/server/internal/refusal"
)

// Whatever is sent as JSON is decoded without loss, or refused as a bad
// request with a text; and whatever of it is stored comes back.
func FuzzHTTPSend(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `{"body":"eA=="}`, `{"id":"i","body_text":"é\u00e9","keys":["a"],"properties":{"a":"b"},"message_group":"g"}`,
		`{"messages":[{"body":"eA=="},{"bodi":1}]}`, `{"body_text":"\ud800"}`, "{\"tag\":\"\xff\"}", `{"deliver_at":"2026-01-01T00:00:00Z","born_at":null}`,
		`{"messages":[[[`, `{"deliver_after":"1h","deliver_at":1}`, `{"TAG":"a","body":"eA=="}`,
	} {
		f.Add([]byte(s))
	}
	e := start(f, Options{})
	e.s.http = e.s.mux() // without the comparison: what differs is for the other tests
	f.Fuzz(func(t *testing.T, text []byte) {
		var m jsonMessage
		err := decodeJSON(text, &m)
		var plain map[string]any
		if err == nil && json.Unmarshal(text, &plain) != nil {
			t.Errorf("it is not JSON, but taken as %+v", m)
		}
		if err != nil && (refusal.CodeOf(err) != tidegate.CodeBadRequest || len(err.Error()) < 20) {
			t.Errorf("refused with %v", err)
		}
		for _, kind := range []string{typeJSON, typeNDJSON} {
			r := httptest.NewRequest("POST", "/v1/topics/normal/messages", bytes.NewReader(text))
			r.Header.Set("Content-Type", kind)
			w := httptest.NewRecorder()
			e.s.Handler().ServeHTTP(w, r)
			if w.Code >= 500 {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			for line := range bytes.Lines(w.Body.Bytes()) {
				if kind == typeNDJSON && json.Unmarshal(line, new(sendResult)) != nil {
					t.Errorf("answered with %q", line)
				}
			}
		}
	})
}

// A lineReader returns the lines of a text, however it arrives, but for those
// that are too long.
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
			l := newLineReader(r, 20)
			for {
				line, err := l.next()
				if errors.Is(err, io.EOF) {
					break
				}
				if errors.Is(err, errLineTooLong) {
					line, err = []byte("too long"), nil
				}
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, string(line))
			}
			if !slices.Equal(got, want) || l.number != len(want) {
				t.Errorf("%q: lines %q, want %q", text, got, want)
			}
		}
		l := newLineReader(io.MultiReader(strings.NewReader(text), iotest.ErrReader(io.ErrUnexpectedEOF)), 20)
		n := 0
		for {
			if _, err := l.next(); errors.Is(err, io.ErrUnexpectedEOF) {
				break
			}
			n++
		}
		if n != strings.Count(text, "\n") {
			t.Errorf("%q, cut off there, has %d lines", text, n)
		}
	})
}

// A long line costs no more than its limit.
func TestLongLine(t *testing.T) {
	l := newLineReader(io.MultiReader(io.LimitReader(endless{}, 100<<20), strings.NewReader("\nb")), 1<<10)
	if _, err := l.next(); !errors.Is(err, errLineTooLong) || cap(l.buf) > 1<<20 {
		t.Errorf("%v, %d bytes kept", err, cap(l.buf))
	}
	if line, err := l.next(); err != nil || string(line) != "b" {
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

// Every message survives the way to JSON and back.
func FuzzDelivery(f *testing.F) {
	f.Add("id", "tag", "key", "v", []byte("x"), int64(1))
	f.Add("", "", "", "\u2028", []byte{0xff}, int64(-1))
	f.Fuzz(func(t *testing.T, id, tag, key, value string, body []byte, born int64) {
		d := &tidegate.Delivery{Message: tidegate.Message{
			ID: valid(id), Tag: valid(tag), Keys: []string{valid(key)}, Properties: map[string]string{valid(key): valid(value)}, Body: body,
		}, BornAt: time.Unix(0, born).UTC()}
		for _, text := range []bool{true, false} {
			raw, err := json.Marshal(delivered(d, text, time.Now()))
			if err != nil {
				t.Fatal(err)
			}
			var back jsonDelivery
			if err := json.Unmarshal(raw, &back); err != nil {
				t.Fatalf("%v: %s", err, raw)
			}
			var got []byte
			if back.BodyText != nil {
				got = []byte(*back.BodyText)
			} else if back.Body != nil {
				got = *back.Body
			}
			if back.ID != d.ID || back.Tag != d.Tag || back.Keys[0] != d.Keys[0] || back.Properties[d.Keys[0]] != valid(value) ||
				!bytes.Equal(got, body) || !back.BornAt.Equal(d.BornAt) {
				t.Errorf("%+v became %s", d, raw)
			}
		}
	})
}

func valid(s string) string { return strings.ToValidUTF8(s, "") }

// However a query is, it is a message or a refusal that names the parameter.
func FuzzHTTPQuery(f *testing.F) {
	f.Add("id=a&key=b&key=c&property.x=y&deliver_after=1s")
	f.Add("tag=a&tag=b")
	f.Add("deliver_at=&=&property.")
	f.Fuzz(func(t *testing.T, query string) {
		r, err := http.NewRequest("POST", "http://h/?", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.URL.RawQuery = query
		values := r.URL.Query()
		if _, err := messageOfQuery(values); err != nil {
			if e, ok := errors.AsType[*tidegate.Error](err); !ok || values[e.Subject] == nil {
				t.Errorf("%q: %v", query, err)
			}
		}
	})
}
