package admin

import (
	"context"
	"net/url"
	"strconv"
	"time"

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

// LiteTopics returns a page of the lite topics of a topic of type LITE.
func (c *Client) LiteTopics(ctx context.Context, topic string, q status.LiteTopicQuery) (status.LiteTopicPage, error) {
	v := url.Values{}
	set(v, "after", q.After)
	setLimit(v, q.Limit)
	return get[status.LiteTopicPage](ctx, c, "LiteTopics", topic, escaped("topics", topic, "lite-topics"), v)
}

// DeleteLiteTopic removes a lite topic and its messages. The error matches tidegate.ErrNotFound if
// there is none.
func (c *Client) DeleteLiteTopic(ctx context.Context, topic, name string) error {
	return c.remove(ctx, "DeleteLiteTopic", topic+"/"+name, escaped("topics", topic, "lite-topics", name))
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

// Groups returns all consumer groups, by name.
func (c *Client) Groups(ctx context.Context) ([]status.Group, error) {
	out, err := get[struct {
		Groups []status.Group `json:"groups"`
	}](ctx, c, "Groups", "", "/v1/groups", nil)
	return out.Groups, err
}

// Group returns one consumer group. The error matches tidegate.ErrNotFound if there is none.
func (c *Client) Group(ctx context.Context, name string) (status.Group, error) {
	return get[status.Group](ctx, c, "Group", name, escaped("groups", name), nil)
}

// PutGroup creates a consumer group, or replaces the settings of an existing one.
func (c *Client) PutGroup(ctx context.Context, name string, config settings.Group) (status.Group, error) {
	return put[status.Group](ctx, c, "PutGroup", name, escaped("groups", name), config)
}

// PatchGroup changes some settings of an existing consumer group. The JSON of patch is a merge
// patch (RFC 7396) of settings.Group: settings that it does not name stay as they are, and null
// means the default. patch can be a settings.Group, whose zero fields are not named, or a map. The
// error matches tidegate.ErrNotFound if there is no such group.
func (c *Client) PatchGroup(ctx context.Context, name string, patch any) (status.Group, error) {
	return call[status.Group](ctx, c, "PATCH", "PatchGroup", name, escaped("groups", name), patch)
}

// DeleteGroup deletes a consumer group; its dead letters stay. The error matches
// tidegate.ErrNotFound if there is none.
func (c *Client) DeleteGroup(ctx context.Context, name string) error {
	return c.remove(ctx, "DeleteGroup", name, escaped("groups", name))
}

type rewindRequest struct {
	Topic   string           `json:"topic"`
	To      string           `json:"to,omitempty"`
	Offsets map[string]int64 `json:"offsets,omitempty"`
	DryRun  bool             `json:"dry_run,omitempty"`
}

// Rewind moves a group to another position of a topic, backward or forward. The group loses its
// unfinished messages in the moved queues: their receipt handles become invalid, and their attempts
// count from 1 again. Dead letters stay.
func (c *Client) Rewind(ctx context.Context, group, topic string, to status.Position) ([]status.QueueRewind, error) {
	return c.rewind(ctx, "Rewind", group, rewindRequest{Topic: topic}, to)
}

// PlanRewind returns the result that Rewind would have, and changes nothing. The error matches
// tidegate.ErrNotFound if the group has not received from the topic.
func (c *Client) PlanRewind(ctx context.Context, group, topic string, to status.Position) ([]status.QueueRewind, error) {
	return c.rewind(ctx, "PlanRewind", group, rewindRequest{Topic: topic, DryRun: true}, to)
}

// GroupQueues returns a page of the progress of a group in a topic, by queue number. An empty after
// means the first page, and a limit of 0 means 100.
func (c *Client) GroupQueues(ctx context.Context, group, topic, after string, limit int) (status.GroupQueuePage, error) {
	v := url.Values{}
	set(v, "after", after)
	setLimit(v, limit)
	return get[status.GroupQueuePage](ctx, c, "GroupQueues", group, escaped("groups", group, "topics", topic, "queues"), v)
}

func (c *Client) rewind(ctx context.Context, op, group string, r rewindRequest, to status.Position) ([]status.QueueRewind, error) {
	switch {
	case to.Earliest:
		r.To = "earliest"
	case to.Latest:
		r.To = "latest"
	case !to.Time.IsZero():
		r.To = to.Time.Format(time.RFC3339Nano)
	}
	for queue, offset := range to.Offsets {
		if r.Offsets == nil {
			r.Offsets = map[string]int64{}
		}
		r.Offsets[strconv.Itoa(queue)] = offset
	}
	out, err := post[struct {
		Queues []status.QueueRewind `json:"queues"`
	}](ctx, c, op, group, escaped("groups", group, "rewind"), r)
	return out.Queues, err
}

// GroupsPage is [Client.TopicsPage] for consumer groups.
func (c *Client) GroupsPage(ctx context.Context, after, match string, limit int) (page []status.Group, next string, err error) {
	out, err := get[struct {
		Groups []status.Group `json:"groups"`
		Next   string         `json:"next"`
	}](ctx, c, "GroupsPage", "", "/v1/groups", pageQuery(after, match, limit))
	return out.Groups, out.Next, err
}

// AllAddressSettings returns the settings of all patterns in order of precedence.
func (c *Client) AllAddressSettings(ctx context.Context) ([]status.Address, error) {
	out, err := get[struct {
		Settings []status.Address `json:"address_settings"`
	}](ctx, c, "AllAddressSettings", "", "/v1/address-settings", nil)
	return out.Settings, err
}

// AddressSettings returns the settings of a pattern. The error matches tidegate.ErrNotFound if
// there are none.
func (c *Client) AddressSettings(ctx context.Context, match string) (status.Address, error) {
	return get[status.Address](ctx, c, "AddressSettings", match, escaped("address-settings", match), nil)
}

// PutAddressSettings replaces the settings of a pattern. A pattern has words joined by dots; *
// matches one word, and # any number of words.
func (c *Client) PutAddressSettings(ctx context.Context, match string, s settings.Address) (status.Address, error) {
	return put[status.Address](ctx, c, "PutAddressSettings", match, escaped("address-settings", match), s)
}

// DeleteAddressSettings removes the settings of a pattern. The error matches tidegate.ErrNotFound
// if there are none.
func (c *Client) DeleteAddressSettings(ctx context.Context, match string) error {
	return c.remove(ctx, "DeleteAddressSettings", match, escaped("address-settings", match))
}

// TopicAddressSettings returns the settings in effect for a topic. The topic need not exist.
func (c *Client) TopicAddressSettings(ctx context.Context, topic string) (status.TopicAddress, error) {
	return get[status.TopicAddress](ctx, c, "TopicAddressSettings", topic, escaped("topics", topic, "address-settings"), nil)
}

// Throttles returns the limits that reject sends now, with their reasons, and the other limits.
func (c *Client) Throttles(ctx context.Context) (status.Throttles, error) {
	return get[status.Throttles](ctx, c, "Throttles", "", "/v1/throttle", nil)
}

// SetLimits replaces the limits of the whole broker. They survive a restart of the broker. A limit
// whose value in the broker's configuration changes later has the configured value.
func (c *Client) SetLimits(ctx context.Context, l settings.Limits) (status.Throttles, error) {
	return put[status.Throttles](ctx, c, "SetLimits", "", "/v1/throttle", l)
}

// PatchLimits changes some limits of the whole broker. The JSON of patch is a merge patch (RFC
// 7396) of settings.Limits: limits that it does not name stay as they are, and null means the
// default. patch can be a settings.Limits, whose zero limits are not named, or a map.
func (c *Client) PatchLimits(ctx context.Context, patch any) (status.Throttles, error) {
	return call[status.Throttles](ctx, c, "PATCH", "PatchLimits", "", "/v1/throttle", patch)
}
