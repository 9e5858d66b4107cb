package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// A clientList has the flags of clients list.
type clientList struct{ status.ClientQuery }

func newClients(a *App) *cobra.Command {
	return parent(seeGroup, "clients", "Show the connected clients", "  tidegate clients list --group billing", newClientList(a))
}

func newClientList(a *App) *cobra.Command {
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
		Annotations: map[string]string{mqAdmin: "consumerConnection -g GROUP"},
	}
	a.Leaf(c, nil, asking(q.run))
	f := c.Flags()
	f.StringVar(&q.Match, "match", "", "only IDs like this `pattern`, with *, ? and [a-z]")
	f.StringVar(&q.Group, "group", "", "only consumers of this `group`")
	f.StringVar(&q.Topic, "topic", "", "only clients that send to this `topic` or receive from it")
	f.StringVar(&q.Kind, "kind", "", "only this `kind`: producer, push_consumer, simple_consumer, lite_push_consumer, http or consumer")
	f.StringVar(&q.Language, "language", "", "only clients in this `language`, such as GO")
	f.StringVar(&q.Version, "version", "", "only clients of this `version`")
	f.BoolVar(&q.Outdated, "outdated", false, "only clients with an older version than another client of the same language")
	f.DurationVar(&q.Idle, "idle", 0, "only clients that were silent for at least this long")
	return c
}

func (q *clientList) run(ctx context.Context, c *Call, client *admin.Client) error {
	if q.Idle < 0 {
		return usagef(c.Command, "--idle is %v; it must not be negative", q.Idle)
	}
	all, err := allClients(ctx, client, q.ClientQuery, c.enough)
	if err != nil {
		return err
	}
	return printList(c, output.List[status.Client]{
		Rows: all.Clients, Columns: clientColumns(all.AsOf),
		Document: func(shown []status.Client) any {
			all.Clients = notNil(shown)
			return all
		},
		Empty: "no client that the flags select is connected",
	})
}

// allClients returns the pages of a query in one, until they have enough clients; nil means all.
func allClients(ctx context.Context, client *admin.Client, q status.ClientQuery, enough func(clients int) bool) (all status.ClientPage, err error) {
	q.Limit = 1000
	err = httpapi.Pages(q.After, func(after string) (string, error) {
		q.After = after
		page, err := client.Clients(ctx, q)
		page.Clients = append(all.Clients, page.Clients...)
		all = page
		if enough != nil && enough(len(all.Clients)) {
			return "", err
		}
		return page.Next, err
	})
	all.Next = ""
	return all, err
}

// clientColumns returns the columns of clients list and top --clients. at is the time of the
// broker.
func clientColumns(at time.Time) []output.Column[status.Client] {
	return []output.Column[status.Client]{
		{Name: "ID", Cell: func(c status.Client) any { return c.ID }},
		{Name: "KEY", Wide: true, Cell: func(c status.Client) any { return cmp.Or(c.Key, "-") }},
		{Name: "KIND", Cell: func(c status.Client) any { return c.Kind }},
		{Name: "LANGUAGE", Cell: func(c status.Client) any { return cmp.Or(c.Language, "-") }},
		{Name: "VERSION", Cell: func(c status.Client) any { return cmp.Or(c.Version, "-") }},
		{Name: "OUTDATED", Wide: true, Cell: func(c status.Client) any { return map[bool]string{true: "yes", false: "no"}[c.Outdated] }},
		{Name: "GROUP", Cell: func(c status.Client) any { return cmp.Or(c.Group, "-") }},
		{Name: "TOPICS", Least: 40, Cell: func(c status.Client) any { return topicsOf(&c) }},
		{Name: "FILTERS", Wide: true, Least: 40, Cell: func(c status.Client) any { return filtersOf(&c) }},
		{Name: "SEEN", Cell: func(c status.Client) any { return max(at.Sub(c.LastSeen), 0) }},
		{Name: "SINCE", Wide: true, Cell: func(c status.Client) any { return c.Since }},
		{Name: "WAITING", Cell: func(c status.Client) any { return c.Waiting }},
		{Name: "FLIGHT", Cell: func(c status.Client) any { return c.Inflight }},
		{Name: "HOST", Wide: true, Cell: func(c status.Client) any { return cmp.Or(c.Host, "-") }},
		{Name: "ADDRESS", Wide: true, Cell: func(c status.Client) any { return cmp.Or(c.Address, "-") }},
	}
}

