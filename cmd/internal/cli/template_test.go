package cli

import (
	"strings"
	"testing"
)

var known = map[byte]func(string, string) string{
	'v': func(v, _ string) string { return v },
	'a': func(_, arg string) string { return "<" + arg + ">" },
}

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"":                "",
		"plain":           "plain",
		"%v":              "x",
		"a%vb%v":          "axbx",
		`%v\n\t\r\0\\`:    "x\n\t\r\x00\\",
		"100%%":           "100%",
		"%a{k 1}%a{}%a %": "",
		"%a{k 1}%a{}%a":   "<k 1><><>",
		"{%v}":            "{x}",
		"%é":              "",
		`a\`:              "",
		`\x41`:            "",
		"%a{k":            "",
		"%q":              "",
	} {
		got, err := parse(text, known)
		if want == "" && text != "" {
			if err == nil {
				t.Errorf("Parse(%q) is accepted", text)
			} else if strings.HasPrefix(text, "%q") && !strings.Contains(err.Error(), "%a, %v and %%") {
				t.Errorf("the error of %q does not name the verbs: %v", text, err)
			}
			continue
		}
		if err != nil || got.Of("x") != want {
			t.Errorf("%q gives %q, %v; want %q", text, got.Of("x"), err, want)
		}
	}
}
