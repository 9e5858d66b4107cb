package call

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/shell"
)

// Destructive adds the flags of a command that cannot be undone.
func (c *Call) Destructive() *cobra.Command {
	f := c.Command.Flags()
	f.StringVar(&c.Yes, "yes", "", "do it without a question; on a protected context --yes=`NAME` with the name of the subject")
	f.Lookup("yes").NoOptDefVal = "true"
	f.BoolVar(&c.DryRun, "dry-run", false, "print the effect, and do nothing")
	return c.Command
}

// Confirm asks before an action that cannot be undone: by a question on a terminal, or else by
// --yes, and by --yes=NAME on a protected context. It returns nil if the command may continue.
func (c *Call) Confirm(question, name string) error {
	s, err := c.Server()
	if err != nil {
		return err
	}
	switch {
	case s.Protect && c.Yes == name:
		return nil
	case s.Protect:
		return command.Usagef(c.Command, "the context %q is protected: repeat the command with --yes=%s", s.Name, shell.Quote(name))
	case c.Yes == "true" || c.Yes == name:
		return nil
	case c.Yes != "":
		return command.Usagef(c.Command, "--yes=%s does not name %s", c.Yes, name)
	case !c.Terminal:
		return command.Usagef(c.Command, "without a terminal this needs --yes; --dry-run shows the effect")
	}
	fmt.Fprintf(c.Err, "%s [y/N] ", question)
	var answer string
	if _, err := fmt.Fscanln(c.In, &answer); err != nil && !errors.Is(err, io.EOF) && err.Error() != "unexpected newline" {
		return err
	}
	if answer != "y" && answer != "yes" {
		return errors.New("not done")
	}
	return nil
}
