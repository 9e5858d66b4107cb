package declare

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// maxLine is the longest line of standard input in bytes.
const maxLine = 64 << 20

// Lines returns a function that reads the next message: a copy of model with a line as its body, or
// with the fields of the line if asJSON. It skips empty lines, and with asJSON also lines of white
// space. It returns io.EOF itself at the end of r alone: no other error is or wraps io.EOF.
func Lines(r io.Reader, model *tidegate.Message, asJSON bool) func() (*tidegate.Message, error) {
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 64<<10), maxLine)
	number := 0
	return func() (*tidegate.Message, error) {
		for in.Scan() && in.Err() == nil { // before the error of a read comes the part of a line
			number++
			line := in.Bytes()
			if number == 1 {
				if err := Marked(line); err != nil {
					return nil, fmt.Errorf("line 1: %w", err)
				}
			}
			if len(line) == 0 || asJSON && len(bytes.TrimSpace(line)) == 0 {
				continue
			}
			m := *model
			m.Body = bytes.Clone(line)
			if asJSON {
				if err := fromJSON(&m, line); err != nil {
					return nil, fmt.Errorf("line %d: %w", number, err)
				}
			}
			return &m, nil
		}
		switch err := in.Err(); {
		case errors.Is(err, bufio.ErrTooLong):
			return nil, fmt.Errorf("line %d is longer than the limit of %d bytes; send a large body from a file (@FILE)", number+1, maxLine)
		case err != nil:
			return nil, fmt.Errorf("line %d: %w", number+1, err)
		}
		return nil, io.EOF
	}
}

// marks are the byte order marks that Windows programs put before a text.
var marks = []struct{ mark, name string }{{"\xef\xbb\xbf", ""}, {"\xff\xfe", "UTF-16"}, {"\xfe\xff", "UTF-16BE"}}

// Marked returns an error if a text begins with a byte order mark.
func Marked(text []byte) error {
	for _, m := range marks {
		switch {
		case !bytes.HasPrefix(text, []byte(m.mark)):
		case m.name != "":
			return fmt.Errorf("the text is %s; convert it to UTF-8, for example by iconv -f %s -t UTF-8", m.name, m.name)
		default:
			return errors.New("the text begins with a byte order mark (the bytes EF BB BF); save it as UTF-8 without BOM, or remove it by sed '1s/^\\xef\\xbb\\xbf//'")
		}
	}
	return nil
}

// JSON decodes the only JSON value of a text into v. It rejects text that is not UTF-8, halves of
// surrogate pairs, repeated and unknown names, and a second value. Names are case-sensitive. The
// error has the place of the fault, and never wraps io.EOF.
func JSON(text []byte, v any) error {
	if err := Marked(text); err != nil {
		return err
	}
	d := jsontext.NewDecoder(bytes.NewReader(text))
	if err := json.UnmarshalDecode(d, v, json.RejectUnknownMembers(true)); err != nil {
		return fault(text, err)
	}
	end := d.InputOffset()
	if rest := bytes.TrimLeft(text[end:], " \t\r\n"); len(rest) > 0 {
		return fmt.Errorf("another text follows the JSON value at byte %d; give one value", len(text)-len(rest)+1)
	}
	return nil
}

// fault returns the error of a text that cannot be decoded. Bytes are counted from 1.
func fault(text []byte, err error) error {
	syntax, isSyntax := errors.AsType[*jsontext.SyntacticError](err)
	meaning, isMeaning := errors.AsType[*json.SemanticError](err)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the JSON value has no end")
	case isSyntax && errors.Is(err, jsontext.ErrDuplicateName):
		return fmt.Errorf("the name %q is repeated; give it once", syntax.JSONPointer.LastToken())
	case isSyntax && badUTF8(text) >= 0:
		return fmt.Errorf("byte %d is not UTF-8; convert the text to UTF-8, and give a binary body in base64, as body", badUTF8(text)+1)
	case isSyntax && strings.Contains(syntax.Error(), "surrogate"):
		return fmt.Errorf("byte %d: half of a surrogate pair is no character; give both halves, and a binary body in base64, as body", syntax.ByteOffset+1)
	case isSyntax:
		return fmt.Errorf("byte %d: this is not JSON: %w", syntax.ByteOffset+1, syntax.Err)
	case isMeaning && errors.Is(err, json.ErrUnknownName):
		return fmt.Errorf("the name %q is unknown", meaning.JSONPointer.LastToken())
	case isMeaning:
		at := strings.ReplaceAll(strings.TrimPrefix(string(meaning.JSONPointer), "/"), "/", ".")
		switch {
		case meaning.Err != nil:
			return fmt.Errorf("%s: %w", cmp.Or(at, "the value"), meaning.Err)
		case meaning.GoType != nil:
			return fmt.Errorf("%s is %s; give %s", cmp.Or(at, "the value"), kinds[meaning.JSONKind], kind(meaning.GoType))
		}
	}
	return err
}

