package output

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tidegate/tidegate/cmd/internal/shell"
)

// Safe returns text that a terminal shows and does not obey: control characters, invalid UTF-8 and
// characters that change the direction of writing are escaped as in Go, \x1b or \u202e.
func Safe(text string) string {
	if !strings.ContainsFunc(text, unsafe) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case !unsafe(r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += size
	}
	return b.String()
}

func unsafe(r rune) bool { return r == utf8.RuneError || controls(r) }

// controls reports whether a terminal can obey a character instead of showing it.
func controls(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// Lines returns text of several lines that a terminal shows and does not obey. It keeps the ends of
// lines and tabs, and escapes the other characters of [Safe]. Those that JSON may have in a string
// become \u009b, so that JSON keeps its meaning. rest is the beginning of a character at the end of
// text, of at most three bytes; it belongs before the next text.
func Lines(text []byte) (safe, rest []byte) {
	if !bytes.ContainsFunc(text, func(r rune) bool { return r == utf8.RuneError || r != '\n' && r != '\t' && controls(r) }) {
		return text, nil
	}
	safe = make([]byte, 0, len(text)+16)
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		switch {
		case r == utf8.RuneError && size == 1 && !utf8.FullRune(text[i:]):
			return safe, text[i:]
		case r == utf8.RuneError && size == 1:
			safe = fmt.Appendf(safe, `\x%02x`, text[i])
		case r == '\r' && i+1 == len(text):
			return safe, text[i:]
		case r == '\n', r == '\t', r == '\r' && text[i+1] == '\n', !controls(r):
			safe = append(safe, text[i:i+size]...)
		case r < ' ':
			safe = fmt.Appendf(safe, `\x%02x`, r)
		default:
			safe = fmt.Appendf(safe, `\u%04x`, r)
		}
		i += size
	}
	return safe, nil
}

// Word returns a name for -o name: one line, and one word for xargs and for a POSIX shell.
func Word(name string) string { return strings.ReplaceAll(shell.Quote(name), "\n", `\n`) }

// Cut returns a safe text that takes at most the given columns of a terminal. A longer text ends
// with "…". Characters and escapes are kept whole.
func Cut(text string, columns int) string {
	text = Safe(text)
	if Width(text) <= columns {
		return text
	}
	end, used := 0, 1 // the mark
	for i := 0; i < len(text); {
		size := unit(text[i:])
		if used += Width(text[i : i+size]); used > columns {
			break
		}
		i += size
		end = i
	}
	return text[:end] + "…"
}

// unit returns the length of the first character or escape of a safe text.
func unit(text string) int {
	_, size := utf8.DecodeRuneInString(text)
	if text[0] != '\\' || len(text) < 2 {
		return size
	}
	switch text[1] {
	case 'x':
		return min(4, len(text))
	case 'u':
		return min(6, len(text))
	}
	return 2
}

// Width returns the columns of a terminal that a safe text takes: two for a wide character of East
// Asian scripts, none for a combining mark.
func Width(text string) int {
	n := 0
	for _, r := range text {
		switch {
		case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		case wide(r):
			n += 2
		default:
			n++
		}
	}
	return n
}

func wide(r rune) bool {
	return unicode.In(r, unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana) ||
		r >= 0x3000 && r <= 0x303e || r >= 0xff01 && r <= 0xff60 || r >= 0x1f300 && r <= 0x1faff
}
