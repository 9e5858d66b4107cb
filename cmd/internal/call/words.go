package call

import (
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tidegate/tidegate/cmd/internal/shell"
)

// Again returns the command with its arguments and flags, for a shell. Further values replace those
// of the flags.
func (c *Call) Again(further map[string]string) string {
	var flags strings.Builder
	add := func(name, value string) { flags.WriteString(" --" + name + "=" + shell.Quote(value)) }
	c.Command.Flags().Visit(func(f *pflag.Flag) {
		if _, replaced := further[f.Name]; replaced {
			return
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				add(f.Name, v)
			}
			return
		}
		add(f.Name, f.Value.String())
	})
	for _, name := range slices.Sorted(maps.Keys(further)) {
		add(name, further[name])
	}
	return shell.LineFlags(c.Command.CommandPath(), flags.String(), c.Args...)
}
