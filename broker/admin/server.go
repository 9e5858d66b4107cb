package admin

import (
	"context"
	"iter"
	"net/url"
	"strconv"
	"time"

	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/httpapi"
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

// Messages returns a page of the stored messages of a topic, without delivering them. Contents, and
// filters by keys, properties and bodies, need the permission to receive from the topic. The error
// matches tidegate.ErrTopicNotFound if there is no such topic.
func (c *Client) Messages(ctx context.Context, topic string, q status.MessageQuery) (status.MessagePage, error) {
	v := url.Values{}
	set(v, "id", q.ID)
	set(v, "tag", q.Tag)
	set(v, "message_group", q.MessageGroup)
	set(v, "key", q.Key)
	set(v, "contains", q.Contains)
	for name, value := range q.Properties {
		v.Add("property", name+"="+value)
	}
	if q.Queue != nil {
		v.Set("queue", strconv.Itoa(*q.Queue))
	}
	if q.Offset != nil {
		v.Set("offset", strconv.FormatInt(*q.Offset, 10))
	}
	moment(v, "since", q.Since)
	moment(v, "before", q.Before)
	if q.Delayed {
		v.Set("state", "delayed")
	}
	if q.Newest {
		v.Set("order", "newest")
	}
	set(v, "after", q.After)
	setLimit(v, q.Limit)
	yes(v, "contents", q.Contents)
	yes(v, "text", q.Text)
	return get[status.MessagePage](ctx, c, "Messages", topic, escaped("topics", topic, "messages"), v)
}

// Trace returns the stored messages of a topic that have an ID, with their states in each group
// that the client may observe; a group selects one of them. It uses these fields of the query: ID,
// Since, Before, After, Limit, Contents and Text. Between since and before it reads a bounded
// number of messages; the last fields of the trace report how far it came. The error matches
// tidegate.ErrTopicNotFound if there is no such topic.
func (c *Client) Trace(ctx context.Context, topic, group string, q status.MessageQuery) (status.Trace, error) {
	v := url.Values{}
	set(v, "group", group)
	moment(v, "since", q.Since)
	moment(v, "before", q.Before)
	set(v, "after", q.After)
	setLimit(v, q.Limit)
	yes(v, "contents", q.Contents)
	yes(v, "text", q.Text)
	return get[status.Trace](ctx, c, "Trace", topic, escaped("topics", topic, "messages", q.ID), v)
}

// Parked returns a page of the parked and blocked message groups of a consumer group.
func (c *Client) Parked(ctx context.Context, group string, q status.ParkedQuery) (status.ParkedPage, error) {
	v := url.Values{}
	set(v, "topic", q.Topic)
	set(v, "state", q.State)
	set(v, "after", q.After)
	setLimit(v, q.Limit)
	return get[status.ParkedPage](ctx, c, "Parked", group, escaped("groups", group, "parked"), v)
}

// RedriveParked makes the messages of parked message groups ready again, in order. Their attempts
// count from 1 again.
func (c *Client) RedriveParked(ctx context.Context, group string, s status.ParkedSelection) (status.ParkedRedrive, error) {
	return post[status.ParkedRedrive](ctx, c, "RedriveParked", group, escaped("groups", group, "parked", "redrive"), s)
}

func set(v url.Values, key, value string) {
	if value != "" {
		v.Set(key, value)
	}
}

func setLimit(v url.Values, n int) {
	if n != 0 {
		v.Set("limit", strconv.Itoa(n))
	}
}

func moment(v url.Values, key string, t time.Time) {
	if !t.IsZero() {
		v.Set(key, t.Format(time.RFC3339Nano))
	}
}

func yes(v url.Values, key string, on bool) {
	if on {
		v.Set(key, "true")
	}
}

// DeadLetters returns a page of the dead letters of a group, without consuming them. The error
// matches tidegate.ErrNotFound if neither the group nor a dead letter of it exists.
func (c *Client) DeadLetters(ctx context.Context, group string, q status.DeadLetterQuery) (status.DeadLetterPage, error) {
	v := values(&q.DeadLetterFilter)
	set(v, "dead_letter_topic", q.In)
	set(v, "after", q.After)
	setLimit(v, q.Limit)
	yes(v, "bodies", q.Bodies)
	yes(v, "text", q.Text)
	order(v, q.Newest)
	return get[status.DeadLetterPage](ctx, c, "DeadLetters", group, escaped("groups", group, "dead-letters"), v)
}

// AllDeadLetters returns the dead letters of a group on all pages after q.After; q.Limit is the
// size of a page. It requests the next page when the loop reaches it. An error ends the sequence.
func (c *Client) AllDeadLetters(ctx context.Context, group string, q status.DeadLetterQuery) iter.Seq2[status.DeadLetter, error] {
	return func(yield func(status.DeadLetter, error) bool) {
		err := httpapi.Pages(q.After, func(after string) (string, error) {
			q.After = after
			page, err := c.DeadLetters(ctx, group, q)
			for _, d := range page.DeadLetters {
				if !yield(d, nil) {
					return "", nil
				}
			}
			return page.Next, err
		})
		if err != nil {
			yield(status.DeadLetter{}, err)
		}
	}
}

// Leases returns a page of the unfinished messages of a group in a topic. The error matches
// tidegate.ErrNotFound if there is no such group or topic, or if the group has not received from
// the topic.
func (c *Client) Leases(ctx context.Context, group, topic string, q status.LeaseQuery) (status.LeasePage, error) {
	v := url.Values{}
	set(v, "state", q.State)
	if q.ByDue {
		v.Set("sort", "due")
	}
	set(v, "after", q.After)
	setLimit(v, q.Limit)
	return get[status.LeasePage](ctx, c, "Leases", group, escaped("groups", group, "topics", topic, "leases"), v)
}

// Schedule returns when the retries of a group in a topic come, and when its leases end. The errors
// are those of Leases.
func (c *Client) Schedule(ctx context.Context, group, topic string) (status.Schedule, error) {
	return get[status.Schedule](ctx, c, "Schedule", group, escaped("groups", group, "topics", topic, "schedule"), nil)
}

// Failures returns a page of the latest failures of a group, the newest first. The error matches
// tidegate.ErrNotFound if there is no such group.
func (c *Client) Failures(ctx context.Context, group string, q status.FailureQuery) (status.FailurePage, error) {
	v := url.Values{}
	set(v, "topic", q.Topic)
	set(v, "after", q.After)
	setLimit(v, q.Limit)
	return get[status.FailurePage](ctx, c, "Failures", group, escaped("groups", group, "failures"), v)
}

// DeadLetterClasses returns a page of the classes of the dead letters of a group. The errors are
// those of DeadLetters.
func (c *Client) DeadLetterClasses(ctx context.Context, group string, q status.DeadLetterClassQuery) (status.DeadLetterClassPage, error) {
	v := url.Values{}
	set(v, "topic", q.Topic)
	set(v, "dead_letter_topic", q.In)
	set(v, "after", q.After)
	setLimit(v, q.Limit)
	return get[status.DeadLetterClassPage](ctx, c, "DeadLetterClasses", group, escaped("groups", group, "dead-letters", "classes"), v)
}

// CountDeadLetters counts the dead letters that a query selects. Limit and Bodies have no effect. A
// call looks at a bounded number of messages: add the counts until Next is empty. The errors are
// those of DeadLetters.
func (c *Client) CountDeadLetters(ctx context.Context, group string, q status.DeadLetterQuery) (status.DeadLetterCount, error) {
	v := values(&q.DeadLetterFilter)
	set(v, "dead_letter_topic", q.In)
	set(v, "after", q.After)
	order(v, q.Newest)
	yes(v, "count", true)
	return get[status.DeadLetterCount](ctx, c, "CountDeadLetters", group, escaped("groups", group, "dead-letters"), v)
}

func order(v url.Values, newest bool) {
	if newest {
		v.Set("order", "newest")
	}
}

// RedriveDeadLetters sends dead letters back to their topics, in the selected order. The broker
// appends each dead letter to the topic and removes it from the dead letters in one write, so
// neither a crash nor a repetition creates a duplicate. A throttle of the topic ends the call
// early: the result then has Throttle and Next. If nothing was sent back, the error matches
// tidegate.ErrThrottled instead.
func (c *Client) RedriveDeadLetters(ctx context.Context, group string, s status.DeadLetterSelection) (status.DeadLetterRedrive, error) {
	return post[status.DeadLetterRedrive](ctx, c, "RedriveDeadLetters", group, escaped("groups", group, "dead-letters", "redrive"), s)
}

// PurgeDeadLetters removes dead letters permanently, up to s.Limit of them. A zero filter selects
// all. A call whose response was lost is not repeated, because the repetition could remove more
// than s.Limit.
func (c *Client) PurgeDeadLetters(ctx context.Context, group string, s status.DeadLetterSelection) (status.DeadLetterPurge, error) {
	v := values(&s.DeadLetterFilter)
	yes(v, "all", len(v) == 0)
	set(v, "dead_letter_topic", s.In)
	set(v, "after", s.After)
	setLimit(v, s.Limit)
	order(v, s.Newest)
	yes(v, "dry_run", s.DryRun)
	set(v, "sent_as", s.SentAs)
	var out status.DeadLetterPurge
	err := c.do(ctx, httpapi.Request{
		Op: "PurgeDeadLetters", Subject: group, Method: "DELETE", Path: escaped("groups", group, "dead-letters"), Query: v, Out: &out,
	}, unlessAccepted)
	return out, err
}

func values(f *status.DeadLetterFilter) url.Values {
	v := url.Values{}
	set(v, "topic", f.Topic)
	for _, id := range f.MessageIDs {
		v.Add("message_id", id)
	}
	set(v, "reason", f.Reason)
	set(v, "fingerprint", f.Fingerprint)
	moment(v, "since", f.Since)
	moment(v, "before", f.Before)
	return v
}
