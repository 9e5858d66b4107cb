package administration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
)

func newGroups(a *call.App) *cobra.Command {
	return call.Parent(call.SeeGroup, "group", "Show, create, change, rewind and delete consumer groups", "  tidegate group list --lagging 1000",
		newGroupList(a), newGroupShow(a), newGroupLag(a), newGroupPut(a, "create"), newGroupPut(a, "set"), newGroupRewind(a), newGroupDelete(a))
}

// groupStates are the values of group list --state.
var groupStates = []string{"backlog", "behind", "retry", "parked", "dead", "idle"}

// A groupSelection has the flags of group list.
type groupSelection struct {
	admin.ListQuery
	lagging  int64
	stuck    time.Duration
	withDead bool
}

func newGroupList(a *call.App) *cobra.Command {
	var s groupSelection
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short: "List the consumer groups with their progress in each topic",
		Long: `Lists the consumer groups with their progress in each topic, as the broker counted
it within the last second. OLDEST is the age of the oldest message that the group
has not consumed. OUT/S is - if it is 0 or not known; the broker knows it if it was
asked in the last minute before.

The states are backlog (has messages), behind (a message has waited a minute for its
first delivery), retry (messages wait for a retry), parked, dead (dead letters in
the last hour) and idle (has messages that no consumer takes).`,
		Example: `  tidegate group list
  tidegate group list --lagging 1000 --sort -backlog
  tidegate group list --state idle --stuck 5m
  tidegate group list --with-dead`,
		Annotations: map[string]string{call.MQAdmin: "consumerProgress"},
	}
	a.Leaf(c, nil, s.list)
	call.MatchFlag(c, &s.Match)
	f := c.Flags()
	f.StringVar(&s.Topic, "topic", "", "only groups that receive from this `topic`")
	f.StringVar(&s.State, "state", "", "only in this `state`: "+strings.Join(groupStates, ", "))
	f.Int64Var(&s.lagging, "lagging", 0, "only with a backlog of at least `N` messages")
	f.DurationVar(&s.stuck, "stuck", 0, "only with a message that is not consumed after this `time`")
	f.BoolVar(&s.withDead, "with-dead", false, "only with dead letters in the last hour")
	return c
}

