package output

import (
	"bytes"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bytes is a number of bytes. A table shows it as 1.2 GiB.
type Bytes int64

// String returns the number with a binary unit and at most three digits before the point.
func (b Bytes) String() string {
	if b < 1024 && b > -1024 {
		return strconv.FormatInt(int64(b), 10) + " B"
	}
	v, units := float64(b), "KMGTPE"
	for i := range units {
		v /= 1024
		if math.Abs(v) < 1023.95 || i == len(units)-1 {
			return fmt.Sprintf("%.1f %ciB", v, units[i])
		}
	}
	return ""
}

// A Number is an integer in a text. As all numbers of this package it is plain, 12345, unless it
// reaches a terminal: a program that reads 12 345 takes it for 12.
type Number int64

// String returns the number for a program.
func (n Number) String() string { return strconv.FormatInt(int64(n), 10) }

// Grouped returns the number for a terminal, in groups of three digits: 12 345.
func (n Number) Grouped() string {
	s := n.String()
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	var b strings.Builder
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(' ')
		}
		b.WriteRune(c)
	}
	return sign + b.String()
}

// A Quantity is a number with its noun: 1 message, 2 messages.
type Quantity struct {
	n    Number
	noun string
}

// Count returns a number with its noun, to which it adds an s.
func Count(n int64, noun string) Quantity {
	if n != 1 {
		noun += "s"
	}
	return Quantity{Number(n), noun}
}

// String returns the quantity for a program.
func (q Quantity) String() string { return q.n.String() + " " + q.noun }

// Grouped returns the quantity for a terminal.
func (q Quantity) Grouped() string { return q.n.Grouped() + " " + q.noun }

// A Rate is a number a second. It has one digit after the point below 10.
type Rate float64

// String returns the rate for a program: 0, 1.5, 12, 1204. A negative rate is not known: "-".
func (r Rate) String() string {
	switch {
	case r < 0:
		return "-"
	case r == 0:
		return "0"
	case r < 9.95:
		return strconv.FormatFloat(float64(r), 'f', 1, 64)
	}
	return Number(math.Round(float64(r))).String()
}

// Grouped returns the rate for a terminal: 1 204.
func (r Rate) Grouped() string {
	if r < 9.95 {
		return r.String()
	}
	return Number(math.Round(float64(r))).Grouped()
}

// A Share is a part of 1. A table for people shows it as 12 %, one for programs as 0.12.
type Share float64

// String returns the share in per cent.
func (s Share) String() string { return fmt.Sprintf("%.0f %%", 100*s) }

// A grouper is a value with numbers.
type grouper interface {
	String() string  // for a program
	Grouped() string // for a terminal
}

// A Text is a text for people with numbers. A terminal gets them in groups of digits, and wraps the
// text.
type Text struct{ plain, grouped string }

// Textf formats a text. Of its arguments a [Number], [Quantity], [Rate] and Text have two forms.
func Textf(format string, args ...any) Text {
	t := Text{plain: fmt.Sprintf(format, args...)}
	both := slices.Clone(args)
	for i, arg := range args {
		if g, ok := arg.(grouper); ok {
			both[i] = g.Grouped()
		}
	}
	t.grouped = fmt.Sprintf(format, both...)
	return t
}

// String returns the text for a program.
func (t Text) String() string { return t.plain }

// Grouped returns the text for a terminal.
func (t Text) Grouped() string { return t.grouped }

// MarshalText returns the text for a program.
func (t Text) MarshalText() ([]byte, error) { return []byte(t.plain), nil }

// Spark returns the values as bars of eight heights, the largest value as the highest one.
func Spark(values []float64) string {
	most := 0.0
	for _, v := range values {
		most = max(most, v)
	}
	bars := []rune("▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, v := range values {
		i := 0
		if most > 0 {
			i = int(math.Ceil(v/most*float64(len(bars)))) - 1
		}
		b.WriteRune(bars[max(i, 0)])
	}
	return b.String()
}

// Duration returns the two largest units of a duration: 2h 03m, 4m 12s, 1.5s, 20ms.
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Duration(-d)
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	d = d.Round(time.Second)
	days, h, m, s := d/(24*time.Hour), d/time.Hour%24, d/time.Minute%60, d/time.Second%60
	switch {
	case days > 0:
		return fmt.Sprintf("%dd %02dh", days, h)
	case h > 0:
		return fmt.Sprintf("%dh %02dm", h, m)
	case m > 0:
		return fmt.Sprintf("%dm %02ds", m, s)
	}
	return fmt.Sprintf("%ds", s)
}

// Glob returns a function that reports whether a name matches a pattern with *, ? and [a-z]. The
// empty pattern matches all.
func Glob(pattern string) (func(string) bool, error) {
	if _, err := path.Match(pattern, ""); err != nil {
		return nil, fmt.Errorf("--match is %q: %w", pattern, err)
	}
	return func(name string) bool {
		ok, _ := path.Match(pattern, name) // the pattern is valid
		return ok || pattern == ""
	}, nil
}

// A TimeStyle is a form of times in tables.
type TimeStyle string

// The forms of times.
const (
	Relative TimeStyle = "relative" // 3m 10s ago
	Local    TimeStyle = "local"    // RFC 3339 in the zone of the machine
	UTC      TimeStyle = "utc"      // RFC 3339 in UTC
)

// Time returns a time in a form, seen from now. The zero time is "-".
func (s TimeStyle) Time(t, now time.Time) string {
	switch {
	case t.IsZero():
		return "-"
	case s == Local:
		return t.Local().Format(time.RFC3339)
	case s == UTC:
		return t.UTC().Format(time.RFC3339)
	case t.After(now.Add(time.Second)):
		return "in " + Duration(t.Sub(now))
	}
	return Duration(max(0, now.Sub(t))) + " ago"
}

// ParseTime reads a time of the command line: RFC 3339, a duration before now (-15m) or after now
// (10m), or Unix seconds (@1784887200).
func ParseTime(text string, now time.Time) (time.Time, error) {
	if seconds, ok := strings.CutPrefix(text, "@"); ok {
		if n, err := strconv.ParseInt(seconds, 10, 64); err == nil {
			return time.Unix(n, 0), nil
		}
	} else if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	} else if d, err := time.ParseDuration(text); err == nil {
		return now.Add(d), nil
	}
	return time.Time{}, fmt.Errorf("%q is no time: give RFC 3339 (2026-11-23T14:00:00Z), a duration from now (-15m), or Unix seconds (@1784887200)", text)
}

// Wrap breaks a text at spaces into lines of at most the given columns. A longer word has a line of
// its own.
func Wrap(text string, columns int) string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && Width(line)+1+Width(word) > columns {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return strings.Join(append(lines, line), "\n")
}

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
func Word(name string) string { return strings.ReplaceAll(Quote(name), "\n", `\n`) }

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
