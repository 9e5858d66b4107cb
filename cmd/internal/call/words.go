package call

import (
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/shell"
)

// Here returns a command that this one offers, for the same server: with the flags of the
// connection that the user gave.
func (c *Call) Here(line string) string {
	var flags strings.Builder
	c.Command.Flags().Visit(func(f *pflag.Flag) {
		if slices.Equal(f.Annotations[command.Section], []string{connectionSection}) && f.Name != "timeout" && f.Name != "no-retry" {
			flags.WriteString(" --" + f.Name + "=" + shell.Quote(f.Value.String()))
		}
	})
	words := strings.Fields(line)
	if flags.Len() == 0 || len(words) == 0 {
		return line
	}
	path := words[0]
	if found, _, err := c.Command.Root().Find(words[1:]); err == nil && strings.HasPrefix(line+" ", found.CommandPath()+" ") {
		path = found.CommandPath()
	}
	return path + flags.String() + line[len(path):]
}

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
