// Package program has the parts of each command-line program besides its commands: the version, the
// topics of the help, and the completion of shells.
package program

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tidegate/tidegate/cmd/internal/call"
)

// Finish completes the tree of a program that has all its other commands.
func Finish(root *cobra.Command, a *call.App) {
	root.Version = Version()
	root.AddCommand(versionCommand(a))
	root.AddCommand(topics()...)
	root.SetHelpCommandGroupID(call.ToolGroup)
	root.SetCompletionCommandGroupID(call.ToolGroup)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	bashCompletion(root) // after SetOut: cobra's scripts go to the output of this time
	if root.Name() != original {
		rename(root, root)
	}
}

// original is the program that the texts of the commands name.
const original = "tidegate"

var mention = regexp.MustCompile(`\b` + original + ` ([a-z-]+)`)

// rename names the program in the texts of a command and its children. A mention of a command that
// the program does not have stays one of tidegate.
func rename(root, c *cobra.Command) {
	named := func(text string) string {
		return mention.ReplaceAllStringFunc(text, func(found string) string {
			word := strings.TrimPrefix(found, original+" ")
			if slices.ContainsFunc(root.Commands(), func(child *cobra.Command) bool { return child.Name() == word }) {
				return root.Name() + " " + word
			}
			return found
		})
	}
	c.Example, c.Long, c.Short = named(c.Example), named(c.Long), named(c.Short)
	c.LocalFlags().VisitAll(func(f *pflag.Flag) { f.Usage = named(f.Usage) })
	for _, child := range c.Commands() {
		rename(root, child)
	}
}
