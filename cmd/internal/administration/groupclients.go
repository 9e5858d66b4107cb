package administration

import (
	"context"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// groupClients returns the connected consumers of a group.
func groupClients(ctx context.Context, client *admin.Client, group string) (all status.ClientPage, err error) {
	q := status.ClientQuery{Group: group, Limit: 1000}
	for at := (httpapi.Cursor{}); ; {
		q.After = at.After
		page, err := client.Clients(ctx, q)
		if err != nil {
			return all, err
		}
		page.Clients = append(all.Clients, page.Clients...)
		all = page
		if more, err := at.Advance(page.Next); !more {
			return all, err
		}
	}
}

func clientTable(c *call.Call, page *status.ClientPage) error {
	return call.PrintTable(c, output.List[status.Client]{Rows: page.Clients, Columns: view.ClientColumns(page.AsOf), Empty: "No consumer of the group is connected."})
}
