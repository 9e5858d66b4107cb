package client

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/internal/console/front"
)

func (a *App) console() *cobra.Command {
	o := front.Options{Out: a.Out, Err: a.Err}
	cmd := &cobra.Command{
		Use: "console", GroupID: seeGroup, Short: "Serve the web console on this machine, for the broker of the context",
		Long: `Serves the web console on 127.0.0.1 until Ctrl-C and forwards its requests to the
broker of the context, with the credentials of the context. It also works if the
broker's own console is off. The printed link works once and for one browser.`,
		Example: "  tidegate console\n  tidegate console --read-only --open",
	}
	f := a.leaf(cmd, nil, func(ctx context.Context, c *call) error {
		api, err := c.admin(ctx)
		if err != nil {
			return err
		}
		bounded, cancel := c.bounded(ctx)
		err = api.Healthy(bounded)
		cancel()
		s, serverErr := c.server()
		if err = errors.Join(err, serverErr); err != nil {
			return err
		}
		broker, err := s.Raw(ctx)
		if err != nil {
			return err
		}
		defer broker.Close()
		o.Name, o.JSON = s.HTTP, c.json()
		return front.Run(ctx, broker, o)
	}).Flags()
	f.Uint16Var(&o.Port, "port", 0, "`port` of 127.0.0.1; 0 for a free one")
	f.BoolVar(&o.Open, "open", false, "open the console in the browser")
	f.BoolVar(&o.ReadOnly, "read-only", false, "forward only requests that change nothing")
	return cmd
}