// kinds are the kinds of JSON values.
var kinds = map[jsontext.Kind]string{'{': "an object", '[': "a list", '"': "a text", '0': "a number", 't': "true", 'f': "false", 'n': "null"}

// kind is the kind of JSON value for a type.
func kind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Map, reflect.Struct:
		return kinds['{']
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "a text in base64"
		}
		return kinds['[']
	case reflect.String:
		return kinds['"']
	case reflect.Bool:
		return "true or false"
	}
	return kinds['0']
}

// badUTF8 returns the index of the first byte that is not UTF-8, or -1.
func badUTF8(text []byte) int {
	if utf8.Valid(text) {
		return -1
	}
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// read are the fields that messages have when they are read: their place, and the times and the
// lease of a delivery. A new message has its own.
type read struct {
	Topic          jsontext.Value `json:"topic"` // the command has the topic
	Queue          jsontext.Value `json:"queue"`
	Offset         jsontext.Value `json:"offset"`
	BornAt         jsontext.Value `json:"born_at"`
	BornHost       jsontext.Value `json:"born_host"`
	StoredAt       jsontext.Value `json:"stored_at"`
	StoreHost      jsontext.Value `json:"store_host"`
	Handle         jsontext.Value `json:"handle"`
	Group          jsontext.Value `json:"group"`
	Attempt        jsontext.Value `json:"attempt"`
	InvisibleUntil jsontext.Value `json:"invisible_until"`
	InvisibleFor   jsontext.Value `json:"invisible_for"`
	Origin         jsontext.Value `json:"origin"` // of a dead letter
}

// fromJSON sets the fields of a message that a JSON object has, with the names of the HTTP API. It
// ignores the fields of read, so that it accepts the lines that peek, find, receive and the export
// of dead letters print.
func fromJSON(m *tidegate.Message, line []byte) error {
	var in struct {
		read
		ID           string            `json:"id"`
		MessageID    string            `json:"message_id"` // the ID of a dead letter
		BodySize     int64             `json:"body_size"`  // also without the body
		Body         []byte            `json:"body"`
		BodyText     *string           `json:"body_text"`
		Tag          *string           `json:"tag"`
		Keys         []string          `json:"keys"`
		Properties   map[string]string `json:"properties"`
		MessageGroup *string           `json:"message_group"`
		LiteTopic    *string           `json:"lite_topic"`
		Priority     *int              `json:"priority"`
		DeliverAt    time.Time         `json:"deliver_at"`
		DeliverAfter httpapi.Duration  `json:"deliver_after"`
		TraceContext string            `json:"trace_context"`
	}
	if err := JSON(line, &in); err != nil {
		return err
	}
	if in.ID != "" && in.MessageID != "" && in.ID != in.MessageID {
		return errors.New("id and message_id differ; give one of them")
	}
	if in.BodySize > 0 && in.Body == nil && in.BodyText == nil {
		return fmt.Errorf("the body of %d bytes is missing; to read it needs the permission to receive, and with dead-letters list the flag --bodies", in.BodySize)
	}
	m.ID, m.Body, m.TraceContext = cmp.Or(in.ID, in.MessageID), in.Body, in.TraceContext
	for _, field := range []struct {
		at   *string
		from *string
	}{{&m.Tag, in.Tag}, {&m.MessageGroup, in.MessageGroup}, {&m.LiteTopic, in.LiteTopic}} {
		if field.from != nil {
			*field.at = *field.from
		}
	}
	if in.Priority != nil {
		m.Priority = *in.Priority
	}
	if in.BodyText != nil {
		if in.Body != nil {
			return errors.New("body and body_text exclude each other")
		}
		m.Body = []byte(*in.BodyText)
	}
	if in.Keys != nil {
		m.Keys = in.Keys
	}
	if in.Properties != nil {
		m.Properties = in.Properties
	}
	due := in.DeliverAt
	if in.Offset != nil && !due.After(time.Now()) {
		due = time.Time{} // the message that was read was delivered then
	}
	switch {
	case in.DeliverAfter != 0 && !due.IsZero():
		return errors.New("deliver_at and deliver_after exclude each other")
	case in.DeliverAfter < 0:
		return errors.New("deliver_after must not be negative")
	case in.DeliverAfter > 0:
		m.DeliverAt = time.Now().Add(time.Duration(in.DeliverAfter))
	case !due.IsZero():
		m.DeliverAt = due
	}
	return nil
}
