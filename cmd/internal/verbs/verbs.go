// Package verbs has texts with verbs, as in printf: "%k: %b\n". The caller defines the meaning of a
// verb.
package verbs

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Text is a parsed text. Goroutines may share it.
type Text[T any] []part[T]

// A part is a literal, or the value of a verb.
type part[T any] struct {
	literal string
	verb    func(T, string) string
	arg     string
}

// Parse parses a text. %x is the verb x and %x{A} the verb x with the argument A; %% is a percent
// sign. The escapes \n, \t, \r, \0 and \\ are those of Go. The error names the verbs.
func Parse[T any](text string, known map[byte]func(v T, arg string) string) (Text[T], error) {
	var out Text[T]
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
				return nil, fmt.Errorf("%q has a %% without a verb; the verbs are %s and %%%%", text, names(known))
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

func names[T any](known map[byte]func(T, string) string) string {
	var list []string
	for _, c := range slices.Sorted(maps.Keys(known)) {
		list = append(list, "%"+string(rune(c)))
	}
	return strings.Join(list, ", ")
}

// Of returns the text with the values of its verbs.
func (t Text[T]) Of(v T) string {
	var b strings.Builder
	for _, p := range t {
		b.WriteString(p.literal)
		if p.verb != nil {
			b.WriteString(p.verb(v, p.arg))
		}
	}
	return b.String()
}
