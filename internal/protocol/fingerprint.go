package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Fingerprint returns the class of a failure, by which broker and consumer count dead letters with
// the same cause: a hash of a topic and the first line of a reason, as 12 hexadecimal digits. It
// ignores upper and lower case, words with digits and quoted texts in the reason.
func Fingerprint(topic, reason string) string {
	sum := sha256.Sum256([]byte(topic + "\x00" + normalReason(reason)))
	return hex.EncodeToString(sum[:6])
}

// normalReason returns the first line of a reason, because the other lines are a stack. A #
// replaces each part that differs between messages: quoted texts and words with a digit.
func normalReason(reason string) string {
	line, _, _ := strings.Cut(reason, "\n")
	line = strings.ToLower(line)
	var b strings.Builder
	b.Grow(len(line))
	for line != "" {
		n, variable := reasonPart(line)
		if variable {
			b.WriteByte('#')
		} else {
			b.WriteString(line[:n])
		}
		line = line[n:]
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// reasonPart returns the length of the first part of a line, and whether the part differs between
// messages.
func reasonPart(line string) (n int, variable bool) {
	switch line[0] {
	case '"', '\'', '`':
		if n := strings.IndexByte(line[1:], line[0]); n >= 0 {
			return n + 2, true
		}
		return 1, false
	}
	n = reasonSpan(line, func(r rune) bool { return unicode.IsLetter(r) || r == '_' || r == '-' })
	if n < len(line) && isDigit(rune(line[n])) {
		return n + reasonSpan(line[n:], func(r rune) bool { return unicode.IsLetter(r) || isDigit(r) || strings.ContainsRune("_.:-", r) }), true
	}
	if n == 0 {
		_, n = utf8.DecodeRuneInString(line)
	}
	return n, false
}

// reasonSpan returns the length of the longest beginning of s whose characters all match.
func reasonSpan(s string, matches func(rune) bool) int {
	if n := strings.IndexFunc(s, func(r rune) bool { return !matches(r) }); n >= 0 {
		return n
	}
	return len(s)
}

func isDigit(r rune) bool { return '0' <= r && r <= '9' }
