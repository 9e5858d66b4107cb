package cli

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/cmd/internal/output"
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
	model       *tidegate.Message
	body, tag   verbsText[position]
	group, lite verbsText[position]
	keys        []verbsText[position]
	properties  map[string]verbsText[position]
	number      int64
}

func newTemplate(model *tidegate.Message, body string) (*template, error) {
	t := &template{model: model, properties: map[string]verbsText[position]{}}
	var err error
	parse := func(flag, text string) verbsText[position] {
		parsed, perr := parse(text, templateVerbs)
		if perr != nil && err == nil {
			err = fmt.Errorf("--template: %s: %w", flag, perr)
		}
		return parsed
	}
	t.body, t.tag = parse("BODY", body), parse("--tag", model.Tag)
	t.group, t.lite = parse("--message-group", model.MessageGroup), parse("--lite-topic", model.LiteTopic)
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
	m.Body, m.Tag, m.MessageGroup, m.LiteTopic, m.Keys = []byte(t.body.Of(p)), t.tag.Of(p), t.group.Of(p), t.lite.Of(p), nil
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

// A verbsText is a parsed text. Goroutines may share it.
type verbsText[T any] []part[T]

// A part is a literal, or the value of a verb.
type part[T any] struct {
	literal string
	verb    func(T, string) string
	arg     string
}

// parse parses a text. %x is the verb x and %x{A} the verb x with the argument A; %% is a percent
// sign. The escapes \n, \t, \r, \0 and \\ are those of Go. The error names the verbs.
func parse[T any](text string, known map[byte]func(v T, arg string) string) (verbsText[T], error) {
	var out verbsText[T]
	var literal strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
			if i == len(text) {
				return nil, fmt.Errorf("%q ends with a single \\; \\\\ is the character itself", text)
			}
			escape, ok := map[byte]byte{'n': '\n', 't': '\t', 'r': '\r', '0': 0, '\\': '\\'}[text[i]]
			if !ok {
				return nil, fmt.Errorf("\\%c in %q is no escape; they are \\n, \\t, \\r, \\0 and \\\\", text[i], text)
			}
			literal.WriteByte(escape)
		case c != '%':
			literal.WriteByte(c)
		case i+1 < len(text) && text[i+1] == '%':
			i++
			literal.WriteByte('%')
		default:
			i++
			if i == len(text) || known[text[i]] == nil {
				return nil, fmt.Errorf("%q has a %% without a verb; the verbs are %s and %%%%", text, verbsNames(known))
			}
			p := part[T]{verb: known[text[i]]}
			if rest := text[i+1:]; strings.HasPrefix(rest, "{") {
				end := strings.IndexByte(rest, '}')
				if end < 0 {
					return nil, fmt.Errorf("%q has a { without a }", text)
				}
				p.arg = rest[1:end]
				i += end + 1
			}
			out = append(out, part[T]{literal: literal.String()}, p)
			literal.Reset()
		}
	}
	return append(out, part[T]{literal: literal.String()}), nil
}

func verbsNames[T any](known map[byte]func(T, string) string) string {
	var list []string
	for _, c := range slices.Sorted(maps.Keys(known)) {
		list = append(list, "%"+string(rune(c)))
	}
	return strings.Join(list, ", ")
}

// Of returns the text with the values of its verbs.
func (t verbsText[T]) Of(v T) string {
	var b strings.Builder
	for _, p := range t {
		b.WriteString(p.literal)
		if p.verb != nil {
			b.WriteString(p.verb(v, p.arg))
		}
	}
	return b.String()
}

// A shown message is the value of the verbs of receive -f. On a terminal its texts cannot control
// the terminal.
type shown struct {
	*tidegate.Delivery
	terminal bool
}

func (s shown) text(value string) string {
	if s.terminal {
		return output.Safe(value)
	}
	return value
}

const verbHelp = `  %b  body                    %B  size of the body
  %i  ID                      %t  topic
  %T  tag                     %k  keys, with commas between
  %p  properties, NAME=VALUE  %p{NAME}  one property
  %g  message group           %a  attempt
  %q  queue                   %o  offset
  %r  priority                %L  lite topic
  %c  time of the send        %s  time at which it was stored
  %%  percent sign            \n  \t  \r  \0  \\  as in Go`

var shownVerbs = map[byte]func(shown, string) string{
	'b': func(s shown, _ string) string { return s.text(string(s.Body)) },
	'B': func(s shown, _ string) string { return strconv.Itoa(len(s.Body)) },
	'i': func(s shown, _ string) string { return s.text(s.ID) },
	't': func(s shown, _ string) string { return s.text(s.Topic) },
	'T': func(s shown, _ string) string { return s.text(s.Tag) },
	'k': func(s shown, _ string) string { return s.text(strings.Join(s.Keys, ",")) },
	'g': func(s shown, _ string) string { return s.text(s.MessageGroup) },
	'a': func(s shown, _ string) string { return strconv.Itoa(s.Attempt) },
	'L': func(s shown, _ string) string { return s.text(s.LiteTopic) },
	'r': func(s shown, _ string) string { return strconv.Itoa(s.Priority) },
	'q': func(s shown, _ string) string { return strconv.Itoa(s.Queue) },
	'o': func(s shown, _ string) string { return strconv.FormatInt(s.Offset, 10) },
	'c': func(s shown, _ string) string { return instant(s.BornAt) },
	's': func(s shown, _ string) string { return instant(s.StoredAt) },
	'p': func(s shown, name string) string {
		if name != "" {
			return s.text(s.Properties[name])
		}
		var all []string
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			all = append(all, fmt.Sprintf("%s=%s", name, s.Properties[name]))
		}
		return s.text(strings.Join(all, ","))
	},
}

// instant is a time with milliseconds, or nothing if it is not known.
func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z07:00")
}
