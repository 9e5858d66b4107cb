//go:build unix

package output

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/tidegate/tidegate/internal/assert"
)

var words = []string{
	"orders", "01D16B641C-x.y_z", "%DLQ%billing", "注文", "Łódź", "", " ", "a b", "a  b ", "$(touch x)", "`touch x`", "; touch x", "a|touch x", "a&touch x", "a>x", "a\nb",
	"it's", "''", `"`, `\`, `a\`, `\n`, "a\\'b", "*", "?", "[a-z]", "~", "~root", "{a,b}", "#x", "!!", "=ls", "a=b", "-n", "--yes", "-", "--", "$HOME", "${x}", "%s", "%", "a%b",
	"\x1b]0;title\x07", "a\x7fb", "\u009b1m", "\u202eabc", "\u200f", "\u2028", "\xff\xfe", "a\x80'$(touch x)%d\\", "tab\tx", "\r", "line\n", "\x01\n\n", "\ufffd", "\U000e0041",
	strings.Repeat("x y", 100),
}

// Each shell of this machine gets exactly the word, and executes nothing.
func TestQuote(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"sh", "dash", "bash", "zsh", "ksh", "busybox sh"} {
		program := strings.Fields(name)
		if _, err := exec.LookPath(program[0]); err != nil && name != "sh" {
			continue // POSIX requires sh alone
		}
		for _, word := range words {
			quoted := Quote(word)
			c := exec.CommandContext(t.Context(), program[0], append(slices.Clone(program[1:]), "-c", "printf '%s.' "+quoted+" end")...)
			c.Dir = dir
			if out, err := c.CombinedOutput(); err != nil || string(out) != word+".end." {
				t.Errorf("%s: %s is %q, %v; want %q", name, quoted, out, err, word)
			}
			if strings.ContainsFunc(strings.TrimRight(quoted, "\n'"), func(r rune) bool {
				return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == utf8.RuneError
			}) {
				t.Errorf("%q controls a terminal", quoted)
			}
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("a word was executed: %v, %v", entries, err)
	}
}

// xargs -n 1, with the default options, gets each word without control characters exactly.
func TestQuoteForXargs(t *testing.T) {
	dir := t.TempDir()
	var in, want strings.Builder
	for _, word := range words {
		if strings.ContainsFunc(word, hidden) {
			continue
		}
		in.WriteString(Quote(word) + "\n")
		want.WriteString(word + ".")
	}
	c := exec.CommandContext(t.Context(), "xargs", "-n", "1", "printf", "%s.")
	c.Dir, c.Stdin = dir, strings.NewReader(in.String())
	if out, err := c.CombinedOutput(); err != nil || string(out) != want.String() {
		t.Errorf("xargs gave %q, %v; want %q", out, err, want.String())
	}
	if entries, _ := filepath.Glob(filepath.Join(dir, "*")); len(entries) > 0 {
		t.Errorf("a word was executed: %v", entries)
	}
}

// A command in a sentence is safe with and without the marks around it, and its arguments are no
// flags.
func TestLine(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{Command("tidegate trace", "x1"), "tidegate trace x1"},
		{Command("tidegate trace", "--all"), "tidegate trace -- --all"},
		{Command("tidegate dead-letters show", "a|b", "-x"), "tidegate dead-letters show -- 'a|b' -x"},
		{CommandFlags("tidegate group show", " --clients", "billing"), "tidegate group show billing --clients"},
		{CommandFlags("tidegate group show", " --clients", "-x"), "tidegate group show --clients -- -x"},
		{"x" + Flag("id", "a b") + Flag("as", "") + Flag("id", "-y"), "x --id 'a b' --id=-y"},
		{Mention("tidegate trace x1"), "'tidegate trace x1'"},
		{Mention("tidegate trace 'a b'"), "tidegate trace 'a b'"},
	} {
		assert.Equal(t, "c.line", c.line, c.want)
	}
}
