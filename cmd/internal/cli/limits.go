package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/cmd/internal/output"
)

func newLimits(a *App) *cobra.Command {
	return parent(operateGroup, "limits", "Show and change the limits that throttle sends", "  tidegate limits show",
		newLimitsShow(a), newLimitsSet(a))
}

func newLimitsShow(a *App) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "show",
		Short: "Show the limits that reject sends now, with their values",
		Example: `  tidegate limits show
  tidegate limits show --all`,
	}
	a.Leaf(c, nil, asking(func(ctx context.Context, c *Call, client *admin.Client) error {
		state, err := client.Throttles(ctx)
		if err != nil {
			return err
		}
		rows := state.Throttles
		if all {
			rows = append(rows, state.NotReached...)
		}
		return printList(c, output.List[status.LimitState]{
			Rows: rows, Columns: limitColumns,
			Document: func([]status.LimitState) any { return state },
			Empty:    fmt.Sprintf("no limit is reached: sends are accepted; %d limits are set (--all)", len(state.NotReached)),
		})
	}))
	c.Flags().BoolVar(&all, "all", false, "also limits that are not reached")
	return c
}

func newLimitsSet(a *App) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Change limits of the whole broker; the others stay",
		Long: "Changes limits of the whole broker; the others stay. Topics and groups have further\nlimits ('tidegate topic set', 'tidegate group set').\n\n" +
			output.Wrap("The limits are "+declare.Help[settings.Limits]()+".", 80),
		Example: "  tidegate limits set max_backlog.messages=1000000 --yes",
	}
	c := a.Remote(cmd, []string{"[KEY=VALUE...]"}, func(ctx context.Context, c *Call) error {
		client, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		bounded, cancel := c.Bounded(ctx)
		defer cancel()
		state, err := client.Throttles(bounded)
		if err != nil {
			return err
		}
		wanted, patch, err := changed(c, state.Limits, file, c.Args)
		if err != nil {
			return err
		}
		if c.DryRun {
			return c.Diff("the broker", state.Limits, wanted)
		}
		if err := c.Confirm("change the limits of the whole broker?", "limits"); err != nil {
			return err
		}
		state, err = client.PatchLimits(bounded, patch)
		if err != nil {
			return err
		}
		return c.Show(state, "limits", settingFields(state.Limits))
	})
	cmd.Flags().StringVarP(&file, "file", "f", "", "JSON `file` with limits; arguments go before it")
	return c.Destructive()
}

func newAddress(a *App) *cobra.Command {
	return parent(operateGroup, "address", "Show and change address settings: settings of topics by pattern", "  tidegate address list",
		newAddressList(a), newAddressShow(a), newAddressTest(a), newAddressSet(a), newAddressDelete(a))
}

func newAddressList(a *App) *cobra.Command {
	return a.Leaf(&cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short:   "List the patterns with their settings",
		Example: "  tidegate address list",
	}, nil, asking(func(ctx context.Context, c *Call, client *admin.Client) error {
		list, err := client.AllAddressSettings(ctx)
		if err != nil {
			return err
		}
		return printList(c, output.List[status.Address]{
			Rows: list,
			Columns: []output.Column[status.Address]{
				{Name: "MATCH", Cell: func(s status.Address) any { return s.Match }},
				{Name: "SETTINGS", Least: 40, Cell: func(s status.Address) any { return joined(settingFields(s.Address)) }},
			},
			Document: func(l []status.Address) any { return map[string]any{"address_settings": notNil(l)} },
			Empty:    "no address settings: 'tidegate address set MATCH KEY=VALUE' adds some",
		})
	}))
}

func newAddressShow(a *App) *cobra.Command {
	return a.Leaf(&cobra.Command{
		Use:     "show",
		Short:   "Show the settings of one pattern",
		Example: "  tidegate address show 'orders.#'",
	}, []string{"MATCH"}, asking(func(ctx context.Context, c *Call, client *admin.Client) error {
		s, err := client.AddressSettings(ctx, c.Args[0])
		if err != nil {
			return err
		}
		return c.Show(s, s.Match, append([]output.Field{{Name: "match", Value: s.Match}}, settingFields(s.Address)...))
	}))
}

func newAddressTest(a *App) *cobra.Command {
	return a.Leaf(&cobra.Command{
		Use:     "test",
		Short:   "Show the settings in effect for a topic, and the patterns that match it",
		Example: "  tidegate address test orders.eu",
	}, []string{"TOPIC"}, asking(func(ctx context.Context, c *Call, client *admin.Client) error {
		s, err := client.TopicAddressSettings(ctx, c.Args[0])
		if err != nil {
			return err
		}
		fields := append([]output.Field{{Name: "topic", Value: s.Topic}, {Name: "matches", Value: s.Matches}}, settingFields(s.Address)...)
		return c.Show(s, s.Topic, fields)
	}))
}

func newAddressSet(a *App) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:     "set",
		Short:   "Change settings of a pattern; the others stay",
		Long:    "Changes settings of a pattern; the others stay. A pattern has words that are joined by '.';\n* is any word and # any words.\n\n" + output.Wrap("The settings are "+declare.Help[settings.Address]()+".", 80),
		Example: "  tidegate address set 'orders.#' max-delivery-attempts=5",
	}
	a.Leaf(c, []string{"MATCH", "[KEY=VALUE...]"}, asking(func(ctx context.Context, c *Call, client *admin.Client) error {
		before, err := client.AddressSettings(ctx, c.Args[0])
		if err != nil && !errors.Is(err, tidegate.ErrNotFound) {
			return err
		}
		wanted, _, err := changed(c, before.Address, file, c.Args[1:])
		if err != nil {
			return err
		}
		s, err := client.PutAddressSettings(ctx, c.Args[0], wanted)
		if err != nil {
			return err
		}
		return c.Show(s, s.Match, append([]output.Field{{Name: "match", Value: s.Match}}, settingFields(s.Address)...))
	}))
	c.Flags().StringVarP(&file, "file", "f", "", "JSON `file` with settings; arguments go before it")
	return c
}

func newAddressDelete(a *App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete", Aliases: []string{"rm"},
		Short:   "Remove the settings of a pattern",
		Example: "  tidegate address delete 'orders.#' --yes",
	}
	return newRemoval(a, cmd, "MATCH", func(ctx context.Context, c *Call, client *admin.Client) (removal, error) {
		s, err := client.AddressSettings(ctx, c.Args[0])
		if err != nil {
			return removal{}, err
		}
		what := "the address settings of " + s.Match
		return removal{what, nil, func(ctx context.Context) (string, any, error) {
			return "removed " + what, nil, client.DeleteAddressSettings(ctx, s.Match)
		}}, nil
	})
}
