package administration

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/internal/call"
)

// A removing function looks what would be removed, and returns a text about it and the removal.
type removing func(ctx context.Context, c *call.Call, client *admin.Client) (what string, do func(context.Context) (string, error), err error)

// newRemoval completes a command that removes the subject of its argument.
func newRemoval(a *call.App, cmd *cobra.Command, arg string, look removing) *cobra.Command {
	return a.Remote(cmd, []string{arg}, func(ctx context.Context, c *call.Call) error {
		client, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		bounded, cancel := c.Bounded(ctx)
		what, do, err := look(bounded, c, client)
		cancel()
		if err != nil {
			return err
		}
		if c.DryRun {
			c.Note("would remove %s", what)
			return nil
		}
		if err := c.Confirm(cmd.Name()+" "+what+"?", c.Args[0]); err != nil {
			return err
		}
		ctx, cancel = c.Bounded(ctx)
		defer cancel()
		done, err := do(ctx)
		if err == nil {
			c.Note("%s", done)
		}
		return err
	}).Destructive()
}
