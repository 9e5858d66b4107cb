package admin

import (
	"context"
	"net/url"

	"github.com/tidegate/tidegate/broker/status"
)

// Healthy returns nil if the process of the broker runs and responds.
func (c *Client) Healthy(ctx context.Context) error {
	_, err := get[struct{}](ctx, c, "Healthy", "", "/healthz", nil)
	return err
}

// Ready returns nil if the broker's store works and the broker accepts requests, and otherwise an
// error with the reason. A throttle or a full disk is not an error.
func (c *Client) Ready(ctx context.Context) error {
	_, err := get[struct{}](ctx, c, "Ready", "", "/readyz", nil)
	return err
}

// Metrics returns the broker's metrics in the text format of Prometheus.
func (c *Client) Metrics(ctx context.Context) (string, error) {
	text, err := get[[]byte](ctx, c, "Metrics", "", "/metrics", nil)
	return string(text), err
}

// MetricTotals returns the broker's metrics with sums instead of the series of each topic and
// group, whose labels are "*". With thousands of topics it is far cheaper than Metrics.
func (c *Client) MetricTotals(ctx context.Context) (string, error) {
	text, err := get[[]byte](ctx, c, "MetricTotals", "", "/metrics", url.Values{"totals": {"only"}})
	return string(text), err
}

// Whoami returns the access key of the client with its permissions.
func (c *Client) Whoami(ctx context.Context) (status.Session, error) {
	return get[status.Session](ctx, c, "Whoami", "", "/v1/session", nil)
}

// Overview returns the state of the broker as a whole: totals, the highest backlogs, and the
// present problems. The broker computes it at most once a second for all clients.
func (c *Client) Overview(ctx context.Context) (status.Overview, error) {
	return get[status.Overview](ctx, c, "Overview", "", "/v1/overview", nil)
}

// Audit returns a page of the latest changes over HTTP, the newest first. It needs a key that may
// administer the whole broker.
func (c *Client) Audit(ctx context.Context, q status.AuditQuery) (status.AuditPage, error) {
	v := url.Values{}
	moment(v, "since", q.Since)
	set(v, "key", q.Key)
	set(v, "subject", q.Subject)
	set(v, "operation", q.Operation)
	set(v, "after", q.After)
	setLimit(v, q.Limit)
	return get[status.AuditPage](ctx, c, "Audit", "", "/v1/audit", v)
}

// Clients returns a page of the connected clients, by ID.
func (c *Client) Clients(ctx context.Context, q status.ClientQuery) (status.ClientPage, error) {
	v := url.Values{}
	for name, value := range map[string]string{
		"match": q.Match, "kind": q.Kind, "group": q.Group, "topic": q.Topic, "language": q.Language, "version": q.Version, "after": q.After,
	} {
		set(v, name, value)
	}
	if q.Outdated {
		v.Set("outdated", "true")
	}
	if q.Idle > 0 {
		v.Set("idle", q.Idle.String())
	}
	setLimit(v, q.Limit)
	return get[status.ClientPage](ctx, c, "Clients", "", "/v1/clients", v)
}

// OpenAPI returns the broker's description of its HTTP API, in YAML.
func (c *Client) OpenAPI(ctx context.Context) (string, error) {
	text, err := get[[]byte](ctx, c, "OpenAPI", "", "/v1/openapi.yaml", nil)
	return string(text), err
}

// Snapshot writes a consistent copy of the broker's data directory and returns its path on the
// broker's machine. It waits until the copy is on disk. A call whose response was lost is not
// repeated, because the repetition could write a second copy. The error is 40000 if the broker has
// no directory for snapshots.
func (c *Client) Snapshot(ctx context.Context) (path string, err error) {
	out, err := post[struct {
		Path string `json:"path"`
	}](ctx, c, "Snapshot", "", "/v1/snapshot", nil)
	return out.Path, err
}
