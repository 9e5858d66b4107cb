package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/httpapi"
)

func newParked(a *App) *cobra.Command {
	return parent(failureGroup, "parked", "Show message groups that wait behind a failed message, and release parked ones", "  tidegate parked list ledger",
		newParkedList(a), newParkedRedrive(a))
}

func newParkedList(a *App) *cobra.Command {
	var topic, state string
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short: "List the message groups of a consumer group that wait behind a failed message",
		Long: `Lists the message groups of a consumer group that wait behind a failed message, with
its reason. The failed message of a parked message group waits for
'tidegate parked redrive'. That of a blocked one is retried without end
(on_exhausted=block): SINCE is empty, DUE is the next delivery or the end of the
present one, and REASON is that of the last failure since the start of the broker.
WAITING counts the messages of the message group, with the failed one.`,
		Example: `  tidegate parked list ledger
  tidegate parked list ledger --state blocked`,
	}
	a.Leaf(c, []string{"GROUP"}, func(ctx context.Context, c *Call) error {
		client, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		var all []status.ParkedGroup
		err = httpapi.Pages("", func(after string) (string, error) {
			ctx, cancel := c.Bounded(ctx)
			defer cancel()
			page, err := client.Parked(ctx, c.Args[0], status.ParkedQuery{Topic: topic, State: state, Limit: 1000, After: after})
			all = append(all, page.Groups...)
			return page.Next, err
		})
		if err != nil {
			return c.UnknownGroup(ctx, client, err)
		}
		return printList(c, output.List[status.ParkedGroup]{
			Rows: all,
			Columns: []output.Column[status.ParkedGroup]{
				{Name: "MESSAGE-GROUP", Cell: func(p status.ParkedGroup) any { return p.MessageGroup }},
				{Name: "TOPIC", Cell: func(p status.ParkedGroup) any { return p.Topic }},
				{Name: "STATE", Cell: func(p status.ParkedGroup) any { return p.State }},
				{Name: "WAITING", Cell: func(p status.ParkedGroup) any { return p.Messages }},
				{Name: "SINCE", Cell: func(p status.ParkedGroup) any { return p.Since }},
				{Name: "DUE", Cell: func(p status.ParkedGroup) any { return p.Due }},
				{Name: "ATTEMPTS", Cell: func(p status.ParkedGroup) any { return p.Attempts }},
				{Name: "FAILED-ID", Cell: func(p status.ParkedGroup) any { return p.MessageID }},
				{Name: "REASON", Cell: func(p status.ParkedGroup) any { return p.Reason }},
			},
			Document: func(ps []status.ParkedGroup) any { return status.ParkedPage{Groups: notNil(ps)} },
			Empty:    "no parked or blocked message groups of group " + output.Safe(c.Args[0]),
		})
	})
	c.Flags().StringVar(&topic, "topic", "", "only in this `topic`")
	c.Flags().StringVar(&state, "state", "", "only in this `state`: parked or blocked")
	return c
}

func newParkedRedrive(a *App) *cobra.Command {
	var s status.ParkedSelection
	cmd := &cobra.Command{
		Use:   "redrive",
		Short: "Release parked message groups: their failed message is delivered again first",
		Example: `  tidegate parked redrive ledger --topic pays --message-group account-7 --yes
  tidegate parked redrive ledger --topic pays --dead-letter --yes`,
	}
	c := a.Remote(cmd, []string{"GROUP"}, func(ctx context.Context, c *Call) error {
		client, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("the parked message groups of group %s", output.Safe(c.Args[0]))
		if s.MessageGroup != "" {
			what = fmt.Sprintf("message group %s of group %s", output.Safe(s.MessageGroup), output.Safe(c.Args[0]))
		}
		if c.DryRun {
			c.Note("would release %s; %s shows them", what, output.Mention(c.Here(output.Command("tidegate parked list", c.Args[0]))))
			return nil
		}
		if err := c.Confirm("release "+what+"?", c.Args[0]); err != nil {
			return err
		}
		ctx, cancel := c.Bounded(ctx)
		defer cancel()
		result, err := client.RedriveParked(ctx, c.Args[0], s)
		if err != nil {
			return c.UnknownGroup(ctx, client, err)
		}
		return c.Show(result, c.Args[0], []output.Field{
			{Name: "message groups", Value: result.MessageGroups},
			{Name: "messages", Value: result.Messages},
		})
	})
	f := cmd.Flags()
	f.StringVar(&s.Topic, "topic", "", "only in this `topic`")
	f.StringVar(&s.MessageGroup, "message-group", "", "only this message group; needs --topic")
	f.BoolVar(&s.DeadLetter, "dead-letter", false, "make the failed messages dead letters instead of delivering them again")
	c.NoLimit("--message-group selects one message group")
	return c.Destructive()
}