func (s *groupSelection) list(ctx context.Context, c *call.Call) error {
	if s.State != "" && !slices.Contains(groupStates, s.State) {
		return command.Usagef(c.Command, "--state is %q; the states are %s", s.State, strings.Join(groupStates, ", "))
	}
	if s.lagging < 0 || s.stuck < 0 {
		return command.Usagef(c.Command, "--lagging and --stuck must not be negative")
	}
	if _, err := output.Glob(s.Match); err != nil {
		return c.Usage(err)
	}
	client, err := c.Admin(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := c.Bounded(ctx)
	defer cancel()
	var rows []status.GroupSummary
	q := s.ListQuery
	for q.Limit = 1000; ; {
		page, next, err := client.GroupSummaries(ctx, q)
		if err != nil {
			return err
		}
		for _, g := range page {
			if g.Backlog.Messages >= s.lagging && g.OldestMS >= s.stuck.Milliseconds() && (!s.withDead || g.DeadLettersHour > 0) {
				rows = append(rows, g)
			}
		}
		if q.After = next; next == "" {
			break
		}
	}
	empty := "no consumer groups" + call.MatchNote(s.Match) + ": the first receive creates one, or 'tidegate group create NAME'"
	if s.Topic+s.State != "" || s.lagging > 0 || s.stuck > 0 || s.withDead {
		empty = "no consumer groups that the flags select"
	}
	return call.PrintList(c, output.List[status.GroupSummary]{
		Rows:     rows,
		Columns:  view.ListColumns,
		Name:     func(g status.GroupSummary) string { return g.Group },
		Document: func(shown []status.GroupSummary) any { return map[string]any{"groups": call.NotNil(shown)} },
		Empty:    empty,
	})
}

func newGroupShow(a *call.App) *cobra.Command {
	return a.Leaf(&cobra.Command{
		Use:         "show",
		Short:       "Show a consumer group's settings, retries and progress",
		Example:     "  tidegate group show billing",
		Annotations: map[string]string{call.MQAdmin: "consumerProgress -g GROUP"},
	}, []string{"GROUP"}, func(ctx context.Context, c *call.Call) error {
		client, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		ctx, cancel := c.Bounded(ctx)
		defer cancel()
		g, err := client.Group(ctx, c.Args[0])
		if err != nil {
			return c.UnknownGroup(ctx, client, err)
		}
		return showGroup(c, g)
	})
}

func showGroup(c *call.Call, g status.Group) error {
	fields := []output.Field{
		{Name: "group", Value: g.Name},
		{Name: "order", Value: map[bool]string{true: "FIFO, by message group", false: "none"}[g.FIFO]},
		{Name: "maximum attempts", Value: view.Attempts(g.WithDefaults().MaxAttempts)},
		{Name: "retries after", Value: view.Ladder(g.WithDefaults())},
	}
	if g.AutoCreated {
		fields = append(fields, output.Field{Name: "created", Value: "by a receive"})
	}
	fields = append(fields, view.SettingFields(g.Group, "fifo", "max_attempts", "retry")...)
	fields = append(fields, output.Field{Name: "dead letters in", Value: cmp.Or(strings.Join(g.DeadLetterTopics, ", "), "no topic yet")})
	if err := c.Show(g, g.Name, fields); err != nil || c.JSON() || c.Format.Format == output.Name {
		return err
	}
	var rows []view.Progress
	for _, s := range g.Topics {
		rows = append(rows, view.Progress{Group: g.Name, Subscription: s})
	}
	if len(rows) > 0 {
		fmt.Fprintln(c.Out)
	}
	return call.PrintList(c, output.List[view.Progress]{Rows: rows, Columns: view.GroupColumns[1:], Empty: "The group has not received from a topic yet."})
}

func newGroupPut(a *call.App, verb string) *cobra.Command {
	var file string
	var dryRun bool
	c := &cobra.Command{Use: verb, Annotations: map[string]string{call.MQAdmin: "updateSubGroup -g GROUP -c CLUSTER"}}
	if verb == "create" {
		c.Short = "Create a consumer group"
		c.Example = "  tidegate group create billing fifo=true max_attempts=5"
	} else {
		c.Short = "Change settings of a consumer group; the others stay"
		c.Example = "  tidegate group set billing 'retry=1s 10s 1m' max_attempts=8"
	}
	c.Long = c.Short + ".\n\n" + output.Wrap("The settings are "+declare.Help[settings.Group]()+".") + "\nDurations have units, as in 1h30m; retry is a list of them\nwith spaces between, in one argument. start is earliest or latest; on_exhausted is\ndead-letter, block or park (FIFO groups)."
	a.Leaf(c, []string{"GROUP", "[KEY=VALUE...]"}, func(ctx context.Context, c *call.Call) error {
		client, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		ctx, cancel := c.Bounded(ctx)
		defer cancel()
		name := c.Args[0]
		before, err := client.Group(ctx, name)
		switch missing := errors.Is(err, tidegate.ErrNotFound); {
		case err != nil && (!missing || verb == "set"):
			return c.UnknownGroup(ctx, client, err)
		case err == nil && verb == "create":
			return fmt.Errorf("group %q exists; change it with 'tidegate group set %s KEY=VALUE'", name, name)
		}
		wanted, patch, err := changed(c, before.Group, file, c.Args[1:])
		if err != nil {
			return err
		}
		if dryRun {
			return c.Diff(name, before.Group, wanted)
		}
		var g status.Group
		if verb == "create" {
			g, err = client.PutGroup(ctx, name, wanted)
		} else {
			g, err = client.PatchGroup(ctx, name, patch) // two operators can change different settings
		}
		if err != nil {
			return err
		}
		return showGroup(c, g)
	})
	c.Flags().StringVarP(&file, "file", "f", "", "JSON `file` with settings; arguments go before it")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "print the changes, and do nothing")
	return c
}

