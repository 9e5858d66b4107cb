package filter

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind int8

const (
	tokenEnd tokenKind = iota
	tokenWord
	tokenNumber
	tokenString
	tokenSign
)

// A token is a word, a number, a string or a sign of an expression.
type token struct {
	kind tokenKind
	text string // of a string: without its quotes
	at   int
}

// is reports whether the token is a word of the language, or a sign.
func (t token) is(w string) bool {
	return t.kind == tokenWord && strings.EqualFold(t.text, w) || t.kind == tokenSign && t.text == w
}

// reserved are the words that cannot be properties.
var reserved = map[string]bool{
	"AND": true, "OR": true, "NOT": true, "BETWEEN": true, "IN": true, "IS": true, "NULL": true, "TRUE": true, "FALSE": true,
}

func isWordStart(r rune) bool { return r == '_' || r == '$' || unicode.IsLetter(r) }

func isWord(r rune) bool {
	return isWordStart(r) || unicode.IsDigit(r) || r == '.' || r == '-'
}

func isDigit(b byte) bool { return b >= '0' && b <= '9' }

// scan cuts an expression into tokens; the last one is tokenEnd.
func scan(s string) ([]token, error) {
	var out []token
	for i := 0; i < len(s); {
		r, width := utf8.DecodeRuneInString(s[i:])
		start := i
		switch {
		case unicode.IsSpace(r):
			i += width
			continue
		case r == '\'':
			text, end, err := scanString(s, i)
			if err != nil {
				return nil, err
			}
			out, i = append(out, token{tokenString, text, start}), end
		case isDigit(s[i]) || (r == '-' || r == '+' || r == '.') && i+1 < len(s) && (isDigit(s[i+1]) || s[i+1] == '.'):
			i = scanNumber(s, i)
			out = append(out, token{tokenNumber, s[start:i], start})
		case isWordStart(r):
			i += len(s[i:]) - len(strings.TrimLeftFunc(s[i:], isWord))
			out = append(out, token{tokenWord, s[start:i], start})
		default:
			n := signLength(s[i:])
			if n == 0 {
				return nil, &Error{s, i, "the character " + string(r) + " is not part of the syntax"}
			}
			i += n
			out = append(out, token{tokenSign, s[start:i], start})
		}
	}
	return append(out, token{tokenEnd, "", len(s)}), nil
}

// signLength returns the length of the sign that s begins with, 0 if there is none.
func signLength(s string) int {
	for _, sign := range []string{"<>", "<=", ">=", "!=", "<", ">", "=", "(", ")", ","} {
		if strings.HasPrefix(s, sign) {
			return len(sign)
		}
	}
	return 0
}

// scanString reads a quoted string. Two quotes in the string are one quote.
func scanString(s string, start int) (text string, end int, err error) {
	var b strings.Builder
	for i := start + 1; i < len(s); i++ {
		switch {
		case s[i] != '\'':
			b.WriteByte(s[i])
		case i+1 < len(s) && s[i+1] == '\'':
			b.WriteByte('\'')
			i++
		default:
			return b.String(), i + 1, nil
		}
	}
	return "", 0, &Error{s, start, "the string that begins here has no closing quote"}
}

// scanNumber returns where the number ends that begins at i.
func scanNumber(s string, i int) int {
	if s[i] == '-' || s[i] == '+' {
		i++
	}
	for i < len(s) {
		switch c := s[i]; {
		case isDigit(c), c == '.':
			i++
		case (c == 'e' || c == 'E') && i+1 < len(s) && (isDigit(s[i+1]) || (s[i+1] == '-' || s[i+1] == '+') && i+2 < len(s) && isDigit(s[i+2])):
			i += 2
		default:
			return i
		}
	}
	return i
}