// topicsOf returns the first topics of a client, and the number of the others.
func topicsOf(c *status.Client) string {
	const most = 3
	shown := c.Topics[:min(len(c.Topics), most)]
	text := strings.Join(shown, ",")
	if more := len(c.Topics) - len(shown) + c.Hidden; more > 0 {
		text += fmt.Sprintf(" +%d", more)
	}
	return cmp.Or(strings.TrimSpace(text), "-")
}

// filtersOf returns the filters of a client with their topics.
func filtersOf(c *status.Client) string {
	var all []string
	for _, topic := range slices.Sorted(maps.Keys(c.Filters)) {
		all = append(all, topic+": "+c.Filters[topic])
	}
	return cmp.Or(strings.Join(all, "; "), "-")
}

// clientOrders are the values of --by for clients.
var clientOrders = map[string]func(x, y *status.Client) int{
	"inflight": func(x, y *status.Client) int { return cmp.Compare(y.Inflight, x.Inflight) },
	"waiting":  func(x, y *status.Client) int { return cmp.Compare(y.Waiting, x.Waiting) },
	"idle":     func(x, y *status.Client) int { return x.LastSeen.Compare(y.LastSeen) },
}

// sortClients orders clients by inflight, waiting or idle, the largest first.
func sortClients(rows []status.Client, by string, reverse bool) error {
	order := clientOrders[by]
	if order == nil {
		return fmt.Errorf("--by is %q; with --clients it is one of inflight, waiting, idle", by)
	}
	slices.SortStableFunc(rows, func(x, y status.Client) int {
		n := order(&x, &y)
		if reverse {
			n = -n
		}
		return cmp.Or(n, cmp.Compare(x.ID, y.ID))
	})
	return nil
}

// A clientFrame is the content of a screen of top --clients.
type clientFrame struct {
	At       time.Time              `json:"time"`
	Interval string                 `json:"interval"`
	Total    int                    `json:"total"`
	Versions []status.ClientVersion `json:"versions"`
	Clients  []status.Client        `json:"clients"`
}

// A clientScreen is the whole screen of top --clients.
type clientScreen struct {
	screenState
	Frame clientFrame
	By    string
}

// Write writes the lines of the screen, at most height lines of at most width columns.
func (s *clientScreen) Write(w io.Writer, o output.Options) error {
	var inflight, waiting int64
	for i := range s.Frame.Clients {
		inflight, waiting = inflight+s.Frame.Clients[i].Inflight, waiting+s.Frame.Clients[i].Waiting
	}
	screen := s.begin(s.Frame.At, s.Frame.Interval, &o)
	screen.prose("%s; in flight %s, waiting receives %s", output.Count(int64(s.Frame.Total), "client"), output.Number(inflight), output.Number(waiting))
	screen.prose("versions: %s", versions(s.Frame.Versions))
	screen.lines = append(screen.lines, "")
	list := output.List[status.Client]{Rows: s.Frame.Clients[:min(len(s.Frame.Clients), s.Height)], Columns: clientColumns(s.Frame.At)}
	table, err := list.Fit(o)
	if err != nil {
		return err
	}
	screen.rows(table, "no clients", s.Frame.Total, func(more string) string { return "by " + s.By + more }, "p pause  q quit")
	return screen.write(w)
}

// versions lists versions with their clients: "GO 5.1.4 (12), JAVA 5.0.4 (1, outdated)".
func versions(list []status.ClientVersion) string {
	var parts []string
	for _, v := range list {
		note := ""
		if v.Outdated {
			note = ", outdated"
		}
		parts = append(parts, fmt.Sprintf("%s %s (%s%s)", output.Safe(v.Language), output.Safe(v.Version), output.Number(v.Clients).Grouped(), note))
	}
	return cmp.Or(strings.Join(parts, ", "), "not known")
}
