package administration

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
)

func newGroups(a *call.App) *cobra.Command {
	return call.Parent(call.SeeGroup, "group", "Show, create, change, rewind and delete consumer groups", "  tidegate group list --lagging 1000",
		newGroupList(a), newGroupShow(a), newGroupLag(a), newPut(a, groupSubject, "create"), newPut(a, groupSubject, "set"), newGroupRewind(a), newGroupDelete(a))
}

var groupSubject = &subject[settings.Group, status.Group]{
	noun: "consumer group", arg: "GROUP", mqadmin: "updateSubGroup -g GROUP -c CLUSTER",
	examples: map[string]string{
		"create": "  tidegate group create billing fifo=true max_attempts=5",
		"set":    "  tidegate group set billing 'retry=1s 10s 1m' max_attempts=8",
	},
	forms: `Durations have units, as in 1h30m; retry is a list of them
with spaces between, in one argument. start is earliest or latest; on_exhausted is
dead-letter, block or park (FIFO groups).`,
	get: func(ctx context.Context, c *admin.Client, name string) (status.Group, settings.Group, error) {
		g, err := c.Group(ctx, name)
		return g, g.Group, err
	},
	create: func(ctx context.Context, c *admin.Client, name string, s settings.Group) (status.Group, error) {
		return c.PutGroup(ctx, name, s)
	},
	set: func(ctx context.Context, c *admin.Client, before status.Group, _ settings.Group, patch map[string]any) (status.Group, error) {
		return c.PatchGroup(ctx, before.Name, patch) // two operators can change different settings
	},
	fixed:   func(_, _ settings.Group) error { return nil },
	show:    showGroup,
	unknown: (*call.Call).UnknownGroup,
}

// A groupSelection has the flags of group list.
type groupSelection struct {
	listing[status.GroupSummary]
	lagging  int64
	stuck    time.Duration
	withDead bool
}

func newGroupList(a *call.App) *cobra.Command {
	s := &groupSelection{listing: listing[status.GroupSummary]{
		states: []string{"backlog", "behind", "retry", "parked", "blocked", "held", "dead", "idle"},
		orders: []string{"backlog", "bytes", "age", "in", "out", "ready", "inflight", "retry", "parked", "blocked", "dead", "waiting", "clients"},
		page: func(ctx context.Context, c *admin.Client, q admin.ListQuery) ([]status.GroupSummary, string, error) {
			return c.GroupSummaries(ctx, q)
		},
	}}
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short: "List the consumer groups with their progress in each topic",
		Long: `Lists the consumer groups with their progress in each topic, as the broker counted
it within the last second. OLDEST is the age of the oldest message that the group
has not consumed. OUT/S is - if it is 0 or not known; the broker knows it if it was
asked in the last minute before.

The states are backlog (has messages), behind (a message has waited a minute for its
first delivery, or is as old as that and no consumer takes the ready ones), retry
(messages wait for a retry), parked, blocked (behind a message that is retried
without end), held (a client has held a message for a minute), dead (has dead
letters) and idle (has messages that no consumer takes). READY counts messages that
a receive can get: those of parked and blocked message groups are in PARKED and
BLOCKED. CLIENTS (-o wide) counts the clients of the group in all its topics, and FILTERED the
messages that the filter of the consumer skipped since the start of the broker.`,
		Example: `  tidegate group list
  tidegate group list --lagging 1000 --sort -backlog
  tidegate group list --state idle --stuck 5m
  tidegate group list --top 5 --by age
  tidegate group list --with-dead`,
		Annotations: map[string]string{call.MQAdmin: "consumerProgress"},
	}
	a.Leaf(c, nil, s.list)
	s.register(c)
	f := c.Flags()
	f.StringVar(&s.Topic, "topic", "", "only groups that receive from this `topic`")
	f.Int64Var(&s.lagging, "lagging", 0, "only with a backlog of at least `N` messages")
	f.DurationVar(&s.stuck, "stuck", 0, "only with a message that is not consumed after this `time`")
	f.BoolVar(&s.withDead, "with-dead", false, "only with dead letters")
	return c
}

func (s *groupSelection) list(ctx context.Context, c *call.Call) error {
	if s.lagging < 0 || s.stuck < 0 {
		return command.Usagef(c.Command, "--lagging and --stuck must not be negative")
	}
	rows, err := s.read(ctx, c, func(g status.GroupSummary) bool {
		return g.Backlog.Messages >= s.lagging && g.OldestMS >= s.stuck.Milliseconds() && (!s.withDead || g.DeadLettersStored > 0)
	})
	if err != nil {
		return err
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

func newGroupDelete(a *call.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete", Aliases: []string{"rm"},
		Short:       "Delete a consumer group; its dead letters stay",
		Example:     "  tidegate group delete billing --yes",
		Annotations: map[string]string{call.MQAdmin: "deleteSubGroup -g GROUP -c CLUSTER"},
	}
	return newRemoval(a, cmd, "GROUP", func(ctx context.Context, c *call.Call, client *admin.Client) (removal, error) {
		g, err := client.Group(ctx, c.Args[0])
		if err != nil {
			return removal{}, c.UnknownGroup(ctx, client, err)
		}
		var backlog int64
		for _, s := range g.Topics {
			backlog += s.Backlog.Messages
		}
		what := fmt.Sprintf("group %s with a backlog of %s messages", g.Name, output.Number(backlog))
		return removal{what, nil, func(ctx context.Context) (string, any, error) {
			return "deleted " + what, nil, client.DeleteGroup(ctx, g.Name)
		}}, nil
	})
}
