package output

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Quote returns a word for a POSIX shell and for xargs, which yields the text exactly. A word of
// letters, digits and harmless characters stays as it is; another one is in single quotes. A word
// with characters that control a terminal is the output of printf, which a shell alone understands.
// The result has no such characters, with one exception: ends of lines at the end of the text.
func Quote(text string) string {
	if text != "" && text[0] != '=' && strings.IndexFunc(text, quotable) < 0 { // zsh expands =word
		return text
	}
	if strings.IndexFunc(text, hidden) < 0 {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	body := strings.TrimRight(text, "\n")
	ends := text[len(body):] // command substitution removes them
	var b strings.Builder
	for i := 0; i < len(body); {
		r, size := utf8.DecodeRuneInString(body[i:])
		switch {
		case hidden(r):
			for _, c := range []byte(body[i : i+size]) {
				fmt.Fprintf(&b, `\%03o`, c)
			}
		case r == '\'':
			b.WriteString(`\047`)
		case r == '\\':
			b.WriteString(`\\`)
		case r == '%':
			b.WriteString("%%")
		default:
			b.WriteRune(r)
		}
		i += size
	}
	if ends != "" {
		ends = "'" + ends + "'"
	}
	return `"$(printf -- '` + b.String() + `')"` + ends
}

// quotable reports whether a word with a character needs quotes.
func quotable(r rune) bool {
	switch {
	case r == utf8.RuneError:
		return true
	case r >= utf8.RuneSelf:
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:,@%+=", r))
}

// hidden reports whether a terminal can obey a character, or a text editor shows it as nothing.
func hidden(r rune) bool {
	return r == utf8.RuneError || r >= utf8.RuneSelf && !unicode.IsPrint(r) || unicode.IsControl(r)
}

// Command returns a command for a POSIX shell: its words, as they are, and its arguments, quoted.
// An argument that begins with a minus is one and no flag.
func Command(words string, args ...string) string { return CommandFlags(words, "", args...) }

// CommandFlags is [Command] with flags, as they are; see [Flag]. They come last if they can.
func CommandFlags(words, flags string, args ...string) string {
	quoted, minus := "", false
	for _, arg := range args {
		quoted += " " + Quote(arg)
		minus = minus || strings.HasPrefix(arg, "-")
	}
	if minus {
		return words + flags + " --" + quoted
	}
	return words + quoted + flags
}

// Flag returns a flag with its value, quoted, and a space before it. Without a value it is empty.
func Flag(name, value string) string {
	if value == "" {
		return ""
	}
	if strings.HasPrefix(value, "-") {
		return " --" + name + "=" + Quote(value)
	}
	return " --" + name + " " + Quote(value)
}

// Mention returns a command within a sentence. Quotes mark it, except around a command that has
// quotes itself: copied with them, its arguments would not be quoted.
func Mention(line string) string {
	if strings.ContainsAny(line, `'"`) {
		return line
	}
	return "'" + line + "'"
}
