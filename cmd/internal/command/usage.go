package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Section is the annotation with the heading of a flag in the help: Output or Connection. A flag
// without it is one of the command's own.
const Section = "tidegate_section"

// Usage prints the help of a command without subcommands. The command's own flags come first, then
// those with a section.
func Usage(c *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage:\n  %s\n", c.UseLine())
	if len(c.Aliases) > 0 {
		fmt.Fprintf(&b, "\nAliases:\n  %s\n", c.NameAndAliases())
	}
	fmt.Fprintf(&b, "\nExamples:\n%s\n", c.Example)
	parts := map[string]*pflag.FlagSet{}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		name := "Flags"
		if s := f.Annotations[Section]; len(s) > 0 {
			name = s[0]
		}
		if parts[name] == nil {
			parts[name] = pflag.NewFlagSet(name, pflag.ContinueOnError)
		}
		parts[name].AddFlag(f)
	})
	for _, name := range []string{"Flags", "Output", "Connection"} {
		if p := parts[name]; p != nil && p.HasAvailableFlags() {
			fmt.Fprintf(&b, "\n%s:\n%s", name, p.FlagUsages())
		}
	}
	_, err := fmt.Fprint(c.OutOrStderr(), b.String())
	return err
}
