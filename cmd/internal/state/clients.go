package state

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// A clientList has the flags of clients list.
type clientList struct{ status.ClientQuery }

func newClients(a *call.App) *cobra.Command {
	return call.Parent(call.SeeGroup, "clients", "Show the connected clients", "  tidegate clients list --group billing", newClientList(a))
}

func newClientList(a *call.App) *cobra.Command {
	q := &clientList{}
	c := &cobra.Command{
		Use:   "list",
		Short: "List the connected clients, with their versions",
		Long: `Lists the clients with an open stream or a waiting receive, and those that were
silent for less than two minutes. WAITING are receives that wait, FLIGHT deliveries
that the client has received and not settled. SEEN is the time since its last request.
Programs that only send over HTTP are not among them. -o wide has the access key,
the filters of consumers, the address, the machine, and whether another client of the
same language is newer. Give all consumers of a group the same filter: if the filter
of the consumer that receives a message does not match it, the message is skipped for
the whole group.`,
		Example: `  tidegate clients list
  tidegate clients list --group billing -o wide
  tidegate clients list --outdated -o json`,
		Annotations: map[string]string{call.MQAdmin: "consumerConnection -g GROUP"},
	}
	a.Leaf(c, nil, q.run)
	f := c.Flags()
	f.StringVar(&q.Match, "match", "", "only IDs like this `pattern`, with *, ? and [a-z]")
	f.StringVar(&q.Group, "group", "", "only consumers of this `group`")
	f.StringVar(&q.Topic, "topic", "", "only clients that send to this `topic` or receive from it")
	f.StringVar(&q.Kind, "kind", "", "only this `kind`: producer, push_consumer, simple_consumer, http or consumer")
	f.StringVar(&q.Language, "language", "", "only clients in this `language`, such as GO")
	f.StringVar(&q.Version, "version", "", "only clients of this `version`")
	f.BoolVar(&q.Outdated, "outdated", false, "only clients with an older version than another client of the same language")
	f.DurationVar(&q.Idle, "idle", 0, "only clients that were silent for at least this long")
	return c
}

func (q *clientList) run(ctx context.Context, c *call.Call) error {
	if q.Idle < 0 {
		return command.Usagef(c.Command, "--idle is %v; it must not be negative", q.Idle)
	}
	client, err := c.Admin(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := c.Bounded(ctx)
	defer cancel()
	enough := 0
	if c.Sort == "" {
		enough = c.Limit
	}
	all, err := allClients(ctx, client, q.ClientQuery, enough)
	if err != nil {
		return err
	}
	return call.PrintList(c, output.List[status.Client]{
		Rows: all.Clients, Columns: view.ClientColumns(all.AsOf),
		Name: func(r status.Client) string { return r.ID },
		Document: func(shown []status.Client) any {
			all.Clients = call.NotNil(shown)
			return all
		},
		Empty: "no client that the flags select is connected",
	})
}

// allClients returns the pages of a query in one, until they have more than enough clients; zero
// means all.
func allClients(ctx context.Context, client *admin.Client, q status.ClientQuery, enough int) (status.ClientPage, error) {
	var all status.ClientPage
	q.Limit = 1000
	for at := (httpapi.Cursor{After: q.After}); ; {
		q.After = at.After
		page, err := client.Clients(ctx, q)
		if err != nil {
			return all, err
		}
		page.Clients = append(all.Clients, page.Clients...)
		all = page
		more, err := at.Advance(page.Next)
		if !more || enough > 0 && len(all.Clients) > enough {
			all.Next = ""
			return all, err
		}
	}
}