func newGroupRewind(a *call.App) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "rewind",
		Short: "Move a group to another position of a topic, backward or forward",
		Long: `Moves a group to another position of a topic. Messages between the old and the
new position are delivered again, or skipped. The group loses its unfinished
messages there: their receipt handles become invalid.`,
		Example: `  tidegate group rewind billing orders --to -1h --yes
  tidegate group rewind billing orders --to latest --yes`,
		Annotations: map[string]string{call.MQAdmin: "resetOffsetByTime -g GROUP -t TOPIC -s TIMESTAMP"},
	}
	c := a.Remote(cmd, []string{"GROUP", "TOPIC"}, func(ctx context.Context, c *call.Call) error {
		position, err := positionOf(to, time.Now())
		if err != nil {
			return c.Usage(err)
		}
		client, err := c.Admin(ctx)
		if err != nil {
			return err
		}
		group, topic := c.Args[0], c.Args[1]
		what := fmt.Sprintf("group %s in topic %s to %s", output.Safe(group), output.Safe(topic), to)
		if c.DryRun {
			c.Note("would rewind %s", what)
			return nil
		}
		if err := c.Confirm("rewind "+what+"?", group); err != nil {
			return err
		}
		ctx, cancel := c.Bounded(ctx)
		defer cancel()
		queues, err := client.Rewind(ctx, group, topic, position)
		if err != nil {
			return err
		}
		return call.PrintList(c, output.List[status.QueueRewind]{
			Rows: queues,
			Columns: []output.Column[status.QueueRewind]{
				{Name: "QUEUE", Cell: func(q status.QueueRewind) any { return q.Queue }},
				{Name: "FROM", Cell: func(q status.QueueRewind) any { return q.From }},
				{Name: "TO", Cell: func(q status.QueueRewind) any { return q.To }},
			},
			Name:     func(q status.QueueRewind) string { return fmt.Sprint(q.Queue) },
			Document: func(qs []status.QueueRewind) any { return map[string]any{"queues": call.NotNil(qs)} },
			Empty:    "the topic has no queue of this group",
		})
	})
	cmd.Flags().StringVar(&to, "to", "", "`position`: earliest, latest, a time (RFC 3339) or a duration before now (-1h)")
	return c.Destructive()
}

// positionOf reads the value of --to.
func positionOf(text string, now time.Time) (status.Position, error) {
	switch text {
	case "":
		return status.Position{}, errors.New("--to is missing: give earliest, latest, a time, or a duration before now as in -1h")
	case "earliest":
		return status.Position{Earliest: true}, nil
	case "latest":
		return status.Position{Latest: true}, nil
	}
	t, err := output.ParseTime(text, now)
	if err != nil {
		return status.Position{}, fmt.Errorf("--to %w, earliest or latest", err)
	}
	return status.Position{Time: t}, nil
}

func newGroupDelete(a *call.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete", Aliases: []string{"rm"},
		Short:       "Delete a consumer group; its dead letters stay",
		Example:     "  tidegate group delete billing --yes",
		Annotations: map[string]string{call.MQAdmin: "deleteSubGroup -g GROUP -c CLUSTER"},
	}
	return newRemoval(a, cmd, "GROUP", func(ctx context.Context, c *call.Call, client *admin.Client) (string, func(context.Context) (string, error), error) {
		g, err := client.Group(ctx, c.Args[0])
		if err != nil {
			return "", nil, c.UnknownGroup(ctx, client, err)
		}
		var backlog int64
		for _, s := range g.Topics {
			backlog += s.Backlog.Messages
		}
		what := fmt.Sprintf("group %s with a backlog of %s messages", g.Name, output.Number(backlog))
		return what, func(ctx context.Context) (string, error) { return "deleted " + what, client.DeleteGroup(ctx, g.Name) }, nil
	})
}
