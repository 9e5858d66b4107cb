package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/cmd/internal/declare"
	"github.com/tidegate/tidegate/cmd/internal/output"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// maxAPIResponse bounds the response of api in bytes.
const maxAPIResponse = 1 << 30

func newAPI(a *App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "api", GroupID: operateGroup,
		Short: "Make any request of the HTTP API, with the credentials of the context",
		Long: `Makes a request of the HTTP API with the credentials of the context, and prints
the response. The body is an argument, - for standard input, or @FILE. The API is
described by GET /v1/openapi.yaml.`,
		Example: `  tidegate api GET /v1/topics
  tidegate api PUT /v1/topics/invoices '{"type":"FIFO"}'
  tidegate api GET '/v1/topics?limit=10'`,
	}
	return a.Leaf(cmd, []string{"METHOD", "PATH", "[BODY]"}, func(ctx context.Context, c *Call) error {
		r, err := apiRequest(c)
		if err != nil {
			return c.Usage(err)
		}
		s, err := c.Server()
		if err != nil {
			return err
		}
		client, err := s.Raw(ctx)
		if errors.Is(err, errNoHTTP) {
			return c.Unsupported()
		}
		if err != nil {
			return err
		}
		defer client.Close()
		var body []byte
		r.Out, r.Timeout, r.MaxResponse = &body, c.Timeout, maxAPIResponse
		if err := client.Do(ctx, r, func(httpapi.Attempt) (time.Duration, bool) { return 0, false }); err != nil {
			return err
		}
		_, err = c.Out.Write(body)
		return err
	})
}

func apiRequest(c *Call) (*httpapi.Request, error) {
	method := strings.ToUpper(c.Args[0])
	if !slices.Contains([]string{"GET", "PUT", "POST", "PATCH", "DELETE"}, method) {
		return nil, errors.New("the methods are GET, PUT, POST, PATCH and DELETE")
	}
	path, query, _ := strings.Cut(c.Args[1], "?")
	if !strings.HasPrefix(path, "/") {
		return nil, errors.New("PATH begins with /, as in /v1/topics")
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, err
	}
	r := &httpapi.Request{Op: "api " + method, Subject: path, Method: method, Path: path, Query: values, Reads: method == "GET"}
	if len(c.Args) < 3 {
		return r, nil
	}
	text := []byte(c.Args[2])
	switch file, isFile := strings.CutPrefix(c.Args[2], "@"); {
	case isFile:
		text, err = os.ReadFile(file)
	case c.Args[2] == "-":
		text, err = io.ReadAll(c.In)
	}
	if err == nil {
		if err = declare.JSON(text, new(any)); err != nil {
			err = fmt.Errorf("the body: %w", err)
		}
	}
	r.Body = json.RawMessage(text)
	return r, err
}

// An audit has the flags of audit.
type audit struct {
	status.AuditQuery
	since string
}

func newAudit(a *App) *cobra.Command {
	q := &audit{}
	c := &cobra.Command{
		Use: "audit", GroupID: operateGroup,
		Short: "List changes of settings, and removed or moved messages, over HTTP, with their principals",
		Long: `Lists the operations over HTTP that changed settings, copied data, or removed or
moved messages, the newest first, with those that failed. The broker keeps the latest
10 000 in memory; its log has the earlier ones. It needs a key that may administer
the whole broker.`,
		Example: `  tidegate audit --limit 20
  tidegate audit --since -24h --subject orders
  tidegate audit --operation purgeTopic -o json`,
	}
	a.Leaf(c, nil, asking(q.run))
	f := c.Flags()
	f.StringVar(&q.since, "since", "", "only from this `time` on, for example -1h")
	f.StringVar(&q.Key, "key", "", "only of this access `key`")
	f.StringVar(&q.Subject, "subject", "", "only of this `subject`: a topic, a group, an address pattern, or broker")
	f.StringVar(&q.Operation, "operation", "", "only this `operation`, by its operationId in the API's description")
	return c
}

func (q *audit) run(ctx context.Context, c *Call, client *admin.Client) (err error) {
	if q.Since, err = c.time("since", q.since); err != nil {
		return err
	}
	var records []status.AuditRecord
	q.Limit = 1000
	err = httpapi.Pages(q.After, func(after string) (string, error) {
		q.After = after
		page, err := client.Audit(ctx, q.AuditQuery)
		if records = append(records, page.Records...); c.enough(len(records)) {
			page.Next = ""
		}
		return page.Next, err
	})
	if err != nil {
		return err
	}
	return printList(c, output.List[status.AuditRecord]{
		Rows: records, Columns: auditColumns,
		Name:     func(r status.AuditRecord) string { return r.Subject },
		Document: func(rs []status.AuditRecord) any { return status.AuditPage{Records: notNil(rs)} },
		Empty:    "no changes that the flags select since the broker was started",
	})
}
