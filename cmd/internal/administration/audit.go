package administration

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/command"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/cmd/internal/view"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// An audit has the flags of audit.
type audit struct {
	status.AuditQuery
	since string
}

func newAudit(a *call.App) *cobra.Command {
	q := &audit{}
	c := &cobra.Command{
		Use: "audit", GroupID: call.OperateGroup,
		Short: "List changes of settings, and removed or moved messages, over HTTP, with their principals",
		Long: `Lists the operations over HTTP that changed settings, copied data, or removed or
moved messages, the newest first, with those that failed. The broker keeps the latest
10 000 in memory; its log has the earlier ones. It needs a key that may administer
the whole broker.`,
		Example: `  tidegate audit --limit 20
  tidegate audit --since -24h --subject orders
  tidegate audit --operation purgeTopic -o json`,
	}
	a.Leaf(c, nil, q.run)
	f := c.Flags()
	f.StringVar(&q.since, "since", "", "only from this `time` on, for example -1h")
	f.StringVar(&q.Key, "key", "", "only of this access `key`")
	f.StringVar(&q.Subject, "subject", "", "only of this `subject`: a topic, a group, an address pattern, or broker")
	f.StringVar(&q.Operation, "operation", "", "only this `operation`, by its operationId in the API's description")
	return c
}

func (q *audit) run(ctx context.Context, c *call.Call) error {
	if q.since != "" {
		at, err := output.ParseTime(q.since, time.Now())
		if err != nil {
			return command.Usagef(c.Command, "--since: %v", err)
		}
		q.Since = at
	}
	client, err := c.Admin(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := c.Bounded(ctx)
	defer cancel()
	var records []status.AuditRecord
	q.Limit = 1000
	for at := (httpapi.Cursor{After: q.After}); ; {
		q.After = at.After
		page, err := client.Audit(ctx, q.AuditQuery)
		if err != nil {
			return err
		}
		records = append(records, page.Records...)
		more, err := at.Advance(page.Next)
		if err != nil {
			return err
		}
		if enough := c.Limit > 0 && len(records) > c.Limit && c.Sort == ""; enough || !more {
			break
		}
	}
	return call.PrintList(c, output.List[status.AuditRecord]{
		Rows: records, Columns: view.AuditColumns,
		Name:     func(r status.AuditRecord) string { return r.Subject },
		Document: func(rs []status.AuditRecord) any { return status.AuditPage{Records: call.NotNil(rs)} },
		Empty:    "no changes that the flags select since the broker was started",
	})
}
