package administration

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/internal/call"
)

// A removal is a request that removes a subject.
type removal struct {
	what    string // the subject, with its contents
	removes any    // the response that the request would have; nil if it has none
	do      func(context.Context) (done string, response any, err error)
}

// A removing function finds the subject to remove.
type removing func(ctx context.Context, c *call.Call, client *admin.Client) (removal, error)

// newRemoval completes a command that removes the subject of its argument.
func newRemoval(a *call.App, cmd *cobra.Command, arg string, look removing) *cobra.Command {
	return a.Remote(cmd, []string{arg}, func(ctx context.Context, c *call.Call) error {
		client, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		bounded, cancel := c.Bounded(ctx)
		r, err := look(bounded, c, client)
		cancel()
		if err != nil {
			return err
		}
		if c.DryRun {
			c.Note("would remove %s", r.what)
			return respond(c, r.removes)
		}
		if err := c.Confirm(cmd.Name()+" "+r.what+"?", c.Args[0]); err != nil {
			return err
		}
		ctx, cancel = c.Bounded(ctx)
		defer cancel()
		done, response, err := r.do(ctx)
		if err != nil {
			return err
		}
		c.Note("%s", done)
		return respond(c, response)
	}).Destructive()
}

// respond prints the response of a removal as JSON. A person has read it in the note.
func respond(c *call.Call, response any) error {
	if response == nil || !c.JSON() {
		return nil
	}
	return c.Show(response, "", nil)
}
