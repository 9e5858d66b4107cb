package messages

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/verbs"
)

// A position is the value of the verbs of send --template.
type position struct {
	number int64
	line   string // with --lines
}

const templateHelp = `  %n  number of the message, from 1    %l  line of standard input, with --lines
  %i  a new ID                         %r{N}  a random number below N
  %c  the time now                     %%  percent sign`

var templateVerbs = map[byte]func(position, string) string{
	'n': func(p position, _ string) string { return strconv.FormatInt(p.number, 10) },
	'l': func(p position, _ string) string { return p.line },
	'i': func(position, string) string { return tidegate.NewMessageID() },
	'r': func(_ position, below string) string {
		n, err := strconv.ParseInt(below, 10, 64)
		if err != nil || n < 1 {
			n = 1 << 62
		}
		return strconv.FormatInt(rand.Int64N(n), 10) //nolint:gosec // test data
	},
	'c': func(position, string) string { return instant(time.Now()) },
}

// A template makes messages whose texts have verbs.
type template struct {
	model            *tidegate.Message
	body, tag, group verbs.Text[position]
	keys             []verbs.Text[position]
	properties       map[string]verbs.Text[position]
	number           int64
}

func newTemplate(model *tidegate.Message, body string) (*template, error) {
	t := &template{model: model, properties: map[string]verbs.Text[position]{}}
	var err error
	parse := func(flag, text string) verbs.Text[position] {
		parsed, perr := verbs.Parse(text, templateVerbs)
		if perr != nil && err == nil {
			err = fmt.Errorf("--template: %s: %w", flag, perr)
		}
		return parsed
	}
	t.body, t.tag, t.group = parse("BODY", body), parse("--tag", model.Tag), parse("--message-group", model.MessageGroup)
	for _, key := range model.Keys {
		t.keys = append(t.keys, parse("--key", key))
	}
	for name, value := range model.Properties {
		t.properties[name] = parse("--property", value)
	}
	return t, err
}

// next returns the next message.
func (t *template) next(line string) *tidegate.Message {
	t.number++
	p := position{t.number, line}
	m := *t.model
	m.Body, m.Tag, m.MessageGroup, m.Keys = []byte(t.body.Of(p)), t.tag.Of(p), t.group.Of(p), nil
	for _, key := range t.keys {
		m.Keys = append(m.Keys, key.Of(p))
	}
	if len(t.properties) > 0 {
		m.Properties = map[string]string{}
	}
	for name, value := range t.properties {
		m.Properties[name] = value.Of(p)
	}
	return &m
}
