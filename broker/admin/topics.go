package admin

import (
	"context"
	"net/url"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/httpapi"
)

// Topics returns all topics, by name.
func (c *Client) Topics(ctx context.Context) ([]status.Topic, error) {
	out, err := get[struct {
		Topics []status.Topic `json:"topics"`
	}](ctx, c, "Topics", "", "/v1/topics", nil)
	return out.Topics, err
}

// Topic returns one topic. The error matches tidegate.ErrTopicNotFound if there is none.
func (c *Client) Topic(ctx context.Context, name string) (status.Topic, error) {
	return get[status.Topic](ctx, c, "Topic", name, escaped("topics", name), nil)
}

// PutTopic creates a topic, or replaces the settings of an existing one.
func (c *Client) PutTopic(ctx context.Context, name string, config settings.Topic) (status.Topic, error) {
	return put[status.Topic](ctx, c, "PutTopic", name, escaped("topics", name), config)
}

// DeleteTopic deletes a topic and its messages. The error matches tidegate.ErrTopicNotFound if
// there is none.
func (c *Client) DeleteTopic(ctx context.Context, name string) error {
	return c.remove(ctx, "DeleteTopic", name, escaped("topics", name))
}

// PurgeTopic removes all messages of a topic, including in-flight, delayed and half messages. It
// returns their number.
func (c *Client) PurgeTopic(ctx context.Context, name string) (status.Backlog, error) {
	out, err := post[struct {
		Removed status.Backlog `json:"removed"`
	}](ctx, c, "PurgeTopic", name, escaped("topics", name, "purge"), nil)
	return out.Removed, err
}

// CountPurge returns the messages that PurgeTopic would remove, and changes nothing. The bytes are
// without those of half messages.
func (c *Client) CountPurge(ctx context.Context, name string) (status.Backlog, error) {
	var out struct {
		Removed status.Backlog `json:"removed"`
	}
	err := c.do(ctx, httpapi.Request{
		Op: "CountPurge", Subject: name, Method: "POST", Path: escaped("topics", name, "purge"), Query: url.Values{"dry_run": {"true"}}, Out: &out,
	}, always)
	return out.Removed, err
}

// Queues returns a page of the queues of a topic, by number. An empty after means the first page,
// and a limit of 0 means 100.
func (c *Client) Queues(ctx context.Context, topic, after string, limit int) (status.QueuePage, error) {
	v := url.Values{}
	set(v, "after", after)
	setLimit(v, limit)
	return get[status.QueuePage](ctx, c, "Queues", topic, escaped("topics", topic, "queues"), v)
}

// TopicsPage returns a page of the topics that the client may observe, by name: at most limit of
// those after a name whose names match a pattern with *, ? and [a-z]. Empty texts mean the first
// page and all names, and a limit of 0 means 100. next is the name for the following page, and
// empty after the last one.
func (c *Client) TopicsPage(ctx context.Context, after, match string, limit int) (page []status.Topic, next string, err error) {
	out, err := get[struct {
		Topics []status.Topic `json:"topics"`
		Next   string         `json:"next"`
	}](ctx, c, "TopicsPage", "", "/v1/topics", pageQuery(after, match, limit))
	return out.Topics, out.Next, err
}

// A ListQuery selects one page of the summaries of topics or groups. The zero value selects the
// first page of all.
type ListQuery struct {
	Match string // a pattern of names with *, ? and [a-z]
	Topic string // for groups: only those of this topic

	// State is "throttled", "backlog", "delayed" or "empty" for topics, and "backlog", "behind",
	// "retry", "parked", "dead" or "idle" for groups. Empty means all.
	State string

	// Sort is the order: "name" or a figure, with a - before it for the highest first, for example
	// "-backlog". GET /v1/openapi.yaml has the figures. Default: "name".
	Sort string

	After string // next of the previous page; empty means the first page
	Limit int    // at most 1000; 0 means 100
}

// TopicSummaries returns a page of the figures of topics that the client may observe. next is for
// After of the following page, and empty after the last one.
func (c *Client) TopicSummaries(ctx context.Context, q ListQuery) (page []status.TopicSummary, next string, err error) {
	out, err := get[struct {
		Topics []status.TopicSummary `json:"topics"`
		Next   string                `json:"next"`
	}](ctx, c, "TopicSummaries", "", "/v1/topics", summaryQuery(q))
	return out.Topics, out.Next, err
}

// GroupSummaries is TopicSummaries for groups, each in each of its topics.
func (c *Client) GroupSummaries(ctx context.Context, q ListQuery) (page []status.GroupSummary, next string, err error) {
	out, err := get[struct {
		Groups []status.GroupSummary `json:"groups"`
		Next   string                `json:"next"`
	}](ctx, c, "GroupSummaries", "", "/v1/groups", summaryQuery(q))
	return out.Groups, out.Next, err
}

func summaryQuery(q ListQuery) url.Values {
	v := url.Values{"view": {"summary"}}
	set(v, "match", q.Match)
	set(v, "topic", q.Topic)
	set(v, "state", q.State)
	set(v, "sort", q.Sort)
	set(v, "after", q.After)
	setLimit(v, q.Limit)
	return v
}

// pageQuery always has a parameter, because a request without one is for all names.
func pageQuery(after, match string, limit int) url.Values {
	v := url.Values{"after": {after}}
	set(v, "match", match)
	setLimit(v, limit)
	return v
}
