// Package filter decides which messages a subscription wants: by tag, or by a
// SQL92 expression over the message's properties, as RocketMQ has them.
package filter

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// A Filter reports whether a message matches. It keeps no state, so goroutines may share one. A nil
// *Filter matches every message.
type Filter struct {
	tags map[string]bool
	expr node
}

// maxLength bounds an expression, in bytes: a message may have a tag of nearly 16 KiB.
const maxLength = 32 << 10

// An Error is a syntax error in an expression.
type Error struct {
	Expression string
	Position   int // offset of the error, in bytes from 0
	Reason     string
}

// Error returns the reason and its position, in characters from 1.
func (e *Error) Error() string {
	if e.Position > len(e.Expression) { // it is too long, and cut
		return fmt.Sprintf("%s: %q", e.Reason, e.Expression)
	}
	return fmt.Sprintf("%s, at character %d of %q", e.Reason, utf8.RuneCountInString(e.Expression[:e.Position])+1, e.Expression)
}

// Tags returns the filter of a tag expression: tags joined by "||", for example "a || b". A message
// matches if its tag equals one of them. "*" and the empty expression match every message. Empty
// parts are ignored, as in RocketMQ; an expression with only empty parts is an error.
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
		return nil, &Error{expression, 0, "the filter has no tag; write tags as in \"a || b\", or \"*\" for all"}
	}
	return f, nil
}

// SQL returns the filter of a SQL92 expression: comparisons of properties with numbers and strings,
// BETWEEN, IN, IS NULL, AND, OR, NOT. The tag is the property TAGS.
//
// The logic has three values: true, false and unknown. A message matches only if the expression is
// true. A comparison is unknown if
//   - a property in it is missing,
//   - it compares numbers, and an operand is not a number, or
//   - it compares booleans, and an operand is not a boolean.
//
// Integers of 64 bits are compared exactly. A comparison with a number that has a fraction or an
// exponent compares rounded numbers (float64).
//
// For example, a message without the property a matches neither "a > 1" nor "NOT a > 1".
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

func tooLong(expression string) error {
	return &Error{strings.ToValidUTF8(expression[:64], "") + "…", maxLength, fmt.Sprintf("the expression has %d bytes; the limit is %d", len(expression), maxLength)}
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

// A message is the input of an expression.
type message struct {
	tag        string
	properties map[string]string
}

// property returns a property, and false if it is missing (NULL).
func (m *message) property(name string) (string, bool) {
	if name == "TAGS" {
		return m.tag, m.tag != ""
	}
	v, ok := m.properties[name]
	return v, ok
}
