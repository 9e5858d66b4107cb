package state

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/internal/console/front"
)

func newConsole(a *call.App) *cobra.Command {
	o := front.Options{Out: a.Out, Err: a.Err}
	cmd := &cobra.Command{
		Use: "console", GroupID: call.SeeGroup, Short: "Serve the web console on this machine, for the broker of the context",
		Long: `Serves the web console on 127.0.0.1 until Ctrl-C and forwards its requests to the
broker of the context, with the credentials of the context. It also works if the
broker's own console is off. The printed link works once and for one browser.`,
		Example: "  tidegate console\n  tidegate console --read-only --open",
	}
	f := a.Leaf(cmd, nil, func(ctx context.Context, c *call.Call) error {
		api, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		bounded, cancel := c.Bounded(ctx)
		err = api.Healthy(bounded)
		cancel()
		s, serverErr := c.Server()
		if err = errors.Join(err, serverErr); err != nil {
			return err
		}
		broker, err := s.Raw(ctx)
		if err != nil {
			return err
		}
		defer broker.Close()
		o.Name, o.JSON = s.HTTP, c.JSON()
		return front.Run(ctx, broker, o)
	}).Flags()
	f.Uint16Var(&o.Port, "port", 0, "`port` of 127.0.0.1; 0 for a free one")
	f.BoolVar(&o.Open, "open", false, "open the console in the browser")
	f.BoolVar(&o.ReadOnly, "read-only", false, "forward only requests that change nothing")
	return cmd
}
