// Package filter decides which messages a subscription wants: by tag, or by a
// SQL92 expression over the message's properties, as RocketMQ has them.
package filter

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// A Filter says whether a message matches. It keeps no state: goroutines may
// share one. A nil *Filter matches everything.
type Filter struct {
	tags map[string]bool
	expr node
}

// maxLength bounds an expression, in bytes: a message may have a tag of nearly 16 KiB.
const maxLength = 32 << 10

// An Error is an expression that cannot be understood.
type Error struct {
	Expression string
	Position   int // the byte, from 0, at which it stops making sense
	Reason     string
}

// Error says what is wrong and where, counting characters from 1 as people do.
func (e *Error) Error() string {
	if e.Position > len(e.Expression) { // it is too long, and cut
		return fmt.Sprintf("%s: %q", e.Reason, e.Expression)
	}
	return fmt.Sprintf("%s, at character %d of %q", e.Reason, utf8.RuneCountInString(e.Expression[:e.Position])+1, e.Expression)
}

// Tags returns the filter of a tag expression: "*" or nothing for all
// messages, or tags joined by "||", of which one must be the message's,
// letter by letter. Empty parts are ignored, as RocketMQ does; an expression of nothing
// but empty parts is an error.
func Tags(expression string) (*Filter, error) {
	if len(expression) > maxLength {
		return nil, tooLong(expression)
	}
	trimmed := strings.TrimSpace(expression)
	if trimmed == "" || trimmed == "*" {
		return nil, nil
	}
	f := &Filter{tags: map[string]bool{}}
	at := 0
	for word := range strings.SplitSeq(expression, "||") {
		tag := strings.TrimSpace(word)
		switch i := strings.IndexByte(word, '|'); {
		case i >= 0:
			return nil, &Error{expression, at + i, "a single '|'; write tags as in \"a || b\""}
		case tag != "":
			f.tags[tag] = true
		}
		at += len(word) + len("||")
	}
	if len(f.tags) == 0 {
		return nil, &Error{expression, 0, "the filter names no tag; write tags as in \"a || b\", or \"*\" for all"}
	}
	return f, nil
}

// SQL returns the filter of a SQL92 expression: comparisons of properties with
// numbers and strings, BETWEEN, IN, IS NULL, AND, OR, NOT. The tag is the
// property TAGS. Its logic has three values: what compares a property that is not
// there, or that is not a number with a number, is neither true nor false, and
// only what is true matches.
func SQL(expression string) (*Filter, error) {
	if len(expression) > maxLength {
		return nil, tooLong(expression)
	}
	expr, err := parse(expression)
	if err != nil {
		return nil, err
	}
	return &Filter{expr: expr}, nil
}

func tooLong(expression string) *Error {
	return &Error{strings.ToValidUTF8(expression[:64], "") + "…", maxLength, fmt.Sprintf("the expression has %d bytes, at most %d are allowed", len(expression), maxLength)}
}

// Match reports whether a message with this tag and these properties matches.
func (f *Filter) Match(tag string, properties map[string]string) bool {
	switch {
	case f == nil:
		return true
	case f.tags != nil:
		return f.tags[tag]
	}
	return f.expr.eval(&message{tag, properties}) == isTrue
}

// A message is what expressions see.
type message struct {
	tag        string
	properties map[string]string
}

// property returns a property, and false if it is not there (NULL).
func (m *message) property(name string) (string, bool) {
	if name == "TAGS" {
		return m.tag, m.tag != ""
	}
	v, ok := m.properties[name]
	return v, ok
}
