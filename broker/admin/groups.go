package admin

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
)

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
