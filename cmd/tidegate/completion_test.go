package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"
)

// The completion of bash works in a shell without the package bash-completion. Bash itself splits
// the line into COMP_WORDS, also at = and :.
func TestBashCompletionAlone(t *testing.T) {
	tl := newTool(t, "--topic", "orders", "--topic", "order-returns")
	script := filepath.Join(tl.home, "completion.bash")
	write(t, script, tl.must("completion", "bash").stdout)
	bin := t.TempDir()
	assert.Must(t, os.Symlink(os.Args[0], filepath.Join(bin, "tidegate")))
	for _, c := range []struct {
		line  string   // up to the cursor
		words []string // of bash
		want  []string
	}{
		{"tidegate dead-l", []string{"tidegate", "dead-l"}, []string{"dead-letters"}},
		{"tidegate topic cre", []string{"tidegate", "topic", "cre"}, []string{"create"}},
		{"tidegate topic show ord", []string{"tidegate", "topic", "show", "ord"}, []string{"order-returns", "orders"}},
		{"tidegate topic show ", []string{"tidegate", "topic", "show", ""}, []string{"order-returns", "orders"}},
		{"tidegate topic list --no-h", []string{"tidegate", "topic", "list", "--no-h"}, []string{"--no-headers"}},
		{"tidegate topic list --context=x --no-h", []string{"tidegate", "topic", "list", "--context", "=", "x", "--no-h"}, []string{"--no-headers"}},
		{"tidegate nothing ", []string{"tidegate", "nothing", ""}, nil},
	} {
		var quotedWords []string
		for _, w := range c.words {
			quotedWords = append(quotedWords, "'"+w+"'")
		}
		bash := exec.CommandContext(t.Context(), "bash", "--norc", "--noprofile", "-c", `
set -u
unset -f _init_completion _get_comp_words_by_ref __ltrim_colon_completions 2>/dev/null
source "$1"
COMP_LINE=$2 COMP_POINT=${#2} COMP_WORDS=(`+strings.Join(quotedWords, " ")+`) COMP_TYPE=9 COMP_KEY=9
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
compopt() { :; }
set +u
__start_tidegate
printf '%s\n' "${COMPREPLY[@]}"`, "bash", script, c.line)
		bash.Env = append(os.Environ(), asProgram+"=1", "PATH="+bin+":"+os.Getenv("PATH"), "XDG_CONFIG_HOME="+tl.home,
			"TIDEGATE_SERVER_GRPC="+tl.grpc, "TIDEGATE_SERVER_HTTP="+tl.http)
		out, err := bash.CombinedOutput()
		assert.That(t, err == nil, "%s: %v\n%s", c.line, err, out)
		var got []string
		for word := range strings.FieldsSeq(string(out)) {
			if !strings.HasPrefix(word, "(") {
				got = append(got, word)
			}
		}
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("%q is completed by %q, want %q", c.line, got, c.want)
		}
	}
}
