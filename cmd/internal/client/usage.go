package client

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usage prints the help of a command without subcommands. The command's own flags come first; those
// that every command has are below them.
func usage(c *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage:\n  %s\n", c.UseLine())
	if len(c.Aliases) > 0 {
		fmt.Fprintf(&b, "\nAliases:\n  %s\n", c.NameAndAliases())
	}
	fmt.Fprintf(&b, "\nExamples:\n%s\n", c.Example)
	parts := map[string]*pflag.FlagSet{}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		name := "Flags"
		if s := f.Annotations[section]; len(s) > 0 {
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
