package call

import (
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Again returns the command with its arguments and flags, for a shell. Further values replace those
// of the flags.
func (c *Call) Again(further map[string]string) string {
	parts := strings.Fields(c.Command.CommandPath())
	for _, arg := range c.Args {
		parts = append(parts, quoted(arg))
	}
	c.Command.Flags().Visit(func(f *pflag.Flag) {
		if _, replaced := further[f.Name]; replaced {
			return
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				parts = append(parts, "--"+f.Name+"="+quoted(v))
			}
			return
		}
		parts = append(parts, "--"+f.Name+"="+quoted(f.Value.String()))
	})
	for _, name := range slices.Sorted(maps.Keys(further)) {
		parts = append(parts, "--"+name+"="+quoted(further[name]))
	}
	return strings.Join(parts, " ")
}

// quoted is a word for a shell.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:,@%+=", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
