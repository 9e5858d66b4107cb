package administration

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// A listing has the flags of a list of topics or groups. S is the summary of one.
type listing[S any] struct {
	admin.ListQuery
	top    int
	by     string
	states []string // values of --state
	orders []string // values of --by
	page   func(ctx context.Context, c *admin.Client, q admin.ListQuery) ([]S, string, error)
}

func (l *listing[S]) register(c *cobra.Command) {
	call.MatchFlag(c, &l.Match)
	f := c.Flags()
	f.StringVar(&l.State, "state", "", "only in this `state`: "+strings.Join(l.states, ", "))
	f.IntVar(&l.top, "top", 0, "only the `N` with the highest values of --by")
	f.StringVar(&l.by, "by", "backlog", "`order` of --top: "+strings.Join(l.orders, ", "))
}

func (l *listing[S]) check(c *call.Call) error {
	switch {
	case l.State != "" && !slices.Contains(l.states, l.State):
		return command.Usagef(c.Command, "--state is %q; the states are %s", l.State, strings.Join(l.states, ", "))
	case !slices.Contains(l.orders, l.by):
		return command.Usagef(c.Command, "--by is %q; the orders are %s", l.by, strings.Join(l.orders, ", "))
	case l.top < 0:
		return command.Usagef(c.Command, "--top is %d; it must not be negative", l.top)
	case l.top == 0 && c.Command.Flags().Changed("by"):
		return command.Usagef(c.Command, "--by belongs to --top N; --sort sorts the rows by a column")
	}
	if _, err := output.Glob(l.Match); err != nil {
		return c.Usage(err)
	}
	return nil
}

// read returns the summaries that the flags select and keep accepts, in the order of the broker.
func (l *listing[S]) read(ctx context.Context, c *call.Call, keep func(S) bool) ([]S, error) {
	if err := l.check(c); err != nil {
		return nil, err
	}
	client, err := c.Admin(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.Bounded(ctx)
	defer cancel()
	var rows []S
	q := l.ListQuery
	if l.top > 0 {
		q.Sort = "-" + l.by
	}
	q.Limit = 1000
	for at := (httpapi.Cursor{After: q.After}); ; {
		q.After = at.After
		page, next, err := l.page(ctx, client, q)
		if err != nil {
			return nil, err
		}
		for _, s := range page {
			if keep(s) {
				rows = append(rows, s)
			}
			if l.top > 0 && len(rows) == l.top {
				return rows, nil
			}
		}
		if more, err := at.Advance(next); !more {
			return rows, err
		}
	}
}
